"""Draws charts, bars and matrices with matplotlib, as SVG inside a page, as SVG files and as PNG files.

In a page, text takes the colour of its surroundings and series take the page's variables --c0 to --c7, so a figure is
readable on dark and on light backgrounds. Series differ by marker as well as by colour.
"""

from __future__ import annotations

import io
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsnet.files import write_whole
from dsnet.report.palette import LIGHT, PLACES, alone, cleaned
from dsnet.results import Bars, Chart, Dot, Matrix, Series
from dsnet.results import Figure as Content

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = 8
MARKS = "os^DvPXh"
DASHES: tuple[Any, ...] = ("-", (0, (5, 3)), (0, (1.5, 2)), (0, (7, 2, 1.5, 2)))
WIDTH, HEIGHT = 460, 290  # width of a figure, height of a chart below its legend
TEXT, SMALL = 12, 11  # font sizes; a phone shows the figure at three quarters of its size
ROW = 25  # distance from one bar to the next
NUMBERED = 12  # up to this many classes, the cells of a matrix have numbers
LONGEST = 27  # longest name or note next to a bar, in characters
SWITCH = "DSNET_FIGURES"
Colours = Mapping[str, str]  # by role: paper, ink, soft, line, seq, c0 to c7


def enabled() -> bool:
    """Whether commands draw figures next to their results; `DSNET_FIGURES=off` saves the time."""
    return os.environ.get(SWITCH, "") != "off"


def draw(figure: Content, *, to: Literal["page", "svg", "png"], prefix: str = "") -> bytes:
    """Draw a figure as SVG for a page, as an SVG file, or as PNG. prefix: prefix of its ids, unique in a page."""
    import matplotlib

    buffer, colours = io.BytesIO(), LIGHT if to == "png" else PLACES
    with matplotlib.rc_context(style(colours)):
        drawn = drawing(figure, colours)
        if to == "png":
            drawn.savefig(buffer, format="png", dpi=144, facecolor=LIGHT["paper"], metadata={"Software": None})
            return buffer.getvalue()
        nothing = {"Date": None, "Creator": None, "Format": None, "Type": None}
        drawn.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = cleaned(buffer.getvalue().decode(), prefix, figure.title)
    return (svg if to == "page" else alone(svg)).encode()


def drawing(figure: Content, colours: Colours) -> Figure:
    if isinstance(figure, Chart):
        return chart(figure, colours)
    return bars(figure, colours) if isinstance(figure, Bars) else matrix(figure, colours)


def save(figure: Content, file: Path) -> Path:
    """Write a figure as PNG or SVG, depending on the suffix of the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, draw(figure, to="png" if file.suffix == ".png" else "svg"))
    return file


def style(colours: Colours) -> Any:
    """Settings of matplotlib."""
    ticks = {"color": colours["soft"], "labelsize": SMALL}
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "dsnet",
        "text.parse_math": False,
        "path.simplify": False,
        "font.family": "DejaVu Sans",
        "font.size": TEXT,
        "text.color": colours["ink"],
        "axes.unicode_minus": False,
        "axes.facecolor": "none",
        "axes.edgecolor": colours["soft"],
        "axes.labelcolor": colours["soft"],
        "axes.axisbelow": True,
        **{f"axes.spines.{side}": False for side in ("left", "right", "top")},
        "grid.color": colours["line"],
        "grid.linewidth": 1,
        **{f"{axis}tick.{key}": value for axis in "xy" for key, value in ticks.items()},
        "xtick.major.size": 4,
        "ytick.major.size": 0,
        "ytick.major.pad": 6,
        "figure.constrained_layout.use": True,
        "figure.constrained_layout.h_pad": 6 / 72,
        "figure.constrained_layout.w_pad": 6 / 72,
        "legend.frameon": False,
        "legend.borderpad": 0.1,
        "legend.columnspacing": 1.2,
        "legend.handletextpad": 0.6,
    }


def new_axes() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(WIDTH / 72, 1), dpi=72)
    return drawn, drawn.add_subplot()


def head(drawn: Figure, title: str, keys: Sequence[Any], names: Sequence[str], height: float, **look: Any) -> None:
    """Put the title and the legend on top, in as many columns as fit. height: height of the drawing below them.
    look: options of the legend."""
    words = "\n".join(textwrap.wrap(title, 52))
    bold: Any = {"weight": "bold", "size": 13.5}
    for columns in range(max(1, len(names)), 0, -1):
        by_row = [number for column in range(columns) for number in range(column, len(names), columns)]
        legend = drawn.legend(
            [keys[number] for number in by_row],
            [names[number] for number in by_row],
            loc="outside upper left",
            alignment="left",
            title=words,
            title_fontproperties=bold,
            ncols=columns,
            **look,
        )
        room = legend.get_window_extent()
        if room.width <= WIDTH - 8 or columns == 1:
            break
        legend.remove()
    for key in legend.legend_handles:
        if key is not None:
            key.set_gid("key")
    drawn.set_figheight((room.height + height) / 72)


def chart(figure: Chart, colours: Colours) -> Figure:
    """Lines and points over two axes."""
    drawn, axes = new_axes()
    every: list[Dot] = []
    curves = []
    for number, series in enumerate(figure.series):
        dots, look = usable(series.points, log=figure.log_x), looks(series, number, colours)
        every += dots
        for dot in dots:
            if dot.spread:
                bar: dict[str, Any] = {"ecolor": look["color"], "elinewidth": 1.4, "capsize": 3.5, "clip_on": False}
                reach = axes.errorbar(dot.x, dot.y, dot.spread, fmt="none", **bar)
                for cap in reach.lines[1]:
                    cap.set_markerfacecolor(look["color"])
        curves += axes.plot([dot.x for dot in dots], [dot.y for dot in dots], **look, clip_on=False)
        curves[-1].set_gid(f"series-{number}")
    set_scales(axes, figure, every)
    if not every:
        axes.text(0.5, 0.5, "no values", transform=axes.transAxes, color=colours["soft"], ha="center")
    axes.grid(axis="y")
    axes.set_xlabel(figure.x)
    axes.set_ylabel(figure.y)
    head(drawn, figure.title, curves, [series.name for series in figure.series], HEIGHT)
    return drawn


def looks(series: Series, number: int, colours: Colours) -> dict[str, Any]:
    """The style of a series. Colours and markers differ; from the ninth series on, their combination and the dashes."""
    dashes = DASHES[1] if series.dashed else DASHES[number // COLOURS % len(DASHES)]
    return {
        "color": colours[f"c{(number if series.colour is None else series.colour) % COLOURS}"],
        "linestyle": dashes if series.kind == "line" else "none",
        "linewidth": 1.9,
        "marker": MARKS[(number + number // COLOURS) % len(MARKS)],
        "markersize": 7.5,
        "markeredgewidth": 0.8,
        "markeredgecolor": colours["paper"],
    }


def set_scales(axes: Axes, figure: Chart, dots: Sequence[Dot]) -> None:
    """Set ranges that include all points and their error bars, with few round ticks."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    if not dots:
        axes.set(xticks=[], yticks=[])
        return
    xs = [dot.x for dot in dots]
    edges = [edge for dot in dots for edge in (dot.y - (dot.spread or 0), dot.y + (dot.spread or 0))]
    steps = [1, 2, 2.5, 5, 10]
    axes.set_ylim(*limits(min(edges), max(edges)))
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=steps))
    if figure.log_x:
        ticks, ends = decades(min(xs), max(xs))
        axes.set_xscale("log")
        axes.set_xlim(*ends)
        axes.set_xticks(ticks)
        axes.set_xticks([], minor=True)
    else:
        axes.set_xlim(*limits(min(xs), max(xs)))
        axes.xaxis.set_major_locator(MaxNLocator(7, steps=steps, integer=figure.whole_x))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: number_of(value)))


def bars(figure: Bars, colours: Colours) -> Figure:
    """Shares as stacked bars in groups; wider widths are darker."""
    from matplotlib.patches import Patch

    drawn, axes = new_axes()
    rows, at, y = [], [], 0.0
    for group in figure.groups:
        if group.name:
            axes.text(0, y, group.name, color=colours["soft"], va="center", in_layout=False)
            y += 1
        for bar in group.bars:
            rows.append(bar)
            at.append(y)
            y += 1
        y += 0.3
    y = max(1.0, y)  # a figure without bars keeps its title
    left, keys = [0.0] * len(rows), []
    for number in range(len(figure.names)):
        shade = 0.14 + 0.86 * number / max(1, len(figure.names) - 1)
        shares = [bar.shares[number] if number < len(bar.shares) else 0.0 for bar in rows]
        look: dict[str, Any] = {"facecolor": (colours["seq"], shade), "edgecolor": colours["paper"], "linewidth": 1}
        parts = axes.barh(at, shares, 0.84, left, clip_on=False, **look)
        for part, share in zip(parts, shares, strict=True):
            part.set_gid("part")
            part.set_visible(share > 0)
        labels = [f"{share:.0%}" if share > 0.11 else "" for share in shares]
        colour = colours["paper" if shade > 0.55 else "ink"]
        axes.bar_label(parts, labels, label_type="center", color=colour, size=10.5)
        left = [x + share for x, share in zip(left, shares, strict=True)]
        keys.append(Patch(**look))
    axes.set(xlim=(0, 1), ylim=(y - 0.5, -0.5), xticks=[])
    axes.set_yticks(at, [shortened(bar.name) for bar in rows], size=TEXT, color=colours["ink"])
    notes = axes.secondary_yaxis("right")
    notes.set_yticks(at, [shortened(bar.note) for bar in rows])
    for each in (axes, notes):
        each.spines[:].set_visible(False)
    squares = {"handlelength": 1.2, "handleheight": 1.2, "fontsize": SMALL}
    head(drawn, figure.title, keys, figure.names, ROW * y + 14, **squares)
    return drawn


def matrix(figure: Matrix, colours: Colours) -> Figure:
    """Right answers on the diagonal, wrong ones beside it in another colour; darker means a larger share of the row."""
    from matplotlib.patches import Patch, Rectangle

    drawn, axes = new_axes()
    count = len(figure.names)
    size = min(TEXT, 250 / count)
    for row, counts in enumerate(figure.counts):
        for column, images in enumerate(counts):
            if not images:
                continue
            shade = 0.12 + 0.88 * (images / sum(counts)) ** 0.5
            hue = colours["seq" if row == column else "c1"]
            cell = Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=(hue, shade), edgecolor=colours["paper"], lw=1)
            axes.add_patch(cell).set_gid("part")
            if count <= NUMBERED:
                colour = colours["paper" if shade > 0.55 else "ink"]
                axes.text(column, row, str(images), color=colour, size=size, ha="center", va="center")
    names = [shortened(name, 16) for name in figure.names]
    axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), xlabel=figure.x, ylabel=figure.y)
    upright = {} if sum(map(len, names)) <= 24 else {"rotation": 90}
    axes.set_xticks(range(count), names, size=size, **upright)  # type: ignore[arg-type]
    axes.set_yticks(range(count), names, size=size)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    keys = [Patch(facecolor=colours["seq"]), Patch(facecolor=colours["c1"])]
    squares = {"handlelength": 1.2, "handleheight": 1.2, "fontsize": SMALL}
    head(drawn, figure.title, keys, ["right", "wrong: darker is a larger share of the class"], WIDTH - 20, **squares)
    return drawn


def shortened(words: str, longest: int = LONGEST) -> str:
    return words if len(words) <= longest else f"{words[: longest - 1]}…"


def usable(dots: Sequence[Dot], *, log: bool) -> list[Dot]:
    """The points that can be drawn: finite and, on a logarithmic axis, positive."""
    return [dot for dot in dots if math.isfinite(dot.x) and math.isfinite(dot.y) and not (log and dot.x <= 0)]


def limits(low: float, high: float) -> tuple[float, float]:
    """The range of an axis: from zero if the lowest value is close to it, otherwise with a margin."""
    if high - low <= 1e-12 * max(1.0, abs(high)):
        low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if low else (0.0, 1.0)
    if 0 < low < 0.35 * high:
        low = 0.0
    air = 0.04 * (high - low)
    return low - (air if low else 0), high + air


def decades(low: float, high: float) -> tuple[list[float], tuple[float, float]]:
    """Ticks at round multiples of powers of ten, more of them on a shorter axis, and the ends of the axis."""
    low, high = low / 1.15, high * 1.15
    span = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    wide = math.log10(high / low)
    steps = (1, 1.5, 2, 3, 5, 7) if wide < 1 else (1, 2, 5) if wide < 3 else (1,)
    ticks = [digit * 10.0**power for power in span for digit in steps]
    return [tick for tick in ticks if low <= tick <= high], (low, high)


def number_of(value: float) -> str:
    """A number in short form: 0.25, 76.5, 1.5M."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(1e4, size):
            return f"{value / size:.4g}{unit}"
    return f"{value:.4g}"
