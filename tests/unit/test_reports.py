"""What a report says of results, by hand."""

from __future__ import annotations

import pytest

from dsnet.report.charts import latency
from dsnet.report.keys import saving
from dsnet.report.plots import class_bars
from dsnet.results import Bench, BudgetRow, Made, PathRow, Stat, Times, WidthTime, WidthTimes


def rows(*points: tuple[int, float]) -> list[PathRow]:
    return [PathRow(32, (number,), madds, 1, 1.0, Stat(top1)) for number, (madds, top1) in enumerate(points)]


@pytest.mark.parametrize(
    ("madds", "top1", "saved"),
    [
        (10, 0.6, 0.5),  # between the corners at 10 and 30, where the hull reaches 0.6 at 20
        (30, 0.6, -0.5),
        (15, 0.9, 0.5),  # better than all: against the best, at 30
        (10, 0.4, 0.0),  # worse than all: against the slimmest, at 10
    ],
)
def test_madds_saved_at_equal_accuracy(madds: int, top1: float, saved: float) -> None:
    uniform = rows((10, 0.5), (20, 0.52), (30, 0.7), (40, 0.69))
    other = PathRow(32, (0, 1), 15, 1, 1.0, Stat(0.99))  # not uniform: not what one would have without a router
    none, spent = Stat(0.0), Stat(madds)
    row = BudgetRow("", 0.0, 0.0, "", spent, spent, spent, Stat(top1), none, none, None, ())
    assert saving([*uniform, other], row) == pytest.approx(saved)


def test_of_many_classes_the_extremes_are_drawn() -> None:
    count = 60
    classes = {
        "names": [f"class {number}" for number in range(count)],
        "images": [0, *[5] * (count - 1)],
        "madds": [[None, *range(1000, 1000 + count - 1)]],
        "top1": [[None, *[0.5] * (count - 1)]],
        "shares": [None, *[[0.5, 0.5]] * (count - 1)],
    }
    figure = class_bars({"dynamic": {"rows": [{"madds": 1000}], "classes": classes}})
    cheap, dear = ([bar["name"] for bar in group["bars"]] for group in figure["groups"])
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
