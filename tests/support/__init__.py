"""What tests share: networks, data and runs. No test imports another test."""
