"""Figures: every value is in them, nothing breaks out of them, series differ by more than colour."""

from __future__ import annotations

import io
import itertools
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from PIL import Image

from dsnet.report import figures
from dsnet.report.figures import decades, draw, enabled, limits, number_of
from dsnet.report.palette import DARK, LIGHT, PLACES
from dsnet.report.sheets import contact_sheet, detection_sheet
from dsnet.results import Bar, BarGroup, Bars, Box, Chart, Dot, Evaluation, Example, Made, Metric, Series

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>\"'&$x_1$"


def chart(*series: list[tuple[float, ...]], kind: Any = "line", **more: Any) -> Chart:
    rows = [Series(f"series {n}", tuple(Dot(*dot) for dot in dots), kind) for n, dots in enumerate(series)]
    return Chart("a title", "MAdds", "top-1 (%)", tuple(rows), **more)


def bars() -> Bars:
    rows = Bar("gate 0", (0.25, 0.75)), Bar("gate 1", (0.0, 0.4, 0.6), "1.2M")
    return Bars("shares", ("w0", "w1", "w2"), (BarGroup("1M", rows),))


def page(figure: Chart | Bars, prefix: str = "") -> str:
    return draw(figure, to="page", prefix=prefix).decode()


def groups(svg: str, kind: str) -> list[ElementTree.Element]:
    return [group for group in ElementTree.fromstring(svg).iter(f"{SVG}g") if group.attrib.get("class") == kind]


def places(svg: str) -> list[tuple[float, float]]:
    """Of all marks."""
    marks = [mark for group in groups(svg, "series") for mark in group.iter(f"{SVG}use")]
    return [(float(mark.attrib["x"]), float(mark.attrib["y"])) for mark in marks]


def words(svg: str) -> list[str]:
    return [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("log", [False, True])
def test_every_point_is_drawn_in_its_order_inside_the_axes(log: bool) -> None:
    svg = page(chart([(1e6, 70.0), (2e6, 75.0, 0.5), (8e6, 74.0)], log_x=log))
    (x0, y0), (x1, y1), (x2, y2) = places(svg)
    assert 0 < x0 < x1 < x2 < figures.WIDTH
    assert y0 > y2 > y1
    assert (x2 - x1 < 5 * (x1 - x0)) == log  # on a logarithmic axis the two steps are 1 and 2 octaves
    assert max(y0, y1, y2) - min(y0, y1, y2) < figures.HEIGHT
    assert {"a title", "MAdds", "top-1 (%)", "series 0"} <= set(words(svg))


def test_points_without_values_are_left_out() -> None:
    svg = page(chart([(1, math.nan), (math.inf, 2), (0, 5), (3, 4)], log_x=True))
    assert len(places(svg)) == 1
    assert "no values" in page(chart([(1, math.nan)]))
    assert "no values" in page(chart())


def test_spreads_are_drawn_where_they_are_known() -> None:
    bare = page(chart([(1, 2), (2, 3)]))
    assert len(page(chart([(1, 2, 0.5), (2, 3, 0.2)]))) > len(bare)
    assert places(page(chart([(1, 2, 1e-9), (2, 3, None)]))) == places(bare)


def shapes(count: int) -> list[tuple[str | None, ...]]:
    """Outline and colour of the marks of so many series."""
    found = []
    for group in groups(page(chart(*[[(1.0, 2.0)]] * count)), "series"):
        (mark,), (use,) = list(group.iter(f"{SVG}path"))[-1:], list(group.iter(f"{SVG}use"))
        found.append((mark.attrib["d"], use.attrib["style"]))
    return found


def test_series_differ_without_colours() -> None:
    assert len({outline for outline, _ in shapes(8)}) == 8
    assert len(set(shapes(20))) == 20


def test_words_are_escaped() -> None:
    evil = Chart(EVIL, EVIL, EVIL, (Series(EVIL, (Dot(1, 2),)),))
    for figure in (evil, Bars(EVIL, (EVIL,), (BarGroup(EVIL, (Bar(EVIL, (1.0,), EVIL),)),))):
        for to in ("page", "svg"):
            text = draw(figure, to=to).decode()
            assert "<script" not in text
            assert EVIL in words(text)  # as it stands, mathematics included
        assert ElementTree.fromstring(page(figure)).attrib["aria-label"] == EVIL


def test_bars_are_as_wide_as_their_shares() -> None:
    svg = page(bars())
    corners = [re.findall(r"-?[\d.]+", part.find(f"{SVG}path").attrib["d"]) for part in groups(svg, "part")]  # type: ignore[union-attr]
    widths = [max(map(float, corner[::2])) - min(map(float, corner[::2])) + 1 for corner in corners]
    assert len(widths) == 4
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.01)
    assert widths[3] == pytest.approx(1.5 * widths[2], rel=0.01)
    assert widths[0] + widths[1] == pytest.approx(widths[2] + widths[3], abs=0.3)
    assert {"gate 0", "gate 1", "25%", "75%", "40%", "60%", "1.2M", "w2", "1M"} <= set(words(svg))
    assert len(groups(svg, "key")) == 3


@pytest.mark.parametrize("figure", [chart([(1, 2), (2, 3, 0.1)]), bars()], ids=["chart", "bars"])
def test_a_figure_in_a_page_takes_its_colours_and_fetches_nothing(figure: Chart | Bars) -> None:
    svg = page(figure, "f1-")
    assert not re.search(r"url\(|xlink|<style|<script|https?://(?!www\.w3\.org/2000/svg\")", svg)
    assert not any(place in svg for place in PLACES.values())
    assert "currentColor" in svg
    assert not re.search(r"(fill|stroke): #", svg)  # every colour is a variable
    ids = re.findall(r' id="([^"]*)"', svg)
    assert all(name.startswith("f1-") for name in ids)
    assert set(re.findall(r'href="#([^"]*)"', svg)) == set(ids)
    assert page(figure, "f1-") == svg  # the same bytes again


def test_a_file_of_its_own_has_its_style_and_its_ground() -> None:
    svg = draw(chart([(1, 2), (2, 3)]), to="svg").decode()
    root = ElementTree.fromstring(svg)
    assert root[0].tag == f"{SVG}style"
    assert "prefers-color-scheme:dark" in (root[0].text or "")
    assert root[1].tag == f"{SVG}rect"
    assert root.attrib["width"] == str(figures.WIDTH)
    for name in set(re.findall(r"var\((--\w+)\)", svg)):
        assert svg.count(f"{name}:") == 2, f"{name} needs a value on light and on dark ground"


def test_a_png_has_the_colours_of_light_ground() -> None:
    with Image.open(io.BytesIO(draw(chart([(1, 2), (2, 3)]), to="png"))) as picture:
        assert picture.width == 2 * figures.WIDTH
        colours = {colour[:3] for _, colour in picture.convert("RGBA").getcolors(1 << 24)}  # type: ignore[misc]
    assert tuple(bytes.fromhex(LIGHT["c0"][1:])) in colours


def luminance(colour: str) -> float:
    parts = [part / 255 for part in bytes.fromhex(colour[1:])]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stand_out_from_their_ground(colours: dict[str, str]) -> None:
    """As WCAG asks: 4.5 for text, 3 for lines and marks."""
    for role, colour in colours.items():
        if role not in ("paper", "line"):
            low, high = sorted((luminance(colour), luminance(colours["paper"])))
            assert (high + 0.05) / (low + 0.05) > (4.5 if role in ("ink", "soft") else 3), role


def test_keys_of_a_legend_never_overlap() -> None:
    names = ["a", "a name of some length, and then some more", "b", "dynamic, router cheap_first, correctness"]
    series = tuple(Series(name, (Dot(1, 2),)) for name in names)
    with matplotlib.rc_context(figures.style(LIGHT)):
        drawn = figures.chart(Chart("a title", "x", "y", series), LIGHT)
        drawn.draw_without_rendering()
    (legend,) = drawn.legends
    boxes = {text.get_text(): text.get_window_extent() for text in (legend.get_title(), *legend.get_texts())}
    assert set(boxes) == {"a title", *names}
    assert all(0 <= box.x0 < box.x1 <= figures.WIDTH for box in boxes.values())
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes.values(), 2))


@pytest.mark.parametrize(
    "figure",
    [
        Bars("none", (), ()),
        Bars("long", ("w0",), (BarGroup("group " * 20, (Bar("name " * 20, (1.0,), "note " * 20),)),)),
        Chart("long " * 40, "x", "y " * 60, (Series("series " * 30, (Dot(1, 2),)),)),
    ],
    ids=lambda figure: f"{type(figure).__name__} {figure.title[:4]}",
)
@pytest.mark.filterwarnings("error")
def test_words_of_any_length_leave_room_for_the_figure(figure: Chart | Bars) -> None:
    assert page(figure).startswith("<svg")


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (71.2, 78.3), (534144, 4245264), (-3, 4), (5, 5), (0, 0), (1e-9, 2e-9)]
)
def test_axes_hold_their_values_between_few_round_ticks(low: float, high: float) -> None:
    start, end = limits(low, high)
    assert start <= low <= high <= end
    svg = page(chart([(low, low), (high, high)]))
    ticks = [word for word in words(svg) if re.fullmatch(r"-?[\d.]+(e-?\d+)?[kMBT]?", word)]
    assert 4 <= len(ticks) <= 18  # of both axes


def test_decades() -> None:
    ticks, (start, end) = decades(1e3, 1e9)
    assert start < 1e3 < 1e9 < end
    assert ticks == [10.0**power for power in range(3, 10)]
    assert decades(3, 30)[0] == [5, 10, 20]
    assert decades(1e6, 4e6)[0] == [1e6, 1.5e6, 2e6, 3e6]


def test_numbers_are_short() -> None:
    given = (0.25, 76.5, 1500, 15000, 1.5e6, 0)
    assert [number_of(value) for value in given] == ["0.25", "76.5", "1500", "15k", "1.5M", "0"]


def test_epochs_are_whole() -> None:
    svg = page(chart([(1, 0.51), (2, 0.43)], whole_x=True))
    found = [word for word in words(svg) if re.fullmatch(r"[\d.]+", word) and float(word) >= 1]
    assert found == ["1", "2"]


def test_figures_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSNET_FIGURES", "off")
    assert not enabled()
    monkeypatch.delenv("DSNET_FIGURES")
    assert enabled()


def test_matplotlib_is_imported_when_something_is_drawn() -> None:
    code = "import sys, dsnet.report.chapters, dsnet.report.export; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# contact sheets


def test_a_contact_sheet_shows_every_picture() -> None:
    reds = [(Image.new("RGB", (8, 8), (200 + n, 0, 0)), [f"class {n}", "✓ right"]) for n in range(8)]
    with Image.open(io.BytesIO(contact_sheet([("easy", reds), ("hard", reds[:1])], title="title"))) as sheet:
        found = {colour for _, colour in sheet.convert("RGB").getcolors(1 << 24)}  # type: ignore[misc]
    assert {(200 + n, 0, 0) for n in range(8)} <= found


def test_detections_and_annotated_objects_are_drawn(tmp_path: Path) -> None:
    boxes = Box("cell", (0.1, 0.1, 0.5, 0.5), 0.9), Box("cell", (0.6, 0.6, 0.9, 0.9))
    shown = (Example(0, (1,), detections=boxes[:1], objects=boxes[1:]),)
    result = Evaluation(
        "detection", Metric("mAP", ".3f"), "m", "d", "test", 1, 32, (0,), (), Made(), ("cell",), 1, examples=shown
    )
    bare = Evaluation(
        "detection",
        Metric("mAP", ".3f"),
        "m",
        "d",
        "test",
        1,
        32,
        (0,),
        (),
        Made(),
        ("cell",),
        1,
        examples=(Example(0, (1,)),),
    )
    image = Image.new("RGB", (60, 40), (90, 90, 90))
    with Image.open(detection_sheet(result, [image], tmp_path / "a.png")) as one:
        drawn = {colour for _, colour in one.convert("RGB").getcolors(1 << 24)}  # type: ignore[misc]
    with Image.open(detection_sheet(bare, [image], tmp_path / "b.png")) as other:
        without = {colour for _, colour in other.convert("RGB").getcolors(1 << 24)}  # type: ignore[misc]
    blue = {colour for colour in drawn if colour[2] > colour[0] + 80}
    assert blue
    assert not blue & without
    assert {(0, 0, 0), (255, 255, 255)} <= drawn


def test_long_axes_have_ticks_at_equal_steps() -> None:
    svg = page(chart([(0, 0), (10, 50)]))
    steps = [float(word) for word in words(svg) if re.fullmatch(r"\d+", word)]
    rising = [b - a for a, b in itertools.pairwise(steps) if b > a]
    assert len(set(rising)) <= 2  # one of each axis
