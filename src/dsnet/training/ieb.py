"""Stage I: In-place Ensemble Bootstrapping, equations (3) to (5) of the paper."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.errors import must
from dsnet.models import Supernet
from dsnet.schema import Typed
from dsnet.space import WidthPath
from dsnet.training.average import batch_norms


@dataclass(frozen=True)
class IEBConfig(Typed):
    """How the sub-networks teach each other in stage I.

    Args:
        teacher: Network that the sub-networks learn from: inplace (the widest of the network that is trained), ema (the
            widest of its moving average), ieb (as ema, but the slimmest learns from the mean prediction of the widest
            and the random sub-networks of the moving average), or original (the widest of the network that --from
            names, frozen). On images without labels the widest learns from it too.
        paths: Number of random sub-networks trained in each step, besides the widest and the slimmest. More give
            smoother curves and slower steps.
        only: Index of the width that is trained alone, on the labels, as a static network. By default all are trained.
        weight: Weight of the losses of all sub-networks except the widest. Less than 1 favours the widest.
        temperature: Number that student and teacher logits are divided by before they are compared.
        scale_gradients: Multiply the distillation losses by the square of the temperature.
        momentum: Momentum of the moving average. It warms up over the first steps.
        mixup: Strength of mixup, the alpha of its Beta distribution; 0.2 is usual, 0 switches it off. Each image is
            blended with another one of its batch. The widest learns both labels; the others learn what the teacher
            says about the blended images.
        class_weights: Weights of the classes in the loss on the labels: none, or balanced, so that every class counts
            the same however many images it has.
        distillation: Weight of the answers of the run that --distill names; the labels get the rest.
    """

    teacher: Literal["inplace", "ema", "ieb", "original"] = "ieb"
    paths: int = 2
    only: int | None = None
    weight: float = 1.0
    temperature: float = 1.0
    scale_gradients: bool = False
    momentum: float = 0.97
    mixup: float = 0.0
    class_weights: Literal["none", "balanced"] = "none"
    distillation: float = 0.7

    def __post_init__(self) -> None:
        if self.teacher not in ("inplace", "ema", "ieb", "original"):
            raise ValueError(f"ieb.teacher {self.teacher!r} is unknown; choose inplace, ema, ieb or original")
        must("ieb.paths", self.paths, self.paths >= 0, "be at least 0")
        must("ieb.weight", self.weight, 0 < self.weight <= 10, "lie in (0, 10]; 1 counts all sub-networks alike")
        must("ieb.temperature", self.temperature, self.temperature > 0, "be positive")
        must("ieb.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")
        must("ieb.mixup", self.mixup, 0 <= self.mixup <= 10, "lie in [0, 10]; 0.2 is usual")
        must("ieb.distillation", self.distillation, 0 <= self.distillation <= 1, "lie in [0, 1]")
        if self.class_weights not in ("none", "balanced"):
            raise ValueError(f"ieb.class_weights {self.class_weights!r} is unknown; choose none or balanced")


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


def balanced(counts: Tensor) -> Tensor:
    """Weights of the classes with these numbers of images [C], inverse to them. Their mean over the images is 1."""
    return counts.sum() / (len(counts) * counts.clamp_min(1))


class Drawn(NamedTuple):
    """What is random in a step: the random paths R, and the share of each image in its blend by mixup."""

    paths: Sequence[WidthPath]
    share: float = 1.0


class IEB(Stage[Supernet]):
    """The losses of one step of stage I. The teacher is an argument because it is not trained.

    class_weights: Weight of each class in the loss on the labels. guide: Trained network whose widest answers the
    widest learns besides the labels. original: The teacher that is frozen. labelled: Whether the images have labels.
    Without labels, the widest only has to stay what it is, so it keeps its statistics: those of other images, or of the
    same ones at another size, would change its answers. frozen: Whether the front keeps its weights and statistics.
    """

    updates_statistics = True
    class_weights: Tensor | None

    def __init__(
        self,
        net: Supernet,
        config: IEBConfig,
        *,
        class_weights: Tensor | None = None,
        guide: Supernet | None = None,
        original: Supernet | None = None,
        labelled: bool = True,
        frozen: bool = False,
    ) -> None:
        super().__init__()
        self.net, self.config = net, config
        self.register_buffer("class_weights", class_weights)
        self.guide = None if guide is None else guide.eval().requires_grad_(False)
        self.original = None if original is None else original.eval().requires_grad_(False)
        self.labelled = labelled
        for head in net.slimming_heads():  # stage I does not use the slimming heads
            head.requires_grad_(False)
        self.frozen = frozen
        if frozen:
            net.front.requires_grad_(False)
        for norm in batch_norms(net):
            norm.anchored = not labelled

    def train(self, mode: bool = True) -> IEB:
        super().train(mode)
        if self.frozen:
            self.net.front.eval()
        for network in (self.guide, self.original):
            if network is not None:
                network.eval()
        return self

    @property
    def alone(self) -> WidthPath | None:
        """The path that is trained alone, on the labels: that of a static network, or the one that the config names."""
        space, only = self.net.space, self.config.only
        if only is None:
            return space.widest if space.size == 1 else None
        return space.at(only)

    def draw(self, rng: random.Random, progress: float = 0.0, *, part: int = 0) -> Drawn:
        """Draw the random paths R of one step, the same for all parts of its batch. A static network has none."""
        space, alpha = self.net.space, self.config.mixup
        if self.alone is not None:
            paths = []
        elif space.sized:  # the ends are trained in every step anyway
            others = [path for path in space if path not in (space.slimmest, space.widest)]
            paths = rng.sample(others, min(self.config.paths, len(others)))
        else:
            paths = [space.sample(rng) for _ in range(self.config.paths)]
        return Drawn(paths, rng.betavariate(alpha, alpha) if alpha else 1.0)

    def forward(self, images: Tensor, labels: Tensor, drawn: Drawn, teacher: Supernet) -> dict[str, Tensor]:
        space, (paths, share) = self.net.space, drawn
        if share < 1:
            images = share * images + (1 - share) * images.roll(1, 0)
        if self.alone is not None:
            return self.widest_losses(images, self.net(images, self.alone), labels, share)
        wide, *middle, slim = self.net.forward_paths(images, [space.widest, *paths, space.slimmest])
        wide_probs, slim_probs = self.targets(images, wide, paths, teacher)
        if self.labelled:
            losses = self.widest_losses(images, wide, labels, share)
        else:
            losses = {"widest": self.distil(wide, wide_probs)}
        for number, logits in enumerate(middle, start=1):
            losses[f"random{number}"] = self.config.weight * self.distil(logits, wide_probs)
        losses["slimmest"] = self.config.weight * self.distil(slim, slim_probs)
        return losses

    def widest_losses(self, images: Tensor, logits: Tensor, labels: Tensor, share: float) -> dict[str, Tensor]:
        """The loss of the widest on the labels, and on the answers of the guide if there is one."""
        loss = self.label_loss(logits, labels, share)
        if self.guide is None:
            return {"widest": loss}
        with torch.no_grad():
            target_probs = self.soften(self.guide(images, self.guide.space.widest))
        weight = self.config.distillation
        return {"widest": (1 - weight) * loss, "distilled": weight * self.distil(logits, target_probs)}

    def label_loss(self, logits: Tensor, labels: Tensor, share: float) -> Tensor:
        """The loss on the labels. Of blended images, the labels of both count by their share."""
        loss = self.weighted(logits, labels)
        return share * loss + (1 - share) * self.weighted(logits, labels.roll(1, 0)) if share < 1 else loss

    def weighted(self, logits: Tensor, labels: Tensor) -> Tensor:
        if self.class_weights is None:
            return F.cross_entropy(full(logits), labels)
        # The weights have mean 1 over the training images, so the plain mean over a batch is unbiased.
        weights = self.class_weights.to(full(logits).dtype)
        return F.cross_entropy(full(logits), labels, weight=weights, reduction="none").mean()

    @torch.no_grad()
    def targets(
        self, images: Tensor, online_widest: Tensor, paths: Sequence[WidthPath], teacher: Supernet
    ) -> tuple[Tensor, Tensor]:
        """Probabilities that the random paths and the slimmest path learn, each [B, classes]."""
        if self.config.teacher == "inplace":
            wide_probs = self.soften(online_widest)
            return wide_probs, wide_probs
        if self.original is not None:
            original_probs = self.soften(self.original(images, self.original.space.widest))
            return original_probs, original_probs
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
