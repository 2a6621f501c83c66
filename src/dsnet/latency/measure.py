"""Measures what a runner takes for single images: every path, alone and as its router runs it, and several budgets.

A routed path is measured as it really runs. The highest calibrated budget together with a cap on the width makes the
router choose that width, with all that it does before; an image is used for which it does so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Protocol

import numpy as np

from dsnet.errors import RoutingError
from dsnet.latency import expected, spread_of
from dsnet.latency.timing import Call, interleaved, machine, summary
from dsnet.manifest import Manifest, Policy
from dsnet.results import DeployedTime, DeployedTimes, Evaluation, Latency, PathTime, Setting, Times
from dsnet.routing.parts import Routed, as_array
from dsnet.routing.policy import Prices
from dsnet.space import WidthPath, is_exit

BUDGETS = 5  # number of budgets that are measured if there is no evaluation
TRIED = 16  # images that are tried to find one that takes a path
SECONDS = 8.0  # time to spend on a table, if more rounds than those asked for fit into it
MORE = 10  # limit of the number of rounds, in units of those asked for


class Timed(Protocol):
    """The part of a runner's interface that is needed to measure it."""

    @property
    def manifest(self) -> Manifest: ...

    def setting(self, image_size: int | None = None) -> Setting: ...

    def policy(
        self, budget: str | float | None = None, max_width: int | None = None, image_size: int | None = None
    ) -> Policy: ...

    def run(self, x: Any, policy: Policy | None = None) -> Routed: ...

    def run_path(self, x: Any, path: Sequence[int]) -> Routed: ...

    def prices(self, image_size: int) -> Prices: ...


def noise(manifest: Manifest, batch: int) -> np.ndarray:
    """Images of noise [B, C, S, S]."""
    shape = batch, manifest.in_channels, manifest.image_size, manifest.image_size
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def measure(
    runner: Timed,
    *,
    repeats: int,
    images: Any = None,
    fixed: Mapping[WidthPath, Call] | None = None,
    seconds: float = SECONDS,
    clock: Callable[..., float] | None = None,
    what: str = "",
) -> Latency:
    """The latency table of a runner.

    repeats: least number of rounds. images: images to route; noise by default. fixed: calls that run a path alone; by
    default it is pinned. seconds: time to spend on more rounds than those. clock: times one call; see `interleaved`.
    """
    manifest, setting = runner.manifest, runner.setting()
    x = noise(manifest, TRIED) if images is None else images
    calls: dict[tuple[str, WidthPath], Call] = {}
    for path in uniform_paths(manifest):
        calls["fixed", path] = fixed[path] if fixed is not None else partial(runner.run_path, x[:1], path)
    for path, call in routed_calls(runner, x).items():
        calls["routed", path] = call
    times = interleaved(calls, rounds_of(list(calls.values()), repeats, seconds), clock=clock, what=what)
    rows = []
    for path in dict.fromkeys(path for _, path in calls):
        alone, routed = times.get(("fixed", path)), times.get(("routed", path))
        rows.append(
            PathTime(
                path=path,
                fixed=None if alone is None else summary(alone),
                routed=None if routed is None else summary(routed),
                spread=() if routed is None else spread_of(np.asarray(routed) * 1e3),
            )
        )
    done = len(next(iter(times.values())))
    return Latency(setting, manifest.model, tuple(rows), done, machine())


def uniform_paths(manifest: Manifest) -> list[WidthPath]:
    """The fixed paths that are measured: the exit, and those with one width everywhere that can be pinned, slimmest
    first."""
    held = set(manifest.pinnable) if manifest.pins else set()
    return [path for path in dict.fromkeys([*manifest.space.exits, *manifest.space.uniform]) if path in held]


def rounds_of(calls: Sequence[Call], repeats: int, seconds: float) -> int:
    """The number of rounds: those asked for, or more of them if they are quick, for the sake of the percentiles."""
    for call in calls:
        call()
    begun = time.perf_counter()
    for call in calls:
        call()
    return max(repeats, min(MORE * repeats, int(seconds / (2 * (time.perf_counter() - begun)))))


def routed_calls(runner: Timed, images: Any) -> dict[WidthPath, Call]:
    """For each candidate of the router, a call that routes an image along it; empty without calibrated budgets."""
    manifest, found = runner.manifest, dict[WidthPath, Call]()
    router, size = manifest.router, manifest.image_size
    budgets = (
        [row for row in router.budgets if row.image_size == size] if router is not None and manifest.routes else []
    )
    if router is None or not budgets:
        return found
    for path in router.candidates:
        # No cap makes a router take the exit, or one of several image sizes.
        capped = manifest.pins and not is_exit(path) and not manifest.space.sized
        caps = [(budgets[-1].madds, max(path))] if capped else [(row.madds, None) for row in budgets]
        policies = [runner.policy(madds, cap, size) for madds, cap in caps]
        taking = taker(runner, images, path, policies)
        if taking is not None:
            found[path] = taking
        elif router.spec.kind == "threshold" or not manifest.pins:
            continue  # it has one wider path only, or no other path can be forced
        elif path != router.candidates[0] and (router.probes or manifest.space.sized):
            # No image takes it: an upper bound, because what both paths share runs twice.
            found[path] = both(found[router.candidates[0]], partial(runner.run_path, images[:1], path))
        else:
            found[path] = partial(runner.run_path, images[:1], path)
    return found


def taker(runner: Timed, images: Any, path: WidthPath, policies: Sequence[Policy]) -> Call | None:
    """A call that routes an image which takes a path under one of the policies; None if none of the images does."""
    for policy, row in product(policies, range(min(len(images), TRIED))):
        image = images[row : row + 1]
        if tuple(as_array(runner.run(image, policy).paths)[0].tolist()) == path:
            return partial(runner.run, image, policy)
    return None


def both(first: Call, second: Call) -> Call:
    def call() -> None:
        first()
        second()

    return call


# Budgets


@dataclass(frozen=True)
class Operating:
    """A budget to measure, and what is known of it: its name, and MAdds and score of the evaluation."""

    name: str
    asked: float
    madds: float | None = None
    score: float | None = None


def budgets_of(manifest: Manifest, evaluation: Evaluation | None) -> list[Operating]:
    """The budgets of an evaluation; without one, or with one under a cap, some over the range of the router."""
    size = manifest.image_size
    rows = [row for row in (manifest.router.budgets if manifest.router else ()) if row.image_size == size]
    if not rows or not manifest.routes:
        return []
    dynamic = None if evaluation is None or evaluation.image_size != size else evaluation.dynamic
    if dynamic is not None and not dynamic.capped:
        return [Operating(row.name, row.asked, row.madds.mean, row.score.mean) for row in dynamic.rows]
    return [Operating("", asked) for asked in np.linspace(rows[0].madds, rows[-1].madds, BUDGETS).tolist()]


def time_policies(
    runner: Timed, policies: Sequence[Policy], images: Any, *, rounds: int = 1, what: str = ""
) -> list[Times]:
    """Times of a dynamic network under several policies: every image `rounds` times, one at a time."""
    calls: dict[int, Callable[[Any], Routed]] = {
        number: partial(_route, runner, policy) for number, policy in enumerate(policies)
    }
    inputs = [(images[row : row + 1],) for row in range(len(images))]
    times = interleaved(calls, rounds, warmup=1, inputs=inputs, what=what)
    return [summary(times[number]) for number in calls]


def _route(runner: Timed, policy: Policy, image: Any) -> Routed:
    return runner.run(image, policy)


def deployed(
    runner: Timed,
    table: Latency,
    evaluation: Evaluation | None,
    measured: Mapping[float, Times] | None = None,
    images: int = 0,
    fixed: Mapping[WidthPath, Times] | None = None,
) -> DeployedTimes:
    """Accuracy and milliseconds of every fixed path and budget.

    measured: times by budget, measured with `images` images; without them, times are computed from the shares of paths.
    fixed: times of fixed paths that were measured together with the budgets; by default those of the table.
    """
    manifest, costs = runner.manifest, runner.manifest.table
    sized = costs.space.sized
    scores = (
        {}
        if evaluation is None
        else {row.path: row.score.mean for row in evaluation.rows if sized or row.size == costs.image_size}
    )
    rows = [
        DeployedTime(
            row.path,
            costs.madds(row.path),
            (fixed or {}).get(row.path, row.fixed),
            manifest.name_of(row.path) if sized else "",
            score=scores.get(row.path),
        )
        for row in table.rows
        if row.fixed is not None
    ]
    for point in budgets_of(manifest, evaluation):
        policy = runner.policy(point.asked)
        times = (measured or {}).get(point.asked)
        computed = times is None
        if times is None:
            try:
                times = expected(manifest, table, policy)
            except RoutingError:  # an older dsnet calibrated the budgets: nothing is known about the paths
                continue
        assert times is not None
        assert policy.share is not None
        madds = policy.share * costs.widest if point.madds is None else point.madds
        rows.append(DeployedTime(None, madds, times, point.name, point.asked, point.score, computed))
    metric = None if evaluation is None else evaluation.metric
    return DeployedTimes(table.setting, tuple(rows), images if measured else 0, metric, costs.widest)
