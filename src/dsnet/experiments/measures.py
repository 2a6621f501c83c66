"""Values that are measured on finished runs, and plots of runs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import isnan, nan
from statistics import mean, stdev
from typing import Literal

from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Measure, Plot, Runs
from dsnet.report.tables import human
from dsnet.results import Bar, BarGroup, Bars, BudgetRow, Chart, Dot, Dynamic, PathRow, Series, Stat

Key = Literal["score", "madds", "hull", "gain"]  # fields of a budget's row


def dynamic_of(run: Finished) -> Dynamic:
    """The results of the dynamic network; every run with a router has them."""
    assert run.result.dynamic is not None
    return run.result.dynamic


def trained_row(run: Finished) -> BudgetRow:
    """The dynamic network at lambda 0."""
    row = dynamic_of(run).as_trained
    assert row is not None
    return row


def constant(value: float) -> Measure:
    return lambda run: value


def slimmest(run: Finished) -> float:
    return run.result.uniform[0].score.mean


def widest(run: Finished) -> float:
    return run.result.uniform[-1].score.mean


def widest_madds(run: Finished) -> float:
    return float(run.result.uniform[-1].madds)


def all_widths(run: Finished) -> float:
    """Mean score of the uniform sub-networks."""
    return mean(row.score.mean for row in run.result.uniform)


def trained_rows(run: Finished) -> Sequence[BudgetRow]:
    """The dynamic network at lambda 0, in each of its windows."""
    return dynamic_of(run).windows or (trained_row(run),)


def as_trained(key: Key) -> Measure:
    """A value of the dynamic network at lambda 0, the mean over its windows."""
    return lambda run: mean(figure_of(row, key) for row in trained_rows(run))


def at_budget(budget: int, key: Key) -> Measure:
    """A value of the dynamic network at one of its budgets."""
    return lambda run: figure_of(dynamic_of(run).rows[budget], key)


def figure_of(row: BudgetRow, key: Key) -> float:
    found: Stat = getattr(row, key)
    return found.mean


def mean_gain(key: Literal["hull", "exit_hull"] = "hull") -> Measure:
    """Points above what uniform sub-networks reach at equal MAdds, mean over the budgets. exit_hull: the exit counts as
    one of them."""

    def measure(run: Finished) -> float:
        return mean(100 * (row.score.mean - known(getattr(row, key) or row.hull)) for row in dynamic_of(run).rows)

    return measure


def known(stat: Stat | None) -> float:
    return nan if stat is None else stat.mean


def over_lottery(run: Finished) -> float:
    """Points above choosing at random with the same shares of paths, mean over the budgets."""
    return mean(100 * (row.score.mean - known(row.lottery)) for row in dynamic_of(run).rows)


def trained_over_lottery(run: Finished) -> float:
    """The same at lambda 0, in the window where it is smallest."""
    return min(100 * (row.score.mean - known(row.lottery)) for row in trained_rows(run))


def gap_closed(run: Finished) -> float:
    """The mean gain over the hull of the widths as a share of what knowing the narrowest right width would gain."""
    rows = dynamic_of(run).rows
    return mean(row.score.mean - row.hull.mean for row in rows) / mean(
        known(row.oracle) - row.hull.mean for row in rows
    )


def router_auc(run: Finished) -> float:
    return known(dynamic_of(run).auc)


def wider_auc(run: Finished) -> float:
    return known(dynamic_of(run).auc_wider)


def smallest_entropy(run: Finished) -> float:
    """Bits, of the gate and window at lambda 0 that have the least."""
    return min(gate.entropy for row in trained_rows(run) for gate in row.gates)


def mean_width(gate: int) -> Measure:
    """The mean width index that a gate chooses at lambda 0, as a share of the widest."""

    def measure(run: Finished) -> float:
        shares = trained_row(run).gates[gate].shares
        return sum(width * share for width, share in enumerate(shares)) / (len(shares) - 1)

    return measure


def share_at(gate: int, width: int) -> Measure:
    """The share of the images for which a gate chooses a width at lambda 0."""
    return lambda run: trained_row(run).gates[gate].shares[width]


def dynamic_at(madds: float) -> Measure:
    """Accuracy at an average cost, interpolated between the slimmest path or the exit, whichever gives more, the
    budgets and the end of the router's curve. That is the widest path; but with an exit, images that take it have the
    combined answer of both, so the last budget's accuracy holds up to there."""

    def measure(run: Finished) -> float:
        fixed, points = run.result.uniform, [(row.madds.mean, row.score.mean) for row in dynamic_of(run).rows]
        leaves = run.result.exit
        points.append((float(fixed[-1].madds), fixed[-1].score.mean if leaves is None else points[-1][1]))
        starts = [fixed[0]] if leaves is None else [fixed[0], leaves]
        found = [interpolate([(float(start.madds), start.score.mean), *points], madds) for start in starts]
        return max((value for value in found if not isnan(value)), default=nan)

    return measure


def dynamic_share(share: float) -> Measure:
    """The same at a share of the widest path's cost."""
    return lambda run: dynamic_at(share * widest_madds(run))(run)


def uniform_at(madds: float) -> Measure:
    """Accuracy of the uniform sub-networks at a cost, interpolated."""
    return lambda run: interpolate([(row.madds, row.score.mean) for row in run.result.uniform], madds)


def interpolate(points: list[tuple[float, float]], x: float) -> float:
    """Interpolate linearly between neighbouring points; nan beyond the ends."""
    for (x0, y0), (x1, y1) in pairwise(sorted(points)):
        if x0 <= x <= x1:
            return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0)) if x1 > x0 else float(y1)
    return float("nan")


def series(name: str, columns: list[list[tuple[float, float]]], kind: Literal["line", "points"] = "line") -> Series:
    """Average the curves of several seeds: mean and spread of y, mean of x, up to the end of the shortest curve."""
    points = []
    for found in zip(*columns, strict=False):
        xs, ys = zip(*found, strict=True)
        points.append(Dot(mean(xs), mean(ys), stdev(ys) if len(ys) > 1 else None))
    return Series(name, tuple(points), kind)


def points_of(rows: Sequence[PathRow | BudgetRow]) -> list[tuple[float, float]]:
    """Millions of MAdds and accuracy in percent."""
    spent = [row.madds.mean if isinstance(row, BudgetRow) else row.madds for row in rows]
    return [(madds / 1e6, 100 * row.score.mean) for madds, row in zip(spent, rows, strict=True)]


def uniform_points(run: Finished) -> list[tuple[float, float]]:
    return points_of(run.result.uniform)


def dynamic_points(run: Finished) -> list[tuple[float, float]]:
    return points_of(dynamic_of(run).rows)


def over_madds(title: str, shown: list[Series]) -> Chart:
    return Chart(title, "MAdds (M), average over images", "top-1 accuracy (%)", tuple(shown))


def tradeoff(title: str, uniform: dict[str, str], dynamic: dict[str, str], static: dict[str, str]) -> Plot:
    """Plot accuracy against MAdds. The arguments map row labels to names of curves."""

    def plot(runs: Runs) -> Chart:
        shown = [
            series(name, [points(run) for run in runs[label]], "points" if names is static else "line")
            for names, points in ((uniform, uniform_points), (dynamic, dynamic_points), (static, uniform_points))
            for label, name in names.items()
            if runs.get(label)
        ]
        return over_madds(title, shown)

    return plot


def operating_points(title: str, labels: tuple[str, ...]) -> Plot:
    """Plot the dynamic network at lambda 0, one point per row, with the uniform curve of the first row."""

    def plot(runs: Runs) -> Chart:
        there = {label: runs[label] for label in labels if runs.get(label)}
        shown = [series("uniform sub-networks", [uniform_points(run) for run in mine]) for mine in there.values()][:1]
        for label, mine in there.items():
            shown.append(series(label, [points_of([trained_row(run)]) for run in mine], "points"))
        return over_madds(title, shown)

    return plot


def training_curve(title: str, key: str) -> Plot:
    """Plot an accuracy on the calibration images over the epochs of stage I, one line per row."""

    def plot(runs: Runs) -> Chart:
        def curve(run: Finished) -> list[tuple[float, float]]:
            return [(entry["epoch"], 100 * entry[key]) for entry in run.history if key in entry]

        shown = [series(label, [curve(run) for run in mine]) for label, mine in runs.items() if mine]
        return Chart(title, "epoch", "top-1 on calibration images (%)", tuple(shown))

    return plot


def gate_shares(title: str, label: str) -> Plot:
    """Plot how images are distributed over the widths of each gate at every budget, for the first seed."""

    def plot(runs: Runs) -> Bars:
        groups = []
        names: tuple[str, ...] = ()
        if runs.get(label):
            first = runs[label][0]
            rows = [("as trained", trained_row(first))]
            rows += [(f"budget {human(row.asked)}", row) for row in dynamic_of(first).rows]
            for name, row in rows:
                bars = tuple(Bar(f"gate {number + 1}", gate.shares) for number, gate in enumerate(row.gates))
                groups.append(BarGroup(f"{name}: {human(row.madds.mean)} MAdds, {row.score.mean:.1%}", bars))
                names = tuple(f"width {number}" for number in range(len(row.gates[0].shares)))
        return Bars(title, names, tuple(groups))

    return plot
