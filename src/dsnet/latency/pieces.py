"""Measures how many images run best together in each part of a network, and keeps that beside the latency tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dsnet.cost import CostTable
from dsnet.errors import ResultError
from dsnet.files import digest, write_whole
from dsnet.latency import folder
from dsnet.latency.measure import noise
from dsnet.results import Setting
from dsnet.routing.parts import Fork, Parts, Step
from dsnet.routing.pieces import SIZES, PartTime, PieceTimes, step_madds
from dsnet.schema import parse_json, to_json
from dsnet.space import WidthPath, is_exit

Clock = Callable[[], float]  # seconds of a processor
SLOWER = 1.05  # larger pieces are not tried behind one that takes so much longer per image
TIMED, SECONDS = (2, 20), 0.01  # least and largest number of timed calls; time to spend if they are quick


def piece_times(parts: Parts, setting: Setting, table: CostTable) -> PieceTimes:
    """The times of a setting, measured if they are not in the cache."""
    file = file_of(setting)
    try:
        held = parse_json(PieceTimes, file.read_text(), str(file), error=ResultError)
        if held.setting == setting:
            return held
    except (OSError, ResultError):
        pass
    held = measure(parts, setting, table)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (to_json(held, indent=1) + "\n").encode())
    except OSError:
        pass  # it is measured again in the next process
    return held


def file_of(setting: Setting) -> Path:
    return folder().parent / "pieces" / f"{setting.digest[:16]}-{digest(to_json(setting).encode())[:16]}.json"


def measure(parts: Parts, setting: Setting, table: CostTable) -> PieceTimes:
    """Time the front, and every segment of the slimmest and of the widest path that the parts hold."""
    image = parts.take(noise(parts.manifest, 1))
    start = parts.front(image)
    clock = time.process_time if "openvino" in setting.runtime.lower() else time.thread_time  # it has own threads
    front = PartTime(table.front.madds, times_of(lambda n: partial(parts.front, tiled(parts, image, n)), clock))
    paths = [path for path in parts.manifest.pinnable if not is_exit(path)]
    slim, wide = (along(parts, start, path, table, clock) for path in (paths[0], paths[-1]))
    return PieceTimes(setting, front, tuple((a, no_quicker(b, a)) for a, b in zip(slim, wide, strict=True)))


def along(parts: Parts, step: Step, path: WidthPath, table: CostTable, clock: Clock) -> list[PartTime]:
    """The times of every segment along a path."""
    found, w_in = [], 0
    for point, w_out in enumerate(path):
        assert step.fork is not None
        segment = partial(run_segment, parts, point, w_in, w_out)
        forks = {n: Fork(*(None if held is None else tiled(parts, held, n) for held in step.fork)) for n in SIZES}
        found.append(PartTime(step_madds(table, point, w_out), times_of(partial(bound, segment, forks), clock)))
        step, w_in = segment(step.fork), w_out
    return found


def bound(run: Callable[[Fork], Step], forks: Mapping[int, Fork], size: int) -> Callable[[], Step]:
    return partial(run, forks[size])


def run_segment(parts: Parts, point: int, w_in: int, w_out: int, fork: Fork) -> Step:
    return parts.rest(point, w_out, parts.first(point, w_in, w_out, fork))


def tiled(parts: Parts, array: Any, times: int) -> Any:
    return array if times == 1 else parts.cat([array] * times)


def times_of(calls: Callable[[int], Callable[[], Any]], clock: Clock) -> tuple[float, ...]:
    """Milliseconds of calls for SIZES images, up to the size behind which images only get slower. They never fall."""
    ms: list[float] = []
    for size in SIZES:
        ms.append(max(fastest(calls(size), clock), *ms[-1:], 0.0))
        if ms[-1] / size > SLOWER * min(took / of for took, of in zip(ms, SIZES, strict=False)):
            break
    return tuple(round(value, 5) for value in ms)


def fastest(call: Callable[[], Any], clock: Clock) -> float:
    """Milliseconds of the processor for the fastest of a few calls. What other programs and threads do meanwhile does
    not count."""
    call()
    found = list[float]()
    while len(found) < TIMED[0] or (len(found) < TIMED[1] and sum(found) < SECONDS):
        begun = clock()
        call()
        found.append(clock() - begun)
    return 1e3 * min(found)


def no_quicker(wide: PartTime, slim: PartTime) -> PartTime:
    """The widest, corrected where noise made it quicker than the slimmest."""
    held = min(len(wide.ms), len(slim.ms))
    return PartTime(wide.madds, tuple(np.maximum(wide.ms[:held], slim.ms[:held]).tolist()))
