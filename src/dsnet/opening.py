"""Whatever dsnet wrote, ready to run."""

from __future__ import annotations

from pathlib import Path

from dsnet.runtime.dynamic import DynamicRunner
from dsnet.runtime.onnx.bundle import is_artefact
from dsnet.runtime.onnx.runner import OnnxRunner
from dsnet.runtime.runner import Runner
from dsnet.tasks import load


def open_runner(where: str | Path, *, threads: int = 0) -> Runner:
    """A runner for a run folder, an ONNX file or a bundle; `threads` are ONNX Runtime's, 0 takes all cores."""
    return (
        OnnxRunner(where, threads=threads)
        if is_artefact(where)
        else DynamicRunner(load(where, "classification").float())
    )
