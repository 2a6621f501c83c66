"""The parts of a detector that have one width: the neck that fuses the projected maps, the heads, the prior boxes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.nn.layers import Fixed, out_side
from dsnet.tasks.detection.spec import GROUP, RATIOS, SCALES, DetectorSpec


class ConvNorm(nn.Module):
    """3x3 convolution, group norm, ReLU."""

    def __init__(self, cin: int, cout: int, *, stride: int = 1, padding: int = 1) -> None:
        super().__init__()
        self.conv = Fixed(nn.Conv2d(cin, cout, 3, stride, padding, bias=False))
        self.norm = Fixed(nn.GroupNorm(cout // GROUP, cout))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Neck(nn.Module):
    """Resizes the projected maps to the largest, concatenates and normalises them, and computes the pyramid from them
    (FSSD, Li and Zhou, 2017)."""

    def __init__(self, spec: DetectorSpec) -> None:
        super().__init__()
        self.sides = [spec.tap(tap).side for tap in spec.taps]
        fused = spec.projection * len(spec.taps)
        self.norm = Fixed(nn.GroupNorm(fused // GROUP, fused))
        levels = [ConvNorm(fused, spec.pyramid)]
        for before, side in pairwise(spec.sides):
            padding = 1 if out_side(before, 2) == side else 0
            levels.append(ConvNorm(spec.pyramid, spec.pyramid, stride=2, padding=padding))
        self.levels = nn.ModuleList(levels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Maps [B, projection, side, side] in the order of the taps -> the pyramid's maps, the largest first."""
        largest = self.sides[0]
        resized = [
            x if side == largest else F.interpolate(x, size=(largest, largest), mode="bilinear", align_corners=False)
            for x, side in zip(maps, self.sides, strict=True)
        ]
        x = F.relu(self.norm(torch.cat(resized, 1)))
        pyramid = []
        for level in self.levels:
            x = level(x)
            pyramid.append(x)
        return pyramid


class Heads(nn.Module):
    """For each map, a 3x3 convolution that predicts box deltas and one that predicts class logits (SSD)."""

    def __init__(self, spec: DetectorSpec) -> None:
        super().__init__()
        self.outputs = 1 + spec.num_classes
        self.deltas = nn.ModuleList(head(spec.pyramid, 4 * boxes) for boxes in spec.boxes)
        self.logits = nn.ModuleList(head(spec.pyramid, self.outputs * boxes) for boxes in spec.boxes)

    def forward(self, pyramid: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Deltas [B, P, 4] and logits [B, P, 1 + classes], in the order of the priors."""
        deltas = torch.cat([rows(conv(x)) for conv, x in zip(self.deltas, pyramid, strict=True)], 1)
        logits = torch.cat([rows(conv(x)) for conv, x in zip(self.logits, pyramid, strict=True)], 1)
        return deltas.unflatten(1, (-1, 4)), logits.unflatten(1, (-1, self.outputs))


def head(cin: int, cout: int) -> Fixed:
    conv = nn.Conv2d(cin, cout, 3, padding=1)
    nn.init.normal_(conv.weight, std=0.01)
    assert conv.bias is not None
    nn.init.zeros_(conv.bias)
    return Fixed(conv)


def rows(x: Tensor) -> Tensor:
    """Flatten a map [B, C, H, W] to rows [B, H * W * C], in the order of the priors."""
    return x.permute(0, 2, 3, 1).flatten(1)


def prior_boxes(
    sides: Sequence[int], scales: Sequence[float] = SCALES, ratios: Sequence[Sequence[float]] = RATIOS
) -> Tensor:
    """Priors [P, 4] as centres in shares of the image, ordered by map, row, column and box.

    The two squares have the scale of the map, and the geometric mean of that and the next map's scale. The centres are
    spread evenly over the image. In SSD300 steps of 8, 16, 32, ... pixels carry them past its edge.
    """
    if len(scales) != len(sides) + 1 or len(ratios) != len(sides):
        raise ValueError(
            f"{len(sides)} maps need {len(sides) + 1} scales and {len(sides)} lists of aspect ratios, "
            f"not {len(scales)} and {len(ratios)}"
        )
    priors = []
    for side, (scale, larger), own in zip(sides, pairwise(scales), ratios, strict=True):
        shapes = [(scale, scale), ((scale * larger) ** 0.5,) * 2]
        for ratio in own:
            root = ratio**0.5
            shapes += [(scale * root, scale / root), (scale / root, scale * root)]
        at = (torch.arange(side) + 0.5) / side
        y, x = torch.meshgrid(at, at, indexing="ij")
        places = torch.stack([x, y], -1)[:, :, None].expand(-1, -1, len(shapes), -1)
        sizes = torch.tensor(shapes).clamp_max(1.0).expand(side, side, -1, -1)
        priors.append(torch.cat([places, sizes], -1).reshape(-1, 4))
    return torch.cat(priors)
