"""The network as ONNX: writing files, running them."""

from dsnet.runtime.onnx.bundle import export_bundle
from dsnet.runtime.onnx.export import export_onnx
from dsnet.runtime.onnx.runner import OnnxRunner

__all__ = ["OnnxRunner", "export_bundle", "export_onnx"]
