"""Dynamic inference: the batch is regrouped by width at every choice; equals running every sample alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from dsnet.models import ModelSpec, Supernet
from dsnet.routing.decision import Policy, Prices, decide
from dsnet.space import WidthPath


@dataclass(frozen=True)
class Routed:
    """logits [B, classes]; paths [B, points]; madds [B], router included; scores: one [B, R] per decision taken."""

    logits: Tensor
    paths: Tensor
    madds: Tensor
    scores: list[Tensor]


class Fork(NamedTuple):
    """Where a width is chosen: a map, the map scaled by the gate's attention, and the gate's scores of the widths.

    The map is None where nothing behind the choice reads it; the scores are, where there is no slimming head.
    """

    x: Tensor | None
    scaled: Tensor
    scores: Tensor | None = None

    def rows(self, chosen: Tensor) -> Fork:
        """Some samples of the batch."""
        x, scores = (None if part is None else part[chosen] for part in (self.x, self.scores))
        return Fork(x, self.scaled[chosen], scores)


class Parts(Protocol):
    """A network in the pieces between its choices; live weights, cached modules and ONNX sessions all look like this.

    front -> Fork -> first (from w_in to w_out) -> rest (at w_out) -> the next Fork, or logits behind the last choice

    What `first` gives is a map, unless all of its samples came in at one width: then only `rest` needs to know.
    """

    spec: ModelSpec

    def front(self, x: Tensor) -> Fork | Tensor: ...

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Any: ...

    def rest(self, point: int, width: int, x: Any) -> Fork | Tensor: ...

    def probe(self, logits: Tensor) -> Tensor: ...


class LiveParts:
    """The network itself, sliced at every call."""

    def __init__(self, net: Supernet) -> None:
        self.net, self.spec = net, net.spec

    def front(self, x: Tensor) -> Fork | Tensor:
        x = self.net.front(x, 0)
        return self.fork(0, 0, x) if self.net.chain else self.net.head(x, 0)

    def fork(self, point: int, width: int, x: Tensor) -> Fork:
        segment = self.net.chain[point]
        x = segment.enter(x, width)
        scaled, code = segment.attend(x, width)
        router = self.spec.router
        raw = None if router is None or router.probes else segment.score(code, width)
        scores = None if raw is None or router is None else router.link(raw)
        return Fork(x if segment.first.reads_unscaled else None, scaled, scores)

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Tensor:
        x = fork.scaled if fork.x is None else fork.x
        return self.net.chain[point].first.body(x, fork.scaled, w_in, w_out)

    def rest(self, point: int, width: int, x: Tensor) -> Fork | Tensor:
        x = self.net.chain[point].rest(x, width)
        return self.net.head(x, width) if point + 1 == len(self.net.chain) else self.fork(point + 1, width, x)

    def probe(self, logits: Tensor) -> Tensor:
        assert self.net.probe is not None
        assert self.spec.router is not None
        return self.spec.router.link(self.net.probe(logits))


@torch.no_grad()
def route(net: Supernet, x: Tensor, policy: Policy | None = None, *, prices: Prices | None = None) -> Routed:
    """Run every sample along the path that the router picks for it; without a policy, at lambda 0."""
    check_routes(net.spec)
    net.check_input(x)
    check_square(x.shape)
    if net.training:
        raise ValueError("a network routes in eval mode only; call net.eval() first")
    if prices is None:
        prices = Prices.of(net, x.shape[-1])
    return run_grouped(LiveParts(net), x, policy or Policy(), prices)


def check_square(shape: Sequence[int]) -> None:
    """Prices are those of square images."""
    if shape[2] != shape[3]:
        raise ValueError(f"images are {shape[2]} x {shape[3]} pixels; only square ones can be routed: crop or pad them")


def check_routes(spec: ModelSpec) -> None:
    if spec.router is None:
        raise ValueError(
            f"this {spec.name} has not learned to route; train it with `dsnet train --stage gate`, or choose a path"
        )


Override = Callable[[int, Tensor, Tensor], Tensor]
"""(choice point, rows of the batch, positions [B] that were decided) -> positions to take instead."""


def run_grouped(parts: Parts, x: Tensor, policy: Policy, prices: Prices, *, override: Override | None = None) -> Routed:
    """Every sample along the path that the router picks for it, or that `override` takes after the decision."""
    assert parts.spec.router is not None

    def decided(point: int, w_in: int, rows: Tensor, scores: Tensor) -> Tensor:
        chosen = decide(scores, prices.at(point, w_in), policy, prices.allowed(point, policy.max_width)).cpu()
        return chosen if override is None else override(point, rows, chosen)

    logits, paths, scores = (_probing if parts.spec.router.probes else _gates)(parts, x, decided)
    madds = [prices.spent(tuple(path)) for path in paths.tolist()]
    return Routed(logits, paths, torch.tensor(madds, dtype=torch.long), scores)


def run_path(parts: Parts, x: Tensor, path: WidthPath) -> Tensor:
    """Logits of one path for the whole batch."""
    return follow(parts, parts.front(x), path)


def follow(parts: Parts, at: Fork | Tensor, path: WidthPath) -> Tensor:
    """Logits of one path, from its first choice on."""
    w_in = 0
    for point, w_out in enumerate(path):
        assert isinstance(at, Fork)
        at, w_in = parts.rest(point, w_out, parts.first(point, w_in, w_out, at)), w_out
    assert isinstance(at, Tensor)
    return at


Decided = Callable[[int, int, Tensor, Tensor], Tensor]
"""(choice point, width in, rows of the batch, scores [B, R]) -> positions [B]."""


def _probing(parts: Parts, x: Tensor, decided: Decided) -> tuple[Tensor, Tensor, list[Tensor]]:
    candidates = parts.spec.candidates
    fork = parts.front(x)
    assert isinstance(fork, Fork)
    logits = follow(parts, fork, candidates[0])
    scores = parts.probe(logits)
    chosen = decided(0, 0, torch.arange(len(x)), scores)
    for position, mine in groups_of(chosen):
        if position:
            wider = follow(parts, rows_of(fork, mine, len(x)), candidates[position])
            logits = wider if len(mine) == len(x) else logits.index_copy(0, mine.to(x.device), wider)
    return logits, torch.tensor(candidates)[chosen], [scores]


def _gates(parts: Parts, x: Tensor, decided: Decided) -> tuple[Tensor, Tensor, list[Tensor]]:
    routing = parts.spec.routing
    paths = torch.zeros(len(x), len(routing), dtype=torch.long)
    scores: list[Tensor] = []
    # width -> (rows of the batch that came in at it, what they have become)
    groups: dict[int, tuple[Tensor, Fork | Tensor]] = {0: (torch.arange(len(x)), parts.front(x))}
    for point, widths in enumerate(routing):
        seen = x.new_zeros(len(x), len(widths))
        joined: dict[int, list[tuple[Tensor, Any]]] = {}
        for w_in, (rows, fork) in groups.items():
            assert isinstance(fork, Fork)
            assert fork.scores is not None
            chosen = decided(point, w_in, rows, fork.scores)
            seen[rows] = fork.scores
            for position, mine in groups_of(chosen):
                w_out = widths[position]
                y = parts.first(point, w_in, w_out, rows_of(fork, mine, len(rows)))
                paths[rows[mine], point] = w_out
                joined.setdefault(w_out, []).append((rows[mine], y))
        scores.append(seen)
        groups = {}
        for width, found in joined.items():
            rows = torch.cat([rows for rows, _ in found])
            groups[width] = rows, parts.rest(point, width, joined_maps([y for _, y in found]))
    logits = x.new_zeros(len(x), parts.spec.num_classes)
    for rows, answer in groups.values():
        assert isinstance(answer, Tensor)
        logits[rows] = answer
    return logits, paths, scores


def groups_of(chosen: Tensor) -> list[tuple[int, Tensor]]:
    """Positions that were chosen, and the rows that chose each."""
    rows: dict[int, list[int]] = {}
    for row, position in enumerate(chosen.tolist()):
        rows.setdefault(position, []).append(row)
    return [(position, torch.tensor(mine)) for position, mine in sorted(rows.items())]


def rows_of(fork: Fork, rows: Tensor, total: int) -> Fork:
    return fork if len(rows) == total else fork.rows(rows.to(fork.scaled.device))


def joined_maps(maps: Sequence[Any]) -> Any:
    return maps[0] if len(maps) == 1 else torch.cat(list(maps))


def first_scores(net: Supernet, slimmest: Tensor, code: Tensor | None) -> Tensor:
    """Scores [B, R] of the first decision, from the slimmest candidate's logits or the first gate's code."""
    assert net.spec.router is not None
    raw = net.probe(slimmest) if net.probe is not None else net.chain[0].score(code, 0)
    assert raw is not None
    return net.spec.router.link(raw)
