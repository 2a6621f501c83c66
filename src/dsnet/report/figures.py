"""Figures: matplotlib draws charts and bars, for a page, as SVG files and as PNG files.

In a page, text takes the colour of its surroundings and series take the page's variables --c0 to --c7, so a figure
reads on dark and on light ground. Series differ by mark as well as by colour.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsnet.files import write_whole
from dsnet.report.palette import LIGHT, PLACES, alone, cleaned
from dsnet.results import Bars, Chart, Dot, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


COLOURS = 8
MARKS = "os^DvPXh"
DASHES: tuple[Any, ...] = ("-", (0, (5, 3)), (0, (1.5, 2)), (0, (7, 2, 1.5, 2)))
WIDTH, HEIGHT, RIGHT = 460, 240, 14  # of the drawing and, HEIGHT, of the space between the axes
TEXT, SMALL = 12, 11  # a phone shows the drawing at three quarters of its size
SWITCH = "DSNET_FIGURES"


def enabled() -> bool:
    """Whether commands draw figures beside their results; `DSNET_FIGURES=off` saves the time where nobody looks."""
    return os.environ.get(SWITCH, "") != "off"


def draw(figure: Chart | Bars, *, to: Literal["page", "svg", "png"], prefix: str = "") -> bytes:
    """A figure as SVG in a page, as an SVG file, or as PNG. prefix: of its ids, unique in a page."""
    with style():
        pen = Pen(LIGHT if to == "png" else PLACES)
        drawn = chart(figure, pen) if isinstance(figure, Chart) else bars(figure, pen)
        buffer = io.BytesIO()
        if to == "png":
            drawn.savefig(buffer, format="png", dpi=144, facecolor=LIGHT["paper"], metadata={"Software": None})
            return buffer.getvalue()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        drawn.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = cleaned(buffer.getvalue().decode(), prefix, figure.title)
    return (svg if to == "page" else alone(svg)).encode()


def save(figure: Chart | Bars, file: Path) -> Path:
    """Write a figure; the suffix says how."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, draw(figure, to="png" if file.suffix == ".png" else "svg"))
    return file


@contextmanager
def style() -> Iterator[None]:
    import matplotlib

    settings: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "dsnet",
        "text.parse_math": False,
        "path.simplify": False,
        "font.family": "DejaVu Sans",
        "font.size": TEXT,
        "axes.unicode_minus": False,
    }
    with matplotlib.rc_context(settings):
        yield


@dataclass(frozen=True)
class Pen:
    """Colours by role: paper, ink, soft, line, seq, c0 to c7."""

    colours: dict[str, str]

    def __getitem__(self, role: str) -> str:
        return self.colours[role]

    def series(self, number: int) -> str:
        return self.colours[f"c{number % COLOURS}"]


def new_figure(height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(WIDTH / 72, height / 72), dpi=72)


def chart(figure: Chart, pen: Pen) -> Figure:
    """Lines and points over two axes."""
    shown = [(series, usable(series.points, log=figure.log_x)) for series in figure.series]
    title = textwrap.wrap(figure.title, 52)
    keys, below = flow([series.name for series in figure.series], 12 + 19 * len(title))
    height = below + HEIGHT + 46
    drawn = new_figure(height)
    head(drawn, title, height, pen)
    dots = [dot for _, mine in shown for dot in mine]
    axes = drawn.add_axes((0.1, 46 / height, 0.9, HEIGHT / height), facecolor="none")
    for number, (x, y) in enumerate(keys):
        series = figure.series[number]
        look = looks(series, number, pen)
        place = {"transform": points_of(drawn)}
        drawn.add_artist(line([x, x + 12, x + 24], [height - y] * 3, {**look, **place, "markevery": [1]}))
        drawn.text(x + 30, height - y, series.name, transform=points_of(drawn), color=pen["ink"], va="center")
    if not dots:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, color=pen["soft"], ha="center")
    for number, (series, mine) in enumerate(shown):
        look = looks(series, number, pen)
        spread = [dot for dot in mine if dot.spread]
        if spread:
            columns = [dot.x for dot in spread], [dot.y for dot in spread], [dot.spread or 0.0 for dot in spread]
            reach = axes.errorbar(
                *columns, fmt="none", ecolor=look["color"], elinewidth=1.4, capsize=3.5, clip_on=False
            )
            for cap in reach.lines[1]:
                cap.set_markerfacecolor(look["color"])
        curve = axes.plot([dot.x for dot in mine], [dot.y for dot in mine], **look, clip_on=False)[0]
        curve.set_gid(f"series-{number}")
    dress(axes, figure, dots, pen)
    return drawn


def dress(axes: Axes, figure: Chart, dots: Sequence[Dot], pen: Pen) -> None:
    """Axes with few round ticks."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

    if dots:
        edges = [edge for dot in dots for edge in (dot.y - (dot.spread or 0), dot.y + (dot.spread or 0))]
        xs = [dot.x for dot in dots]
        axes.set_ylim(*limits(min(edges), max(edges)))
        if figure.log_x:
            ticks, ends = decades(min(xs), max(xs))
            axes.set_xscale("log")
            axes.set_xlim(*ends)
            axes.xaxis.set_major_locator(FixedLocator(ticks))
            axes.xaxis.set_minor_locator(NullLocator())
        else:
            axes.set_xlim(*limits(min(xs), max(xs)))
            axes.xaxis.set_major_locator(MaxNLocator(7, steps=[1, 2, 2.5, 5, 10], integer=figure.whole_x))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: number_of(value)))
    axes.grid(axis="y", color=pen["line"], linewidth=1)
    axes.set_axisbelow(True)
    axes.tick_params(colors=pen["soft"], labelcolor=pen["soft"], labelsize=SMALL, length=0, pad=6)
    axes.tick_params(axis="x", length=4, width=1, pad=4)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(pen["soft"])
    axes.set_xlabel(figure.x, color=pen["soft"], labelpad=6)
    left = 34 + max((text_width(number_of(tick), SMALL) for tick in axes.get_yticks()), default=0.0)
    _, low, _, high = axes.get_position().bounds
    axes.set_position((left / WIDTH, low, (WIDTH - left - RIGHT) / WIDTH, high))
    place: dict[str, Any] = {"transform": axes.transAxes, "rotation": 90, "ha": "left", "va": "center"}
    axes.text(-(left - 6) / (WIDTH - left - RIGHT), 0.5, figure.y, color=pen["soft"], **place)


def bars(figure: Bars, pen: Pen) -> Figure:
    """Shares as rows of bars in groups: the wider, the darker."""
    rows = [bar for group in figure.groups for bar in group.bars]
    left = 16 + max((text_width(bar.name) for bar in rows), default=0.0)
    left = min(150.0, left)
    right = WIDTH - min(175.0, 16 + max((text_width(bar.note, SMALL) for bar in rows), default=0.0))
    shades = [0.14 + 0.86 * number / max(1, len(figure.names) - 1) for number in range(len(figure.names))]
    title = textwrap.wrap(figure.title, 52)
    keys, y = flow(figure.names, 12 + 19 * len(title), mark=30, size=SMALL)
    named = sum(bool(group.name) for group in figure.groups)
    height = y + 24 * named + 25 * len(rows) + 8 * len(figure.groups)
    drawn = new_figure(height)
    head(drawn, title, height, pen)
    axes = drawn.add_axes((0, 0, 1, 1), facecolor="none", xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")

    def part(x: float, top: float, wide: float, high: float, shade: float, name: str) -> None:
        look: dict[str, Any] = {"facecolor": pen["seq"], "alpha": shade, "linewidth": 0}
        axes.barh(top, wide, high, x, align="edge", clip_on=False, **look)[0].set_gid(name)

    for (x, at), name, shade in zip(keys, figure.names, shades, strict=True):
        part(x, at - 7, 14, 14, shade, "key")
        axes.text(x + 20, at, name, color=pen["ink"], va="center", size=SMALL)
    for group in figure.groups:
        if group.name:
            axes.text(10, y + 11, group.name, color=pen["soft"], va="center")
            y += 24
        for bar in group.bars:
            axes.text(left - 8, y + 10.5, clipped(bar.name, left - 12), color=pen["ink"], ha="right", va="center")
            x = left
            for share, shade in zip(bar.shares, shades, strict=False):
                wide = share * (right - left)
                if wide > 0:
                    part(x, y, max(0.2, wide - 1), 21, shade, "part")
                if wide > 34:
                    colour = pen["paper" if shade > 0.55 else "ink"]
                    axes.text(x + wide / 2, y + 10.5, f"{share:.0%}", color=colour, ha="center", va="center", size=10.5)
                x += wide
            note = clipped(bar.note, WIDTH - right - 8, SMALL)
            axes.text(WIDTH - 6, y + 10.5, note, color=pen["soft"], ha="right", va="center", size=SMALL)
            y += 25
        y += 8
    return drawn


def line(xs: Sequence[float], ys: Sequence[float], look: dict[str, Any]) -> Any:
    from matplotlib.lines import Line2D

    return Line2D(xs, ys, **look)


def points_of(figure: Figure) -> Any:
    """Points of the drawing, from its lower left corner."""
    from matplotlib.transforms import Affine2D

    return Affine2D().scale(1 / 72) + figure.dpi_scale_trans


def head(figure: Figure, lines: Sequence[str], height: float, pen: Pen) -> None:
    for number, words in enumerate(lines):
        place = {"transform": points_of(figure), "va": "center"}
        figure.text(10, height - 16 - 19 * number, words, size=13.5, weight="bold", color=pen["ink"], **place)


def looks(series: Series, number: int, pen: Pen) -> dict[str, Any]:
    """Series differ in colour and mark; from the ninth on, in how these go together, and in dashes."""
    colour = pen.series(number if series.colour is None else series.colour)
    dashes = DASHES[1] if series.dashed else DASHES[number // COLOURS % len(DASHES)]
    return {
        "color": colour,
        "linestyle": dashes if series.kind == "line" else "none",
        "linewidth": 1.9,
        "marker": MARKS[(number + number // COLOURS) % len(MARKS)],
        "markersize": 7.5,
        "markeredgewidth": 0.8,
        "markeredgecolor": pen["paper"],
    }


def flow(
    names: Sequence[str], y: float, *, mark: float = 44, size: float = TEXT
) -> tuple[list[tuple[float, float]], float]:
    """Places of a legend's keys, in as many rows as they need from y on, and where they end.

    mark: what a key takes beside its name.
    """
    places, x = [], 10.0
    y += 13
    for name in names:
        wide = mark + text_width(name, size)
        if x > 10 and x + wide > WIDTH:
            x, y = 10.0, y + 20
        places.append((x, y))
        x += wide
    return places, y + 20


def text_width(words: str, size: float = TEXT) -> float:
    """Points that words take in DejaVu Sans, which is wider than what browsers use."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    if not words:
        return 0.0
    return float(
        TextToPath().get_text_width_height_descent(words, FontProperties(family="DejaVu Sans", size=size), False)[0]
    )


def clipped(words: str, room: float, size: float = TEXT) -> str:
    if text_width(words, size) <= room:
        return words
    return next(
        (f"{words[:end]}…" for end in range(len(words), 1, -1) if text_width(words[:end], size) <= room - 10), "…"
    )


def usable(dots: Sequence[Dot], *, log: bool) -> list[Dot]:
    """What can be drawn."""
    return [dot for dot in dots if math.isfinite(dot.x) and math.isfinite(dot.y) and not (log and dot.x <= 0)]


def limits(low: float, high: float) -> tuple[float, float]:
    """The range to draw: from zero where zero is near, else with some air."""
    if high - low <= 1e-12 * max(1.0, abs(high)):
        low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if low else (0.0, 1.0)
    if 0 < low < 0.35 * high:
        low = 0.0
    air = 0.04 * (high - low)
    return low - (air if low else 0), high + air


def decades(low: float, high: float) -> tuple[list[float], tuple[float, float]]:
    """Ticks at round multiples of powers of ten, the more of them the shorter the axis."""
    low, high = low / 1.15, high * 1.15
    span = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 5, 7) if wide < 1 else (1, 2, 5) if wide < 3 else (1,)
    ticks = [digit * 10.0**power for power in span for digit in steps]
    return [tick for tick in ticks if low <= tick <= high], (low, high)


def number_of(value: float) -> str:
    """Short: 0.25, 76.5, 1.5M."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(1e4, size):
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
