"""Timing. Candidates are interleaved, so that a disturbance of the machine affects all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from dsnet.results import Made, Times, made

Call = Callable[..., Any]
K = TypeVar("K")


def interleaved(
    calls: Mapping[K, Call], repeats: int, *, warmup: int = 2, inputs: Sequence[tuple[Any, ...]] = ((),)
) -> dict[K, list[float]]:
    """Time every call once per round, in a new random order each round, and return seconds.

    Each repeat has one round per entry of `inputs`. An untimed call precedes each timed one, because a network in use
    finds its own weights in the processor's cache rather than those of another candidate.
    """
    for call in calls.values():
        for _ in range(warmup):
            call(*inputs[0])
    times: dict[K, list[float]] = {key: [] for key in calls}
    order, rng = list(calls), random.Random(0)
    for _ in range(repeats):
        for given in inputs:
            rng.shuffle(order)
            for key in order:
                calls[key](*given)
                times[key].append(seconds(calls[key], *given))
    return times


def seconds(call: Call, *given: Any) -> float:
    """Time one call, with CUDA events if there is a GPU."""
    if torch.cuda.is_available():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(*given)
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3
    begun = time.perf_counter()
    call(*given)
    return time.perf_counter() - begun


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch threads temporarily."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ratio(times: Sequence[float], ideal: Sequence[float]) -> float:
    """Median ratio of a candidate's time to the ideal's in the same round. Slow phases of the machine cancel out."""
    return float(np.median(np.asarray(times) / np.asarray(ideal)))


def summary(times: Sequence[float]) -> Times:
    """Mean, median, 95th and 99th percentile in milliseconds."""
    ms = np.asarray(times) * 1e3
    return Times(float(ms.mean()), *(float(q) for q in np.quantile(ms, (0.5, 0.95, 0.99))))


def machine() -> Made:
    """The machine and the versions of the libraries that times were measured with."""
    import onnxruntime

    return made(torch=str(torch.__version__), onnxruntime=onnxruntime.__version__)


def resident() -> int:
    """Resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0
