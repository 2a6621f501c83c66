"""Dynamic slimmable networks: one set of weights, many widths, the width chosen for each input."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dsnet.version import __version__

if TYPE_CHECKING:
    from dsnet.cost import CostTable
    from dsnet.extraction import extract
    from dsnet.hub import from_pretrained, push_to_hub, save_pretrained
    from dsnet.models import create_model, list_models
    from dsnet.opening import open_runner
    from dsnet.routing import policy_for, route
    from dsnet.runtime import DynamicRunner, OnnxRunner, export_bundle, export_onnx
    from dsnet.tasks import load, save
    from dsnet.weights.sorting import sort_channels

_ROOMS = {
    "CostTable": "dsnet.cost",
    "DynamicRunner": "dsnet.runtime",
    "OnnxRunner": "dsnet.runtime",
    "create_model": "dsnet.models",
    "export_bundle": "dsnet.runtime",
    "export_onnx": "dsnet.runtime",
    "extract": "dsnet.extraction",
    "from_pretrained": "dsnet.hub",
    "list_models": "dsnet.models",
    "load": "dsnet.tasks",
    "open_runner": "dsnet.opening",
    "policy_for": "dsnet.routing",
    "push_to_hub": "dsnet.hub",
    "route": "dsnet.routing",
    "save": "dsnet.tasks",
    "save_pretrained": "dsnet.hub",
    "sort_channels": "dsnet.weights.sorting",
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
    "from_pretrained",
    "list_models",
    "load",
    "open_runner",
    "policy_for",
    "push_to_hub",
    "route",
    "save",
    "save_pretrained",
    "sort_channels",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `dsnet --help` does not wait for torch."""
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    if name in ("nn", "models", "data", "routing", "runtime", "training", "tasks"):
        return import_module(f"dsnet.{name}")
    raise AttributeError(f"module 'dsnet' has no attribute {name!r}")
