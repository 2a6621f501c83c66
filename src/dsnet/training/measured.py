"""What the losses of stage II need to know about a frozen supernet, measured on its training images."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.data.dataset import Batch
from dsnet.models import Supernet
from dsnet.nn import ScoringHead, StandardLinear
from dsnet.routers import Router
from dsnet.space import WidthSpace
from dsnet.training import distributed
from dsnet.training.cache import Moments, Read, compared, maps_of, placed
from dsnet.training.ieb import full
from dsnet.training.scores import balancing, target_counts
from dsnet.training.sgs_config import PAPER, SGSConfig

LEAST = 1e-3  # standard deviation of a classifier's probabilities; a network that hardly learned gives constant ones


@dataclass(frozen=True)
class Measured:
    """What the losses need to know about the frozen supernet on the training images.

    Args:
        weights: Weights of images [windows, R], by the position that is their target in each window. None if all
            images count the same.
        gap: Cross-entropy of the slimmest candidate minus that of the widest.
    """

    weights: Tensor | None = None
    gap: float = 1.0


@torch.no_grad()
def measured(net: Supernet, config: SGSConfig, reads: Iterable[tuple[Read, Tensor]], *, fresh: bool = True) -> Measured:
    """Measure the supernet on training images, over all processes.

    fresh: Also take the statistics by which the router standardises what it reads. The features of an early
    classifier, which has not learned anything yet, are standardised as those of the slimmest path.
    """
    spec, windows = config.spec, windows_of(net)
    counts: Tensor | None = None
    losses = torch.zeros(3, dtype=torch.float64)  # slimmest, widest, images
    seen, features = Moments(), Moments()
    head = net.probe if net.early is None else net.early.head
    for part, labels in reads:
        answers = part.answers.unbind(1)
        if spec.targets in PAPER:
            more = target_counts(spec, answers, labels, windows).cpu()
            counts = more if counts is None else counts + more
        ends = [F.cross_entropy(full(logits), labels, reduction="sum").item() for logits in (answers[0], answers[-1])]
        losses += torch.tensor([*ends, len(labels)])
        if part.seen.shape[1]:
            seen.add(part.seen if net.early is None else maps_of(net, part))
        if isinstance(head, ScoringHead):
            features.add(head.features(answers[0]))
    slim, wide, images = distributed.total(losses).tolist()
    if not images:
        raise ValueError("there are no training images to measure the supernet on")
    if fresh and net.early is not None:
        standardise(net.early.classifier.reads, seen)
    if fresh and isinstance(head, ScoringHead):
        standardise(head.reduce, features, least=LEAST)
    if fresh and spec.kind == "gate" and spec.early is None and (layer := code_reader(net, 0)) is not None:
        standardise(layer, seen)
    weights = None if counts is None or not config.balanced else balancing(distributed.total(counts))
    weights = None if weights is None else weights.to(net.head.classifier.weight)
    return Measured(weights, max(0.0, (slim - wide) / images))


def code_reader(net: Supernet, point: int) -> StandardLinear | None:
    """The layer of a slimming head that standardises the code; None where the code is read as it is."""
    gate = net.chain[point].first.gate
    if gate is None or gate.slimming is None:
        return None
    first = gate.slimming.reduce or gate.slimming.score
    return first if isinstance(first, StandardLinear) else None


@torch.no_grad()
def standardise_gates(net: Supernet, batches: Iterable[Batch]) -> None:
    """Take the statistics by which gates that decide one by one standardise their codes, behind every uniform path.

    Where the size of a code depends on the width in front of it, only the widest counts.
    """
    layers = [code_reader(net, point) for point in range(len(net.chain))]
    moments = [Moments() for _ in layers]
    device = next(net.parameters()).device
    for batch in batches:
        if len(batch.images):
            entered = net.enter(placed(batch.images, device))
            for path in compared(net):
                for code, layer, sums in zip(net.run_coded(entered, path)[1], layers, moments, strict=True):
                    if code is not None and layer is not None and code.shape[1] == len(layer.mean):
                        sums.add(code)
    for layer, sums in zip(layers, moments, strict=True):
        if layer is not None and sums.sums is not None:
            standardise(layer, sums)


def standardise(layer: StandardLinear, moments: Moments, *, least: float = 0.0) -> None:
    """least: The smallest standard deviation. What is smaller is not worth enlarging."""
    mean, std = moments.mean_std()
    layer.mean.copy_(mean)
    layer.std.copy_(std.clamp_min(least))


def windows_of(net: Supernet) -> list[tuple[int, int]]:
    """The windows that the router of a network chooses within, as positions among the answers that it compares."""
    assert net.spec.router is not None
    windows = Router(net.spec.router, WidthSpace(net.spec.routing, net.spec.router.exits)).windows
    return windows if len(windows) > 1 else [(0, len(compared(net)) - 1)]
