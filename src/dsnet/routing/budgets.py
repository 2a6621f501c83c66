"""Budgets: lambdas that meet average MAdds. They are calibrated on held-out images and kept in the model's card."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsnet.cost import CostTable
from dsnet.errors import RoutingError
from dsnet.manifest import Budget, Manifest, Policy, Router
from dsnet.routing.traces import Outcome, Traces, by_path
from dsnet.routing.windows import parse_window, trained_windows
from dsnet.space import WidthPath, Window

POINTS = 25
PATHS = 32  # number of different paths whose shares a budget keeps
GAP = 0.15  # share of the range; a wider gap between rows means that scores tie and images change width together
SHORT = 0.002  # share of the range; the first and the last row are this far from its ends
NEAR = 5e-4  # share of the range; tolerance of a row, far below the error that other images cause
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
PLAIN = 1000  # numbers above it are MAdds without a unit
LATENCY = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(us|ms|s)")
SECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}  # in milliseconds


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
        held = [window for window, (least, most) in ranges.items() if least <= asked <= most]
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


LIMIT = 12.0


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


@dataclass(frozen=True)
class Amount:
    """A budget as it was written: MAdds, or a share of the widest path's MAdds."""

    value: float
    is_share: bool

    def madds(self, table: CostTable) -> float:
        return self.value * table.widest if self.is_share else self.value


def read_budget(budget: str | float) -> Amount:
    """Check how a budget is written; this needs no network.

    0.5 and 50% are shares of the widest path. 150M, 1.2B and numbers above 1,000 are MAdds.
    """
    text = str(budget).strip()
    if LATENCY.fullmatch(text.lower()):
        raise RoutingError(f"budget {budget!r} is a latency; ask for it as a latency (--latency {text})")
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgb%]?)", text.lower())
    try:
        number, unit = (float(match[1]), match[2]) if match else (math.nan, "")
    except ValueError:
        number, unit = math.nan, ""
    if not 0 < number < math.inf:
        raise RoutingError(
            f"budget {budget!r} is not understood; write MAdds such as 150M or 1.2B, or a share of the widest path "
            f"such as 0.5 or 50%"
        )
    share = number / 100 if unit == "%" else number
    if unit in ("", "%") and share <= 1:
        return Amount(share, True)
    if unit == "%":
        raise RoutingError(f"budget {budget!r} is more than the widest path; a share lies in (0%, 100%]")
    if not unit and number <= PLAIN:
        percent = f"{number:g}% or {number / 100:g}" if number <= 100 else "50% or 0.5"
        raise RoutingError(
            f"budget {budget!r} has no unit; write {percent} for a share of the widest path, {number:g}M for MAdds, or "
            f"ask for milliseconds as a latency (--latency {number:g}ms)"
        )
    return Amount(number * UNITS[unit], False)


def read_latency(latency: str) -> float:
    """Milliseconds from 5ms, 0.2s or 800us."""
    text = str(latency).strip().lower()
    match = LATENCY.fullmatch(text)
    try:
        value = float(match[1]) * SECONDS[match[2]] if match else math.nan
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        hint = f"{text}ms" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and float(text) > 0 else "5ms or 0.2s"
        raise RoutingError(f"latency {latency!r} is not understood; write a time with its unit, such as {hint}")
    return value


def parse_budget(budget: str | float, table: CostTable) -> float:
    """The MAdds of a budget that `read_budget` understands."""
    return read_budget(budget).madds(table)


def policy_for(
    manifest: Manifest,
    budget: str | float | None = None,
    *,
    max_width: int | None = None,
    image_size: int | None = None,
    table: CostTable | None = None,
    window: str | Sequence[int] | None = None,
) -> Policy:
    """The policy that meets an average budget, from the router's calibrated table; without a budget, the default.

    Lambda is interpolated between calibrated points. Outside of them it is clamped, and the policy's note says so.

    Args:
        table: Costs that a budget given as a share refers to; by default those at the manifest's image size.
        window: The window to choose within as trained, that is with lambda 0: S, M, L, or positions such as 0:2.
    """
    limit = max(manifest.table.space.widest, default=0)
    if max_width is not None and not 0 <= max_width <= limit:
        raise RoutingError(
            f"max_width is {max_width}; it is a width index of {manifest.model}, from 0 (slimmest) to {limit} (widest)"
        )
    cap = manifest.defaults.max_width if max_width is None else max_width
    if window is not None:
        if budget is not None:
            raise RoutingError(f"budget {budget} picks its own window; leave window {window} out")
        if manifest.router is None:
            raise RoutingError(f"this {manifest.model} {manifest.why_fixed()}, so it has no windows")
        return Policy(0.0, cap, window=parse_window(window, manifest.router))
    if budget is None:
        return replace(manifest.defaults, max_width=cap)
    size = image_size or manifest.image_size
    budgets = manifest.router.budgets if manifest.router is not None else ()
    rows = [row for row in budgets if row.image_size == size]
    if not rows:
        sizes = sorted({row.image_size for row in budgets})
        raise RoutingError(
            f"this {manifest.model} has budgets calibrated for image sizes {sizes} but not for {size}"
            if sizes
            else f"this {manifest.model} has no calibrated budgets; train it with `dsnet train --stage gate`"
        )
    costs = table or manifest.table
    madds = parse_budget(budget, costs)
    curve = lambdas(rows, costs)
    share = curve.reach(share_of(madds, costs))
    lam, chosen = curve.at(share)
    return Policy(lam, cap, _note(rows, madds), share, chosen)


def default_policy(router: Router, image_size: int) -> Policy:
    """The policy without a budget. The paper's gate takes lambda 0, in the middle window if it has windows. Other
    routers take the middle of the range that they can spend."""
    spec, rows = router.spec, [row for row in router.budgets if row.image_size == image_size] or router.budgets
    if (spec.targets in ("try_best", "give_up") and spec.kind == "gate") or not rows:
        return Policy(window=parse_window("M", router) if trained_windows(router) else None)
    curve = Lambdas.between([row.madds for row in rows], rows)
    lam, window = curve.at((rows[0].madds + rows[-1].madds) / 2)
    return Policy(lam, window=window)


def share_of(madds: float, table: CostTable) -> float:
    """MAdds as a share of the widest path's, rounded to single precision: the form in which exported files take it."""
    return float(np.float32(madds / table.widest))


def lambdas(rows: Sequence[Budget], table: CostTable) -> Lambdas:
    """Lambda and window as functions of the budget as a share."""
    return Lambdas.between([share_of(row.madds, table) for row in rows], rows)


class Lambdas(NamedTuple):
    """Lambda and window as functions of the budget, between calibrated rows; they are constant outside of them.

    Lambda has linear pieces, and the window is that of the row below the budget. An exported file computes them by the
    same operations in the same order, so that both get the same lambda bit for bit.
    """

    starts: list[float]
    lams: list[float]
    slopes: list[float]
    windows: list[Window | None]

    @classmethod
    def between(cls, starts: list[float], rows: Sequence[Budget]) -> Lambdas:
        """Rows in rising order. In a wide gap no lambda spends an amount in between, and lambdas of different windows
        cannot be compared. In both cases lambda stays that of the row below the budget."""
        gap, lams = GAP * (starts[-1] - starts[0]), [row.lam for row in rows]
        slopes = [
            (after.lam - row.lam) / (b - a) if 0 < b - a <= gap and row.window == after.window else 0.0
            for (a, b), (row, after) in zip(pairwise(starts), pairwise(rows), strict=True)
        ]
        return cls(starts, lams, [*slopes, 0.0], [row.window for row in rows])

    def reach(self, budget: float) -> float:
        """The budget, or the nearest row below it (above it, for the first row) where lambda is constant."""
        place = max(bisect_right(self.starts, budget) - 1, 0)
        return budget if self.slopes[place] and budget >= self.starts[0] else self.starts[place]

    def at(self, budget: float) -> tuple[float, Window | None]:
        place = bisect_right(self.starts, budget) - 1
        if place < 0:
            return self.lams[0], self.windows[0]
        return self.lams[place] + (budget - self.starts[place]) * self.slopes[place], self.windows[place]


def _note(rows: Sequence[Budget], madds: float) -> str:
    """What to tell the user about a budget outside of the calibrated range; empty within it."""
    if rows[0].madds <= madds <= rows[-1].madds:
        return ""
    end = rows[0] if madds < rows[0].madds else rows[-1]
    return (
        f"budget {madds / 1e6:.4g}M is out of reach: on average this router spends {rows[0].madds / 1e6:.4g}M to "
        f"{rows[-1].madds / 1e6:.4g}M MAdds; taking {end.madds / 1e6:.4g}M"
    )
