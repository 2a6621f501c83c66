"""What a dynamic network is compared with: fixed widths, choices at random, and routers that know what is right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsnet.hull import concave, straight
from dsnet.results import Point, Stat
from dsnet.routing.traces import Outcome, Traces, by_path
from dsnet.runs.routes import choices
from dsnet.space import WidthPath


def over_hull(traces: Traces, outcome: Outcome, paths: Sequence[WidthPath]) -> tuple[float, float, float]:
    """The score on the hull of some paths at the outcome's MAdds, and the points above it with their standard error."""
    reference = hull(traces, outcome.spent, paths)
    difference = traces.correct(outcome).astype(np.float64) - reference
    error = 100 * float(difference.std(ddof=1)) / len(difference) ** 0.5
    return float(reference.mean()), 100 * float(difference.mean()), error


def oracle(traces: Traces) -> Point:
    """Cost and score of a router that always takes the narrowest right candidate, or the slimmest if none is right."""
    assert traces.router is not None
    paths = choices(traces.router)
    right = np.stack([traces.right(path, routed=True) for path in paths], 1)
    costs = np.array([traces.table.madds(path) for path in paths], np.float64)
    narrowest = right.argmax(1)
    return Point(Stat(float(costs[narrowest].mean())), Stat(float(right.any(1).astype(np.float64).mean())))


def lottery(traces: Traces, outcome: Outcome) -> Stat | None:
    """The score of choosing at random with the outcome's shares of paths; None if a path was not run on all images."""
    shares = [(path, len(rows) / len(traces)) for path, rows in by_path(outcome.paths)]
    if not all(traces.known[path].all() for path, _ in shares):
        return None
    return Stat(sum(share * float(traces.right(path, routed=True).astype(np.float64).mean()) for path, share in shares))


def oracle_at(traces: Traces, madds: float) -> float:
    """The score of a router that knows the narrowest uniform path that is right, at average MAdds. It begins with the
    slimmest path, or the exit, for all images and widens those first that need the least."""
    paths = traces.combined or sorted(traces.manifest.uniform, key=traces.table.madds)
    right = np.stack([traces.right(path, routed=True) for path in paths], 1)
    costs = np.array([traces.table.madds(path) for path in paths], np.float64)
    narrowest = np.bincount(right.argmax(1)[right.any(1)], minlength=len(paths)) / len(right)
    spent, score = costs[0] + (narrowest * (costs - costs[0])).cumsum(), narrowest.cumsum()
    return float(np.interp(madds, spent, score))


def hull(traces: Traces, madds: float, paths: Sequence[WidthPath]) -> np.ndarray:
    """Each image's expected correctness [N] on the upper concave hull of some paths, at average MAdds.

    A point on the hull is a random mix of two paths, which needs no router.
    """
    corners = concave(
        [(traces.table.madds(path), float(traces.right(path).astype(np.float64).mean()), path) for path in paths]
    )
    before = [corner for corner in corners if corner[0] <= madds]
    after = [corner for corner in corners if corner[0] > madds]
    if not before or not after:
        return traces.right((before or after)[-1 if before else 0][2]).astype(np.float64)
    (x0, _, slim), (x1, _, wide) = before[-1], after[0]
    share = (madds - x0) / (x1 - x0)
    return (1 - share) * traces.right(slim).astype(np.float64) + share * traces.right(wide).astype(np.float64)


def between(traces: Traces, madds: float) -> float:
    """The score at the given MAdds, interpolated between the uniform widths."""
    uniform = traces.manifest.uniform
    return straight(
        [(traces.table.madds(path), next(iter(traces.scorer.of(path).values()))) for path in uniform], madds
    )
