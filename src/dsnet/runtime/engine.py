"""What runs ONNX graphs: ONNX Runtime, or another engine that offers the same sessions."""

from __future__ import annotations

import ctypes
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import onnxruntime as ort

from dsnet.errors import CheckpointError
from dsnet.latency import cores
from dsnet.manifest import Manifest
from dsnet.routing.parts import as_array
from dsnet.schema import clipped, shortened


class Session(Protocol):
    """A loaded graph, as ONNX Runtime offers it."""

    def run(self, names: Sequence[str] | None, feed: Mapping[str, np.ndarray]) -> list[np.ndarray]: ...

    def get_inputs(self) -> list[Any]: ...

    def get_outputs(self) -> list[Any]: ...

    def get_modelmeta(self) -> Any: ...


class Engine(NamedTuple):
    """What runs ONNX graphs: its name with its version, and how it opens a file with a number of threads."""

    name: str
    open: Callable[[Path, int], Session]


DEVICES = re.compile(r"auto|cpu|mps|cuda(:\d{1,3})?")
CPU = "CPUExecutionProvider"
# What ONNX Runtime calls its code for a device; those behind the first run what the first cannot.
PROVIDERS = {"cuda": ("CUDA",), "mps": ("CoreML",), "tensorrt": ("Tensorrt", "CUDA"), "openvino": ("OpenVINO",)}


def device_name(name: str) -> str:
    """The name of a device, or an error if no device can have it."""
    if not DEVICES.fullmatch(name):
        raise ValueError(f"device {shortened(name)} is unknown; choose auto, cpu, cuda, cuda:N (a number) or mps")
    return name


def onnx_runtime(device: str = "cpu", *, provider: str | None = None) -> Engine:
    """ONNX Runtime on a device. If the installed package has no code for it, a warning says so, and the CPU runs.

    provider: tensorrt or openvino, in place of what ONNX Runtime has for the device itself.
    """
    name, _, index = device_name(device).partition(":")
    held = ort.get_available_providers()
    if name == "auto":
        name = "cuda" if "CUDAExecutionProvider" in held else "cpu"
    wanted = PROVIDERS.get(provider or name, ())
    found = [provider for provider in wanted if f"{provider}ExecutionProvider" in held]
    if found[:1] != list(wanted[:1]):
        used = found[0] if found else "the CPU"
        warnings.warn(
            f"ONNX Runtime {ort.__version__} is installed without {wanted[0]}, so {used} runs the network; packages "
            f"such as onnxruntime-gpu bring other devices",
            stacklevel=2,
        )
    if not found:
        return ONNX_RUNTIME

    def opened(file: Path, threads: int) -> ort.InferenceSession:
        providers = [(f"{name}ExecutionProvider", provider_options(name, index, threads)) for name in found]
        return open_session(file, threads, providers=[*providers, (CPU, {})])

    return Engine(f"{ONNX_RUNTIME.name} {found[0]}{f' {index}' if index else ''}", opened)


def provider_options(name: str, index: str, threads: int) -> dict[str, str]:
    """What ONNX Runtime's code for a device is told. OpenVINO has threads of its own."""
    if name == "OpenVINO":
        return {"device_type": "CPU", "precision": "FP32", "num_of_threads": str(threads or cores())}
    return {"device_id": index} if index else {}


def open_session(
    file: Path, threads: int = 0, *, providers: Sequence[tuple[str, Mapping[str, str]]] = ((CPU, {}),)
) -> ort.InferenceSession:
    """Open a session whose threads stop spinning at the end of each call.

    Otherwise sessions that take turns would block each other's cores. ONNX Runtime's process-wide thread pool avoids
    that too, but it spins while idle, and every session in the process that does not use it fails.
    """
    name, options = providers[0][0], ort.SessionOptions()
    options.log_severity_level = 4  # what goes wrong is raised
    if not threads and cores() < (os.cpu_count() or 1):  # it would take every core, also those of other processes
        threads = cores()
    options.intra_op_num_threads = threads
    # Two plans share memory between maps. The one that this turns off makes the other one worse, see docs/deploy.md.
    options.enable_mem_reuse = False
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist; give an ONNX file or a bundle that `dsnet export` wrote")
    try:
        session = ort.InferenceSession(str(file), options, providers=list(providers), enable_fallback=0)
    except Exception as error:  # ONNX Runtime raises about a dozen classes of errors
        reason = clipped(str(error).strip().splitlines()[0])
        if name == CPU:
            raise CheckpointError(f"{file} cannot be read as an ONNX file ({reason}); export it again") from error
        session = open_session(file, threads)
        warnings.warn(f"{name} cannot run {file}, so the CPU does ({clipped(reason, 100)})", stacklevel=2)
        return session
    give_back_memory()
    if name not in session.get_providers():
        warnings.warn(f"{name} cannot be loaded, so the CPU runs {file}; see whether its driver fits", stacklevel=2)
    return session


def give_back_memory() -> None:
    """Return freed memory to the system. ONNX Runtime frees half of what loading takes, and glibc would keep it."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


ONNX_RUNTIME = Engine(f"onnxruntime {ort.__version__}", open_session)


def run(session: Session, file: Path, names: Sequence[str], feed: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Run a graph. An error of the engine, such as that of a damaged graph, names the file."""
    try:
        return session.run(names, feed)
    except Exception as error:  # ONNX Runtime raises about a dozen classes of errors
        raise CheckpointError(f"{file} cannot be run ({clipped(str(error).strip(), 300)}); export it again") from error


def runtime_of(manifest: Manifest, engine: Engine | None = None) -> str:
    """The name of the runtime that runs a file or a bundle."""
    precision = "" if manifest.precision == "fp32" else f", {manifest.precision}"
    return f"{(engine or ONNX_RUNTIME).name}, {manifest.kind}{precision}"


def contiguous(x: Any) -> np.ndarray:
    return np.ascontiguousarray(as_array(x))
