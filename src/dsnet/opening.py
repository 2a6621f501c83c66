"""Opens anything that dsnet wrote as a runner. Torch is imported for run folders only."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dsnet.errors import import_heavy
from dsnet.latency import measured_threads
from dsnet.runtime.engine import Engine, device_name, onnx_runtime
from dsnet.runtime.onnx import is_artefact, open_onnx
from dsnet.runtime.runner import Runner

RUNTIMES = ("onnx", "openvino", "openvino-bf16", "tensorrt")  # what runs ONNX files and bundles
Runtime = Literal["onnx", "openvino", "openvino-bf16", "tensorrt"]


def engine_of(runtime: str | None, device: str = "cpu") -> Engine:
    """The engine by its name; None stands for ONNX Runtime, which is always installed."""
    if runtime not in (None, *RUNTIMES):
        raise ValueError(f"runtime {runtime!r} is unknown; choose from {', '.join(RUNTIMES)}")
    kind, _, precision = (runtime or "onnx").partition("-")
    if kind != "openvino":
        return onnx_runtime(device, provider="tensorrt" if kind == "tensorrt" else None)
    from dsnet.runtime.openvino import FLOAT, engine

    if device_name(device) not in ("auto", "cpu"):
        raise ValueError(f"OpenVINO runs on the CPU here; leave the device {device} out, or take the runtime onnx")
    return engine(precision or FLOAT)


def open_runner(
    where: str | Path,
    *,
    threads: int = 0,
    eager: bool = False,
    runtime: Runtime | None = None,
    device: str = "cpu",
) -> Runner:
    """Open a run folder, an ONNX file or a bundle as a runner.

    threads: threads of the runtime; 0 uses all cores. For a run folder, it sets PyTorch's threads in this process.
    eager: run the network of a run folder itself, slicing its weights at every call, instead of cached parts.
    runtime: what runs a file or a bundle, ONNX Runtime by default. PyTorch runs run folders. openvino-bf16 computes in
        bfloat16, which is faster than openvino, but scores and some routes differ.
    device: auto, cpu, cuda, cuda:N or mps. Where ONNX Runtime is installed without code for it, the CPU runs a file,
        and a warning says so. The runner takes images from any device and answers where they came from.
    """
    if is_artefact(where):
        return open_onnx(where, threads=threads, engine=engine_of(runtime, device))
    engine_of(runtime)
    if runtime is not None:
        raise ValueError(f"{where} is no ONNX file and no bundle, so PyTorch runs it; leave the runtime {runtime} out")
    if threads:
        import_heavy("torch").set_num_threads(threads)
    net = import_heavy("dsnet.tasks").load(where, device=device)
    models = import_heavy("dsnet.models")
    runner: Runner = models.eager(net) if eager else models.DynamicRunner(net.float())
    runner.place = str(where)
    return runner


def open_timed(where: str | Path, *, threads: int = 0, runtime: Runtime | None = None, device: str = "cpu") -> Runner:
    """Open a runner for budgets in milliseconds, by default with the number of threads of its latency table."""
    runner = open_runner(where, threads=threads, runtime=runtime, device=device)
    measured = measured_threads(runner.setting())
    if threads or not measured or runner.threads in measured:
        return runner
    return open_runner(where, threads=measured[0], runtime=runtime, device=device)
