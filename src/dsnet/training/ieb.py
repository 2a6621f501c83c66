"""Stage I: In-place Ensemble Bootstrapping, equations (3) to (5) of the paper."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.errors import must
from dsnet.models import Supernet
from dsnet.schema import Typed
from dsnet.space import WidthPath


@dataclass(frozen=True)
class IEBConfig(Typed):
    """How the sub-networks teach each other in stage I.

    Args:
        teacher: Network that the sub-networks learn from: inplace (the widest of the network that is trained), ema (the
            widest of its moving average), or ieb (as ema, but the slimmest learns from the mean prediction of the
            widest and the random sub-networks of the moving average).
        paths: Number of random sub-networks trained in each step, besides the widest and the slimmest. More give
            smoother curves and slower steps.
        temperature: Number that student and teacher logits are divided by before they are compared.
        scale_gradients: Multiply the distillation losses by the square of the temperature.
        momentum: Momentum of the moving average. It warms up over the first steps.
    """

    teacher: Literal["inplace", "ema", "ieb"] = "ieb"
    paths: int = 2
    temperature: float = 1.0
    scale_gradients: bool = False
    momentum: float = 0.97

    def __post_init__(self) -> None:
        if self.teacher not in ("inplace", "ema", "ieb"):
            raise ValueError(f"ieb.teacher {self.teacher!r} is unknown; choose inplace, ema or ieb")
        must("ieb.paths", self.paths, self.paths >= 0, "be at least 0")
        must("ieb.temperature", self.temperature, self.temperature > 0, "be positive")
        must("ieb.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")


N = TypeVar("N", bound=nn.Module)


class Stage(nn.Module, ABC, Generic[N]):
    """The losses of one training step, for any network. A module, because DistributedDataParallel wraps modules.

    updates_statistics: Whether a step changes the running statistics of the net.
    """

    net: N
    updates_statistics = False

    def draw(self, rng: random.Random, progress: float = 0.0, *, part: int = 0) -> Any:
        """Draw what is random in a step.

        progress: Share of the training that is done. part: Number of the part of the batch, over all processes.
        """
        return None

    @abstractmethod
    def forward(self, images: Tensor, labels: Tensor, drawn: Any, average: N) -> dict[str, Tensor]:
        """The named losses of a batch. drawn: The result of `draw`. average: The moving average of the net."""


class IEB(Stage[Supernet]):
    """The losses of one step of stage I. The teacher is an argument because it is not trained."""

    updates_statistics = True

    def __init__(self, net: Supernet, config: IEBConfig) -> None:
        super().__init__()
        self.net, self.config = net, config
        for head in net.slimming_heads():  # stage I does not use the slimming heads
            head.requires_grad_(False)

    def draw(self, rng: random.Random, progress: float = 0.0, *, part: int = 0) -> list[WidthPath]:
        """Draw the random paths R of one step, the same for all parts of its batch. A static network has none."""
        space = self.net.space
        return [space.sample(rng) for _ in range(self.config.paths)] if space.size > 1 else []

    def forward(
        self, images: Tensor, labels: Tensor, paths: Sequence[WidthPath], teacher: Supernet
    ) -> dict[str, Tensor]:
        space = self.net.space
        if space.size == 1:
            return {"widest": F.cross_entropy(full(self.net(images, space.widest)), labels)}
        wide, *middle, slim = self.net.forward_paths(images, [space.widest, *paths, space.slimmest])
        wide_probs, slim_probs = self.targets(images, wide, paths, teacher)
        losses = {"widest": F.cross_entropy(full(wide), labels)}
        for number, logits in enumerate(middle, start=1):
            losses[f"random{number}"] = self.distil(logits, wide_probs)
        losses["slimmest"] = self.distil(slim, slim_probs)
        return losses

    @torch.no_grad()
    def targets(
        self, images: Tensor, online_widest: Tensor, paths: Sequence[WidthPath], teacher: Supernet
    ) -> tuple[Tensor, Tensor]:
        """Probabilities that the random paths and the slimmest path learn, each [B, classes]."""
        if self.config.teacher == "inplace":
            wide_probs = self.soften(online_widest)
            return wide_probs, wide_probs
        sampled = paths if self.config.teacher == "ieb" else []
        probs = [self.soften(logits) for logits in teacher.forward_paths(images, [teacher.space.widest, *sampled])]
        return probs[0], torch.stack(probs).mean(0)

    def soften(self, logits: Tensor) -> Tensor:
        return (full(logits.detach()) / self.config.temperature).softmax(1)

    def distil(self, logits: Tensor, target_probs: Tensor) -> Tensor:
        loss = F.cross_entropy(full(logits) / self.config.temperature, target_probs)
        return loss * self.config.temperature**2 if self.config.scale_gradients else loss


def full(logits: Tensor) -> Tensor:
    """Logits in at least single precision, whatever autocast produced."""
    return logits if logits.dtype == torch.float64 else logits.float()
