"""Runners: a network runs part by part, or as an ONNX file."""
