"""How good each sub-network is: accuracy beside cost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.cost import CostTable
from dsnet.data.dataset import Batch
from dsnet.models import Supernet
from dsnet.results import Evaluation, Measure, Metric, PathRow, Stat, made
from dsnet.runtime import Runner
from dsnet.space import WidthPath
from dsnet.training import distributed, uncalibrated

METRIC = Metric("top-1", ".2%", (Measure("top-5", ".2%"), Measure("loss", ".3f")))


@torch.no_grad()
def accuracy(
    net: Supernet | Runner, batches: Iterable[Batch], paths: Sequence[WidthPath], *, everywhere: bool = False
) -> list[dict[str, float]]:
    """Top-1, top-5 and loss of every path; with `everywhere` over the batches of all processes, which all must call."""
    if isinstance(net, Runner):
        return _accuracy(lambda x: [net.run_path(x, path).logits for path in paths], batches, len(paths))
    training = net.training
    net.eval()
    device = net.head.classifier.weight.device
    found = _accuracy(lambda x: net.forward_paths(x, paths), batches, len(paths), device, everywhere=everywhere)
    net.train(training)
    return found


def _accuracy(
    answers: Callable[[Tensor], list[Tensor]],
    batches: Iterable[Batch],
    paths: int,
    device: torch.device | str = "cpu",
    *,
    everywhere: bool = False,
) -> list[dict[str, float]]:
    sums = torch.zeros(paths, 4, dtype=torch.float64, device=device)  # top-1, top-5, loss, images
    for batch in batches:
        images, labels = batch.images.to(device), batch.labels.to(device)
        if not len(images):
            continue
        for row, logits in zip(sums, answers(images), strict=True):
            best = logits.topk(min(5, logits.shape[1]), dim=1).indices == labels[:, None]
            loss = F.cross_entropy(logits.float(), labels, reduction="sum")
            row += torch.stack([best[:, 0].sum(), best.sum(), loss, torch.tensor(len(labels), device=device)])
    sums = (distributed.total(sums) if everywhere else sums).cpu()
    if not sums[:, 3].all():
        raise ValueError("there are no images to evaluate")
    return [{"top1": t1 / n, "top5": t5 / n, "loss": loss / n, "images": int(n)} for t1, t5, loss, n in sums.tolist()]


def evaluate(
    net: Supernet | Runner, batches: Iterable[Batch], paths: Sequence[WidthPath], *, image_size: int, split: str
) -> Evaluation:
    """The evaluation of some paths, cheapest first; what it knows nothing of, such as the data's name, is empty."""
    if isinstance(net, Supernet) and (unseen := uncalibrated(net, paths)):
        raise ValueError(
            f"the batch-norm statistics of {len(unseen)} widths were never calibrated (the first is {unseen[0]}), "
            f"so their accuracy would mean nothing; run `dsnet recalibrate` on the model first"
        )
    table = CostTable(net.spec, image_size)
    start = time.perf_counter()
    measured = accuracy(net, batches, paths)
    rows = [
        PathRow(
            image_size,
            path,
            table.madds(path),
            table.params(path),
            table.madds(path) / table.widest,
            Stat(scores["top1"]),
            {"top-5": Stat(scores["top5"]), "loss": Stat(scores["loss"])},
        )
        for path, scores in zip(paths, measured, strict=True)
    ]
    return Evaluation(
        task="classification",
        metric=METRIC,
        model=net.spec.name,
        dataset="",
        split=split,
        images=int(measured[0]["images"]),
        image_size=image_size,
        seeds=(),
        rows=tuple(sorted(rows, key=lambda row: row.madds)),
        made=made(
            torch=torch.__version__,
            runtime=net.runtime if isinstance(net, Runner) else "the network itself",
            threads=torch.get_num_threads(),
            seconds=time.perf_counter() - start,
        ),
        classes=net.card.classes,
    )


def paths_to_evaluate(net: Supernet | Runner, sample: int = 0, seed: int = 0) -> list[WidthPath]:
    """Every width of a network with one choice point; uniform paths and a random sample of one with several."""
    space = net.space
    paths = space.uniform
    if len(paths) < space.size:
        rng = random.Random(seed)
        known = set(paths)
        others = [path for path in (net.paths if isinstance(net, Runner) else space) if path not in known]
        paths = [*paths, *rng.sample(others, min(sample, len(others)))]
    return paths
