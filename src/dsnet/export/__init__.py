"""Writes networks as ONNX: one file, one path, or a bundle of parts."""
