"""The few numbers that stand for a run."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from dsnet.evaluate.dynamic import concave
from dsnet.report.plots import middle
from dsnet.report.tables import human
from dsnet.results import Bench

KeyFigure = tuple[str, str, str]  # label, value, note


def key_figures(result: dict[str, Any], bench: Bench | None) -> list[KeyFigure]:
    """Widest, slimmest, the middle budget, MAdds at equal accuracy, milliseconds to ideal; of what there is."""
    detector = "map" in result["rows"][0]
    key, form, unit = ("map", ".3f", "mAP") if detector else ("top1", ".2%", "top-1")
    rows = sorted(result["rows"], key=lambda row: row["madds"])
    slimmest, widest = rows[0], rows[-1]
    found = [(f"Widest {unit}", format(widest[key], form), f"{human(widest['madds'])} MAdds")]
    if len(rows) > 1:
        note = f"{human(slimmest['madds'])} MAdds, {slimmest['madds'] / widest['madds']:.0%} of the widest"
        found.append((f"Slimmest {unit}", format(slimmest[key], form), note))
    else:
        found = [(f"Accuracy, {unit}", *found[0][1:])]
    if "dynamic" in result:
        row = middle(result["dynamic"] if detector else result["dynamic"]["rows"])
        over = "" if detector else f", {row['gain']:+.2f} ± {row['gain_se']:.2f} points over fixed widths"
        note = f"middle budget: {human(row['madds'])} MAdds{over}"
        found.append((f"Dynamic {unit}", format(row[key], form), note))
        more = 0.0 - round(saving(result["rows"], row, key), 2)
        found.append(("MAdds at equal accuracy", f"{more:+.0%}", f"against fixed widths at {row[key]:{form}}"))
    if bench is not None and bench.routed is not None:
        own = [row for row in bench.routed.rows if row.name == bench.routed.rows[0].name]
        note = "middle budget: measured over ideal milliseconds"
        found.append(("Time to ideal", f"{own[len(own) // 2].ratio:.2f}", note))
    return found


def saving(rows: Sequence[dict[str, Any]], row: dict[str, Any], key: str) -> float:
    """How many fewer MAdds a row takes than the hull of the uniform paths at the same accuracy, as a share of these.

    Beyond the best uniform path, in comparison with that one.
    """
    uniform = [(one["madds"], one[key], tuple(one["path"])) for one in rows if len(set(one["path"])) <= 1]
    corners = concave(uniform)
    spent = corners[-1][0] if row[key] >= corners[-1][1] else corners[0][0]
    for (x0, y0, _), (x1, y1, _) in pairwise(corners):
        if y0 <= row[key] < y1:
            spent = x0 + (row[key] - y0) / (y1 - y0) * (x1 - x0)
    return 1 - row["madds"] / spent
