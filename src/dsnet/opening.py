"""Opens anything that dsnet wrote as a runner. Torch is imported for run folders only."""

from __future__ import annotations

from pathlib import Path

from dsnet.errors import import_heavy
from dsnet.latency import measured_threads
from dsnet.runtime.onnx import is_artefact, open_onnx
from dsnet.runtime.runner import Runner


def open_runner(where: str | Path, *, threads: int = 0, eager: bool = False) -> Runner:
    """Open a run folder, an ONNX file or a bundle as a runner.

    threads: threads of the runtime; 0 uses all cores. For a run folder, it sets PyTorch's threads in this process.
    eager: run the network of a run folder itself, slicing its weights at every call, instead of cached parts.
    """
    if is_artefact(where):
        return open_onnx(where, threads=threads)
    if threads:
        import_heavy("torch").set_num_threads(threads)
    net = import_heavy("dsnet.tasks").load(where)
    models = import_heavy("dsnet.models")
    runner: Runner = models.eager(net) if eager else models.DynamicRunner(net.float())
    runner.place = str(where)
    return runner


def open_timed(where: str | Path, *, threads: int = 0) -> Runner:
    """Open a runner for budgets in milliseconds, by default with the number of threads of its latency table."""
    runner = open_runner(where, threads=threads)
    measured = measured_threads(runner.setting())
    return runner if threads or not measured or runner.threads in measured else open_runner(where, threads=measured[0])
