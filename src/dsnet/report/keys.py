"""The few numbers that stand for a run."""

from __future__ import annotations

from collections.abc import Sequence

from dsnet.hull import concave, cost_of
from dsnet.report.tables import gain, human
from dsnet.results import Bench, BudgetRow, Evaluation, PathRow

KeyFigure = tuple[str, str, str]  # label, value, note


def key_figures(result: Evaluation, bench: Bench | None) -> list[KeyFigure]:
    """Widest, slimmest, the middle budget, MAdds at equal accuracy, milliseconds to ideal; of what there is."""
    unit, form = result.metric.name, result.metric.form
    rows = sorted(result.rows, key=lambda row: row.madds)
    slimmest, widest = rows[0], rows[-1]
    found = [(f"Widest {unit}", format(widest.score.mean, form), f"{human(widest.madds)} MAdds")]
    if len(rows) > 1:
        note = f"{human(slimmest.madds)} MAdds, {slimmest.madds / widest.madds:.0%} of the widest"
        found.append((f"Slimmest {unit}", format(slimmest.score.mean, form), note))
    else:
        found = [(f"Accuracy, {unit}", *found[0][1:])]
    if result.dynamic is not None:
        row = result.dynamic.middle
        over = "" if row.gain_se is None else f", {gain(row)} points over fixed widths"
        note = f"middle budget: {human(row.madds.mean)} MAdds{over}"
        found.append((f"Dynamic {unit}", format(row.score.mean, form), note))
        more = 0.0 - round(saving(result.rows, row), 2)
        found.append(("MAdds at equal accuracy", f"{more:+.0%}", f"against fixed widths at {row.score.mean:{form}}"))
    if bench is not None and bench.routed is not None:
        own = [row for row in bench.routed.rows if row.name == bench.routed.rows[0].name]
        note = "middle budget: measured over ideal milliseconds"
        found.append(("Time to ideal", f"{own[len(own) // 2].ratio:.2f}", note))
    return found


def saving(rows: Sequence[PathRow], row: BudgetRow) -> float:
    """How many fewer MAdds a row takes than the hull of the uniform paths at the same score, as a share of these.

    Beyond the best uniform path, in comparison with that one.
    """
    corners = concave([(one.madds, one.score.mean, one.path) for one in rows if one.uniform])
    return 1 - row.madds.mean / cost_of(corners, row.score.mean)
