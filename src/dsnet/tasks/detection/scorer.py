"""How detection is scored: mean average precision of every path, and of every image along its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from dsnet.data.boxes import PADDING
from dsnet.manifest import Manifest
from dsnet.predict.answers import CONFIDENCE, Detections, name_of, select
from dsnet.results import Box, Example, Metric
from dsnet.routing.route import Outputs, as_array
from dsnet.routing.traces import Outcome, Traces
from dsnet.space import WidthPath
from dsnet.tasks.detection.precision import Rule, Truth, mean_average_precision

METRIC = Metric("mAP", ".3f")
SIZES = {"S": 0.25, "M": 0.5, "L": 0.75}  # of the way from the slimmest to the widest candidate's MAdds
SHOWN = 6


class PrecisionScorer:
    """Remembers what every path finds in every image."""

    labels = None  # an image has no single class

    def __init__(
        self, manifest: Manifest, *, rule: Rule = "area", overlap: float = 0.5, confidence: float = CONFIDENCE
    ) -> None:
        """confidence: of the detections that examples show."""
        self.confidence = confidence
        self.rule, self.overlap, self.classes = rule, overlap, manifest.num_classes
        self.names = [name_of(manifest, label) for label in range(manifest.num_classes)]
        self.found: dict[WidthPath, dict[int, Detections]] = {}
        self.truths: dict[int, Truth] = {}

    def add(self, path: WidthPath, rows: np.ndarray, outputs: Outputs, labels: Any) -> None:
        mine = self.found.setdefault(path, {})
        boxes, scores = as_array(outputs["boxes"]), as_array(outputs["scores"])
        for place, row in enumerate(rows.tolist()):
            mine[row] = select(boxes[place], scores[place])
            if row not in self.truths:
                own = torch.as_tensor(labels[place])
                own = own[own[:, 4] != PADDING]
                self.truths[row] = Truth(own[:, :4], own[:, 4].long(), own[:, 5] > 0)

    def of(self, path: WidthPath) -> dict[str, float]:
        mean, each = self.precision([self.found[path][row] for row in sorted(self.truths)])
        return {"mAP": mean, **dict(zip(self.names, each, strict=True))}

    def along(self, paths: np.ndarray) -> float:
        return self.precision([self.found[tuple(path)][row] for row, path in enumerate(paths.tolist())])[0]

    def precision(self, found: list[Detections]) -> tuple[float, list[float]]:
        truths = [self.truths[row] for row in sorted(self.truths)]
        return mean_average_precision(found, truths, self.classes, overlap=self.overlap, rule=self.rule)

    def right(self, path: WidthPath) -> None:
        return None

    @property
    def objects(self) -> int:
        return sum(int((~truth.difficult).sum()) for truth in self.truths.values())

    def budgets(self, traces: Traces) -> dict[str, float]:
        """S, M and L."""
        router, table = traces.router, traces.prices.table
        assert router is not None
        low, high = (table.madds(router.candidates[end], dynamic=True) for end in (0, -1))
        return {name: low + share * (high - low) for name, share in SIZES.items()}

    def examples(self, traces: Traces, outcome: Outcome | None) -> tuple[Example, ...]:
        """What was found in a few images, spread over the set: along their own paths, or at the widest.

        Of an image where nothing reaches the confidence, the surest find is kept.
        """
        widest = max(self.found, key=lambda path: traces.table.madds(path))
        count, found = len(traces), []
        for row in sorted({round(number * (count - 1) / (SHOWN - 1)) for number in range(SHOWN)}):
            path = widest if outcome is None else tuple(outcome.paths[row].tolist())
            mine, truth = self.found[path][row], self.truths[row]
            sure = mine.scores >= min([self.confidence, *mine.scores.tolist()[:1]])  # the surest comes first
            finds = zip(mine.classes[sure].tolist(), mine.scores[sure].tolist(), mine.boxes[sure].tolist(), strict=True)
            objects = zip(truth.classes.tolist(), truth.boxes.tolist(), strict=True)
            found.append(
                Example(
                    int(traces.ids[row]),
                    path,
                    detections=tuple(Box(self.names[k], tuple(box), round(score, 3)) for k, score, box in finds),
                    objects=tuple(Box(self.names[k], tuple(box)) for k, box in objects),
                )
            )
        return tuple(found)
