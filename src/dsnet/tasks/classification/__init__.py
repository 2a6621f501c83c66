"""Image classification: one label for each image."""
