"""Resident memory of exported files, each opened in a process of its own.

python -m dsnet.bench.memory FILE [RUNTIME [DEVICE]]    prints seconds to open it, and bytes that it takes
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from dsnet.files import size_of
from dsnet.latency.measure import noise
from dsnet.opening import open_runner
from dsnet.results import Loaded
from dsnet.runtime.engine import give_back_memory


def loaded(artefact: str, where: Path, *on: str) -> Loaded:
    """Open a file or a bundle in another process, run every path once, and see what it takes. on: runtime, device."""
    command = [sys.executable, "-m", "dsnet.bench.memory", str(where), *on]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{where} could not be opened in another process: {done.stderr.strip()[-200:]}")
    seconds, resident = done.stdout.split()
    return Loaded(artefact, size_of(where), float(seconds), int(resident))


def taken(where: str, runtime: Any = "onnx", device: str = "cpu") -> tuple[float, int]:
    """Seconds to open a file or a bundle in this process, and the memory that it takes after a run of each path."""
    np.random.default_rng()  # or what draws the noise would count
    before, start = resident(), time.perf_counter()
    runner = open_runner(where, threads=1, runtime=runtime, device=device)
    took, image = time.perf_counter() - start, noise(runner.manifest, 1)
    for path in runner.paths if runner.manifest.pins else ():
        runner.run_path(image, path)
    give_back_memory()
    return took, resident() - before


def resident() -> int:
    """Resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0


if __name__ == "__main__":
    give_back_memory()
    print(*taken(*sys.argv[1:]))
