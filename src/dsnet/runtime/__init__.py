"""Dynamic inference that is really faster: on PyTorch, and as ONNX files."""

from dsnet.runtime.dynamic import DynamicRunner
from dsnet.runtime.onnx import OnnxRunner, export_bundle, export_onnx
from dsnet.runtime.onnx.bundle import is_artefact
from dsnet.runtime.runner import Runner

__all__ = ["DynamicRunner", "OnnxRunner", "Runner", "export_bundle", "export_onnx", "is_artefact"]
