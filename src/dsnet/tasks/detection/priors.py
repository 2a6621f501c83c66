"""Prior boxes: what a detector's answers are relative to, fixed by the sizes of its maps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

SCALES = (0.1, 0.2, 0.37, 0.54, 0.71, 0.88, 1.05)  # SSD300's sides 30, 60, ... 315 as shares of the image
RATIOS = ((2.0, 3.0),) * 4 + ((2.0,),) * 2


def boxes_per_place(ratios: Sequence[Sequence[float]] = RATIOS) -> tuple[int, ...]:
    """Two squares, and a lying and a standing box for each aspect ratio."""
    return tuple(2 + 2 * len(own) for own in ratios)


def prior_boxes(
    sides: Sequence[int], scales: Sequence[float] = SCALES, ratios: Sequence[Sequence[float]] = RATIOS
) -> Tensor:
    """Priors [P, 4] as centres in shares of the image: map by map, row by row, then the boxes of a place.

    The squares have the map's scale, and the geometric mean of it and the next map's. Unlike SSD300, whose steps of 8,
    16, 32 ... pixels run past the image, centres are spread evenly over it.
    """
    if len(scales) != len(sides) + 1 or len(ratios) != len(sides):
        raise ValueError(
            f"{len(sides)} maps need {len(sides) + 1} scales and {len(sides)} lists of aspect ratios, "
            f"not {len(scales)} and {len(ratios)}"
        )
    found = []
    for side, (scale, larger), own in zip(sides, pairwise(scales), ratios, strict=True):
        shapes = [(scale, scale), ((scale * larger) ** 0.5,) * 2]
        for ratio in own:
            root = ratio**0.5
            shapes += [(scale * root, scale / root), (scale / root, scale * root)]
        at = (torch.arange(side) + 0.5) / side
        y, x = torch.meshgrid(at, at, indexing="ij")
        places = torch.stack([x, y], -1)[:, :, None].expand(-1, -1, len(shapes), -1)
        sizes = torch.tensor(shapes).clamp_max(1.0).expand(side, side, -1, -1)
        found.append(torch.cat([places, sizes], -1).reshape(-1, 4))
    return torch.cat(found)
