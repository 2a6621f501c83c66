"""The upper concave hull of operating points: the scores that randomly mixing two of them can reach."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from dsnet.space import WidthPath

Corner = tuple[float, float, WidthPath]  # MAdds, score, path


def concave(points: Sequence[Corner]) -> list[Corner]:
    """The corners of the upper concave hull, up to the highest score."""
    kept: list[Corner] = []
    for point in sorted(points):
        while len(kept) > 1 and slope(kept[-2], kept[-1]) <= slope(kept[-2], point):
            kept.pop()
        kept.append(point)
    best = max(kept, key=lambda corner: corner[1])
    return kept[: kept.index(best) + 1]


def slope(a: Corner, b: Corner) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def cost_of(corners: Sequence[Corner], score: float) -> float:
    """The MAdds at which the hull reaches a score; scores outside the hull get the MAdds of the nearest end."""
    for (x0, y0, _), (x1, y1, _) in pairwise(corners):
        if y0 <= score < y1:
            return x0 + (score - y0) / (y1 - y0) * (x1 - x0)
    return corners[-1][0] if score >= corners[-1][1] else corners[0][0]
