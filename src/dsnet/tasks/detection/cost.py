"""What a detector costs, path by path; a `CostTable`, so that prices and budgets work with it unchanged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import torch

from dsnet.cost import Cost, CostTable, Row, Tables, Uses
from dsnet.nn.tracing import trace
from dsnet.tasks.detection.detector import Answer, Detector
from dsnet.tasks.detection.spec import DetectorSpec

PARTS = ("backbone", "projections", "neck", "heads")


class DetectorCost(CostTable):
    """Costs of a detector at its image size.

    As in `CostTable`, but `front` also holds the neck and the detection heads, which every path runs, and the steps
    hold the projections; there is no classifier. of_parts: the cost of each part of a path.
    """

    def __init__(self, model: Detector | DetectorSpec) -> None:
        self.detector = model.spec if isinstance(model, Detector) else model
        self.spec, self.image_size = self.detector.backbone, self.detector.image_size
        self.front, self.steps, self.routers, self.heads, self.shared = tables(self.detector)
        self.probe = None

    def of_parts(self, path: Sequence[int]) -> dict[str, Cost]:
        """Backbone without classifier, projections, neck and heads of a path as a static network."""
        path = self.spec.space.validate(path)
        chosen = dict(enumerate(path))
        plain = [use for use in uses(self.detector).uses if ".slimming." not in use.name]
        return {
            part: sum((use.at(chosen) for use in plain if use.name.startswith(f"{part}.")), Cost()) for part in PARTS
        }

    def backbone_madds(self, path: Sequence[int]) -> int:
        return self.of_parts(path)["backbone"].madds


@lru_cache(maxsize=64)
def uses(spec: DetectorSpec) -> Uses:
    """Every call of a layer on the way of a path, with the choice points that decide its widths."""
    spec = replace(spec, backbone=replace(spec.backbone, router=None))
    with torch.device("meta"):
        detector = Detector(spec).eval()
        x = torch.empty(1, spec.in_channels, spec.image_size, spec.image_size)
    points = range(len(spec.backbone.widths))

    def call(x: torch.Tensor, path: Sequence[int]) -> tuple[Answer, list[torch.Tensor | None]]:
        return run_scored(detector, x, [path[point] for point in points])

    walk = Uses(trace(detector, call, inputs=2))
    walk.run(x, spec.backbone.space.widest)
    return walk


def run_scored(detector: Detector, x: torch.Tensor, path: Sequence[int]) -> tuple[Answer, list[torch.Tensor | None]]:
    """The answer of a path, and the scores of the slimming heads on the way."""
    x, scaled, code, projected = detector.start(x)
    w_in, scores = 0, []
    for point, w_out in enumerate(path):
        segment = detector.backbone.chain[point]
        if point:
            x = segment.enter(x, w_in)
            scaled, code = segment.attend(x, w_in)
        scores.append(segment.score(code, w_in))
        x, more = detector.branch(point, x, scaled, w_in, w_out)
        projected, w_in = projected | more, w_out
    return detector.finish(projected), scores


@lru_cache(maxsize=64)
def tables(spec: DetectorSpec) -> Tables:
    walk, widths = uses(spec), spec.backbone.widths
    owner = {tap: spec.stage_of(tap).choice for tap in spec.taps}

    def total(prefixes: Sequence[str], chosen: Mapping[int, int], *, scoring: bool = False) -> Cost:
        mine = (use for use in walk.uses if use.name.startswith(tuple(prefixes)))
        return sum((use.at(chosen) for use in mine if (".slimming." in use.name) == scoring), Cost())

    def projections(point: int | None) -> list[str]:
        return [f"projections.{tap}" for tap, choice in owner.items() if choice == point]

    steps: list[tuple[Row, ...]] = []
    routers: list[Row] = []
    before = 1
    for point, count in enumerate(widths):
        prefixes = [f"backbone.segments.{point}.", *projections(point)]
        ins = [{point - 1: w_in} for w_in in range(before)]
        steps.append(tuple(tuple(total(prefixes, {**at, point: w_out}) for w_out in range(count)) for at in ins))
        routers.append(tuple(total(prefixes, at, scoring=True) for at in ins))
        before = count
    front = total(["backbone.front.", "neck.", "heads.", *projections(None)], {})
    entries = (use for use in walk.uses if use.name.startswith("backbone.segments.0.") and 0 not in use.points)
    shared = sum((use.at({}) for use in entries if ".slimming." not in use.name), front)
    return front, tuple(steps), tuple(routers), (Cost(),) * before, shared
