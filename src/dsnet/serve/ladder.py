"""The ways in which a model can be run, from its cheapest to its best, with their milliseconds on this machine."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from dsnet.errors import RoutingError
from dsnet.latency import expected, find
from dsnet.latency.measure import measure, noise, uniform_paths
from dsnet.latency.timing import interleaved
from dsnet.manifest import Caps, Manifest, Policy
from dsnet.results import Latency
from dsnet.routing.budgets import policy_for
from dsnet.routing.policy import Prices
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath, is_exit, path_words

SECONDS, ROUNDS = 1.0, 2  # time to spend where there is no latency table, and least number of rounds
TOGETHER = 8  # images of the batch that shows what batches gain
NO_CAPS: Caps = {}
SIDE = 256  # height and width of the picture that a raw file is timed with


@dataclass(frozen=True)
class Level:
    """A way to run a model: along a path, or as its router chooses under a policy.

    Args:
        ms: Mean milliseconds of an image that runs alone.
        share: Average MAdds, as a share of the widest path's.
        score: The evaluated score of the network, if it is known.
        madds: The budget that the policy was made for.
    """

    ms: float
    share: float
    path: WidthPath | None = None
    policy: Policy | None = None
    score: float | None = None
    madds: float = 0.0

    @property
    def name(self) -> str:
        return f"budget {self.share:.3f}" if self.path is None else path_words(self.path)

    def run(self, runner: Runner, x: Any) -> Any:
        return runner.run(x, self.policy) if self.path is None else runner.run_path(x, self.path)


def timed_levels(runner: Runner) -> tuple[list[Level], Latency | None]:
    """All levels of a model, and its latency table; None for what has no such table."""
    manifest = runner.manifest
    levels = [*fixed_levels(manifest), *routed_levels(manifest)]
    try:
        held = find(runner.setting())
        held = held or measure(runner, repeats=ROUNDS, seconds=SECONDS, clock=clock_of(runner))
        return [replace(level, ms=time_of(level, manifest, held)) for level in levels], held
    except ValueError:  # a raw file, or budgets of an older dsnet, which do not say which paths images take
        return timed_alone(runner, levels), None


def fixed_levels(manifest: Manifest) -> list[Level]:
    """The uniform paths that can be pinned."""
    scores, sized = {}, manifest.table.space.sized
    if manifest.evaluation is not None:
        rows = [row for row in manifest.evaluation.rows if sized or row.size == manifest.image_size]
        scores = {row.path: row.score.mean for row in rows}
    widest = manifest.table.widest
    return [
        Level(0.0, manifest.table.madds(path) / widest, path=path, score=scores.get(path))
        for path in uniform_paths(manifest)
    ]


def routed_levels(manifest: Manifest) -> list[Level]:
    """The budgets of the evaluation, or else those of the calibration."""
    size, widest, evaluation = manifest.image_size, manifest.table.widest, manifest.evaluation
    rows = [row for row in (manifest.router.budgets if manifest.router else ()) if row.image_size == size]
    if not rows or not manifest.routes:
        return []
    found: dict[tuple[object, ...], Level] = {}
    if evaluation is not None and evaluation.dynamic is not None and evaluation.image_size == size:
        dynamic = evaluation.dynamic
        caps: Caps = {"max_width": dynamic.max_width, "max_size": dynamic.max_size} if dynamic.capped else NO_CAPS
        for point in dynamic.rows:
            level = routed_level(manifest, point.asked, point.score.mean, caps)
            assert level.policy is not None
            found.setdefault((level.policy.lam, level.policy.window), level)
        return list(found.values())
    return [routed_level(manifest, row.madds, None) for row in rows if row.madds <= widest or row is rows[0]]


def routed_level(manifest: Manifest, madds: float, score: float | None, caps: Caps = NO_CAPS) -> Level:
    """The level of a budget. caps: On the width and the image size, as `policy_for` takes them."""
    policy = policy_for(manifest, madds, **caps)
    if manifest.router is not None:
        Prices(manifest.table, manifest.router).check_cap(policy)
    assert policy.share is not None
    return Level(0.0, policy.share, policy=policy, score=score, madds=madds)


def time_of(level: Level, manifest: Manifest, held: Latency) -> float:
    """The mean milliseconds of a level, from a latency table."""
    if level.policy is None:
        assert level.path is not None
        times = next((row.fixed for row in held.rows if row.path == level.path), None)
        return between(manifest, held, level.share) if times is None else times.mean
    times = expected(manifest, held, level.policy)
    assert times is not None  # all policies here are made from budgets
    width, size = level.policy.max_width, level.policy.max_size
    ends = []
    for row in held.rows:
        own = max(manifest.table.space.widths_of(row.path), default=0), manifest.size_of(row.path)
        if row.routed is not None and (own[0] == width or own[1] == size):
            ends.append(row.routed.mean)
    return min([times.mean, *ends])


def between(manifest: Manifest, held: Latency, share: float) -> float:
    """The milliseconds of a path that was not measured, interpolated by MAdds."""
    rows = [(manifest.table.madds(row.path) / manifest.table.widest, row) for row in held.rows]
    known = sorted((at, row.fixed.mean) for at, row in rows if row.fixed is not None)
    if not known:
        raise RoutingError(f"the latency table of {held.model} has no fixed paths; run `dsnet bench` again")
    return float(np.interp(share, [at for at, _ in known], [ms for _, ms in known]))


def timed_alone(runner: Runner, levels: Sequence[Level]) -> list[Level]:
    """The levels with the milliseconds that they take for an image of noise."""
    x = example(runner.manifest)
    calls = {number: partial(level.run, runner, x) for number, level in enumerate(levels)}
    times = interleaved(calls, 2 * ROUNDS, warmup=1, clock=clock_of(runner))
    return [replace(level, ms=1e3 * float(np.median(times[number]))) for number, level in enumerate(levels)]


def clock_of(runner: Runner) -> Callable[..., float] | None:
    """Processor time of this thread, which runs the network: what other programs do at the start does not count, and
    what they do later is learned. OpenVINO has threads of its own."""
    return None if "openvino" in runner.runtime.lower() else thread_seconds


def thread_seconds(call: Callable[..., object], *given: object) -> float:
    begun = time.thread_time()
    call(*given)
    return time.thread_time() - begun


def example(manifest: Manifest, images: int = 1) -> Any:
    """Images of noise as a runner takes them."""
    if not manifest.raw:
        return noise(manifest, images)
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8) for _ in range(images)]


def frontier(levels: Sequence[Level]) -> list[Level]:
    """The levels than which no quicker one is as good, quickest first.

    Where scores are not known, what takes longer is better, up to the widest path.
    """
    ordered = sorted(without_noise(levels), key=lambda level: (level.ms, -(level.score or 0.0)))
    if any(level.score is None for level in ordered):
        paths = [level for level in ordered if level.path is not None]
        routed = [level for level in ordered if level.path is None]
        if not paths or not routed:
            return paths or routed
        return [paths[0], *(level for level in routed if paths[0].ms < level.ms < paths[-1].ms), paths[-1]]
    found: list[Level] = []
    for level in ordered:
        if not found or (level.score or 0.0) > (found[-1].score or 0.0):
            found.append(level)
    return found


def without_noise(levels: Sequence[Level]) -> list[Level]:
    """The levels with times that rise with MAdds, for fixed widths and for budgets alike. Disturbances only ever make
    a time longer, so what costs less takes no longer."""
    found, least = list[Level](), {True: math.inf, False: math.inf}
    for level in sorted(levels, key=lambda level: level.share, reverse=True):
        if level.path is None or not is_exit(level.path):
            kind = level.path is None
            least[kind] = min(level.ms, least[kind] * (1 - 1e-6))
            level = replace(level, ms=least[kind])
        found.append(level)
    return found


def place_of(ms: float, levels: Sequence[Level]) -> float:
    """Where a time lies between the cheapest level, 0, and the best, 1. Equal steps are equal factors of time."""
    low, high = levels[0].ms, levels[-1].ms
    if high <= low:
        return 0.0
    return min(1.0, max(0.0, math.log(max(ms, low) / low) / math.log(high / low)))


def batch_gain(runner: Runner, levels: Sequence[Level]) -> float:
    """Time of each further image of a batch, as a share of the time of an image alone."""
    alone, together = example(runner.manifest), example(runner.manifest, TOGETHER)
    found = []
    for level in {levels[0], levels[-1]}:
        calls = {1: partial(level.run, runner, alone), TOGETHER: partial(level.run, runner, together)}
        times = interleaved(calls, 3, warmup=1, clock=clock_of(runner))
        one, all_of_them = (min(times[count]) for count in (1, TOGETHER))
        found.append((all_of_them - one) / (TOGETHER - 1) / one)
    return min(1.0, max(0.05, float(np.mean(found))))
