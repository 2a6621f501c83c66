"""Recalibration of the batch-norm statistics of every width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dsnet.models import Supernet
from dsnet.nn import SliceBatchNorm2d
from dsnet.training.average import batch_norms
from dsnet.training.distributed import in_order


@torch.no_grad()
def recalibrate(net: Supernet, images: Iterable[Tensor], *, frozen: bool = False) -> int:
    """Recompute the batch-norm statistics of every width at every image size, as the average over batches. Weights do
    not change, nor do statistics of the widest that are anchored.

    images: Every world-th batch for each process, which all must call this and all get the same statistics.
    frozen: Whether the front keeps its statistics.
    Returns the number of batches. Networks without batch norm are not changed.
    """
    kept = set(batch_norms(net.front)) if frozen else set()
    norms = [norm for norm in batch_norms(net) if norm not in kept]
    if not norms:
        return 0
    training, device = net.training, net.device
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        rows = moving(norm)
        norm.running_mean[rows] = 0
        norm.running_var[rows] = 1
        norm.momentum = 1.0  # the statistics of a batch replace those of the one before
    net.train()
    net.front.train(not frozen)
    mine: list[Tensor | None] = []
    try:
        for batch in images:
            some = len(batch) > 1  # damaged files are left out
            if some:
                net.forward_paths(batch.to(device), list(net.space))
            mine.append(packed(norms) if some else None)
    finally:
        net.train(training)
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
    found = [one for one in in_order([None if one is None else one.cpu() for one in mine]) if one is not None]
    if not found:
        raise ValueError("recalibration needs at least one batch of images")
    unpack(norms, averaged(found).to(device))
    for norm in norms:
        norm.num_batches_tracked[moving(norm)] = len(found)
    return len(found)


def moving(norm: SliceBatchNorm2d) -> slice:
    """The width indices whose statistics are recomputed."""
    return slice(-1) if norm.anchored else slice(None)


def packed(norms: Sequence[SliceBatchNorm2d]) -> Tensor:
    """The means and variances [2, F] of all norms."""
    return torch.stack(
        [torch.cat([getattr(norm, name).flatten() for norm in norms]) for name in ("running_mean", "running_var")]
    )


def unpack(norms: Sequence[SliceBatchNorm2d], found: Tensor) -> None:
    """Set the statistics of all norms. Entries beyond a width are never used, and stay as they are."""
    for name, row in zip(("running_mean", "running_var"), found, strict=True):
        for norm, values in zip(norms, row.split([norm.prefix.numel() for norm in norms]), strict=True):
            table, rows = getattr(norm, name), moving(norm)
            table[rows] = torch.where(norm.prefix, values.view_as(table), table)[rows]


def averaged(batches: Sequence[Tensor]) -> Tensor:
    """The average of the statistics [2, F] of some batches, in the steps of torch's batch norm without a momentum.

    Means are rounded after every operation, variances after a fused multiplication and addition, as its kernels for
    CPUs do, so that the average is the one that torch would have made.
    """
    average = torch.zeros_like(batches[0])
    for number, found in enumerate(batches, start=1):
        share = torch.tensor(1 / number, dtype=found.dtype)
        rest = (1 - share) * average
        mean = share * found[0] + rest[0]
        variance = share.double() * found[1].double() + rest[1].double()
        average = torch.stack([mean, variance.to(found.dtype)])
    return average
