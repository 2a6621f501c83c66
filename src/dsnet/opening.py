"""Opens anything that dsnet wrote as a runner. Torch is imported for run folders only."""

from __future__ import annotations

from pathlib import Path

from dsnet.errors import import_heavy
from dsnet.runtime.onnx import is_artefact, open_onnx
from dsnet.runtime.runner import Runner


def open_runner(where: str | Path, *, threads: int = 0, eager: bool = False) -> Runner:
    """Open a run folder, an ONNX file or a bundle as a runner.

    threads: threads of ONNX Runtime; 0 uses all cores.
    eager: run the network of a run folder itself, slicing its weights at every call, instead of cached parts.
    """
    if is_artefact(where):
        return open_onnx(where, threads=threads)
    net = import_heavy("dsnet.tasks").load(where)
    models = import_heavy("dsnet.models")
    runner: Runner = models.eager(net) if eager else models.DynamicRunner(net.float())
    runner.place = str(where)
    return runner
