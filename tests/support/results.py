"""Results made by hand, whose figures are all different."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dsnet.results import (
    Box,
    BudgetRow,
    ClassRow,
    Difference,
    Dynamic,
    Evaluation,
    Example,
    Gate,
    Group,
    Made,
    Measure,
    Metric,
    PathRow,
    Point,
    Stat,
    made,
)

TOP1 = Metric("top-1", ".2%", (Measure("top-5", ".2%"), Measure("loss", ".3f")))


def budget(asked: float, score: float) -> BudgetRow:
    spent = Stat(asked * 1.01)
    groups = {"easy": Group(asked, ((0.5, 0.5),)), "hard": Group(None, ())}
    gates = (Gate((0.25, 0.75), 0.8),)
    gain = Stat(100 * (score - 0.5))
    return BudgetRow("", asked, 0.1, "", spent, spent, spent, Stat(score), Stat(0.5), gain, 0.2, gates, groups)


def difference(mean: float, half: float = 0.005) -> Difference:
    return Difference(mean, (mean - half,), (mean + half,))


def compared(
    widths: Sequence[float], routed: Sequence[tuple[float, float]] = ((0.3, -0.01), (0.6, 0.0)), full: float = 0.9
) -> Evaluation:
    """An evaluation with paired differences to the full network, whose intervals reach half a point to either side.

    widths: differences of the fixed widths, evenly spaced in MAdds. routed: shares of MAdds and differences of budgets.
    """
    lost = [*widths, 0.0]
    rows = tuple(
        PathRow(32, (k,), 1000 * (k + 1), 10, (k + 1) / len(lost), Stat(full + each), {}, {}, difference(each))
        for k, each in enumerate(lost)
    )
    rows = (*rows[:-1], replace(rows[-1], to_full=None))
    budgets = []
    for share, each in routed:
        row = replace(budget(share * rows[-1].madds, full + each), madds=Stat(share * rows[-1].madds))
        budgets.append(replace(row, to_paths=tuple(difference(each - other) for other in lost)))
    dynamic = Dynamic("cheap_first", "correctness", (), tuple(budgets)) if routed else None
    return replace(evaluation(), metric=Metric("top-1", ".2%"), images=2000, rows=rows, dynamic=dynamic)


def evaluation(seed: int = 0, shift: float = 0.0) -> Evaluation:
    rows = tuple(
        PathRow(
            32, (k,), 100 * (k + 1), 10, (k + 1) / 4, Stat(0.1 * k + shift), {"top-5": Stat(0.9), "loss": Stat(2.0)}
        )
        for k in range(4)
    )
    dynamic = Dynamic(
        *("gate", "try_best", (100.0, 400.0), (budget(150, 0.5 + shift), budget(250, 0.6 + shift))),
        as_trained=budget(0, 0.7 + shift),
        auc=Stat(0.6 + shift),
        difficulty={"easy": 0.5, "dependent": 0.3, "hard": 0.2},
        oracle=Point(Stat(120.0), Stat(0.8 + shift)),
        warnings=(f"of seed {seed}",),
        classes=(
            ClassRow("cat", 3, (0.5, 0.6), (150.0, 250.0), (1.0, 0.0)),
            ClassRow("dog", 0, (None, None), (None,) * 2),
        ),
    )
    return Evaluation(
        *("classification", TOP1, "ds_tiny", "digits", "test", 10, 32, (seed,), rows),
        made=made(torch="2", runtime="torch", threads=1, seconds=0.1234),
        classes=("cat", "dog"),
        dynamic=dynamic,
        examples=(Example(7, (1,), "slimmest", 0, 1), Example(8, (0,), "widest", 1, 1)),
        training={"epochs": 2, "source": f"run{seed}", "router": {"routing": [[0, 1]], "gate": None}},
        skipped=("a.png",),
    )


def detection() -> Evaluation:
    parts = {"backbone": 60, "heads": 40}
    rows = (PathRow(300, (), 100, 10, 1.0, Stat(0.5), {"cat": Stat(0.4), "top-5": Stat(math.inf)}, parts),)
    found = Example(3, (), detections=(Box("cat", (0.0, 0.1, 0.5, 1.0), 0.9),), objects=(Box("cat", (0, 0, 1, 1)),))
    options: dict[str, str | float] = {"rule": "area", "overlap": 0.5}
    about = ("detection", Metric("mAP", ".3f"), "fssd", "voc", "test", 5, 300, (1,), rows, Made())
    return Evaluation(*about, objects=9, options=options, examples=(found,))
