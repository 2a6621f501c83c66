"""Scores between operating points, such as their upper concave hull: what randomly mixing two of them can reach."""

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


def level(points: Sequence[tuple[float, float]], madds: float) -> float:
    """The score of the hull of some points (MAdds, score) at an average cost: that of its nearest end beyond them."""
    corners = concave([(x, y, ()) for x, y in points])
    for (x0, y0, _), (x1, y1, _) in pairwise(corners):
        if x0 <= madds <= x1:
            return y0 + (y1 - y0) * (madds - x0) / (x1 - x0)
    return corners[0][1] if madds < corners[0][0] else corners[-1][1]


def straight(points: Sequence[tuple[float, float]], madds: float) -> float:
    """The score at an average cost, interpolated between neighbouring points (MAdds, score)."""
    points = sorted(points)
    for (a, low), (b, high) in pairwise(points):
        if madds <= b:
            return low + (high - low) * max(0.0, madds - a) / (b - a)
    return points[-1][1]
