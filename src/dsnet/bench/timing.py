"""Timing with torch: its threads and its GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
