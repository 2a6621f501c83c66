"""FSSD on a slimmable backbone. The width is an argument; nothing after the projections depends on it.

    backbone segments -> tapped maps -> projections | neck -> pyramid -> heads -> deltas, logits

The output of the projections has the same shape at every width. So samples that took different paths become one batch
again at the bar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from dsnet.card import Card
from dsnet.manifest import Manifest
from dsnet.models import Supernet
from dsnet.models.build import Features
from dsnet.models.count import FRONT
from dsnet.models.parts import LiveParts, describe
from dsnet.nn import SliceBatchNorm2d, SliceConv2d
from dsnet.routing.parts import Outputs, Step
from dsnet.space import Channels, WidthPath, WidthSpace
from dsnet.tasks.detection.loss import decode
from dsnet.tasks.detection.neck import Heads, Neck, prior_boxes
from dsnet.tasks.detection.spec import DetectorSpec

NAMED = ("backbone", "projections", "neck", "heads")  # parts whose MAdds are listed separately


class Answer(NamedTuple):
    """Deltas [B, P, 4] of the priors and logits [B, P, 1 + classes], background first."""

    deltas: Tensor
    logits: Tensor


class Started(NamedTuple):
    """The results that all paths share: the map at the first choice, the same map scaled by its gate's attention, the
    code that the slimming head reads, and the maps projected so far."""

    x: Tensor
    scaled: Tensor
    code: Tensor | None
    projected: Features


class Detector(nn.Module):
    """A slimmable backbone, with one neck and one set of heads for all widths.

    The backbone's batch norm is frozen, both its statistics per width and its affine. Its classifier is not used.
    """

    priors: Tensor

    def __init__(self, spec: DetectorSpec) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = Supernet(spec.backbone)
        self.backbone.head.requires_grad_(False)
        self.projections = nn.ModuleDict(
            {tap: SliceConv2d(spec.tap(tap).channels, Channels.of(spec.projection)) for tap in spec.taps}
        )
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

    def freeze_norms(self) -> None:
        for module in self.backbone.modules():
            if isinstance(module, SliceBatchNorm2d):
                module.eval().requires_grad_(False)

    def train(self, mode: bool = True) -> Detector:
        super().train(mode)
        self.freeze_norms()
        return self

    def forward(self, x: Tensor, path: Sequence[int] = ()) -> Answer:
        """The answer of the sub-network `path` for every prior."""
        self.check_input(x)
        return self.run(x, self.space.validate(path))

    def run(self, x: Tensor, path: WidthPath) -> Answer:
        """`forward` without its checks."""
        return self.finish(self.widths(self.start(x), path))

    def forward_paths(self, x: Tensor, paths: Sequence[Sequence[int]]) -> list[Answer]:
        """Run several sub-networks on one batch. Everything before the first choice is computed once."""
        self.check_input(x)
        started = self.start(x)
        return [self.finish(self.widths(started, self.space.validate(path))) for path in paths]

    def start(self, x: Tensor) -> Started:
        """Run everything before the first choice."""
        net = self.backbone
        x, tapped = net.front.features(x, 0)
        projected = self.project(tapped, 0)
        if not net.chain:
            return Started(x, x, None, projected)
        x = net.chain[0].enter(x, 0)
        return Started(x, *net.chain[0].attend(x, 0), projected)

    def widths(self, started: Started, path: WidthPath, scores: list[Tensor | None] | None = None) -> Features:
        """The projected maps of a path. scores: A list to which the raw scores of the slimming heads are appended."""
        x, scaled, code, projected = started
        w_in = 0
        for point, w_out in enumerate(path):
            segment = self.backbone.chain[point]
            if point:
                x = segment.enter(x, w_in)
                scaled, code = segment.attend(x, w_in)
            if scores is not None:
                scores.append(self.backbone.score(point, x, code, w_in))
            x, more = self.rest(point, w_out, segment.first.body(x, scaled, w_in, w_out))
            projected, w_in = projected | more, w_out
        return projected

    def rest(self, point: int, width: int, x: Tensor) -> tuple[Tensor, Features]:
        """Run a segment after its first block. Returns its last map, and the projections of its tapped maps."""
        segment = self.backbone.chain[point]
        first = {} if segment.tap is None else {segment.tap: x}
        x, tapped = segment.rest.features(x, width)
        return x, self.project(first | tapped, width)

    def project(self, tapped: Features, width: int) -> Features:
        """Project tapped maps of a width to the common number of channels, in the order of the taps."""
        return {tap: self.projections[tap](tapped[tap], width, 0) for tap in self.spec.taps if tap in tapped}

    def finish(self, projected: Features) -> Answer:
        """Run everything after the projections."""
        return Answer(*self.heads(self.neck([projected[tap] for tap in self.spec.taps])))

    def boxes_of(self, answer: Answer) -> tuple[Tensor, Tensor]:
        """Boxes [B, P, 4] in corners, as shares of the image, clipped to it; probabilities [B, P, classes]."""
        return decode(answer.deltas, self.priors).clamp(0, 1), answer.logits.softmax(-1)[..., 1:]

    def run_scored(self, x: Tensor, path: WidthPath) -> tuple[Answer, list[Tensor | None]]:
        """The answer of a path, and the raw scores of the slimming heads on the way."""
        scores: list[Tensor | None] = []
        return self.finish(self.widths(self.start(x), path, scores)), scores

    def place_of(self, layer: str) -> int:
        """The choice point that a layer belongs to, by its name. Every path runs neck and heads."""
        room, name, *rest = layer.split(".")
        if room == "backbone" and name == "segments":
            return int(rest[0])
        choice = self.spec.tap(name).choice if room == "projections" else None
        return FRONT if choice is None else choice

    def parts(self, *, routed: bool = True, headless: bool = True) -> DetectorParts:
        """The pieces between choices, with these weights. Neck and heads are never part of the pieces."""
        return DetectorParts(self, routed=routed)

    def manifest(self, image_size: int | None = None) -> Manifest:
        """The description of this detector for everything outside models and tasks."""
        self.spec.check_size(image_size or self.spec.image_size)
        count = len(self.priors)
        outputs: dict[str, tuple[int, ...]] = {"boxes": (count, 4), "scores": (count, self.spec.num_classes)}
        channels = self.spec.backbone.channels
        return describe(self, task=self.spec.task, outputs=outputs, channels=channels, any_size=False, named=NAMED)

    def check_input(self, x: Tensor) -> None:
        self.spec.check_input(x.shape)


class DetectorParts(LiveParts):
    """The pieces of a detector between its choices. Each returns the maps that it projects; neck, heads and decoding
    run once, after all of them."""

    def __init__(self, detector: Detector, *, routed: bool = True) -> None:
        super().__init__(detector.backbone, routed=routed)
        self.owner = self.detector = detector

    @property
    def device(self) -> torch.device:
        return self.detector.priors.device

    def front(self, x: Tensor, size: int = 0) -> Step:
        x, tapped = self.net.front.features(x, 0)
        fork = self.fork(0, 0, x) if self.net.chain else None
        return Step(fork, named_maps(self.detector.project(tapped, 0)))

    def rest(self, point: int, width: int, x: Tensor) -> Step:
        x, projected = self.detector.rest(point, width, x)
        fork = None if point + 1 == len(self.net.chain) else self.fork(point + 1, width, x)
        return Step(fork, named_maps(projected))

    def finish(self, left: Outputs) -> Outputs:
        detector = self.detector
        maps = {tap: left[f"map.{tap}"] for tap in detector.spec.taps}
        boxes, scores = detector.boxes_of(detector.finish(maps))
        return {"boxes": boxes, "scores": scores}

    def left_at(self, point: int) -> list[str]:
        spec, owner = self.detector.spec, point - 1 if point else None
        return [f"map.{tap}" for tap in spec.taps if spec.tap(tap).choice == owner]


def named_maps(projected: Features) -> Outputs:
    return {f"map.{tap}": x for tap, x in projected.items()}


def with_backbone(spec: DetectorSpec, net: Supernet) -> Detector:
    """A detector with fresh neck and heads on the backbone of a trained classification network. Image size, classes and
    routing of the two may differ."""
    detector = Detector(spec).to(net.head.classifier.weight.dtype)
    theirs = net.state_dict()
    skipped = ("head.classifier.", "probe.", "early.")
    kept = {name: tensor for name, tensor in theirs.items() if not name.startswith(skipped)}
    ours = detector.backbone.state_dict()
    for name, tensor in kept.items():
        if name not in ours or (ours[name].shape != tensor.shape and ".slimming." not in name):
            raise ValueError(
                f"the network {net.spec.name!r} does not fit the backbone {spec.backbone.name!r}: tensor {name!r} "
                f"differs; give a run of that model"
            )
    fitting = {name: tensor for name, tensor in kept.items() if ours[name].shape == tensor.shape}
    detector.backbone.load_state_dict(fitting, strict=False)
    return detector
