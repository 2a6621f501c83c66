"""The scripts in benchmarks/, for tests of what they count."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks"


def benchmark(name: str) -> ModuleType:
    """A script as a module."""
    if str(FOLDER) not in sys.path:  # scripts import each other
        sys.path.append(str(FOLDER))
    return importlib.import_module(name)
