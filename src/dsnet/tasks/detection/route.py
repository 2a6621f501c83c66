"""Dynamic detection: the batch is regrouped by width at every choice and comes together behind the projections."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dsnet.models.segment import Features
from dsnet.routing import Policy, Prices, decide, policy_for
from dsnet.routing.route import check_routes, groups_of
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.detector import Answer, Detector
from dsnet.tasks.detection.onnx import OnnxDetector


@dataclass(frozen=True)
class RoutedAnswer:
    """answer: of every prior; paths [B, points]; madds [B], router included; scores: one [B, R] per decision taken."""

    answer: Answer
    paths: Tensor
    madds: Tensor
    scores: list[Tensor]


@torch.no_grad()
def route_detector(
    detector: Detector, x: Tensor, policy: Policy | None = None, *, prices: Prices | None = None
) -> RoutedAnswer:
    """Run every sample along the path that the gates pick for it; without a policy, at lambda 0.

    Equals running every sample alone. The neck and the heads run once, on the whole batch.
    """
    check_routes(detector.spec.backbone)
    detector.check_input(x)
    if detector.training:
        raise ValueError("a detector routes in eval mode only; call detector.eval() first")
    prices, policy = prices or Prices(DetectorCost(detector)), policy or Policy()
    chain, routing = detector.backbone.chain, detector.spec.backbone.routing
    started = detector.start(x)
    projected, paths, seen = dict(started.projected), torch.zeros(len(x), len(routing), dtype=torch.long), []
    # width -> the rows that came in at it, what they have become: the map, the scaled map, the gate's code
    groups: dict[int, tuple[Tensor, Tensor, Tensor, Tensor | None]]
    groups = {0: (torch.arange(len(x)), started.x, started.scaled, started.code)}
    for point, widths in enumerate(routing):
        allowed = prices.allowed(point, policy.max_width)
        all_scores = x.new_zeros(len(x), len(widths))
        joined: dict[int, list[tuple[Tensor, Tensor]]] = {}
        for w_in, (rows, at, scaled, code) in groups.items():
            scores = detector.scores(point, code, w_in)
            all_scores[rows] = scores
            for position, mine in groups_of(decide(scores, prices.at(point, w_in), policy, allowed).cpu()):
                w_out = widths[position]
                y, maps = detector.branch(point, at[mine], scaled[mine], w_in, w_out)
                paths[rows[mine], point] = w_out
                joined.setdefault(w_out, []).append((rows[mine], y))
                write(projected, maps, rows[mine], len(x))
        seen.append(all_scores)
        groups = {}
        if point + 1 < len(routing):
            for width, found in joined.items():
                y = chain[point + 1].enter(torch.cat([y for _, y in found]), width)
                groups[width] = torch.cat([rows for rows, _ in found]), y, *chain[point + 1].attend(y, width)
    madds = torch.tensor([prices.spent(tuple(path)) for path in paths.tolist()], dtype=torch.long)
    return RoutedAnswer(detector.finish(projected), paths, madds, seen)


def route_boxes(
    detector: Detector | OnnxDetector, x: Tensor, policy: Policy, *, prices: Prices
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Boxes [B, P, 4], scores [B, P, classes], paths [B, points] and MAdds [B] of routed images."""
    if isinstance(detector, OnnxDetector):
        return detector.route(x, policy)
    routed = route_detector(detector, x, policy, prices=prices)
    return *detector.boxes_of(routed.answer), routed.paths, routed.madds


def detector_policy(
    detector: Detector | OnnxDetector, budget: str | float | None = None, *, max_width: int | None = None
) -> Policy:
    """The policy that meets a budget; what is not asked for is what a file was exported with."""
    if isinstance(detector, OnnxDetector):
        max_width = detector.defaults.max_width if max_width is None else max_width
        if budget is None:
            return Policy(detector.defaults.lam, max_width)
    return policy_for(detector.backbone, budget, max_width=max_width, table=DetectorCost(detector.spec))


def write(into: Features, maps: Features, rows: Tensor, total: int) -> None:
    """Put the projected maps of some samples where the whole batch's are."""
    for tap, x in maps.items():
        if tap not in into:
            into[tap] = x.new_zeros(total, *x.shape[1:])
        into[tap][rows.to(x.device)] = x
