"""The momentum target network: an exponential moving average of weights and statistics, equation (3)."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from dsnet.models import Supernet


class EMA:
    """`net` is the average, always in eval mode. The decay warms up: min(momentum, (1 + t) / (10 + t))."""

    def __init__(self, online: Supernet, momentum: float) -> None:
        self.net = copy.deepcopy(online).eval().requires_grad_(False)
        self.momentum = momentum

    @torch.no_grad()
    def update(self, online: Supernet, step: int) -> None:
        """Move towards the online network after its optimizer step number `step`, counted from 0."""
        decay = min(self.momentum, (1 + step) / (10 + step))
        averages: list[Tensor] = []
        values: list[Tensor] = []
        current = online.state_dict()
        for name, average in self.net.state_dict().items():
            if average.is_floating_point():
                averages.append(average)
                values.append(current[name])
            else:
                average.copy_(current[name])
        torch._foreach_lerp_(averages, values, 1 - decay)
