"""What several benchmarks share: calls that take turns, and the two files of a page."""

from __future__ import annotations

import json
import time
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from dsnet.latency.timing import Call, interleaved, machine
from dsnet.schema import plain

K = TypeVar("K", bound=Hashable)


def processor_seconds(call: Call, *given: Any) -> float:
    """Processor time of a call. Waiting does not count."""
    begun = time.process_time()
    call(*given)
    return time.process_time() - begun


def in_turns(calls: Mapping[K, Call], repeats: int) -> dict[K, list[float]]:
    """Milliseconds of processor time, for each call."""
    times = interleaved(calls, repeats, clock=processor_seconds)
    return {key: [1e3 * each for each in found] for key, found in times.items()}


def kept(prefix: str | None) -> dict[str, Any]:
    """The results of a page that was made before, for what is not measured again."""
    if prefix is None:
        raise SystemExit("--keep needs --export, the prefix of the page of which a part is kept")
    held: dict[str, Any] = json.loads(Path(prefix).with_suffix(".json").read_text())
    return held


def write_page(prefix: Path, results: Mapping[str, Any], lines: list[str]) -> None:
    """Write PREFIX.json, with the machine, and PREFIX.md."""
    held = {**plain(machine()), **plain(results)}
    prefix.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n")
    prefix.with_suffix(".md").write_text("\n".join(lines) + "\n")
