"""Measuring: candidates are interleaved in one run, so that whatever disturbs the machine disturbs all of them."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsnet.results import Times

Call = Callable[[], Any]


def interleaved(calls: dict[Any, Call], repeats: int, *, warmup: int = 2) -> dict[Any, list[float]]:
    """Seconds of every call, one of each per round, in a new order each time.

    Before the call that counts there is one that does not: a network in use finds its own weights in the processor's
    cache, not those of another candidate.
    """
    for call in calls.values():
        for _ in range(warmup):
            call()
    times: dict[Any, list[float]] = {key: [] for key in calls}
    order, rng = list(calls), random.Random(0)
    for _ in range(repeats):
        rng.shuffle(order)
        for key in order:
            calls[key]()
            times[key].append(seconds(calls[key]))
    return times


def seconds(call: Call) -> float:
    """How long a call takes, by the GPU's own clock where there is one."""
    if torch.cuda.is_available():
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


def ratio(times: Sequence[float], ideal: Sequence[float]) -> float:
    """Median over the rounds of a candidate's time relative to the ideal's in the same round: slow spells cancel."""
    return float(np.median(np.asarray(times) / np.asarray(ideal)))


def summary(times: Sequence[float]) -> Times:
    """Milliseconds: mean, median, 95th percentile."""
    ms = np.asarray(times) * 1e3
    return Times(float(ms.mean()), float(np.median(ms)), float(np.quantile(ms, 0.95)))


def resident() -> int:
    """Bytes of memory that this process holds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0
