"""Dynamic inference: the batch is regrouped by width at every choice point, and by image size if there are several.

The result equals running the samples one by one, unless groups are rounded up.
Every task and every runtime uses this loop. It only selects rows; `Parts` does the computation, so that torch, CUDA
and ONNX Runtime can share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from dsnet.manifest import Policy
from dsnet.routers import Router
from dsnet.routing.batch import Batch, Piece
from dsnet.routing.parts import Fork, Outputs, Parts, Routed, Step
from dsnet.routing.pieces import Costs, rounded
from dsnet.routing.policy import Prices, decide
from dsnet.space import WidthPath, is_exit

Override = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""(choice point, rows of the batch, positions [B] that the router chose) -> positions to take instead."""
Decided = Callable[[int, int, np.ndarray, np.ndarray], np.ndarray]
"""(choice point, width in, rows of the batch, scores [B, R]) -> positions [B]."""


def run_grouped(
    parts: Parts,
    x: Any,
    policy: Policy,
    prices: Prices,
    *,
    override: Override | None = None,
    costs: Costs | None = None,
    round_up: bool = False,
) -> Routed:
    """Run every sample along the path that the router picks for it; `override` may replace each decision.

    costs: milliseconds of pieces; without them each group runs as one. round_up: whether groups that are too small run
    at a wider width, together with a group that was chosen there.
    """

    def decided(point: int, w_in: int, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        chosen = decide(scores, prices.at(point, w_in), policy, prices.allowed(point, policy))
        return chosen if override is None else override(point, rows, chosen)

    run = _once if prices.router.spec.single else _gates
    left, paths, scores = run(Batch(parts, x, costs, round_up), prices, decided)
    madds = np.array([prices.spent(tuple(path)) for path in paths.tolist()], np.int64)
    return Routed(left, paths, madds, scores)


def run_sizes(parts: Parts, x: Any, paths: Sequence[WidthPath]) -> tuple[list[Outputs], dict[int, Step]]:
    """The outputs of several paths, and the states behind the fronts that ran, by image size. Every size runs once,
    but for an exit that is not behind its front."""
    space, outputs, steps = parts.manifest.table.space, dict[WidthPath, Outputs](), dict[int, Step]()
    alone = set(space.exits) - {looked_at(parts)} if space.sized else set()
    for path in alone & set(paths):
        outputs[path] = parts.finish(parts.exit(x, space.size_of(path)))
    others = [path for path in paths if path not in alone]
    for size in dict.fromkeys([space.size_of(path) for path in others] or [0] * (not paths)):
        mine = [path for path in others if space.size_of(path) == size]
        steps[size] = parts.front(x, size)
        found = run_paths(parts, steps[size], [space.rows(path)[1:] for path in mine], size)
        outputs |= zip(mine, found, strict=True)
    return [outputs[path] for path in paths], steps


def looked_at(parts: Parts) -> WidthPath | None:
    """The candidate that a router with a single decision looks at first; None without one, or if it does not run."""
    manifest = parts.manifest
    router = manifest.router if manifest.routes else None
    return router.candidates[0] if router is not None and router.spec.single else None


def run_paths(parts: Parts, at: Step, paths: Sequence[WidthPath], came: int = 0) -> list[Outputs]:
    """The outputs of several paths, starting behind the front; common prefixes of paths are computed once.

    paths: Widths of the layers. came: That of the front.
    """
    outputs: dict[WidthPath, Outputs] = {}
    wide = [path for path in paths if not is_exit(path)]

    def descend(step: Step, left: Outputs, prefix: WidthPath) -> None:
        left = {**left, **step.left}
        if step.fork is None:
            outputs[prefix] = parts.finish(left)
            return
        point = len(prefix)
        for w_out in dict.fromkeys(path[point] for path in wide if path[:point] == prefix):
            y = parts.first(point, prefix[-1] if prefix else came, w_out, step.fork)
            descend(parts.rest(point, w_out, y), left, (*prefix, w_out))

    for path in set(paths) - set(wide):
        assert at.fork is not None
        outputs[path] = parts.finish(exit_outputs(at.fork))
    if wide:
        descend(at, {}, ())
    return [outputs[path] for path in paths]


def _once(batch: Batch, prices: Prices, decided: Decided) -> tuple[Outputs, np.ndarray, list[np.ndarray]]:
    """One decision for the whole path. A router that probes reads the outputs of the first candidate, others what the
    first gate or the early classifier says."""
    parts, router, candidates = batch.parts, prices.router, prices.router.candidates
    space = prices.table.space
    looked = space.size_of(candidates[0])

    def begin(x: Any) -> tuple[Step, Outputs]:
        step = parts.front(x, looked)
        if router.probes:
            known = {**step.left, **follow(parts, step.fork, space.rows(candidates[0]))}
            scores = parts.probe(parts.finish(known))
            return Step((step.fork or Fork(None, None))._replace(scores=scores), {}), known
        assert step.fork is not None
        return step, exit_outputs(step.fork) if router.spec.exits else {}

    def ms(position: int) -> Any:
        return None if batch.costs is None else batch.costs.path(candidates[position])

    def run(path: WidthPath, rows: np.ndarray) -> Piece:
        if (size := space.size_of(path)) != looked:
            if is_exit(path):
                return Piece(rows, 0, Step(None, parts.exit(batch.images(rows), size)))
            step = parts.front(batch.images(rows), size)
            found = {**step.left, **follow(parts, step.fork, space.rows(path))}
            return Piece(rows, 0, Step(None, found))
        fork = batch.fork(rows)
        found = follow(parts, fork, space.rows(path))
        if router.combines:
            found = combined(router, path, exit_outputs(fork), found)
        return Piece(rows, 0, Step(None, found))

    batch.start(begin)
    scores = batch.scores()
    chosen = decided(0, 0, np.arange(len(batch.x)), scores)
    onward = chosen >= (router.probes or router.spec.exits)  # else the answer of the first candidate is known
    if batch.round_up:
        chosen = chosen.copy()
        chosen[onward] = rounded(chosen[onward], ms)
    groups = [(position, rows) for position, rows in groups_of(chosen) if onward[rows[0]]]
    known = np.flatnonzero(~onward)
    batch.expect([known, *(rows for _, rows in groups)])
    batch.keep_known(known)
    batch.advance([(rows, ms(position), partial(run, candidates[position])) for position, rows in groups])
    return batch.finish(), np.array(candidates, np.int64)[chosen], [scores]


def exit_outputs(fork: Fork) -> Outputs:
    """The answer of the early classifier."""
    assert fork.exit is not None
    return {"logits": fork.exit}


def combined(router: Router, path: WidthPath, exit: Outputs, outputs: Outputs) -> Outputs:
    """The answer for images that an exit_first router sent on to a path, from that of the exit and that of the path.

    Adding logits is adding log-probabilities: both differ by a number per image, which no probability depends on.
    """
    if is_exit(path):
        return outputs
    u, v = router.combine[router.candidates.index(path) - 1]
    return {"logits": u * exit["logits"] + v * outputs["logits"]}


def follow(parts: Parts, fork: Fork | None, rows: WidthPath) -> Outputs:
    """Run one path from its first choice on, and return the arrays that `finish` will read. rows: Widths of the layers,
    that of the front first."""
    at, left = fork, dict[str, Any]()
    w_in, *path = rows
    for point, w_out in enumerate(path):
        assert at is not None
        step = parts.rest(point, w_out, parts.first(point, w_in, w_out, at))
        at, w_in, left = step.fork, w_out, {**left, **step.left}
    return left


def _gates(batch: Batch, prices: Prices, decided: Decided) -> tuple[Outputs, np.ndarray, list[np.ndarray]]:
    """A decision at each choice point."""
    parts, routing = batch.parts, prices.router.routing.choices
    paths = np.zeros((len(batch.x), len(routing)), np.int64)
    scores: list[np.ndarray] = []
    batch.start(lambda x: (parts.front(x), {}))
    for point, widths in enumerate(routing):

        def ms(position: int, point: int = point, widths: Sequence[int] = widths) -> Any:
            return None if batch.costs is None else batch.costs.segment(point, widths[position])

        def run(w_out: int, rows: np.ndarray, point: int = point) -> Piece:
            maps = [parts.first(point, w_in, w_out, batch.fork(mine)) for w_in, mine in batch.by_width(rows)]
            return Piece(rows, w_out, parts.rest(point, w_out, maps[0] if len(maps) == 1 else parts.cat(maps)))

        seen, came = batch.scores(), batch.by_width()
        scores.append(seen)
        chosen = np.zeros(len(batch.x), np.int64)
        for w_in, rows in came:
            chosen[rows] = decided(point, w_in, rows, seen[rows])
        if batch.round_up:
            chosen = rounded(chosen, ms)
        paths[:, point] = np.array(widths)[chosen]
        groups: dict[int, list[np.ndarray]] = {}
        for _, rows in came:  # rows of one incoming width stay side by side
            for position, mine in groups_of(chosen[rows]):
                groups.setdefault(position, []).append(rows[mine])
        joined = {position: np.concatenate(rows) for position, rows in groups.items()}
        batch.expect(joined.values())
        batch.advance([(rows, ms(k), partial(run, widths[k])) for k, rows in joined.items()])
    return batch.finish(), paths, scores


def groups_of(chosen: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The chosen positions in order, each with its rows."""
    rows: dict[int, list[int]] = {}
    for row, position in enumerate(chosen.tolist()):
        rows.setdefault(position, []).append(row)
    return [(position, np.array(members)) for position, members in sorted(rows.items())]
