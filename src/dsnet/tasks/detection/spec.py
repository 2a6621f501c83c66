"""A detector as data: the spec of its backbone, the maps that it reads, and the widths of its neck and heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

from dsnet.errors import must
from dsnet.models import GraphSpec, ModelSpec, Network
from dsnet.models.network import Tap
from dsnet.nn.layers import out_side
from dsnet.routers import RouterSpec
from dsnet.schema import Typed
from dsnet.space import WidthSpace

if TYPE_CHECKING:
    from dsnet.tasks.detection.detector import Detector

TAPS = ("block5", "block11", "block13")
SCALES = (0.1, 0.2, 0.37, 0.54, 0.71, 0.88, 1.05)  # SSD300's sides 30, 60, ... 315 as shares of the image
RATIOS = ((2.0, 3.0),) * 4 + ((2.0,),) * 2
GROUP = 16  # channels per group of the neck's norms


def check_channels(**counts: int) -> None:
    for name, count in counts.items():
        must(name, count, count >= GROUP and count % GROUP == 0, f"be a positive multiple of {GROUP}")


def check_one_size(backbone: Network) -> None:
    if backbone.sizes:
        raise ValueError(
            f"the backbone runs at the image sizes {list(backbone.sizes)}, but a detector runs at one; give a network "
            f"that was trained without sizes"
        )


@dataclass(frozen=True)
class DetectorSpec(Typed):
    """Everything that is needed to build a detector.

    backbone: Spec of the backbone, with the detector's image size, and one class because its classifier is not used.
    num_classes: Number of object classes, without the background.
    taps: Names of the backbone's maps that are fused, the largest first.
    projection, pyramid: Number of channels of each projected map, and of the maps that the heads read.
    scales, ratios: Scales and aspect ratios of the prior boxes, see `prior_boxes`. The pyramid has one map for each
        list of ratios.
    """

    task: Literal["detection"] = field(default="detection", kw_only=True)
    backbone: ModelSpec | GraphSpec
    num_classes: int
    taps: tuple[str, ...] = TAPS
    projection: int = 128
    pyramid: int = 256
    scales: tuple[float, ...] = SCALES
    ratios: tuple[tuple[float, ...], ...] = RATIOS

    def __post_init__(self) -> None:
        check_one_size(self.backbone)
        if type(self.num_classes) is not int or self.num_classes < 1:
            raise ValueError(f"num_classes is {self.num_classes!r}; a detector needs at least 1 kind of object")
        check_channels(projection=self.projection, pyramid=self.pyramid)
        available = self.backbone.taps
        if not self.taps or (unknown := [tap for tap in self.taps if tap not in available]):
            raise ValueError(
                f"{self.backbone.name!r} has no maps named {', '.join(unknown) if self.taps else '(none given)'}; "
                f"choose taps from {', '.join(available)}"
            )
        if len(self.scales) != len(self.ratios) + 1 or list(self.scales) != sorted(self.scales):
            raise ValueError(f"{len(self.ratios)} maps need {len(self.ratios) + 1} rising scales, not {self.scales}")
        if self.backbone.router is not None and self.backbone.router.probes:
            raise ValueError(
                f"router {self.backbone.router.kind} reads the logits of a classifier, which a detector does not have; "
                f"use the router gate"
            )
        if self.backbone.router is not None and self.backbone.router.early is not None:
            raise ValueError(
                "an early classifier names the class of an image, but images of a detector have no single class; use "
                "the router gate without early"
            )
        if self.backbone.num_classes != 1:
            object.__setattr__(self, "backbone", replace(self.backbone, num_classes=1))

    @property
    def name(self) -> str:
        return f"fssd_{self.backbone.name}"

    @property
    def in_channels(self) -> int:
        return self.backbone.in_channels

    @property
    def image_size(self) -> int:
        return self.backbone.image_size

    @property
    def widths(self) -> tuple[int, ...]:
        return self.backbone.widths

    @property
    def space(self) -> WidthSpace:
        return self.backbone.space

    @property
    def routing(self) -> tuple[tuple[int, ...], ...]:
        return self.backbone.routing

    @property
    def router(self) -> RouterSpec | None:
        return self.backbone.router

    @property
    def stride(self) -> int:
        return self.backbone.stride

    def without_router(self) -> DetectorSpec:
        return replace(self, backbone=self.backbone.without_router())

    def with_routing(self, routing: Sequence[Sequence[int]]) -> DetectorSpec:
        return replace(self, backbone=self.backbone.with_routing(routing))

    def build(self) -> Detector:
        """The detector, with fresh weights."""
        from dsnet.tasks.detection.detector import Detector

        return Detector(self)

    def check_size(self, *sides: int) -> None:
        if any(side != self.image_size for side in sides):
            raise ValueError(
                f"image_size is {sides[0]} but this detector keeps its own, {self.image_size}; leave it out"
            )

    def check_input(self, shape: Sequence[int]) -> None:
        size = self.image_size
        if tuple(shape[1:]) != (self.in_channels, size, size):
            raise ValueError(
                f"input has shape {tuple(shape)} but {self.name!r} takes [batch, {self.in_channels}, {size}, {size}]; "
                f"resize the images, or build the detector for another image size"
            )

    @property
    def boxes(self) -> tuple[int, ...]:
        """Number of prior boxes at each position of each map: two squares, and for each aspect ratio a wide and a tall
        box."""
        return tuple(2 + 2 * len(own) for own in self.ratios)

    def tap(self, name: str) -> Tap:
        return self.backbone.taps[name]

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides of the pyramid's maps. Each is half of the one before. The last map has no padding if the one before
        has at least 3 pixels, so that 300 pixels give 38, 19, 10, 5, 3, 1."""
        sides = [self.tap(self.taps[0]).side]
        while len(sides) < len(self.ratios):
            last = len(sides) == len(self.ratios) - 1 and sides[-1] >= 3
            sides.append((sides[-1] - 3) // 2 + 1 if last else out_side(sides[-1], 2))
        return tuple(sides)
