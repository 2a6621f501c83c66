"""What several benchmarks share: calls that take turns, and the two files of a page."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dsnet.latency.timing import Call, machine
from dsnet.schema import plain

K = TypeVar("K", bound=Hashable)


def in_turns(calls: Mapping[K, Call], repeats: int) -> dict[K, list[float]]:
    """Milliseconds of processor time of the calling thread, for each call. Waiting does not count."""
    times: dict[K, list[float]] = {key: [] for key in calls}
    order, rng = list(calls), random.Random(0)
    for _ in range(repeats):
        rng.shuffle(order)
        for key in order:
            calls[key]()  # brings the weights into the cache
            begun = time.thread_time()
            calls[key]()
            times[key].append(1e3 * (time.thread_time() - begun))
    return times


def write_page(prefix: Path, results: Mapping[str, Any], lines: list[str]) -> None:
    """Write PREFIX.json, with the machine, and PREFIX.md."""
    held = {**plain(machine()), **plain(results)}
    prefix.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n")
    prefix.with_suffix(".md").write_text("\n".join(lines) + "\n")
