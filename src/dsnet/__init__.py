"""Dynamic slimmable networks: one set of weights, many widths, the width chosen for each input."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsnet.version import __version__

if TYPE_CHECKING:
    from dsnet.checkpoint import load, save
    from dsnet.cost import CostTable
    from dsnet.extraction import extract
    from dsnet.models import create_model, list_models
    from dsnet.routing import policy_for, route
    from dsnet.runtime import DynamicRunner, OnnxRunner, export_bundle, export_onnx, open_runner

_ROOMS = {
    "CostTable": "dsnet.cost",
    "DynamicRunner": "dsnet.runtime",
    "OnnxRunner": "dsnet.runtime",
    "create_model": "dsnet.models",
    "export_bundle": "dsnet.runtime",
    "export_onnx": "dsnet.runtime",
    "extract": "dsnet.extraction",
    "list_models": "dsnet.models",
    "load": "dsnet.checkpoint",
    "open_runner": "dsnet.runtime",
    "policy_for": "dsnet.routing",
    "route": "dsnet.routing",
    "save": "dsnet.checkpoint",
}

__all__ = [
    "CostTable",
    "DynamicRunner",
    "OnnxRunner",
    "__version__",
    "create_model",
    "export_bundle",
    "export_onnx",
    "extract",
    "list_models",
    "load",
    "open_runner",
    "policy_for",
    "route",
    "save",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `dsnet --help` does not wait for torch."""
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    if name in ("nn", "models", "data", "routing", "runtime", "training"):
        return import_module(f"dsnet.{name}")
    raise AttributeError(f"module 'dsnet' has no attribute {name!r}")
