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

_ROOMS = {
    "CostTable": "dsnet.cost",
    "create_model": "dsnet.models",
    "extract": "dsnet.extraction",
    "list_models": "dsnet.models",
    "load": "dsnet.checkpoint",
    "policy_for": "dsnet.routing",
    "route": "dsnet.routing",
    "save": "dsnet.checkpoint",
}

__all__ = ["CostTable", "__version__", "create_model", "extract", "list_models", "load", "policy_for", "route", "save"]


def __getattr__(name: str) -> Any:
    """Import on first use, so that `dsnet --help` does not wait for torch."""
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    if name in ("nn", "models", "data", "routing", "training", "detection"):
        return import_module(f"dsnet.{name}")
    raise AttributeError(f"module 'dsnet' has no attribute {name!r}")
