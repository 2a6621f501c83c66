"""The moving average of the weights (equation 3), and recalibration of the batch-norm statistics of every width."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from dsnet.models import Supernet
from dsnet.nn import SliceBatchNorm2d

N = TypeVar("N", bound=nn.Module)


class EMA(Generic[N]):
    """The momentum target network. `net` holds the moving average of weights and statistics, always in eval mode.

    The decay warms up: min(momentum, (1 + t) / (10 + t)).
    """

    def __init__(self, online: N, momentum: float) -> None:
        self.net = copy.deepcopy(online).eval().requires_grad_(False)
        self.momentum = momentum
        # The tensors themselves: training, loading a state and averaging statistics change them in place.
        # Frozen parameters stay equal.
        frozen = {name for name, parameter in online.named_parameters() if not parameter.requires_grad}
        current = {name: tensor for name, tensor in online.state_dict().items() if name not in frozen}
        average = {name: tensor for name, tensor in self.net.state_dict().items() if name not in frozen}
        floats = [name for name, tensor in average.items() if tensor.is_floating_point()]
        self.averaged = [average[name] for name in floats], [current[name] for name in floats]
        others = [name for name in average if name not in set(floats)]
        self.copied = [average[name] for name in others], [current[name] for name in others]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Move towards the online network after its optimizer step number `step`, counted from 0."""
        decay = min(self.momentum, (1 + step) / (10 + step))
        torch._foreach_lerp_(*self.averaged, 1 - decay)
        if self.copied[0]:
            torch._foreach_copy_(*self.copied)


def batch_norms(net: nn.Module) -> list[SliceBatchNorm2d]:
    return [module for module in net.modules() if isinstance(module, SliceBatchNorm2d)]


@torch.no_grad()
def recalibrate(net: Supernet, images: Iterable[Tensor], *, frozen: bool = False) -> int:
    """Recompute the batch-norm statistics of every width at every image size, as the average over the given batches.
    Weights do not change.

    frozen: Whether the front keeps its statistics.
    Returns the number of batches. Networks without batch norm are not changed.
    """
    kept = set(batch_norms(net.front)) if frozen else set()
    norms = [norm for norm in batch_norms(net) if norm not in kept]
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
    net.front.train(not frozen)
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
