"""Dynamic inference, eager: the batch is regrouped by width at every choice; equals running every sample alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsnet.cost import CostTable
from dsnet.models import Supernet
from dsnet.routing.decision import Policy, Prices, decide
from dsnet.space import Path


@dataclass(frozen=True)
class Routed:
    """logits [B, classes]; paths [B, points]; madds [B], router included; scores: one [B, R] per decision taken."""

    logits: Tensor
    paths: Tensor
    madds: Tensor
    scores: list[Tensor]


@torch.no_grad()
def route(net: Supernet, x: Tensor, policy: Policy | None = None, *, table: CostTable | None = None) -> Routed:
    """Run every sample along the path that the router picks for it; without a policy, at lambda 0."""
    policy = policy or Policy()
    check_routes(net)
    net.check_input(x)
    if net.training:
        raise ValueError("a network routes in eval mode only; call net.eval() first")
    if table is None:
        table = CostTable(net, x.shape[-1])
    prices = Prices(table)
    assert net.spec.router is not None
    logits, paths, scores = (_probe if net.spec.router.probes else _gates)(net, x, policy, prices)
    madds = torch.zeros(len(x), dtype=torch.long)
    for path in paths.unique(dim=0).tolist():
        madds[(paths == torch.tensor(path)).all(1)] = table.madds(path, dynamic=True)
    return Routed(logits, paths, madds, scores)


def first_scores(net: Supernet, slimmest: Tensor, code: Tensor | None) -> Tensor:
    """Scores [B, R] of the first decision, from the slimmest candidate's logits or the first gate's code."""
    assert net.spec.router is not None
    raw = net.probe(slimmest) if net.probe is not None else net.chain[0].score(code, 0)
    assert raw is not None
    return net.spec.router.link(raw)


def check_routes(net: Supernet) -> None:
    if net.spec.router is None:
        raise ValueError(
            f"this {net.spec.name} has not learned to route; train it with `dsnet train --stage gate`, or choose a path"
        )


def _gates(net: Supernet, x: Tensor, policy: Policy, prices: Prices) -> tuple[Tensor, Tensor, list[Tensor]]:
    router = net.spec.router
    assert router is not None
    paths = torch.zeros(len(x), len(net.chain), dtype=torch.long)
    scores: list[Tensor] = []
    # width in -> (rows of the batch, their maps)
    groups: dict[int, tuple[Tensor, Tensor]] = {0: (torch.arange(len(x)), net.front(x, 0))}
    for point, (segment, widths) in enumerate(zip(net.chain, net.routing.choices, strict=True)):
        allowed = prices.allowed(point, policy.max_width)
        seen = x.new_zeros(len(x), len(widths))
        parts: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for w_in, (rows, maps) in groups.items():
            entered = segment.enter(maps, w_in)
            scaled, code = segment.attend(entered, w_in)
            raw = segment.score(code, w_in)
            assert raw is not None
            seen[rows] = router.link(raw)
            chosen = decide(seen[rows], prices.at(point, w_in), policy, allowed).cpu()
            for position in chosen.unique().tolist():
                mine, w_out = chosen == position, widths[position]
                paths[rows[mine], point] = w_out
                y = segment.body(entered[mine], scaled[mine], w_in, w_out)
                parts.setdefault(w_out, []).append((rows[mine], y))
        scores.append(seen)
        groups = {w: (torch.cat([r for r, _ in got]), torch.cat([y for _, y in got])) for w, got in parts.items()}
    logits = x.new_zeros(len(x), net.spec.num_classes)
    for width, (rows, maps) in groups.items():
        logits[rows] = net.head(maps, width)
    return logits, paths, scores


def _probe(net: Supernet, x: Tensor, policy: Policy, prices: Prices) -> tuple[Tensor, Tensor, list[Tensor]]:
    router, probe = net.spec.router, net.probe
    assert router is not None
    assert probe is not None
    candidates: list[Path] = net.candidates
    entered = net.enter(x)
    logits = net.run_paths(entered, candidates[:1])[0]
    scores = router.link(probe(logits))
    chosen = decide(scores, prices.at(0, 0), policy, prices.allowed(0, policy.max_width)).cpu()
    for position in chosen.unique().tolist():
        if position:
            rows = chosen == position
            logits[rows] = net.run_paths(entered.rows(rows), [candidates[position]])[0]
    return logits, torch.tensor(candidates)[chosen], [scores]
