"""Detectors as ONNX files: the dynamic detector in one file, or one path as a plain file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper
from torch import Tensor

from dsnet.routing import Policy, Prices, policy_for
from dsnet.routing.route import Fork, LiveParts
from dsnet.runtime.onnx.export import IMAGE, DynamicWriter, check_weights, describe, finish, write_checked
from dsnet.runtime.onnx.layers import write_call
from dsnet.runtime.onnx.writer import FLOAT, Graph, Model
from dsnet.space import WidthPath
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.detector import Detector


def export_detector(
    detector: Detector,
    file: str | Path,
    *,
    path: Sequence[int] | None = None,
    budget: str | float | None = None,
    max_width: int | None = None,
    defaults: bool = True,
) -> Path:
    """Write a detector as one ONNX file; inputs and options are those of `export_onnx`.

    outputs: boxes [.., P, 4], corners as shares of the image; scores [.., P, classes], before suppression; and from the
    dynamic detector path, madds, and gate_scores of the first decision.
    """
    check_weights(detector)
    net, table = detector.backbone, DetectorCost(detector)
    if path is not None or not net.chain:
        if budget is not None or max_width is not None:
            raise ValueError("a path pins the widths; leave budget and max_width out")
        path = detector.space.validate(path or ())
        about = describe(detector, table, kind="static", paths=[path], policy=policy_for(net))
        return write_checked(static_model(detector, path), about, Path(file))
    if net.spec.router is None and (budget is not None or max_width is not None):
        raise ValueError(f"this {detector.spec.name} has not learned to route, so it has no budgets")
    policy = policy_for(net, budget, max_width=max_width, table=table)
    if net.spec.router is not None:
        Prices(table).check_cap(max_width)
    writer = DetectorWriter(detector, table, policy, defaults=defaults)
    about = describe(detector, table, kind="dynamic", paths=writer.pinnable, policy=policy)
    return write_checked(writer.model(), about, Path(file))


def static_model(detector: Detector, path: WidthPath) -> onnx.ModelProto:
    """One width for batches of any size, its weights cut out and folded."""
    graph, spec = Graph(Model(shared=False)), detector.spec
    found = write_call(graph, detector, lambda x: detector.boxes_of(detector.run(x, path)), IMAGE)
    shapes = answer_shapes(detector, "batch")
    for made, name in zip(found, shapes, strict=True):
        graph.nodes.append(helper.make_node("Identity", [made], [name]))
    image = helper.make_tensor_value_info(IMAGE, FLOAT, ["batch", spec.in_channels, spec.image_size, spec.image_size])
    outputs = [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in shapes.items()]
    return finish(graph, spec.name, [image], outputs)


def answer_shapes(detector: Detector, batch: int | str) -> dict[str, list[Any]]:
    places = len(detector.priors)
    return {"boxes": [batch, places, 4], "scores": [batch, places, detector.spec.num_classes]}


class DetectorParts(LiveParts):
    """The pieces of a detector between its choices: behind each fork come the maps that were projected before it."""

    def __init__(self, detector: Detector) -> None:
        super().__init__(detector.backbone)
        self.detector = detector

    def front(self, x: Tensor) -> Any:
        x, tapped = self.net.front.features(x, 0)
        return (*self.fork(0, 0, x), *self.projected(tapped, 0))

    def rest(self, point: int, width: int, x: Tensor) -> Any:
        segment = self.net.chain[point]
        mine = {} if segment.tap is None else {segment.tap: x}
        x, tapped = segment.rest.features(x, width)
        fork: tuple[()] | Fork = () if point + 1 == len(self.net.chain) else self.fork(point + 1, width, x)
        return (*fork, *self.projected(mine | tapped, width))

    def projected(self, tapped: dict[str, Tensor], width: int) -> list[Tensor]:
        maps = self.detector.project(tapped, width)
        return [maps[tap] for tap in self.detector.spec.taps if tap in maps]


class DetectorWriter(DynamicWriter):
    """The dynamic detector as one graph: branches end with their projections; neck and heads come once, behind all."""

    scores_name = "gate_scores"

    def __init__(self, detector: Detector, table: DetectorCost, policy: Policy, *, defaults: bool = True) -> None:
        parts = {"root": detector, "live": DetectorParts(detector)}
        super().__init__(detector.backbone, table, policy, defaults=defaults, **parts)
        self.detector = detector

    def given(self, point: int) -> list[str]:
        spec, owner = self.detector.spec, point - 1 if point else None
        maps = [f"map.{tap}" for tap in spec.taps if spec.stage_of(tap).choice == owner]
        return (self.fork_at(point) if point < len(self.net.chain) else []) + maps

    def answer(self, found: dict[str, str]) -> dict[str, str]:
        detector, taps = self.detector, self.detector.spec.taps

        def finished(maps: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
            return detector.boxes_of(detector.finish({tap: maps[place] for place, tap in enumerate(taps)}))

        boxes, scores = write_call(self.graph, detector, finished, [found[f"map.{tap}"] for tap in taps])
        return {"boxes": boxes, "scores": scores}

    def answer_shapes(self) -> dict[str, list[int]]:
        return answer_shapes(self.detector, 1)
