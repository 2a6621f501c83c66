"""What a report says of results, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dsnet.report.charts import accuracy, classes, gates, latency
from dsnet.report.document import made_by
from dsnet.report.page import ticked
from dsnet.results import (
    Bench,
    BudgetRow,
    ClassRow,
    Dynamic,
    Evaluation,
    Gate,
    Made,
    Metric,
    PathRow,
    Stat,
    Times,
    WidthTime,
    WidthTimes,
)

TOP1 = Metric("top-1", ".2%")


def rows(*points: tuple[int, float]) -> list[PathRow]:
    return [PathRow(32, (number,), madds, 1, 1.0, Stat(top1)) for number, (madds, top1) in enumerate(points)]


def budget_row(madds: float, score: float, *gates: tuple[float, ...], name: str = "") -> BudgetRow:
    none, spent = Stat(0.0), Stat(madds)
    shares = tuple(map(Gate, gates))
    return BudgetRow(name, madds, 0.0, "", spent, spent, spent, Stat(score), none, none, None, shares)


def evaluation(metric: Metric = TOP1, **more: Any) -> Evaluation:
    known: dict[str, Any] = {"rows": tuple(rows((10, 0.5), (30, 0.7))), "made": Made()}
    known |= {"model": "m", **more}
    return Evaluation("a task", metric, dataset="d", split="test", images=5, image_size=32, seeds=(0,), **known)


def test_of_many_classes_the_extremes_are_drawn() -> None:
    count = 60
    named = [f"class {number}" for number in range(count)]
    found = [ClassRow(named[0], 0, (None,), (None,))]
    found += [ClassRow(name, 5, (0.5,), (999 + n,), (0.5, 0.5)) for n, name in enumerate(named) if n]
    row = budget_row(1000, 0.5)
    dynamic = Dynamic("gate", "correctness", (), (row,), classes=tuple(found))
    figure = classes(evaluation(dynamic=dynamic))
    assert figure is not None
    cheap, dear = ([bar.name for bar in group.bars] for group in figure.groups)
    assert cheap == [f"class {number}" for number in range(1, 13)]
    assert dear == [f"class {number}" for number in range(48, 60)]


def test_latency_is_per_image_and_beside_its_ideal() -> None:
    rows = [
        WidthTime(name, (0,), batch, 1, 100, Times(8, 8, 9), 125 * batch)
        for name in ("static onnx", "onnx")
        for batch in (1, 4)
    ]
    one, four = latency(Bench("", WidthTimes("m", 32, 2, tuple(rows), Made())))
    assert [series.points[0].y for series in (*one.series, *four.series)] == [8, 8, 2, 2]
    ideal, real = one.series
    assert (ideal.name, ideal.dashed, real.dashed) == ("ideal: static onnx", True, False)
    assert ideal.colour == real.colour


def test_scores_are_drawn_as_their_metric_writes_them() -> None:
    top1 = accuracy([evaluation()])
    assert (top1.y, [dot.y for dot in top1.series[0].points]) == ("top-1 (%)", [50, 70])
    precise = accuracy([evaluation(Metric("mAP", ".3f"), options={"overlap": 0.5})])
    assert (precise.y, [dot.y for dot in precise.series[0].points]) == ("mAP at 0.5", [0.5, 0.7])
    routed = Dynamic("gate", "try_best", (), (budget_row(20, 0.65, (0.5, 0.5)),))
    both = accuracy([evaluation(), evaluation(dynamic=routed, model="n")], [evaluation(model="o")])
    names = ["m, fixed widths", "n, fixed widths", "n, dynamic, router gate, try_best", "static o"]
    assert [series.name for series in both.series] == names


def test_budgets_with_one_decision_are_one_row_each() -> None:
    one = [budget_row(10, 0.5, (1.0, 0.0), (1.0, 0.0), name="S"), budget_row(20, 0.6, (0.5, 0.5), name="M")]
    (group,) = gates(evaluation(dynamic=Dynamic("gate", "", (), tuple(one)))).groups
    assert [(bar.name, bar.note) for bar in group.bars] == [("S", "10, 50.00%"), ("M", "20, 60.00%")]
    two = [budget_row(10, 0.5, (1.0, 0.0), (0.0, 1.0))]
    (group,) = gates(evaluation(dynamic=Dynamic("gate", "", (), tuple(two)))).groups
    assert [bar.name for bar in group.bars] == ["gate 0", "gate 1"]
    assert group.name == "10 MAdds, top-1 50.00%"


def test_a_footer_says_what_is_known() -> None:
    known = Made("1.0", "abc", "2.9", "", "", "a machine", "2026-01-01", "dsnet x", 7200)
    assert made_by(known) == (
        "Made by `dsnet x` at commit abc with dsnet 1.0, torch 2.9, a machine, 2026-01-01; 2.0 hours by the clock."
    )
    assert made_by(Made("1.0")) == "Made with dsnet 1.0."


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("run `dsnet <x>` now", "run <code>dsnet &lt;x&gt;</code> now"),
        ("one ` alone & <b>", "one ` alone &amp; &lt;b&gt;"),
    ],
)
def test_what_stands_between_backticks_is_code(words: str, shown: str) -> None:
    assert str(ticked(words)) == shown
