"""Results as figures: plain data that `svg` and `png` draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsnet.report.tables import human

Figure = dict[str, Any]
CLASSES = 12  # this many of the cheapest and of the dearest classes are drawn


def dotted(path: Sequence[int]) -> str:
    return "path " + ",".join(map(str, path)) if path else "static"


def percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def accuracy_plot(result: dict[str, Any], static: Sequence[dict[str, Any]] = ()) -> Figure:
    """Top-1 over MAdds: uniform paths, other paths, dynamic budgets, separately trained static networks."""
    series = [line("static" if is_static(result) else "uniform", uniform_points(result))]
    if "dynamic" in result:
        series.append(line(f"dynamic, {router_of(result)}", dynamic_points(result)))
    others = [row for row in result["rows"] if len(set(row["path"])) > 1]
    if others:
        series.append({"name": "other paths", "kind": "points", "points": [accuracy_point(row) for row in others]})
    for other in static:
        series.append({"name": static_name(other), "kind": "points", "points": uniform_points(other)})
    title = f"{result['model']}, {result.get('dataset', '')} {result['split']}"
    return {"title": title, "x": "MAdds, average over images", "y": "top-1 (%)", "series": series}


def line(name: str, points: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {"name": name, "kind": "line", "points": points, **more}


def is_static(result: dict[str, Any]) -> bool:
    """Whether it is a network with one width."""
    return all(not row["path"] for row in result["rows"])


def static_name(result: dict[str, Any]) -> str:
    return f"static {result['model']}"


def router_of(result: dict[str, Any]) -> str:
    dynamic = result["dynamic"]
    return f"router {dynamic['router']}" + ("" if dynamic["router"] == "threshold" else f", {dynamic['targets']}")


def accuracy_point(row: dict[str, Any]) -> list[Any]:
    return [row["madds"], percent(row["top1"]), percent(row.get("top1_std")), dotted(row["path"])]


def uniform_points(result: dict[str, Any]) -> list[list[Any]]:
    rows = sorted((row for row in result["rows"] if len(set(row["path"])) <= 1), key=lambda row: row["madds"])
    if "map" in rows[0]:
        return [[row["madds"], row["map"], None, dotted(row["path"])] for row in rows]
    return [accuracy_point(row) for row in rows]


def dynamic_points(result: dict[str, Any]) -> list[list[Any]]:
    if isinstance(result["dynamic"], list):
        return [[row["madds"], row["map"], None, f"budget {row['name']}"] for row in result["dynamic"]]
    return [
        [row["madds"], percent(row["top1"]), percent(row.get("top1_std")), f"asked for {human(row['asked'])}"]
        for row in result["dynamic"]["rows"]
    ]


def precision_plot(result: dict[str, Any]) -> Figure:
    series = [line("fixed widths", uniform_points(result))]
    if "dynamic" in result:
        series.append(line("dynamic", dynamic_points(result)))
    y = f"mAP at {result['overlap']:g}"
    return {"title": f"{result['model']}, {result['split']}", "x": "MAdds of the detector", "y": y, "series": series}


def widths_of(bars: Sequence[dict[str, Any]]) -> list[str]:
    return [f"width {number}" for number in range(max(len(bar["shares"]) for bar in bars))]


def gate_bars(result: dict[str, Any]) -> Figure:
    """Shares of images per width: of each gate, at each budget."""
    groups: list[dict[str, Any]] = []
    for row in result["dynamic"]["rows"]:
        shares = [gate["shares"] for gate in row["gates"]]
        alike = len(shares) > 1 and all(mine == shares[0] for mine in shares)  # one decision for all gates
        named = [("all gates", shares[0])] if alike else [(f"gate {n}", mine) for n, mine in enumerate(shares)]
        bars = [{"name": name, "shares": mine} for name, mine in named]
        groups.append({"name": f"{human(row['madds'])} MAdds, top-1 {row['top1']:.2%}", "bars": bars})
    names = widths_of([bar for group in groups for bar in group["bars"]])
    return {"title": "Images per width at each budget", "names": names, "groups": groups}


def difficulty_bars(result: dict[str, Any]) -> Figure:
    """Where easy, dependent and hard images go at the middle budget, at the first gate."""
    row, share = middle(result["dynamic"]["rows"]), result["dynamic"]["difficulty"]
    bars = [
        {"name": name, "shares": part["gates"][0], "note": f"{share[name]:.1%} of images, {human(part['madds'])}"}
        for name, part in row["difficulty"].items()
        if part["gates"]
    ]
    title = f"By difficulty, at {human(row['madds'])} MAdds" + (", first gate" if len(row["gates"]) > 1 else "")
    return {"title": title, "names": widths_of(bars), "groups": [{"name": "", "bars": bars}]}


def class_bars(result: dict[str, Any]) -> Figure:
    """Classes from the cheapest to the dearest at the middle budget; the extremes where there are many."""
    classes, row = result["dynamic"]["classes"], middle(result["dynamic"]["rows"])
    place = len(result["dynamic"]["rows"]) // 2
    found = [number for number, images in enumerate(classes["images"]) if images]
    found.sort(key=lambda number: classes["madds"][place][number])
    bars = [
        {
            "name": classes["names"][number],
            "shares": classes["shares"][number],
            "note": f"{human(classes['madds'][place][number])}, {classes['top1'][place][number]:.1%}",
        }
        for number in found
    ]
    groups = [{"name": "average MAdds and top-1 on the right", "bars": bars}]
    if len(bars) > 2 * CLASSES:
        groups = [{"name": "the cheapest classes: average MAdds and top-1 on the right", "bars": bars[:CLASSES]}]
        groups.append({"name": "the dearest classes", "bars": bars[-CLASSES:]})
    return {"title": f"Classes at {human(row['madds'])} MAdds", "names": widths_of(bars), "groups": groups}


def detector_bars(result: dict[str, Any]) -> Figure:
    bars = []
    for row in result["dynamic"]:
        counts = list(row["widths"].values())
        shares = [count / max(1, sum(counts)) for count in counts]
        bars.append({"name": row["name"], "shares": shares, "note": f"{human(row['madds'])}, mAP {row['map']:.3f}"})
    return {"title": "Images per width", "names": widths_of(bars), "groups": [{"name": "", "bars": bars}]}


def curves(metrics: Sequence[dict[str, Any]], kind: str, *, title: str, y: str) -> Figure:
    """What was logged as KIND/name, over epochs."""
    names = list(dict.fromkeys(key for entry in metrics for key in entry if key.startswith(f"{kind}/")))
    series = [
        line(name.partition("/")[2], [[entry["epoch"], entry[name]] for entry in metrics if name in entry])
        for name in names
    ]
    return {"title": title, "x": "epoch", "whole_x": True, "y": y, "series": series}


def middle(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return rows[len(rows) // 2]
