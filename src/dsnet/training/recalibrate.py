"""Batch-norm statistics of every width, averaged exactly over batches."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from dsnet.models import Supernet
from dsnet.nn import SliceBatchNorm2d
from dsnet.space import WidthPath


def batch_norms(net: Supernet) -> list[SliceBatchNorm2d]:
    return [module for module in net.modules() if isinstance(module, SliceBatchNorm2d)]


@torch.no_grad()
def recalibrate(net: Supernet, images: Iterable[Tensor]) -> int:
    """Reset the statistics and average those of the given batches, for every width; weights stay untouched.

    Returns the number of batches. Networks without batch norm are left alone.
    """
    norms = batch_norms(net)
    if not norms:
        return 0
    training, device = net.training, net.head.classifier.weight.device
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.running_mean.zero_()
        norm.running_var.fill_(1)
        norm.num_batches_tracked.zero_()
        norm.momentum = None  # a plain average over batches
    net.train()
    count = 0
    try:
        for batch in images:
            net.forward_paths(batch.to(device), list(net.space))
            count += 1
    finally:
        net.train(training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    if count == 0:
        raise ValueError("recalibration needs at least one batch of images")
    return count


def uncalibrated(net: Supernet, paths: Iterable[WidthPath]) -> list[WidthPath]:
    """The paths whose batch norm never saw an image, so that their outputs mean nothing."""
    norms = [norm for norm in batch_norms(net) if len(norm.channels) > 1 or not net.spec.widths]
    seen = [
        all(bool(norm.num_batches_tracked[w] > 0) for norm in norms) for w in range(max(net.spec.widths, default=1))
    ]
    return [path for path in paths if norms and not seen[path[0] if path else 0]]
