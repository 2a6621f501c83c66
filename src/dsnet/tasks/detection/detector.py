"""FSSD on a slimmable backbone. The width is an argument; behind the projections nothing depends on it.

    backbone segments -> tapped maps -> projections | neck -> pyramid -> heads -> deltas, logits

Left of the bar is the width group: its output has the same shape at every width, so that a batch whose samples went
different ways comes together there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, fx, nn

from dsnet.extraction import fold_batch_norm
from dsnet.models import Card, Supernet
from dsnet.models.segment import Features
from dsnet.nn import SliceBatchNorm2d, SliceConv2d
from dsnet.nn.tracing import materialise
from dsnet.space import Channels, WidthPath, WidthSpace
from dsnet.tasks.detection.boxes import decode
from dsnet.tasks.detection.layers import Heads, Neck
from dsnet.tasks.detection.priors import prior_boxes
from dsnet.tasks.detection.spec import DetectorSpec


class Answer(NamedTuple):
    """Deltas [B, P, 4] of the priors and logits [B, P, 1 + classes], background first."""

    deltas: Tensor
    logits: Tensor


class Started(NamedTuple):
    """What all paths share: the map at the first choice, the map scaled by its gate's attention, the code that the
    slimming head reads, and the projected maps from before."""

    x: Tensor
    scaled: Tensor
    code: Tensor | None
    projected: Features


class Detector(nn.Module):
    """A backbone whose width is chosen, and one neck and one set of heads for all widths.

    The backbone's batch norm stays as it is: statistics per width, and the affine that belongs to them, are never
    trained here. Its classifier is not used.
    """

    priors: Tensor

    def __init__(self, spec: DetectorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = Supernet(spec.backbone)
        self.backbone.head.requires_grad_(False)
        self.projections = nn.ModuleDict({tap: projection(spec.channels_of(tap), spec.projection) for tap in spec.taps})
        self.neck = Neck(spec)
        self.heads = Heads(spec)
        self.register_buffer("priors", prior_boxes(spec.sides, spec.scales, spec.ratios), persistent=False)
        self.freeze_norms()

    @property
    def card(self) -> Card:
        """Class names, preprocessing and budgets, saved with the weights."""
        return self.backbone.card

    @card.setter
    def card(self, card: Card) -> None:
        self.backbone.card = card

    @property
    def space(self) -> WidthSpace:
        return self.backbone.space

    @property
    def routes(self) -> bool:
        """Whether each image can have a width of its own."""
        return self.spec.backbone.router is not None

    def freeze_norms(self) -> None:
        for module in self.backbone.modules():
            if isinstance(module, SliceBatchNorm2d):
                module.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Detector:
        super().train(mode)
        self.freeze_norms()
        return self

    def forward(self, x: Tensor, path: Sequence[int] = ()) -> Answer:
        """What the sub-network `path` says of every prior."""
        self.check_input(x)
        return self.run(x, self.space.validate(path))

    def run(self, x: Tensor, path: WidthPath) -> Answer:
        """`forward` without its checks."""
        return self.finish(self.widths(self.start(x), path))

    def forward_paths(self, x: Tensor, paths: Sequence[Sequence[int]]) -> list[Answer]:
        """Several sub-networks on one batch; what comes before the first choice is computed once."""
        self.check_input(x)
        started = self.start(x)
        return [self.finish(self.widths(started, self.space.validate(path))) for path in paths]

    def start(self, x: Tensor) -> Started:
        """Everything before the first choice."""
        net = self.backbone
        x, tapped = net.front.features(x, 0)
        projected = self.project(tapped, 0)
        if not net.chain:
            return Started(x, x, None, projected)
        x = net.chain[0].enter(x, 0)
        return Started(x, *net.chain[0].attend(x, 0), projected)

    def branch(self, point: int, x: Tensor, scaled: Tensor, w_in: int, w_out: int) -> tuple[Tensor, Features]:
        """A segment behind its gate: its last map, and the projections of its tapped ones."""
        segment = self.backbone.chain[point]
        x = segment.first.body(x, scaled, w_in, w_out)
        mine = {} if segment.tap is None else {segment.tap: x}
        x, tapped = segment.rest.features(x, w_out)
        return x, self.project(mine | tapped, w_out)

    def widths(self, started: Started, path: WidthPath) -> Features:
        """The projected maps of a path."""
        x, scaled, _, projected = started
        w_in = 0
        for point, w_out in enumerate(path):
            if point:
                x = self.backbone.chain[point].enter(x, w_in)
                scaled, _ = self.backbone.chain[point].attend(x, w_in)
            x, more = self.branch(point, x, scaled, w_in, w_out)
            projected, w_in = projected | more, w_out
        return projected

    def project(self, tapped: Features, width: int) -> Features:
        """Tapped maps of any width as maps of one."""
        return {tap: self.projections[tap](x, width, 0) for tap, x in tapped.items() if tap in self.projections}

    def finish(self, projected: Features) -> Answer:
        """Everything behind the projections."""
        return Answer(*self.heads(self.neck([projected[tap] for tap in self.spec.taps])))

    def boxes_of(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Boxes [B, P, 4] in corners, as shares of the image, clipped to it; probabilities [B, P, classes]."""
        return decode(answer.deltas, self.priors).clamp(0, 1), answer.logits.softmax(-1)[..., 1:]

    def scores(self, point: int, code: Tensor | None, width: int) -> Tensor:
        """Scores [B, R] of a gate, as `decide` takes them."""
        router, raw = self.spec.backbone.router, self.backbone.chain[point].score(code, width)
        assert router is not None
        assert raw is not None
        return router.link(raw)

    def look(self, x: Tensor, paths: Sequence[WidthPath]) -> tuple[list[tuple[Tensor, Tensor]], Tensor | None]:
        """Boxes and scores of several paths, and the first gate's scores where it routes."""
        self.check_input(x)
        started = self.start(x)
        found = [self.boxes_of(self.finish(self.widths(started, path))) for path in paths]
        return found, self.scores(0, started.code, 0) if self.routes else None

    def check_input(self, x: Tensor) -> None:
        self.spec.check_input(x.shape)


def projection(channels: Channels, out: int) -> SliceConv2d:
    return SliceConv2d(channels, Channels.of(out))


def with_backbone(spec: DetectorSpec, net: Supernet) -> Detector:
    """A detector with fresh neck and heads on a trained classification network, whose spec may have another image size,
    classes or routing."""
    detector = Detector(spec).to(net.head.classifier.weight.dtype)
    theirs = net.state_dict()
    skipped = ("head.classifier.", "probe.")
    kept = {name: tensor for name, tensor in theirs.items() if not name.startswith(skipped)}
    mine = detector.backbone.state_dict()
    for name, tensor in kept.items():
        if name not in mine or (mine[name].shape != tensor.shape and ".slimming." not in name):
            raise ValueError(
                f"the network {net.spec.name!r} does not fit the backbone {spec.backbone.name!r}: tensor {name!r} "
                f"differs; give a run of that model"
            )
    fitting = {name: tensor for name, tensor in kept.items() if mine[name].shape == tensor.shape}
    detector.backbone.load_state_dict(fitting, strict=False)
    return detector


def extract_detector(detector: Detector, path: Sequence[int] = (), *, fold: bool = False) -> fx.GraphModule:
    """The sub-network `path` as a plain module from images to (deltas, logits); `fold` merges batch norm."""
    chosen = detector.space.validate(path)
    with torch.no_grad():
        plain = materialise(detector, lambda x: tuple(detector.run(x, chosen)))
    return fold_batch_norm(plain) if fold else plain
