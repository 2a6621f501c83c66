"""The upper concave hull of operating points: the scores that randomly mixing two of them can reach."""

from __future__ import annotations

from collections.abc import Sequence

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
