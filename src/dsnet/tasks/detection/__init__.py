"""Object detection: FSSD on a backbone whose width is chosen for each image."""
