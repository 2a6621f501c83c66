"""How classification is scored: top-1, top-5 and loss, and which images each path gets right."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dsnet.data.dataset import Batch
from dsnet.manifest import Manifest
from dsnet.models import Supernet, eager
from dsnet.results import Example, Measure, Metric
from dsnet.routing.route import Outputs
from dsnet.routing.traces import Outcome, Traces, auc, by_path, slimmest_score
from dsnet.space import WidthPath
from dsnet.training import distributed

METRIC = Metric("top-1", ".2%", (Measure("top-5", ".2%"), Measure("loss", ".3f")))
SHARES = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)
SHOWN = 12  # examples of each group


class AccuracyScorer:
    """Remembers the answer of every path for every image."""

    objects = None  # images have labels

    def __init__(self, manifest: Manifest) -> None:
        self.classes = manifest.num_classes
        self.answers: dict[WidthPath, np.ndarray] = {}  # -1: not known yet
        self.sums: dict[WidthPath, np.ndarray] = {}  # top-5, loss, images, of whole batches
        self.labels = np.zeros(0, np.int64)

    def add(self, path: WidthPath, rows: np.ndarray, outputs: Outputs, labels: Any) -> None:
        logits, wanted = torch.as_tensor(outputs["logits"]), torch.as_tensor(labels)
        wanted = wanted.to(logits.device)
        self.labels = grown(self.labels, int(rows.max()) + 1, 0)
        self.labels[rows] = wanted.cpu().numpy()
        known = self.answers[path] = grown(self.answers.get(path, self.labels[:0]), len(self.labels), -1)
        seen = bool((known[rows] >= 0).any())
        known[rows] = logits.argmax(1).cpu().numpy()
        if seen:  # an image that ran along this path before counts once
            return
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        loss = F.cross_entropy(logits.float(), wanted, reduction="sum")
        found = [float((best == wanted[:, None]).sum()), float(loss), float(len(rows))]
        self.sums[path] = self.sums.get(path, np.zeros(3)) + found

    def of(self, path: WidthPath) -> dict[str, float]:
        top5, loss, images = self.sums[path].tolist()
        right = self.right(path)
        assert images == len(right), "a path is scored where all images ran along it, once"
        return {"top-1": int(right.sum()) / len(right), "top-5": top5 / images, "loss": loss / images}

    def right(self, path: WidthPath) -> np.ndarray:
        return self.answers[path] == self.labels

    def along(self, paths: np.ndarray) -> float:
        right = np.zeros(len(self.labels), bool)
        for path, rows in by_path(paths):
            right[rows] = self.right(path)[rows]
        return float(right.astype(np.float64).mean())

    def budgets(self, traces: Traces) -> dict[str, float]:
        """Five average MAdds between the slimmest and the widest uniform path."""
        router, table = traces.router, traces.prices.table
        assert router is not None
        low, high = table.madds(router.routing.slimmest), table.madds(router.routing.widest)
        return {f"{number}": low + share * (high - low) for number, share in enumerate(SHARES)}

    def examples(self, traces: Traces, outcome: Outcome | None) -> tuple[Example, ...]:
        """Images with the cheapest and the dearest paths, on the same path the surest ones first."""
        if outcome is None:
            return ()
        order = np.argsort(-traces.belief, kind="stable")
        cheap = order[np.argsort(outcome.madds[order], kind="stable")][:SHOWN]
        unsure = order[::-1]
        dear = unsure[np.argsort(-outcome.madds[unsure], kind="stable")][:SHOWN]
        found = []
        for group, rows in (("slimmest", cheap), ("widest", dear)):
            for row in rows.tolist():
                path = tuple(outcome.paths[row].tolist())
                answer = int(self.answers[path][row])
                found.append(Example(int(traces.ids[row]), path, group, int(self.labels[row]), answer))
        return tuple(found)


def grown(values: np.ndarray, count: int, fill: int) -> np.ndarray:
    """An array of at least `count` values, filled up at its end."""
    return np.pad(values, (0, max(0, count - len(values))), constant_values=fill)


@torch.no_grad()
def accuracy(net: Supernet, batches: Iterable[Batch], paths: Sequence[WidthPath]) -> list[float]:
    """Top-1 of every path over the batches of all processes, which all must call."""
    training, device = net.training, net.head.classifier.weight.device
    net.eval()
    sums = torch.zeros(len(paths), 2, dtype=torch.float64, device=device)  # right, images
    for batch in batches:
        images, labels = batch.images.to(device), batch.labels.to(device)
        if len(images):
            for row, logits in zip(sums, net.forward_paths(images, paths), strict=True):
                row += torch.stack([(logits.argmax(1) == labels).sum(), torch.tensor(len(labels), device=device)])
    net.train(training)
    sums = distributed.total(sums).cpu()
    if not sums[:, 1].all():
        raise ValueError("there are no images to evaluate")
    return [right / images for right, images in sums.tolist()]


def router_auc(net: Supernet, batches: Iterable[Batch]) -> float:
    """How well the first scores tell whether the slimmest candidate is right, over some images."""
    runner, scores, right = eager(net), [], []
    router = runner.manifest.router
    assert router is not None
    for batch in batches:
        if len(batch.images):
            answers, first = runner.survey(batch.images, router.candidates[:1])
            assert first is not None
            scores.append(slimmest_score(router.spec.targets, first))
            right.append((answers[0]["logits"].argmax(1).cpu() == batch.labels).numpy())
    return auc(np.concatenate(scores), np.concatenate(right))
