"""Figures as SVG: every value is in them, nothing breaks out of them, series differ by more than colour."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

import pytest

from dsnet.report.svg import HEIGHT, WIDTH, axis, chart, decades, number_of, stacked_bars, standalone

SVG = "{http://www.w3.org/2000/svg}"


def figure(*series: list[list[Any]], kind: str = "line", **more: Any) -> dict[str, Any]:
    rows = [{"name": f"series {number}", "kind": kind, "points": points} for number, points in enumerate(series)]
    return {"title": "a title", "x": "MAdds", "y": "top-1 (%)", "series": rows, **more}


def hovers(svg: str) -> list[str]:
    return [title.text or "" for title in ElementTree.fromstring(svg).iter(f"{SVG}title")]


def places(svg: str) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in re.findall(r'class="dot" transform="translate\((\S+) (\S+)\)"', svg)]


@pytest.mark.parametrize("log", [False, True])
def test_every_point_is_drawn_in_its_order_inside_the_axes(log: bool) -> None:
    svg = chart(figure([[1e6, 70.0], [2e6, 75.0, 0.5], [8e6, 74.0, None, "path 3"]], log_x=log))
    (x0, y0), (x1, y1), (x2, y2) = places(svg)
    assert 0 < x0 < x1 < x2 < WIDTH
    assert y0 > y2 > y1
    assert (x2 - x1 < 6 * (x1 - x0)) == log  # on a logarithmic axis the two steps are 1 and 2 octaves
    assert max(y0, y1, y2) - min(y0, y1, y2) < HEIGHT
    assert hovers(svg)[1] == "series 0: MAdds 2M, top-1 (%) 75 ± 0.5"
    assert hovers(svg)[2].startswith("series 0: path 3, ")
    assert svg.count('class="spread') == 1
    assert svg.count('class="curve c0"') == 2


def test_points_without_values_are_left_out() -> None:
    svg = chart(figure([[1, None], [2, math.nan], [0, 5], [3, 4]], log_x=True))
    assert len(places(svg)) == 1
    assert "no values" in chart(figure([[1, None]]))
    assert "no values" in chart(figure())


def test_series_differ_without_colours() -> None:
    shapes = [
        re.sub(r"\bc\d\b", "", part) for part in re.findall(r'<path class="mark[^>]*>', chart(figure(*[[[1, 2]]] * 8)))
    ]
    assert len(set(shapes)) == 8
    both = re.findall(r'<path class="mark[^>]*>', chart(figure(*[[[1, 2]]] * 20)))
    assert len(set(both)) == 20


def test_words_are_escaped() -> None:
    evil = "<script>\"'&"
    row = {"name": evil, "kind": "line", "points": [[1, 2, None, evil]]}
    svg = chart({"title": evil, "x": evil, "y": evil, "series": [row]})
    bars = stacked_bars(
        {"title": evil, "names": [evil], "groups": [{"name": evil, "bars": [{"name": evil, "shares": [1]}]}]}
    )
    for text in (svg, bars, standalone(svg)):
        assert "<script" not in text
        ElementTree.fromstring(text)
    assert any(evil in hover for hover in hovers(svg))


def test_bars_are_as_wide_as_their_shares() -> None:
    bars = [{"name": "gate 0", "shares": [0.25, 0.75]}, {"name": "gate 1", "shares": [0.0, 0.4, 0.6], "note": "1.2M"}]
    svg = stacked_bars({"title": "t", "names": ["w0", "w1", "w2"], "groups": [{"name": "1M", "bars": bars}]})
    root = ElementTree.fromstring(svg)
    rects = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    widths = [float(rect.attrib["width"]) for rect in rects]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert widths[3] == pytest.approx(1.5 * widths[2], rel=0.01)
    assert widths[0] + widths[1] == pytest.approx(widths[2] + widths[3], abs=0.3)
    assert hovers(svg)[1] == "1M gate 0, w1: 75.0%"


def test_a_file_of_its_own_has_its_style_and_its_ground() -> None:
    svg = standalone(chart(figure([[1, 2], [2, 3]])))
    root = ElementTree.fromstring(svg)
    assert root[0].tag == f"{SVG}style"
    assert "prefers-color-scheme:dark" in (root[0].text or "")
    assert root[1].tag == f"{SVG}rect"
    assert root.attrib["width"] == str(WIDTH)
    for name in set(re.findall(r"var\((--\w+)\)", svg)):
        assert svg.count(f"{name}:") == 2, f"{name} needs a value on light and on dark ground"


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (71.2, 78.3), (534144, 4245264), (-3, 4), (5, 5), (0, 0), (1e-9, 2e-9)]
)
def test_axes_hold_their_values_between_few_round_ticks(low: float, high: float) -> None:
    ticks, (start, end) = axis(low, high, 6)
    assert start <= low <= high <= end
    assert 2 <= len(ticks) <= 8
    assert all(start - 1e-12 <= tick <= end + 1e-12 for tick in ticks)
    assert len({round(b - a, 12) for a, b in itertools.pairwise(ticks)}) <= 1 or high < 1e-6


def test_decades() -> None:
    ticks, (start, end) = decades(1e3, 1e9)
    assert start < 1e3 < 1e9 < end
    assert ticks == [10.0**power for power in range(3, 10)]
    assert decades(3, 30)[0] == [5, 10, 20]
    assert decades(1e6, 4e6)[0] == [1e6, 1.5e6, 2e6, 3e6]


def test_numbers_are_short() -> None:
    assert [number_of(value) for value in (0.25, 76.5, 1500, 15000, 1.5e6, 0)] == [
        "0.25",
        "76.5",
        "1500",
        "15k",
        "1.5M",
        "0",
    ]


def test_epochs_are_whole() -> None:
    svg = chart(figure([[1, 0.5], [2, 0.4]], whole_x=True))
    assert re.findall(r'class="tick mid"[^>]*>([^<]*)<', svg) == ["1", "2"]
