"""What runs a network: by its parts, or as an ONNX file."""
