"""Dynamic inference: the batch is regrouped by width at every choice point.

The result equals running the samples one by one.
Every task and every runtime uses this loop. It only selects rows; `Parts` does the computation, so that torch, CUDA
and ONNX Runtime can share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import numpy as np

from dsnet.manifest import Manifest, Policy, Router
from dsnet.routing.policy import Prices, decide
from dsnet.space import WidthPath, is_exit

Outputs = dict[str, Any]
"""The outputs of a network by name, arrays [B, ...]: `logits`, or `boxes` and `scores`."""


@dataclass(frozen=True)
class Routed:
    """The outputs of a batch, with its routes.

    Args:
        outputs: Arrays by name.
        paths: Width indices [B, points]; EXIT where the early classifier answered.
        madds: MAdds [B], including the router.
        scores: The router's scores, one array [B, R] per decision.
    """

    outputs: Outputs
    paths: Any
    madds: Any
    scores: list[Any]

    @property
    def logits(self) -> Any:
        return self.outputs["logits"]


class Fork(NamedTuple):
    """The state at a choice point: a feature map, the map scaled by the gate's attention, and the gate's scores.

    `x` is None if no layer behind the choice reads the unscaled map. `scores` is None if there is no decision. `exit`
    holds the logits of the early classifier if its answer is a candidate.
    """

    x: Any | None
    scaled: Any
    scores: Any | None = None
    exit: Any | None = None

    def rows(self, chosen: np.ndarray) -> Fork:
        """The fork for some samples of the batch."""
        return Fork(*(None if part is None else part[chosen] for part in self))


class Step(NamedTuple):
    """The end of a part of the network.

    Args:
        fork: The next choice point; None behind the last one.
        left: Arrays by name that `finish` will read.
    """

    fork: Fork | None
    left: Outputs


class Parts(Protocol):
    """A network cut at its choice points. Live weights, cached modules and ONNX sessions implement it.

    front -> Step -> first (from w_in to w_out) -> rest (at w_out) -> the next Step ... -> finish -> Outputs

    `first` returns a map. Where only one width can come in, it may return anything that `rest` understands.
    """

    @property
    def manifest(self) -> Manifest: ...

    def take(self, x: Any) -> Any:
        """Convert a batch of the caller to the arrays that these parts read."""
        ...

    def front(self, x: Any) -> Step: ...

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Any: ...

    def rest(self, point: int, width: int, x: Any) -> Step: ...

    def probe(self, outputs: Outputs) -> Any:
        """Scores [B, R] of a router that probes, from the outputs of the slimmest candidate."""
        ...

    def finish(self, left: Outputs) -> Outputs:
        """The outputs, computed once for the whole batch."""
        ...

    def cat(self, parts: list[Any]) -> Any: ...


Override = Callable[[int, np.ndarray, np.ndarray], np.ndarray]
"""(choice point, rows of the batch, positions [B] that the router chose) -> positions to take instead."""
Decided = Callable[[int, int, np.ndarray, np.ndarray], np.ndarray]
"""(choice point, width in, rows of the batch, scores [B, R]) -> positions [B]."""


def run_grouped(parts: Parts, x: Any, policy: Policy, prices: Prices, *, override: Override | None = None) -> Routed:
    """Run every sample along the path that the router picks for it; `override` may replace each decision."""

    def decided(point: int, w_in: int, rows: np.ndarray, scores: np.ndarray) -> np.ndarray:
        chosen = decide(scores, prices.at(point, w_in), policy, prices.allowed(point, policy))
        return chosen if override is None else override(point, rows, chosen)

    run = _once if prices.router.spec.single else _gates
    left, paths, scores = run(parts, x, prices, decided)
    madds = np.array([prices.spent(tuple(path)) for path in paths.tolist()], np.int64)
    return Routed(parts.finish(left.whole(parts)), paths, madds, scores)


def run_paths(parts: Parts, at: Step, paths: Sequence[WidthPath]) -> list[Outputs]:
    """The outputs of several paths, starting behind the front; common prefixes of paths are computed once."""
    outputs: dict[WidthPath, Outputs] = {}
    wide = [path for path in paths if not is_exit(path)]

    def descend(step: Step, left: Outputs, prefix: WidthPath) -> None:
        left = {**left, **step.left}
        if step.fork is None:
            outputs[prefix] = parts.finish(left)
            return
        point = len(prefix)
        for w_out in dict.fromkeys(path[point] for path in wide if path[:point] == prefix):
            y = parts.first(point, prefix[-1] if prefix else 0, w_out, step.fork)
            descend(parts.rest(point, w_out, y), left, (*prefix, w_out))

    for path in set(paths) - set(wide):
        assert at.fork is not None
        outputs[path] = parts.finish(exit_outputs(at.fork))
    if wide:
        descend(at, {}, ())
    return [outputs[path] for path in paths]


class _Left:
    """Collects the arrays that `finish` will read, group by group, and restores the order of the batch."""

    def __init__(self) -> None:
        self.parts: dict[str, list[tuple[np.ndarray, Any]]] = {}

    def add(self, rows: np.ndarray, left: Outputs) -> None:
        for name, array in left.items():
            self.parts.setdefault(name, []).append((rows, array))

    def whole(self, parts: Parts) -> Outputs:
        outputs: Outputs = {}
        for name, held in self.parts.items():
            rows = np.concatenate([rows for rows, _ in held])
            array = held[0][1] if len(held) == 1 else parts.cat([array for _, array in held])
            in_order = bool((rows[1:] > rows[:-1]).all())
            outputs[name] = array if in_order else array[np.argsort(rows)]
        return outputs


def _once(parts: Parts, x: Any, prices: Prices, decided: Decided) -> tuple[_Left, np.ndarray, list[np.ndarray]]:
    """One decision for the whole path. A router that probes reads the outputs of the first candidate, others what the
    first gate or the early classifier says."""
    router, candidates, everyone = prices.router, prices.router.candidates, np.arange(len(x))
    start, known = parts.front(x), dict[int, Outputs]()
    assert start.fork is not None
    if router.probes:
        known[0] = follow(parts, start.fork, candidates[0])
        scores = as_array(parts.probe(parts.finish({**start.left, **known[0]})))
    else:
        scores = as_array(start.fork.scores)
    if router.spec.exits:
        known[0] = exit_outputs(start.fork)
    chosen = decided(0, 0, everyone, scores)
    left = _Left()
    left.add(everyone, start.left)
    for position, rows in groups_of(chosen):
        if position in known:
            found = {name: array if len(rows) == len(x) else array[rows] for name, array in known[position].items()}
        else:
            fork = start.fork if len(rows) == len(x) else start.fork.rows(rows)
            found = follow(parts, fork, candidates[position])
            if router.spec.exits:
                found = combined(router, candidates[position], exit_outputs(fork), found)
        left.add(rows, found)
    return left, np.array(candidates, np.int64)[chosen], [scores]


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


def follow(parts: Parts, fork: Fork, path: WidthPath) -> Outputs:
    """Run one path from its first choice on, and return the arrays that `finish` will read."""
    at: Fork | None = fork
    left: Outputs = {}
    w_in = 0
    for point, w_out in enumerate(path):
        assert at is not None
        step = parts.rest(point, w_out, parts.first(point, w_in, w_out, at))
        at, w_in, left = step.fork, w_out, {**left, **step.left}
    return left


def _gates(parts: Parts, x: Any, prices: Prices, decided: Decided) -> tuple[_Left, np.ndarray, list[np.ndarray]]:
    routing = prices.router.routing.choices
    paths = np.zeros((len(x), len(routing)), np.int64)
    scores: list[np.ndarray] = []
    start, left = parts.front(x), _Left()
    # incoming width -> (rows of the batch, their state)
    groups: dict[int, tuple[np.ndarray, Step]] = {0: (np.arange(len(x)), start)}
    left.add(np.arange(len(x)), start.left)
    for point, widths in enumerate(routing):
        seen: np.ndarray | None = None
        joined: dict[int, list[tuple[np.ndarray, Any]]] = {}
        for w_in, (rows, step) in groups.items():
            fork = step.fork
            assert fork is not None
            assert fork.scores is not None
            mine_scores = as_array(fork.scores)
            chosen = decided(point, w_in, rows, mine_scores)
            seen = np.zeros((len(x), len(widths)), mine_scores.dtype) if seen is None else seen
            seen[rows] = mine_scores
            for position, group in groups_of(chosen):
                w_out = widths[position]
                y = parts.first(point, w_in, w_out, fork if len(group) == len(rows) else fork.rows(group))
                paths[rows[group], point] = w_out
                joined.setdefault(w_out, []).append((rows[group], y))
        assert seen is not None
        scores.append(seen)
        groups = {}
        for width, members in joined.items():
            rows = np.concatenate([rows for rows, _ in members])
            y = members[0][1] if len(members) == 1 else parts.cat([y for _, y in members])
            groups[width] = rows, parts.rest(point, width, y)
            left.add(rows, groups[width][1].left)
    return left, paths, scores


def groups_of(chosen: np.ndarray) -> list[tuple[int, np.ndarray]]:
    """The chosen positions in order, each with its rows."""
    rows: dict[int, list[int]] = {}
    for row, position in enumerate(chosen.tolist()):
        rows.setdefault(position, []).append(row)
    return [(position, np.array(members)) for position, members in sorted(rows.items())]


def as_array(x: Any) -> np.ndarray:
    """Convert a torch or numpy array to numpy."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def like(x: Any, value: Any) -> Any:
    """Convert an array to the library of `x`: torch in, torch out; numpy in, or a list of pictures, numpy out."""
    if isinstance(x, np.ndarray | list):
        return as_array(value)
    if not isinstance(value, np.ndarray):
        return value
    torch = import_module("torch")  # the caller passed a tensor, so torch is installed
    return torch.from_numpy(np.ascontiguousarray(value)).to(x.device)
