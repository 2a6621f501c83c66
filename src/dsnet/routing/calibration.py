"""Calibration: the lambdas and windows that meet average budgets, found on held-out images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from dsnet.manifest import Policy
from dsnet.routers import Budget
from dsnet.routing.traces import Outcome, Traces, by_path
from dsnet.routing.windows import trained_windows
from dsnet.space import WidthPath, Window

POINTS = 25
PATHS = 32  # number of different paths whose shares a budget keeps
SHORT = 0.002  # share of the range; the first and the last row are this far from its ends
NEAR = 5e-4  # share of the range; tolerance of a row, far below the error that other images cause
LIMIT = 12.0  # lambdas are sought up to e to this power


def calibrate(traces: Traces, points: int = POINTS) -> tuple[Budget, ...]:
    """A table of budgets from the lowest to the highest average MAdds that the router can spend.

    A router with windows takes, at each budget, the window with the best score on these images. Equal scores keep the
    window of the budget below, so that the window seldom changes.
    """
    assert traces.router is not None
    windows: Sequence[Window | None] = trained_windows(traces.router) or [None]
    ranges = {window: reach(traces, window) for window in windows}
    low, high = min(least for least, _ in ranges.values()), max(most for _, most in ranges.values())
    near, step = NEAR * (high - low), (high - low) / (points - 1)
    rows: dict[int, Budget] = {}
    last: Budget | None = None
    for number in range(points):
        # Any extreme lambda meets the ends exactly. Stop short of them, or interpolation would use arbitrary lambdas.
        asked = low + min(max(number / (points - 1), SHORT), 1 - SHORT) * (high - low)
        held = [window for window, (least, most) in ranges.items() if least <= asked <= most] or windows
        found = [row_at(traces, asked, window, near) for window in held]
        fair = [row for row in found if abs(row.madds - asked) <= step / 2]
        before = last.window if last is not None else held[0]
        best = max(fair or found, key=lambda row: (row.accuracy, row.window == before))
        if last is not None and best.window != last.window:  # how far the window before reaches
            least, most = ranges[last.window]
            end = row_at(traces, min(best.madds - 2 * near, most - SHORT * (most - least)), last.window, near)
            if last.madds < end.madds < best.madds:
                rows.setdefault(round(end.madds), end)
        rows.setdefault(round(best.madds), best)
        last = best
    return tuple(rows[key] for key in sorted(rows))


def reach(traces: Traces, window: Window | None) -> tuple[float, float]:
    """The lowest and the highest average MAdds within a window."""
    low, high = (traces.at(Policy(unfold(end), window=window)).spent for end in (LIMIT, -LIMIT))
    return low, high


def row_at(traces: Traces, madds: float, window: Window | None, near: float) -> Budget:
    """The operating point nearest to some MAdds within a window."""
    lam = solve(traces, madds, near=near, window=window)
    outcome = traces.at(Policy(lam, window=window))
    shares = path_shares(outcome, traces.prices.spent)
    return Budget(outcome.spent, lam, traces.score(outcome), traces.image_size, shares, window)


def path_shares(outcome: Outcome, cost: Callable[[WidthPath], float]) -> tuple[tuple[WidthPath, float], ...]:
    """The share of the images along each path, cheapest first. Beyond the `PATHS` most frequent paths, an image counts
    for the kept path whose cost is nearest."""
    found = sorted(by_path(outcome.paths), key=lambda item: -len(item[1]))
    counts = {path: len(rows) for path, rows in found[:PATHS]}
    for path, rows in found[PATHS:]:
        counts[min(counts, key=lambda kept: abs(cost(kept) - cost(path)))] += len(rows)
    return tuple((path, counts[path] / len(outcome.paths)) for path in sorted(counts, key=cost))


def unfold(position: float) -> float:
    """Map a position to a lambda on a scale that is linear near zero and exponential far from it."""
    return math.copysign(math.expm1(abs(position)), position)


def solve(traces: Traces, madds: float, *, near: float = 0.0, window: Window | None = None) -> float:
    """Find a lambda whose average MAdds are within `near` of the target, or else the closest one that was tried.

    This is a bisection: the MAdds spent fall as lambda rises. With several gates, each new lambda may send images along
    paths that have not been run yet.
    """
    low, high = -LIMIT, LIMIT
    tried: dict[float, float] = {}
    for _ in range(32):
        middle = (low + high) / 2
        tried[middle] = traces.at(Policy(unfold(middle), window=window)).spent
        if abs(tried[middle] - madds) <= near:
            break
        if tried[middle] > madds:
            low = middle
        else:
            high = middle
    return unfold(min(tried, key=lambda position: abs(tried[position] - madds)))


def fit_threshold(traces: Traces, escalate: Callable[[int], None], budgets: int = 5) -> None:
    """Set the width that a threshold router escalates to: the one with the best average score over several budgets.

    escalate: sets the position of that width in the network and in the scores that the traces hold.
    """
    router, table = traces.router, traces.prices.table
    assert router is not None
    low, high = (table.madds(router.candidates[end]) for end in (0, -1))
    asked = [low + (high - low) * number / (budgets + 1) for number in range(1, budgets + 1)]
    totals: dict[int, float] = {}
    for position in range(1, len(router.candidates)):
        escalate(position)
        outcomes = [traces.at(Policy(solve(traces, madds))) for madds in asked]
        totals[position] = sum(traces.score(outcome) for outcome in outcomes)
    escalate(max(totals, key=lambda position: totals[position]))
