"""Whatever dsnet wrote, ready to run."""

from __future__ import annotations

from pathlib import Path as File

from dsnet.checkpoint import load
from dsnet.runtime.dynamic import DynamicRunner
from dsnet.runtime.runner import Runner


def open_runner(where: str | File) -> Runner:
    """A runner for a run folder, an ONNX file or a bundle."""
    return DynamicRunner(load(where).eval())
