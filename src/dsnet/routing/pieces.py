"""How a batch is cut into pieces that run in parallel, and which groups are too small to run alone.

A piece is some images at one width that run together on one thread. How many of them run best together depends on the
part and on the processor: more images share the work of a call, until their maps no longer fit into the cache.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dsnet.cost import CostTable
from dsnet.results import Setting
from dsnet.schema import Typed
from dsnet.space import WidthPath, is_exit

SIZES = (1, 2, 4, 8)  # images per piece that are measured
OWN = 0.05  # milliseconds that the loop itself takes for a piece, about


@dataclass(frozen=True)
class PartTime(Typed):
    """Milliseconds of a part for pieces of SIZES, or of the first of them if larger pieces were slower per image."""

    madds: int
    ms: tuple[float, ...]


@dataclass(frozen=True)
class PieceTimes(Typed):
    """Milliseconds of pieces in one setting: the front, and each segment at its slimmest and at its widest."""

    setting: Setting
    front: PartTime
    segments: tuple[tuple[PartTime, PartTime], ...]


class Costs:
    """Milliseconds of pieces at any width. Between the slimmest and the widest they are interpolated by MAdds."""

    def __init__(self, times: PieceTimes, table: CostTable) -> None:
        self.front = filled(times.front.ms)
        self.segments = [
            [between(*ends, step_madds(table, point, width)) for width in range(len(table.steps[point][0]))]
            for point, ends in enumerate(times.segments)
        ]

    def segment(self, point: int, width: int) -> np.ndarray:
        """Milliseconds for pieces of 1, 2, 3 ... images."""
        return self.segments[point][width]

    def path(self, path: WidthPath) -> np.ndarray:
        """Milliseconds of everything behind the front; nothing is left to compute behind the exit."""
        parts = [np.zeros(1)] if is_exit(path) else [self.segment(point, width) for point, width in enumerate(path)]
        held = min(map(len, parts))
        return np.sum([part[:held] for part in parts], 0)


def step_madds(table: CostTable, point: int, width: int) -> int:
    """MAdds of a segment at one width, from a segment of the same width."""
    step = table.steps[point]
    return step[min(width, len(step) - 1)][width].madds


def between(slim: PartTime, wide: PartTime, madds: int) -> np.ndarray:
    held = min(len(slim.ms), len(wide.ms))
    share = (madds - slim.madds) / (wide.madds - slim.madds) if wide.madds != slim.madds else 1.0
    return (1 - share) * filled(slim.ms[:held]) + share * filled(wide.ms[:held])


def filled(ms: Sequence[float]) -> np.ndarray:
    """Milliseconds for pieces of 1, 2, 3 ... images, from those of SIZES."""
    sizes = SIZES[: len(ms)]
    return OWN + np.interp(np.arange(1, sizes[-1] + 1), sizes, ms)


@dataclass(frozen=True)
class Group:
    """Images that run at the same width. ms: milliseconds for pieces of 1, 2, 3 ... images; None if not measured."""

    count: int
    ms: np.ndarray | None

    def pieces(self, limit: int) -> list[int]:
        """Numbers of images that run together, at most `limit` and as many as run best."""
        assert self.ms is not None
        best = 1 + int((self.ms / np.arange(1, len(self.ms) + 1)).argmin())
        number = -(-self.count // min(best, limit))
        return [self.count // number + (place < self.count % number) for place in range(number)]

    def time(self, size: int) -> float:
        assert self.ms is not None
        return float(self.ms[size - 1])

    @property
    def work(self) -> float:
        """Milliseconds of one thread that runs all of the group."""
        return sum(map(self.time, self.pieces(SIZES[-1])))


def cut(groups: Sequence[Group], threads: int) -> list[list[int]]:
    """The pieces of each group, chosen so that the last of the threads is done as early as possible."""
    if any(group.ms is None for group in groups):
        return [[group.count] for group in groups]
    if threads == 1:
        return [group.pieces(SIZES[-1]) for group in groups]
    plans = [[group.pieces(limit) for group in groups] for limit in reversed(SIZES)]
    return min(plans, key=lambda plan: makespan(times_of(groups, plan), threads))


def times_of(groups: Sequence[Group], plan: Sequence[Sequence[int]]) -> list[float]:
    return [group.time(size) for group, sizes in zip(groups, plan, strict=True) for size in sizes]


def makespan(times: Sequence[float], threads: int) -> float:
    """When the last piece ends, if the threads take the longest pieces first."""
    ends = [0.0] * threads
    for time in sorted(times, reverse=True):
        heapq.heapreplace(ends, ends[0] + time)
    return max(ends)


def rounded(chosen: np.ndarray, ms: Callable[[int], np.ndarray]) -> np.ndarray:
    """Positions [B] at or above the chosen ones, among those that were chosen, such that the whole takes least time.

    ms: milliseconds of a position for pieces of 1, 2, 3 ... images. A group joins the next wider ones or stays; groups
    in between join as well, because they gain more.
    """
    positions, counts = np.unique(chosen, return_counts=True)
    least, joined = [0.0], list[int]()  # time of the groups from the widest on, and where the first of them goes
    for low in reversed(range(len(positions))):
        options = [
            Group(int(counts[low : high + 1].sum()), ms(int(positions[high]))).work + least[len(positions) - 1 - high]
            for high in range(low, len(positions))
        ]
        best = int(np.argmin(options))
        least.append(options[best])
        joined.append(low + best)
    joined.reverse()
    target, low = np.empty(len(positions), np.int64), 0
    while low < len(positions):
        target[low : joined[low] + 1] = positions[joined[low]]
        low = joined[low] + 1
    return target[np.searchsorted(positions, chosen)]
