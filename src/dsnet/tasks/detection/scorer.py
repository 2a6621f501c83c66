"""The scores of detection: mean average precision of every path, and of routes where each image has its own path."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dsnet.data.boxes import PADDING
from dsnet.manifest import Manifest
from dsnet.paired import of_samples, redraws
from dsnet.prediction.answers import CONFIDENCE, Detections, name_of, select
from dsnet.results import Box, Difference, Example, Metric
from dsnet.routing.parts import Outputs, as_array
from dsnet.routing.traces import Outcome, Traces
from dsnet.space import WidthPath
from dsnet.tasks.detection.precision import Rule, Truth, mean_average_precision, ranked, resampled

METRIC = Metric("mAP", ".3f")
SIZES = {"S": 0.25, "M": 0.5, "L": 0.75}  # budgets, between the MAdds of the slimmest (0) and the widest candidate (1)
SHOWN = 6
DRAWS = 200  # resampled sets of images
MOST = 1_000_000  # detections of one network, beyond which resampling would take minutes


class PrecisionScorer:
    """Collects the detections of every path in every image."""

    labels = None  # an image has no single class
    metric = METRIC

    def __init__(
        self, manifest: Manifest, *, rule: Rule = "area", overlap: float = 0.5, confidence: float = CONFIDENCE
    ) -> None:
        """confidence: Smallest confidence of the detections in examples."""
        self.confidence = confidence
        self.rule, self.overlap, self.classes = rule, overlap, manifest.num_classes
        self.names = [name_of(manifest, label) for label in range(manifest.num_classes)]
        self.detections: dict[WidthPath, dict[int, Detections]] = {}
        self.truths: dict[int, Truth] = {}
        self.samples: dict[bytes, np.ndarray] = {}  # resampled metric by the paths of all images

    def take(self, outputs: Outputs, labels: Any) -> list[Detections]:
        boxes, scores = as_array(outputs["boxes"]), as_array(outputs["scores"])
        return [select(*both) for both in zip(boxes, scores, strict=True)]

    def add(self, path: WidthPath, rows: np.ndarray, taken: list[Detections], labels: np.ndarray) -> None:
        by_row = self.detections.setdefault(path, {})
        for place, row in enumerate(rows.tolist()):
            by_row[row] = taken[place]
            if row not in self.truths:
                objects = torch.as_tensor(labels[place])
                objects = objects[objects[:, 4] != PADDING]
                self.truths[row] = Truth(objects[:, :4], objects[:, 4].long(), objects[:, 5] > 0)

    def of(self, path: WidthPath) -> dict[str, float]:
        mean, each = self.precision([self.detections[path][row] for row in sorted(self.truths)])
        return {"mAP": mean, **dict(zip(self.names, each, strict=True))}

    def along(self, paths: np.ndarray) -> float:
        return self.precision([self.detections[tuple(path)][row] for row, path in enumerate(paths.tolist())])[0]

    def difference(self, paths: np.ndarray, others: np.ndarray) -> Difference | None:
        """A bootstrap over images, with the same resampled images for all paths."""
        ours, theirs = self.resample(paths), self.resample(others)
        if ours is None or theirs is None or np.isnan(ours - theirs).any():
            return None
        mean, *samples = ours - theirs
        return of_samples(float(mean), np.array(samples))

    def resample(self, paths: np.ndarray) -> np.ndarray | None:
        """The metric of all images, then of resampled sets of them [1 + R]; None if there are too many detections."""
        key = paths.tobytes()
        if key not in self.samples:
            found = [self.detections[tuple(path)][row] for row, path in enumerate(paths.tolist())]
            if sum(len(each.scores) for each in found) > MOST:
                return None
            truths = [self.truths[row] for row in sorted(self.truths)]
            drawn = redraws(len(truths), DRAWS).astype(np.int64)
            times = np.concatenate([np.ones_like(drawn[:1]), drawn])
            rankings = [ranked(found, truths, label, overlap=self.overlap) for label in range(self.classes)]
            self.samples[key] = resampled(rankings, times, rule=self.rule)
        return self.samples[key]

    def precision(self, detections: list[Detections]) -> tuple[float, list[float]]:
        truths = [self.truths[row] for row in sorted(self.truths)]
        return mean_average_precision(detections, truths, self.classes, overlap=self.overlap, rule=self.rule)

    def right(self, path: WidthPath) -> None:
        return None

    def each(self, paths: np.ndarray) -> dict[str, tuple[int, float]]:
        _, scores = self.precision([self.detections[tuple(path)][row] for row, path in enumerate(paths.tolist())])
        truths = self.truths.values()
        counts = [sum(int((~t.difficult[t.classes == label]).sum()) for t in truths) for label in range(self.classes)]
        return dict(zip(self.names, zip(counts, scores, strict=True), strict=True))

    def answered(self, paths: np.ndarray) -> None:
        return None

    @property
    def objects(self) -> int:
        return sum(int((~truth.difficult).sum()) for truth in self.truths.values())

    def budgets(self, traces: Traces) -> dict[str, float]:
        """The budgets S, M and L, in average MAdds."""
        router, table = traces.router, traces.prices.table
        assert router is not None
        low, high = (table.madds(router.candidates[end], dynamic=True) for end in (0, -1))
        return {name: low + share * (high - low) for name, share in SIZES.items()}

    def examples(self, traces: Traces, outcome: Outcome | None) -> tuple[Example, ...]:
        """The detections in a few images, spread over the set, along their routes or else at the widest path.

        If no detection in an image reaches the confidence, the most confident one is kept.
        """
        widest = max(self.detections, key=lambda path: traces.table.madds(path))
        count, examples = len(traces), []
        for row in sorted({round(number * (count - 1) / (SHOWN - 1)) for number in range(SHOWN)}):
            path = widest if outcome is None else tuple(outcome.paths[row].tolist())
            found, truth = self.detections[path][row], self.truths[row]
            kept = found.scores >= min([self.confidence, *found.scores.tolist()[:1]])  # the most confident comes first
            boxes = zip(
                found.classes[kept].tolist(), found.scores[kept].tolist(), found.boxes[kept].tolist(), strict=True
            )
            objects = zip(truth.classes.tolist(), truth.boxes.tolist(), strict=True)
            examples.append(
                Example(
                    int(traces.ids[row]),
                    path,
                    detections=tuple(Box(self.names[k], tuple(box), round(score, 3)) for k, score, box in boxes),
                    objects=tuple(Box(self.names[k], tuple(box)) for k, box in objects),
                )
            )
        return tuple(examples)
