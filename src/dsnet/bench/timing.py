"""Timing with torch: its threads and its devices."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import torch

from dsnet.latency import timing
from dsnet.latency.timing import Call
from dsnet.models.devices import wait_for

K = TypeVar("K")
CPU = torch.device("cpu")


def interleaved(
    calls: Mapping[K, Call],
    repeats: int,
    *,
    warmup: int = 2,
    inputs: Sequence[tuple[Any, ...]] = ((),),
    device: torch.device = CPU,
    what: str = "",
) -> dict[K, list[float]]:
    """`timing.interleaved`, with all that the calls start on a device."""
    clock = None if device.type == "cpu" else partial(finished_seconds, device)
    return timing.interleaved(calls, repeats, warmup=warmup, inputs=inputs, clock=clock, what=what)


def finished_seconds(device: torch.device, call: Call, *given: Any) -> float:
    """Time one call, until the device has done all that it was asked for."""
    wait_for(device)
    begun = time.perf_counter()
    call(*given)
    wait_for(device)
    return time.perf_counter() - begun
