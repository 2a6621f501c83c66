"""Measuring: candidates are interleaved in one run, so that whatever disturbs the machine disturbs all of them."""

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
    """Seconds of every call, one of each per round, in a new order each time; inputs: each is a round of its own.

    Before the call that counts there is one that does not: a network in use finds its own weights in the processor's
    cache, not those of another candidate.
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
    """How long a call takes, by the GPU's own clock where there is one."""
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
    """Torch on this many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def ratio(times: Sequence[float], ideal: Sequence[float]) -> float:
    """Median over the rounds of a candidate's time relative to the ideal's in the same round: slow spells cancel."""
    return float(np.median(np.asarray(times) / np.asarray(ideal)))


def summary(times: Sequence[float]) -> Times:
    """Milliseconds: mean, median, 95th percentile."""
    ms = np.asarray(times) * 1e3
    return Times(float(ms.mean()), float(np.median(ms)), float(np.quantile(ms, 0.95)))


def machine() -> Made:
    """What times were measured with, and on."""
    import onnxruntime

    return made(torch=str(torch.__version__), onnxruntime=onnxruntime.__version__)


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0
