"""Dynamic slimmable networks: one set of weights, many widths, the width chosen for each input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dsnet.errors import import_heavy
from dsnet.version import __version__

if TYPE_CHECKING:
    from dsnet.api import Run, evaluate, predict, train
    from dsnet.data.own import Datasets
    from dsnet.export.bundle import export_bundle
    from dsnet.export.int8 import quantisation
    from dsnet.export.onnx import export_onnx
    from dsnet.hub import from_pretrained, push_to_hub, save_pretrained
    from dsnet.models import DynamicRunner, count, extract, list_models, route
    from dsnet.opening import open_runner
    from dsnet.routing.tracking import BudgetTracker
    from dsnet.slimming.create import create_model
    from dsnet.slimming.network import slim
    from dsnet.tasks import load, save
    from dsnet.weights.sorting import sort_channels

_ROOMS = {
    "BudgetTracker": "dsnet.routing.tracking",
    "Datasets": "dsnet.data.own",
    "DynamicRunner": "dsnet.models",
    "Run": "dsnet.api",
    "count": "dsnet.models",
    "create_model": "dsnet.slimming.create",
    "evaluate": "dsnet.api",
    "export_bundle": "dsnet.export.bundle",
    "export_onnx": "dsnet.export.onnx",
    "extract": "dsnet.models",
    "from_pretrained": "dsnet.hub",
    "list_models": "dsnet.models",
    "load": "dsnet.tasks",
    "open_runner": "dsnet.opening",
    "predict": "dsnet.api",
    "push_to_hub": "dsnet.hub",
    "quantisation": "dsnet.export.int8",
    "route": "dsnet.models",
    "save": "dsnet.tasks",
    "save_pretrained": "dsnet.hub",
    "slim": "dsnet.slimming.network",
    "sort_channels": "dsnet.weights.sorting",
    "train": "dsnet.api",
}

__all__ = [
    "BudgetTracker",
    "Datasets",
    "DynamicRunner",
    "Run",
    "__version__",
    "count",
    "create_model",
    "evaluate",
    "export_bundle",
    "export_onnx",
    "extract",
    "from_pretrained",
    "list_models",
    "load",
    "open_runner",
    "predict",
    "push_to_hub",
    "quantisation",
    "route",
    "save",
    "save_pretrained",
    "slim",
    "sort_channels",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `dsnet --help` does not wait for torch."""
    if name in _ROOMS:
        return getattr(import_heavy(_ROOMS[name]), name)
    if name in ("nn", "models", "data", "routing", "runtime", "training", "tasks"):
        return import_heavy(f"dsnet.{name}")
    raise AttributeError(f"module 'dsnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
