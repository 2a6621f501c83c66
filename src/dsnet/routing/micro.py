"""Which waiting images a server runs together next, so that nobody waits for a batch that takes too long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dsnet.errors import must
from dsnet.manifest import Router
from dsnet.routing.pieces import Costs, Group, cut, makespan, times_of
from dsnet.space import WidthPath, is_exit

MOST = 64  # images of a micro-batch


@dataclass(frozen=True)
class Waiting:
    """An image in a queue.

    path: The path that it is counted with: the pinned one, or the widest that its settings let the router choose.
    slack: Milliseconds until its answer is due; negative if it is late. It falls while the image waits, so that every
        image becomes the most urgent one in the end. An image without a deadline needs one here: the longest wait.
    """

    path: WidthPath
    slack: float


def micro_batch(
    queue: Sequence[Waiting], costs: Costs, router: Router | None, *, bound: float, workers: int = 1, most: int = MOST
) -> list[int]:
    """The places in the queue of the images that run together next, the most urgent first.

    The most urgent image always runs. Others join it in the order of their urgency, as long as the batch takes at most
    `bound` milliseconds by the measured costs, and the most urgent image is still in time if it would be alone. An
    image that does not fit waits for a later batch, and slimmer ones may go before it.

    router: That of the network; None if all images are pinned. workers: Threads that run pieces of the batch.
    """
    must("bound", bound, bound > 0, "be above 0 ms")
    must("workers", workers, workers >= 1, "be at least 1")
    must("most", most, most >= 1, "be at least 1")
    if not queue:
        return []
    first, *others = sorted(range(len(queue)), key=lambda place: queue[place].slack)
    alone = batch_time([queue[first].path], costs, router, workers)
    limit = min(bound, queue[first].slack) if alone <= queue[first].slack else bound
    batch, tried = [first], set[WidthPath]()
    for place in others:
        path = queue[place].path
        if len(batch) == most:
            break
        if path in tried:  # another image of this path did not fit
            continue
        if batch_time([queue[member].path for member in (*batch, place)], costs, router, workers) <= limit:
            batch.append(place)
        else:
            tried.add(path)
    return batch


def batch_time(paths: Sequence[WidthPath], costs: Costs, router: Router | None, workers: int = 1) -> float:
    """Milliseconds that a batch of images with these paths takes, by the measured costs of its pieces."""

    def stage(groups: Sequence[tuple[int, np.ndarray]]) -> float:
        """All groups of images that may run side by side, each with the milliseconds of its pieces."""
        held = [Group(count, ms) for count, ms in groups]
        return makespan(times_of(held, cut(held, workers)), workers)

    total, wide = stage([(len(paths), costs.front)]), [path for path in paths if not is_exit(path)]
    if router is not None and router.probes:  # all run the first candidate, and those that chose it are done
        total += stage([(len(paths), costs.path(router.candidates[0]))])
        wide = [path for path in wide if path != router.candidates[0]]
    if router is None or router.spec.single:
        return total + stage([(wide.count(path), costs.path(path)) for path in dict.fromkeys(wide)])
    for point, widths in enumerate(zip(*wide, strict=True)):
        total += stage([(widths.count(width), costs.segment(point, width)) for width in dict.fromkeys(widths)])
    return total
