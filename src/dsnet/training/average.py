"""The moving average of the weights (equation 3)."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import nn

from dsnet.nn import SliceBatchNorm2d

N = TypeVar("N", bound=nn.Module)


class EMA(Generic[N]):
    """The momentum target network. `net` holds the moving average of weights and statistics, always in eval mode.

    The decay warms up: min(momentum, (1 + t) / (10 + t)).
    statistics: Whether training changes buffers, too; otherwise only what requires gradients is averaged.
    """

    def __init__(self, online: N, momentum: float, *, statistics: bool = True) -> None:
        self.net = copy.deepcopy(online).eval().requires_grad_(False)
        self.momentum = momentum
        # The tensors themselves: training, loading a state and averaging statistics change them in place.
        # Frozen parameters stay equal.
        frozen = {name for name, parameter in online.named_parameters() if not parameter.requires_grad}
        frozen |= set() if statistics else {name for name, _ in online.named_buffers()}
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
