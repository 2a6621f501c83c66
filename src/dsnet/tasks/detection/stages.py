"""The two training stages of a detector: all widths together (stage I), then the gates (stage II)."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
from torch import Tensor

from dsnet.data.dataset import Batch
from dsnet.errors import must
from dsnet.nn import Gate, RouterSpec
from dsnet.schema import Typed
from dsnet.space import WidthPath
from dsnet.tasks.detection.detector import Answer, Detector
from dsnet.tasks.detection.loss import MultiboxLoss, Targets, match_all, multibox_loss
from dsnet.training import Stage
from dsnet.training.scores import score_loss


@dataclass(frozen=True)
class WidthsConfig(Typed):
    """How the widths of a detector are trained together in stage I.

    Args:
        paths: Number of random sub-networks trained in each step, besides the widest and the slimmest.
        slimmest: Train the slimmest in each step. Otherwise it is drawn like the others, which takes less time.
        backbone: Train the weights of the backbone, too. Otherwise only projections, neck and heads learn.
        momentum: Momentum of the moving average of the weights, which is what is saved.
    """

    paths: int = 1
    slimmest: bool = True
    backbone: bool = True
    momentum: float = 0.99

    def __post_init__(self) -> None:
        must("widths.paths", self.paths, self.paths >= 0, "be at least 0")
        if not self.slimmest:
            must("widths.paths", self.paths, self.paths >= 1, "be at least 1 where widths.slimmest is false")
        must("widths.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")


@dataclass(frozen=True)
class GatesConfig(Typed):
    """How the gate of a detector learns to route in stage II.

    Args:
        router: Train the gates here (trained), or keep those of the classification run (frozen).
        targets: What the gates learn to predict: try_best (the widest for hard images, the slimmest for others), or
            excess (how much larger the loss of each width is than that of the widest).
        momentum: Momentum of the moving average of the gates' weights.
    """

    router: Literal["frozen", "trained"] = "trained"
    targets: Literal["try_best", "excess"] = "excess"
    momentum: float = 0.99

    def __post_init__(self) -> None:
        if self.router not in ("frozen", "trained") or self.targets not in ("try_best", "excess"):
            raise ValueError("gates.router is frozen or trained, gates.targets is try_best or excess")
        must("gates.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")

    @property
    def spec(self) -> RouterSpec:
        """The spec of the router. Excess losses measure the distance from the widest, as the targets kl do, so the
        router treats them alike."""
        return RouterSpec("gate", "kl" if self.targets == "excess" else "try_best")


class WidthsStage(Stage[Detector]):
    """Stage I: the widest, the slimmest and random sub-networks, all trained on the objects. Statistics stay frozen."""

    def __init__(self, net: Detector, config: WidthsConfig, *, keep_gates: bool = False) -> None:
        """keep_gates: Freeze whole gates, not just their slimming heads, which may share a layer with the attention."""
        super().__init__()
        self.net, self.config = net, config
        if not config.backbone:
            net.backbone.requires_grad_(False)
        for gate in net.backbone.modules():
            if isinstance(gate, Gate) and gate.slimming is not None:
                (gate if keep_gates else gate.slimming).requires_grad_(False)

    def draw(self, rng: random.Random, progress: float = 0.0, *, part: int = 0) -> list[WidthPath]:
        """Draw the paths of one step, the same for all parts of its batch."""
        space = self.net.space
        if space.size == 1:
            return [space.widest]
        always = [space.widest, space.slimmest] if self.config.slimmest else [space.widest]
        others = (path for path in iter(lambda: space.sample(rng), None) if path not in always)
        return [*always, *islice(others, self.config.paths if space.size > len(always) else 0)]

    def forward(
        self, images: Tensor, objects: Tensor, paths: Sequence[WidthPath], average: Detector
    ) -> dict[str, Tensor]:
        targets = match_all(objects, self.net.priors)
        losses = [loss_of(answer, targets).total for answer in self.net.forward_paths(images, paths)]
        always = ["widest", "slimmest"] if self.config.slimmest else ["widest"]
        names = [*always, *(f"random{number}" for number in range(1, len(paths)))]
        return dict(zip(names, losses, strict=False))  # a static detector has the widest only


class GatesStage(Stage[Detector]):
    """Stage II: the slimming heads learn which images need width. Everything else is frozen.

    An image is hard if the loss of the slimmest sub-network exceeds that of the widest by more than `median`, the
    median of this difference over the training images.
    """

    def __init__(self, net: Detector, *, median: float) -> None:
        super().__init__()
        router = net.spec.backbone.router
        if router is None or len(net.spec.backbone.widths) != 1:
            raise ValueError(f"{net.spec.name!r} has no router, or more than one choice point; gates cannot be trained")
        self.net, self.router, self.median = net.eval(), router, median
        for name, parameter in net.named_parameters():
            parameter.requires_grad_(".slimming." in name)

    def train(self, mode: bool = True) -> GatesStage:
        super().train(mode)
        self.net.eval()
        return self

    def forward(self, images: Tensor, objects: Tensor, drawn: None, average: Detector) -> dict[str, Tensor]:
        with torch.no_grad():
            started = self.net.start(images)
            targets = match_all(objects, self.net.priors)
            paths = self.net.backbone.candidates
            losses = [loss_of(self.net.finish(self.net.widths(started, path)), targets).each for path in paths]
        raw = self.net.backbone.chain[0].score(started.code, 0)
        assert raw is not None
        return {"guidance": score_loss(self.router, raw, goals(self.router, losses, self.median))}


def goals(router: RouterSpec, losses: Sequence[Tensor], median: float) -> Tensor:
    """The targets of the scores, from the losses [B] of the candidates, slimmest first and widest last.

    For try_best they are positions [B]; otherwise the excess over the widest [B, R].
    """
    if router.targets == "try_best":
        return torch.where(losses[0] - losses[-1] > median, len(losses) - 1, 0)
    return torch.stack([(loss - losses[-1]).clamp_min(0) for loss in losses], 1)


def loss_of(answer: Answer, targets: Targets) -> MultiboxLoss:
    return multibox_loss(answer.deltas, answer.logits, targets)


@torch.no_grad()
def median_gap(net: Detector, batches: Iterable[Batch]) -> float:
    """The median over images of the difference between the losses of the slimmest and the widest candidate."""
    ends = [net.backbone.routing.slimmest, net.backbone.routing.widest]
    gaps = []
    device = net.priors.device
    for batch in batches:
        targets = match_all(batch.labels.to(device), net.priors)
        slim, wide = (loss_of(answer, targets).each for answer in net.forward_paths(batch.images.to(device), ends))
        gaps.append(slim - wide)
    return torch.cat(gaps).median().item()
