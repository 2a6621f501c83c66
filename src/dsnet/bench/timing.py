"""Timing with torch: its threads, its GPU, and the memory of the process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from dsnet.latency import timing
from dsnet.latency.timing import Call

K = TypeVar("K")


def interleaved(
    calls: Mapping[K, Call],
    repeats: int,
    *,
    warmup: int = 2,
    inputs: Sequence[tuple[Any, ...]] = ((),),
    what: str = "",
) -> dict[K, list[float]]:
    """`timing.interleaved`, with CUDA events if there is a GPU."""
    clock = cuda_seconds if torch.cuda.is_available() else None
    return timing.interleaved(calls, repeats, warmup=warmup, inputs=inputs, clock=clock, what=what)


def cuda_seconds(call: Call, *given: Any) -> float:
    """Time one call with CUDA events."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call(*given)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """Set the number of torch threads temporarily."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def resident() -> int:
    """Resident memory of this process in bytes; 0 if the system does not report it."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except OSError:
        return 0
