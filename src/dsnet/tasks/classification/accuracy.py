"""The scores of classification: top-1, top-5 and loss, and the class that each path gives to every image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from dsnet.data.dataset import Batch
from dsnet.manifest import Manifest
from dsnet.models import Supernet
from dsnet.paired import of_correct, resampled_means
from dsnet.results import Difference, Example, Measure, Metric
from dsnet.routing.parts import Outputs
from dsnet.routing.traces import Outcome, Traces, by_path
from dsnet.space import WidthPath
from dsnet.training import distributed

METRIC = Metric("top-1", ".2%", (Measure("top-5", ".2%"), Measure("loss", ".3f")))
TOP = 5
SHARES = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)
DRAWS = 500  # sets of images that are drawn again
SHOWN = 12  # number of examples in each group


class Taken(NamedTuple):
    """Of images along one path: their predicted classes, and sums over them: correct in the top 5, loss, number."""

    answers: np.ndarray
    sums: np.ndarray


class AccuracyScorer:
    """Collects the predicted class of every path for every image."""

    objects = None  # images have labels

    def __init__(self, manifest: Manifest) -> None:
        self.classes = manifest.num_classes
        self.answers: dict[WidthPath, np.ndarray] = {}  # predicted classes; -1 where the path has not run yet
        self.sums: dict[WidthPath, np.ndarray] = {}
        self.labels = np.zeros(0, np.int64)

    @property
    def metric(self) -> Metric:
        """Of five classes or fewer, every class is among the top 5."""
        return METRIC if self.classes > TOP else replace(METRIC, more=METRIC.more[1:])

    def take(self, outputs: Outputs, labels: Any) -> Taken:
        logits = torch.as_tensor(outputs["logits"])
        truth = torch.as_tensor(labels).to(logits.device)
        best = logits.topk(min(TOP, logits.shape[1]), dim=1).indices
        loss = F.cross_entropy(logits.float(), truth, reduction="sum")
        sums = torch.stack([(best == truth[:, None]).sum().float(), loss])
        top5, total, *answers = torch.cat([sums, logits.argmax(1).float()]).tolist()  # one read of the device
        return Taken(np.array(answers, np.int64), np.array([top5, total, len(truth)]))

    def add(self, path: WidthPath, rows: np.ndarray, taken: Taken, labels: np.ndarray) -> None:
        self.labels = grown(self.labels, int(rows.max()) + 1, 0)
        self.labels[rows] = labels
        answers = self.answers[path] = grown(self.answers.get(path, self.labels[:0]), len(self.labels), -1)
        repeated = bool((answers[rows] >= 0).any())
        answers[rows] = taken.answers
        if not repeated:  # images that already ran along this path must not count twice
            self.sums[path] = self.sums.get(path, np.zeros(3)) + taken.sums

    def of(self, path: WidthPath) -> dict[str, float]:
        top5, loss, images = self.sums[path].tolist()
        right = self.right(path)
        assert images == len(right), "a path can be scored only if every image ran along it once"
        scores = {"top-1": int(right.sum()) / len(right), "top-5": top5 / images, "loss": loss / images}
        return {name: scores[name] for name in (self.metric.name, *(measure.name for measure in self.metric.more))}

    def right(self, path: WidthPath) -> np.ndarray:
        return self.answers[path] == self.labels

    def each(self, paths: np.ndarray) -> None:
        return None

    def answered(self, paths: np.ndarray) -> np.ndarray:
        answers = np.zeros_like(self.labels)
        for path, rows in by_path(paths):
            answers[rows] = self.answers[path][rows]
        return answers

    def along(self, paths: np.ndarray) -> float:
        return float((self.answered(paths) == self.labels).astype(np.float64).mean())

    def difference(self, paths: np.ndarray, others: np.ndarray) -> Difference:
        return of_correct(self.answered(paths) == self.labels, self.answered(others) == self.labels)

    def resample(self, paths: np.ndarray) -> np.ndarray:
        return resampled_means(self.answered(paths) == self.labels, DRAWS)

    def budgets(self, traces: Traces) -> dict[str, float]:
        """Five budgets in average MAdds, spaced evenly between the slimmest and the widest path."""
        router, table = traces.router, traces.prices.table
        assert router is not None
        ends = router.spec.candidates or [router.routing.slimmest, router.routing.widest]
        low, high = table.madds(ends[0]), table.madds(ends[-1])
        return {f"{number}": low + share * (high - low) for number, share in enumerate(SHARES)}

    def examples(self, traces: Traces, outcome: Outcome | None) -> tuple[Example, ...]:
        """Images with the cheapest paths, and with the most expensive, of each class in turn. Of the former the most
        confident come first, of the latter the least confident."""
        if outcome is None:
            return ()
        sure = np.argsort(-traces.belief, kind="stable")
        examples = []
        for group, order, costs in (("slimmest", sure, outcome.madds), ("widest", sure[::-1], -outcome.madds)):
            rows = order[np.argsort(costs[order], kind="stable")]
            rows = rows[costs[rows] <= costs[rows[:SHOWN][-1]]]
            for row in in_turn(rows, self.labels)[:SHOWN]:
                path = tuple(outcome.paths[row].tolist())
                answer = int(self.answers[tuple(outcome.answers[row].tolist())][row])
                examples.append(Example(int(traces.ids[row]), path, group, int(self.labels[row]), answer))
        return tuple(examples)


def in_turn(rows: np.ndarray, labels: np.ndarray) -> list[int]:
    """The rows in their order, but one of each class first, then a second one of each, and so on."""
    seen: Counter[int] = Counter()
    turns = []
    for row in rows.tolist():
        turns.append((seen[int(labels[row])], row))
        seen[int(labels[row])] += 1
    return [row for _, row in sorted(turns, key=lambda turn: turn[0])]


def grown(values: np.ndarray, count: int, fill: int) -> np.ndarray:
    """The values, padded at the end to a length of at least `count`."""
    return np.pad(values, (0, max(0, count - len(values))), constant_values=fill)


@torch.no_grad()
def accuracy(net: Supernet, batches: Iterable[Batch], paths: Sequence[WidthPath]) -> list[float]:
    """The top-1 accuracy of every path over the batches of all processes. Every process must call this."""
    training, device = net.training, net.device
    net.eval()
    sums = torch.zeros(len(paths), 2, dtype=torch.int64, device=device)  # right, images
    for batch in batches:
        images, labels = batch.images.to(device), batch.labels.to(device)
        if len(images):
            answers = net.forward_paths(images, paths)
            sums[:, 0] += torch.stack([(logits.argmax(1) == labels).sum() for logits in answers])
            sums[:, 1] += len(labels)
    net.train(training)
    sums = distributed.total(sums).cpu()
    if not sums[:, 1].all():
        raise ValueError("there are no images to evaluate")
    return [right / images for right, images in sums.tolist()]
