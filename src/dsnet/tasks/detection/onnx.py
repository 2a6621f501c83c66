"""Runs what `export_detector` wrote, in ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dsnet.models import Supernet
from dsnet.routing import Policy, Prices
from dsnet.routing.route import check_routes
from dsnet.runtime.onnx.export import IMAGE
from dsnet.runtime.onnx.runner import as_array, finite, held_space, knobs, one_by_one, open_session, read_label
from dsnet.space import WidthPath, WidthSpace
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.spec import TASK, DetectorSpec


class OnnxDetector:
    """A detector in an ONNX file; where it is evaluated or shows objects, it stands for a `Detector`.

    kind: `dynamic` (images run one by one) or `static` (one path). paths: those that can be pinned.
    threads: of ONNX Runtime; by default all cores.
    backbone: without weights; it tells the candidates and has the card with the budgets.
    """

    def __init__(self, file: str | Path, *, threads: int = 0) -> None:
        self.file = Path(file)
        self.session = open_session(self.file, threads)
        about = self.session.get_modelmeta().custom_metadata_map
        label = read_label(self.file, about, DetectorSpec.from_dict, task=TASK)
        self.spec, self.card, self.kind = label.spec, label.card, label.kind
        self.defaults, self.paths = label.defaults, label.paths
        with torch.device("meta"):
            self.backbone = Supernet(self.spec.backbone)
        self.backbone.card = self.card
        self.table = DetectorCost(self.spec)
        self.prices = Prices(self.table)

    @property
    def routes(self) -> bool:
        """Whether each image can have a width of its own."""
        return self.kind != "static" and self.spec.backbone.router is not None

    @property
    def space(self) -> WidthSpace:
        """The widths that the file holds."""
        return held_space(self.spec.backbone, self.kind, self.paths)

    def look(self, x: Tensor, paths: Sequence[WidthPath]) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Boxes and scores of several paths, and the gate's scores where it routes; as `Detector.look`."""
        found, gate = [], None
        for path in paths:
            boxes, scores, *more = self.run_path(x, path)
            found.append((boxes, scores))
            gate = more[0] if more else None
        return found, gate

    def route(self, x: Tensor, policy: Policy) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Boxes, scores, paths [B, points] and MAdds [B], each image along the path that its gate picks."""
        check_routes(self.spec.backbone)
        if not self.routes:
            raise ValueError(f"{self.file} holds one path and cannot route; pin the path {self.paths[0]}")
        self.prices.check_cap(policy.max_width)
        self.spec.check_input(x.shape)
        feed = knobs(self.spec.backbone, policy, (-1,) * len(self.spec.backbone.widths))
        rows = one_by_one(self.session, x, feed, ["boxes", "scores", "path", "madds"])
        columns = [np.stack(column) for column in zip(*rows, strict=True)]
        boxes, scores = answers(columns[0][:, 0], columns[1][:, 0])
        return boxes, scores, torch.from_numpy(columns[2]), torch.from_numpy(columns[3])

    def run_path(self, x: Tensor, path: WidthPath) -> list[Tensor]:
        """Boxes, scores and, where a gate routes, its scores; every image along one path."""
        self.spec.check_input(x.shape)
        if path not in self.paths:
            raise ValueError(
                f"path {path} is not in {self.file}, which holds {len(self.paths)} paths from {self.paths[0]} to "
                f"{self.paths[-1]}; choose one of them, or export the path as a file of its own"
            )
        if self.kind == "static":
            return answers(*self.session.run(["boxes", "scores"], {IMAGE: as_array(x)}))
        names = ["boxes", "scores"] + ["gate_scores"] * self.routes
        rows = one_by_one(self.session, x, knobs(self.spec.backbone, Policy(), path), names)
        return answers(*(np.concatenate(column) for column in zip(*rows, strict=True)))


def answers(*arrays: np.ndarray) -> list[Tensor]:
    return [finite(torch.from_numpy(array)) for array in arrays]
