"""How good a detector is: mean average precision of every width and of the dynamic network, beside MAdds."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dsnet.data.boxes import PADDING
from dsnet.data.dataset import Batch
from dsnet.errors import RoutingError
from dsnet.evaluate.dynamic import histograms
from dsnet.results import Box, BudgetRow, Dynamic, Evaluation, Example, Metric, PathRow, Stat, made
from dsnet.routing import Outcome, Prices, Traces, parse_budget
from dsnet.space import WidthPath
from dsnet.tasks.detection.average_precision import Detections, Rule, Truth, mean_average_precision
from dsnet.tasks.detection.boxes import select
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.detector import Detector
from dsnet.tasks.detection.onnx import OnnxDetector
from dsnet.tasks.detection.route import detector_policy

METRIC = Metric("mAP", ".3f")
CONFIDENCE = 0.5  # of the detections that examples show
SIZES = {"S": 0.25, "M": 0.5, "L": 0.75}  # of the way from the slimmest to the widest candidate's MAdds


def detections_of(boxes: Tensor, scores: Tensor, **limits: Any) -> list[Detections]:
    """What was found in each image of a batch, from boxes [B, P, 4], shares of the image, and scores [B, P, classes].

    `limits` as `select` takes them.
    """
    return [Detections(*(part.cpu() for part in select(*one, **limits))) for one in zip(boxes, scores, strict=True)]


def truths_of(batch: Batch) -> list[Truth]:
    real = [own[own[:, 4] != PADDING] for own in batch.labels]
    return [Truth(own[:, :4], own[:, 4].long(), own[:, 5] > 0) for own in real]


class DetectionTraces(Traces):
    """What every width finds on a set of images and what the gate says of them, remembered.

    Any policy's outcome follows without running the detector again. For detectors with at most one choice point.
    """

    @torch.no_grad()
    def __init__(
        self, detector: Detector | OnnxDetector, batches: Iterable[Batch], *, paths: Sequence[WidthPath] | None = None
    ) -> None:
        if len(detector.spec.backbone.widths) > 1:
            raise RoutingError(f"{detector.spec.name!r} has several choice points; evaluate it path by path")
        self.detector, self.net = detector, detector.backbone
        self.table = DetectorCost(detector.spec)
        self.prices = Prices(self.table)
        wanted = list(detector.space) if paths is None else list(paths)
        self.found: dict[WidthPath, list[Detections]] = {path: [] for path in wanted}
        self.truths: list[Truth] = []
        scores, kept = [], []
        device = detector.eval().priors.device if isinstance(detector, Detector) else torch.device("cpu")
        for batch in batches:
            if not len(batch.images):
                continue
            answers, first = detector.look(batch.images.to(device), wanted)
            for path, answer in zip(wanted, answers, strict=True):
                self.found[path] += detections_of(*answer)
            if first is not None:
                scores.append(first.cpu())
            self.truths += truths_of(batch)
            kept.append(batch.ids)
        if not kept:
            raise ValueError("there are no images to detect objects in")
        self.ids = torch.cat(kept)
        self.scores = {(): torch.cat(scores)} if scores else {}
        self.correct = {path: torch.zeros(len(self.ids), dtype=torch.int8) for path in wanted}  # all are known

    def precision(self, found: Sequence[Detections], **how: Any) -> tuple[float, list[float]]:
        return mean_average_precision(found, self.truths, self.detector.spec.num_classes, **how)

    def routed(self, outcome: Outcome) -> list[Detections]:
        """The detections of each image along its path."""
        return [self.found[tuple(path)][row] for row, path in enumerate(outcome.paths.tolist())]

    def accuracy(self, outcome: Outcome) -> float:
        """Mean average precision at an overlap of 0.5, by the area rule."""
        return self.precision(self.routed(outcome))[0]


def evaluate_detector(
    traces: DetectionTraces,
    *,
    split: str,
    budgets: Sequence[str | float] | None = None,
    max_width: int | None = None,
    rule: Rule = "area",
    overlap: float = 0.5,
) -> Evaluation:
    """The evaluation of every width, cheapest first, and of the dynamic detector at some budgets; what it knows nothing
    of, such as the data's name, is empty."""
    start = time.perf_counter()
    detector, table, how = traces.detector, traces.table, {"rule": rule, "overlap": overlap}
    assert isinstance(table, DetectorCost)
    size = detector.spec.image_size
    names = detector.card.classes or tuple(map(str, range(detector.spec.num_classes)))
    rows = []
    for path, found in traces.found.items():
        mean, each = traces.precision(found, **how)
        rows.append(
            PathRow(
                size,
                path,
                table.madds(path),
                table.params(path),
                table.madds(path) / table.widest,
                Stat(mean),
                {name: Stat(value) for name, value in zip(names, each, strict=True)},
                {name: cost.madds for name, cost in table.of_parts(path).items()},
            )
        )
    dynamic = None
    if detector.routes:
        dynamic = evaluate_routes(traces, budgets, max_width=max_width, how=how)
    elif budgets or max_width is not None:
        why = "has not learned to route" if detector.spec.backbone.router is None else "holds a single path"
        raise RoutingError(f"this {detector.spec.name} {why}, so it has no budgets")
    shown = examples(traces, names, max_width)
    return Evaluation(
        task="detection",
        metric=METRIC,
        model=detector.spec.name,
        dataset="",
        split=split,
        images=len(traces),
        image_size=size,
        seeds=(),
        rows=tuple(sorted(rows, key=lambda row: row.madds)),
        made=made(
            torch=torch.__version__,
            runtime="torch" if isinstance(detector, Detector) else f"onnxruntime, {detector.kind} file",
            threads=torch.get_num_threads(),
            seconds=time.perf_counter() - start,
        ),
        classes=names,
        objects=sum(int((~truth.difficult).sum()) for truth in traces.truths),
        options={"rule": rule, "overlap": overlap, "confidence": CONFIDENCE},
        dynamic=dynamic,
        examples=shown,
    )


def examples(
    traces: DetectionTraces, names: Sequence[str], max_width: int | None, *, count: int = 6
) -> tuple[Example, ...]:
    """What was found in a few images, spread over the set: by the detector at M where it routes, else at its widest.

    Of an image where nothing reaches the confidence, the surest detection is kept.
    """
    detector, table = traces.detector, traces.table
    paths = [max(traces.found, key=table.madds)] * len(traces)
    if detector.routes:
        low, high = (table.madds(traces.net.candidates[end], dynamic=True) for end in (0, -1))
        outcome = traces.at(detector_policy(detector, low + SIZES["M"] * (high - low), max_width=max_width))
        paths = [tuple(path) for path in outcome.paths.tolist()]
    shown = []
    for row in sorted({round(number * (len(traces) - 1) / (count - 1)) for number in range(count)}):
        found, truth = traces.found[paths[row]][row], traces.truths[row]
        sure = found.scores >= min([CONFIDENCE, *found.scores.tolist()[:1]])  # the surest comes first
        finds = zip(found.classes[sure].tolist(), found.boxes[sure].tolist(), found.scores[sure].tolist(), strict=True)
        objects = zip(truth.classes.tolist(), truth.boxes.tolist(), strict=True)
        shown.append(
            Example(
                int(traces.ids[row]),
                paths[row],
                detections=tuple(Box(names[label], box_of(box), round(score, 3)) for label, box, score in finds),
                objects=tuple(Box(names[label], box_of(box)) for label, box in objects),
            )
        )
    return tuple(shown)


def box_of(values: Sequence[float]) -> tuple[float, float, float, float]:
    left, top, right, bottom = values
    return left, top, right, bottom


def evaluate_routes(
    traces: DetectionTraces, budgets: Sequence[str | float] | None, *, max_width: int | None, how: dict[str, Any]
) -> Dynamic:
    """The dynamic detector at S, M and L, or at the budgets asked for."""
    net, table, router = traces.net, traces.table, traces.net.spec.router
    assert router is not None
    low, high = (table.madds(net.candidates[end], dynamic=True) for end in (0, -1))
    asked: dict[str, str | float] = (
        {name: low + share * (high - low) for name, share in SIZES.items()}
        if budgets is None
        else {str(budget): budget for budget in budgets}
    )
    rows = []
    for name, budget in asked.items():
        policy = detector_policy(traces.detector, budget, max_width=max_width)
        outcome = traces.at(policy)
        madds = outcome.madds.double()
        score = traces.precision(traces.routed(outcome), **how)[0]
        fixed = between(traces, madds.mean().item(), how)
        rows.append(
            BudgetRow(
                name=name,
                asked=parse_budget(budget, table),
                lam=policy.lam,
                note=policy.note,
                madds=Stat(madds.mean().item()),
                p50=Stat(madds.quantile(0.5).item()),
                p95=Stat(madds.quantile(0.95).item()),
                score=Stat(score),
                hull=Stat(fixed),
                gain=Stat(100 * (score - fixed)),
                gain_se=None,
                gates=histograms(net, outcome.paths),
            )
        )
    calibrated = traces.detector.card.budgets
    return Dynamic(
        router=router.kind,
        targets=router.targets,
        range=tuple(row.madds for row in calibrated[:1] + calibrated[-1:]),
        rows=tuple(rows),
        warnings=tuple(dict.fromkeys(row.note for row in rows if row.note)),
    )


def between(traces: DetectionTraces, madds: float, how: dict[str, Any]) -> float:
    """The mean average precision of the uniform widths next to some MAdds, interpolated."""
    points = sorted(
        (traces.table.madds(path), traces.precision(found, **how)[0]) for path, found in traces.found.items()
    )
    for (a, low), (b, high) in pairwise(points):
        if madds <= b:
            return low + (high - low) * max(0.0, madds - a) / (b - a)
    return points[-1][1]
