"""The network as ONNX: writing files, running them."""

from dsnet.runtime.onnx.export import export_onnx

__all__ = ["export_onnx"]
