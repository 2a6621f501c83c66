"""Budgets: how they are written, and the lambdas and windows that meet them, from the table in the model's card."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from dsnet.cost import PathCosts
from dsnet.errors import RoutingError
from dsnet.manifest import Manifest, Policy
from dsnet.routers import Budget, Router
from dsnet.routing.windows import parse_window, trained_windows
from dsnet.schema import clipped, shortened
from dsnet.space import Window

GAP = 0.15  # share of the range; a wider gap between rows means that scores tie and images change width together
UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}
PLAIN = 1000  # numbers above it are MAdds without a unit
LATENCY = re.compile(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*(us|ms|s)")
SECONDS = {"us": 1e-3, "ms": 1.0, "s": 1e3}  # in milliseconds


@dataclass(frozen=True)
class Amount:
    """A budget as it was written: MAdds, or a share of the widest path's MAdds."""

    value: float
    is_share: bool

    def madds(self, table: PathCosts) -> float:
        return self.value * table.widest if self.is_share else self.value


def read_budget(budget: str | float) -> Amount:
    """Check how a budget is written; this needs no network.

    0.5 and 50% are shares of the widest path. 150M, 1.2B and numbers above 1,000 are MAdds.
    """
    text = str(budget).strip()
    if LATENCY.fullmatch(text.lower()):
        raise RoutingError(
            f"budget {shortened(budget)} is a latency; ask for it as a latency (--latency {clipped(text, 80)})"
        )
    match = re.fullmatch(r"([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgb%]?)", text.lower())
    try:
        number, unit = (float(match[1]), match[2]) if match else (math.nan, "")
    except ValueError:
        number, unit = math.nan, ""
    if not 0 < number < math.inf:
        raise RoutingError(
            f"budget {shortened(budget)} is not understood; write MAdds such as 150M or 1.2B, or a share of the widest "
            f"path such as 0.5 or 50%"
        )
    share = number / 100 if unit == "%" else number
    if unit in ("", "%") and share <= 1:
        return Amount(share, True)
    if unit == "%":
        raise RoutingError(f"budget {shortened(budget)} is more than the widest path; a share lies in (0%, 100%]")
    if not unit and number <= PLAIN:
        percent = f"{number:g}% or {number / 100:g}" if number <= 100 else "50% or 0.5"
        raise RoutingError(
            f"budget {shortened(budget)} has no unit; write {percent} for a share of the widest path, {number:g}M for "
            f"MAdds, or ask for milliseconds as a latency (--latency {number:g}ms)"
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
        hint = (
            f"{clipped(text, 20)}ms" if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) and float(text) > 0 else "5ms or 0.2s"
        )
        raise RoutingError(
            f"latency {shortened(latency)} is not understood; write a time with its unit, such as {hint}"
        )
    return value


def parse_budget(budget: str | float, table: PathCosts) -> float:
    """The MAdds of a budget that `read_budget` understands."""
    return read_budget(budget).madds(table)


def policy_for(
    manifest: Manifest,
    budget: str | float | None = None,
    *,
    max_width: int | None = None,
    image_size: int | None = None,
    table: PathCosts | None = None,
    window: str | Sequence[int] | None = None,
    max_size: int | None = None,
) -> Policy:
    """The policy that meets an average budget, from the router's calibrated table; without a budget, the default.

    Lambda is interpolated between calibrated points. Outside of them it is clamped, and the policy's note says so.

    Args:
        table: Costs that a budget given as a share refers to; by default those at the manifest's image size.
        window: The window to choose within as trained, that is with lambda 0: S, M, L, or positions such as 0:2.
        max_size: Upper limit of the image size in pixels, of a network that runs at several.
    """
    space = manifest.table.space
    limit = max(space.widths_of(space.widest), default=0)
    if max_width is not None and not 0 <= max_width <= limit:
        raise RoutingError(
            f"max_width is {max_width}; it is a width index of {manifest.model}, from 0 (slimmest) to {limit} (widest)"
        )
    check_size(manifest, max_size)
    cap = manifest.defaults.max_width if max_width is None else max_width
    largest = manifest.defaults.max_size if max_size is None else max_size
    if window is not None:
        if budget is not None:
            raise RoutingError(f"budget {budget} picks its own window; leave window {window} out")
        if manifest.router is None:
            raise RoutingError(f"this {manifest.model} {manifest.why_fixed()}, so it has no windows")
        return Policy(0.0, cap, window=parse_window(window, manifest.router), max_size=largest)
    if budget is None:
        return replace(manifest.defaults, max_width=cap, max_size=largest)
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
    return Policy(lam, cap, _note(rows, madds), share, chosen, largest)


def check_size(manifest: Manifest, max_size: int | None) -> None:
    """Refuse a cap on the image size that no size is within, or that caps nothing."""
    if max_size is None:
        return
    sizes = manifest.sizes
    if not manifest.table.space.sized:
        raise RoutingError(
            f"max_size is {max_size}, but this {manifest.model} runs at one image size, {manifest.image_size} px; "
            f"leave max_size out"
        )
    if max_size < sizes[0]:
        raise RoutingError(
            f"max_size is {max_size}; the image sizes of {manifest.model} are {', '.join(map(str, sizes))} px, give at "
            f"least {sizes[0]}"
        )


def default_policy(router: Router, image_size: int) -> Policy:
    """The policy without a budget. The paper's gate takes lambda 0, in the middle window if it has windows. Other
    routers take the middle of the range that they can spend."""
    spec, rows = router.spec, [row for row in router.budgets if row.image_size == image_size] or router.budgets
    if (spec.targets in ("try_best", "give_up") and spec.kind == "gate") or not rows:
        return Policy(window=parse_window("M", router) if trained_windows(router) else None)
    curve = Lambdas.between([row.madds for row in rows], rows)
    lam, window = curve.at((rows[0].madds + rows[-1].madds) / 2)
    return Policy(lam, window=window)


def share_of(madds: float, table: PathCosts) -> float:
    """MAdds as a share of the widest path's, rounded to single precision: the form in which exported files take it."""
    return float(np.float32(madds / table.widest))


def lambdas(rows: Sequence[Budget], table: PathCosts) -> Lambdas:
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
