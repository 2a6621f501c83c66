"""What is read from a finished run, and how runs are drawn."""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, stdev
from typing import Any

from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Measure, Plot, Runs
from dsnet.report.tables import human


def uniform_rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Of sub-networks with one width everywhere, slimmest first."""
    return [row for row in result["rows"] if len(set(row["path"])) <= 1]


def constant(value: float) -> Measure:
    return lambda run: value


def slimmest(run: Finished) -> float:
    return float(uniform_rows(run.result)[0]["top1"])


def widest(run: Finished) -> float:
    return float(uniform_rows(run.result)[-1]["top1"])


def widest_madds(run: Finished) -> float:
    return float(uniform_rows(run.result)[-1]["madds"])


def all_widths(run: Finished) -> float:
    """Mean over the uniform sub-networks."""
    return mean(row["top1"] for row in uniform_rows(run.result))


def as_trained(key: str) -> Measure:
    """The dynamic network at lambda 0: top1, madds or gain."""
    return lambda run: float(run.result["dynamic"]["as_trained"][key])


def mean_gain(run: Finished) -> float:
    """Points above the hull of the uniform sub-networks at equal MAdds, mean over the budgets."""
    return mean(row["gain"] for row in run.result["dynamic"]["rows"])


def over_lottery(key: str) -> Measure:
    """Of top1 or hull: points above a lottery between the two ends of the routing space, mean over the budgets."""

    def measure(run: Finished) -> float:
        routing = run.result["training"]["router"]["routing"]
        ends = [[widths[end] for widths in routing] for end in (0, -1)]
        (x0, y0), (x1, y1) = sorted((row["madds"], row["top1"]) for row in run.result["rows"] if row["path"] in ends)
        rows = run.result["dynamic"]["rows"]
        return mean(100 * (row[key] - y0 - (y1 - y0) * (row["madds"] - x0) / (x1 - x0)) for row in rows)

    return measure


def at_budget(budget: int, key: str) -> Measure:
    return lambda run: float(run.result["dynamic"]["rows"][budget][key])


def router_auc(run: Finished) -> float:
    return float(run.result["dynamic"]["auc"])


def dynamic_at(madds: float) -> Measure:
    """Accuracy of the dynamic network at an average cost: between slimmest path, budgets and widest path."""

    def measure(run: Finished) -> float:
        fixed = uniform_rows(run.result)
        rows = [fixed[0], *run.result["dynamic"]["rows"], fixed[-1]]
        return interpolate([(row["madds"], row["top1"]) for row in rows], madds)

    return measure


def uniform_at(madds: float) -> Measure:
    """Accuracy of the uniform sub-networks at a cost, interpolated."""
    return lambda run: interpolate([(row["madds"], row["top1"]) for row in uniform_rows(run.result)], madds)


def interpolate(points: list[tuple[float, float]], x: float) -> float:
    """Between neighbours; nan beyond the ends."""
    for (x0, y0), (x1, y1) in pairwise(sorted(points)):
        if x0 <= x <= x1:
            return float(y0 + (y1 - y0) * (x - x0) / (x1 - x0)) if x1 > x0 else float(y1)
    return float("nan")


def series(name: str, columns: list[list[tuple[float, float]]], kind: str = "line", **look: Any) -> dict[str, Any]:
    """Curves of several seeds as one: mean and spread of y, mean of x; as long as the shortest."""
    points = []
    for found in zip(*columns, strict=False):
        xs, ys = zip(*found, strict=True)
        points.append([mean(xs), mean(ys), *([stdev(ys)] if len(ys) > 1 else [])])
    return {"name": name, "kind": kind, "points": points, **look}


def tradeoff(title: str, uniform: dict[str, str], dynamic: dict[str, str], static: dict[str, str]) -> Plot:
    """Accuracy against MAdds: names of curves by label of a row."""

    def plot(runs: Runs) -> dict[str, Any]:
        def curves(names: dict[str, str], kind: str) -> list[dict[str, Any]]:
            return [
                series(name, [curve(run, kind) for run in runs[label]], "points" if kind == "static" else "line")
                for label, name in names.items()
                if runs.get(label)
            ]

        shown = [*curves(uniform, "uniform"), *curves(dynamic, "dynamic"), *curves(static, "static")]
        return {"title": title, "x": "MAdds (M), average over images", "y": "top-1 accuracy (%)", "series": shown}

    return plot


def curve(run: Finished, kind: str) -> list[tuple[float, float]]:
    rows = run.result["dynamic"]["rows"] if kind == "dynamic" else uniform_rows(run.result)
    return [(row["madds"] / 1e6, 100 * row["top1"]) for row in rows]


def operating_points(title: str, labels: tuple[str, ...]) -> Plot:
    """Where the gates stand at lambda 0, one point per row, over the uniform curve of the first row."""

    def plot(runs: Runs) -> dict[str, Any]:
        first = next((runs[label] for label in labels if runs.get(label)), [])
        shown = [series("uniform sub-networks", [curve(run, "uniform") for run in first])] if first else []
        for label in labels:
            if runs.get(label):
                found = [run.result["dynamic"]["as_trained"] for run in runs[label]]
                shown.append(series(label, [[(row["madds"] / 1e6, 100 * row["top1"])] for row in found], "points"))
        return {"title": title, "x": "MAdds (M), average over images", "y": "top-1 accuracy (%)", "series": shown}

    return plot


def training_curve(title: str, key: str) -> Plot:
    """An accuracy on the calibration images over the epochs of stage I, a line per row."""

    def plot(runs: Runs) -> dict[str, Any]:
        shown = [
            series(
                label, [[(entry["epoch"], 100 * entry[key]) for entry in run.history if key in entry] for run in mine]
            )
            for label, mine in runs.items()
            if mine
        ]
        return {"title": title, "x": "epoch", "y": "top-1 on calibration images (%)", "series": shown}

    return plot


def gate_shares(title: str, label: str) -> Plot:
    """How images spread over the widths of each gate, at every budget (first seed)."""

    def plot(runs: Runs) -> dict[str, Any]:
        groups: list[dict[str, Any]] = []
        names: list[str] = []
        if runs.get(label):
            dynamic = runs[label][0].result["dynamic"]
            rows = [("as trained", dynamic["as_trained"])]
            rows += [(f"budget {human(row['asked'])}", row) for row in dynamic["rows"]]
            for name, row in rows:
                bars = [{"name": f"gate {n + 1}", "shares": gate["shares"]} for n, gate in enumerate(row["gates"])]
                groups.append({"name": f"{name}: {human(row['madds'])} MAdds, {row['top1']:.1%}", "bars": bars})
                names = [f"width {n}" for n in range(len(row["gates"][0]["shares"]))]
        return {"title": title, "kind": "shares", "names": names, "groups": groups}

    return plot


def detector_madds(run: Finished) -> float:
    return float(run.result["rows"][-1]["madds"])


def average_precision(run: Finished) -> float:
    """Of the widest detector."""
    return float(run.result["rows"][-1]["map"])


def dynamic_precision(budget: int, key: str) -> Measure:
    """madds or map of the dynamic detector at S, M or L."""
    return lambda run: float(run.result["dynamic"][budget][key])
