"""Figures as SVG: in a page, or alone in a file; readable on dark and on light ground, told apart by more than colour.

A figure is plain data: {"title", "x", "y", "log_x" (optional), "series": [{"name", "kind": "line" | "points",
"points": [[x, y], [x, y, spread], [x, y, spread or None, words for the hover], ...]}]}. A series may pin its
"colour" (a number) and be "dashed"; "whole_x" (optional) keeps ticks at whole numbers.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from html import escape
from typing import Any

LIGHT = (
    "--paper:#fff;--ink:#1d2733;--soft:#5c6b7a;--line:#dfe5eb;--seq:#0b5cad;"
    "--c0:#0b5cad;--c1:#c84a12;--c2:#0a7d5c;--c3:#a8467f;--c4:#94690a;--c5:#3d8fc2;--c6:#5d6670;--c7:#7a4fc0"
)
DARK = (
    "--paper:#10161d;--ink:#e4eaf0;--soft:#9dabb8;--line:#2b3642;--seq:#6cb6ff;"
    "--c0:#6cb6ff;--c1:#ff9a5c;--c2:#4fd1a5;--c3:#eca3cb;--c4:#f0c24b;--c5:#a9dcff;--c6:#b4bec8;--c7:#bda3ff"
)
COLOURS = 8
THEME = f":root{{color-scheme:light dark;{LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{DARK}}}}}"
RULES = (
    ".chart{font:13px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif;fill:var(--ink)}"
    ".chart .head{font-size:15px;font-weight:600}.chart .tick,.chart .note{fill:var(--soft);font-size:12px}"
    ".chart .grid{stroke:var(--line)}.chart .axis{stroke:var(--soft)}.chart .end{text-anchor:end}"
    ".chart .mid{text-anchor:middle}.chart .curve{fill:none;stroke-width:2;stroke-linejoin:round}"
    ".chart .mark{stroke:var(--paper);stroke-width:1}.chart .reach{fill:transparent;stroke:none}"
    ".chart .spread{fill:none;stroke-width:1.5;opacity:.75}.chart .dot:hover .mark{stroke:var(--ink);stroke-width:2}"
    ".chart .part{fill:var(--seq);stroke:var(--paper)}.chart .part:hover{stroke:var(--ink)}"
    ".chart .in{font-size:11px;pointer-events:none}.chart .over{fill:var(--paper)}"
    + "".join(f".chart .c{n}{{stroke:var(--c{n});fill:var(--c{n})}}" for n in range(COLOURS))
    + ".chart path.curve,.chart path.spread{fill:none}.chart .mark{stroke:var(--paper)}"
)
WIDTH, HEIGHT, LEFT, RIGHT = 600, 300, 70, 20  # of the drawing and, HEIGHT, of the space between the axes
LETTER = 7.5  # a generous average, so that legends never run into each other
MARKS = (  # around (0, 0)
    "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0 -9 0Z",  # circle
    "M-4 -4H4V4H-4Z",  # square
    "M0 -5.2L5 3.8H-5Z",  # triangle
    "M0 -5.6L5.6 0L0 5.6L-5.6 0Z",  # diamond
    "M-5 -3.8H5L0 5.2Z",  # triangle on its tip
    "M-1.7 -5H1.7V-1.7H5V1.7H1.7V5H-1.7V1.7H-5V-1.7H-1.7Z",  # plus
    "M-5 -2.8L-2.8 -5L0 -2.2L2.8 -5L5 -2.8L2.2 0L5 2.8L2.8 5L0 2.2L-2.8 5L-5 2.8L-2.2 0Z",  # cross
    "M-5.4 0L-2.7 -4.7H2.7L5.4 0L2.7 4.7H-2.7Z",  # hexagon
)
DASHES = ("", "6 4", "2 3", "9 3 2 3")


def chart(figure: dict[str, Any]) -> str:
    """Lines and points over two axes; values on hover."""
    log = bool(figure.get("log_x"))
    shown = [(series, usable(series["points"], log=log)) for series in figure["series"]]
    names = [(series["name"], looks(series, number)) for number, (series, _) in enumerate(shown)]
    title = heading(figure["title"])
    keys, top = legend(names, 8 + 20 * len(title))
    bottom, right = top + HEIGHT, WIDTH - RIGHT
    points = [point for _, mine in shown for point in mine]
    parts = [*texts(title), *keys]
    if not points:
        parts.append(text(WIDTH / 2, top + HEIGHT / 2, "no values", "note mid"))
        return drawing(parts, bottom + 20, figure["title"])
    xs, ys = [x for x, *_ in points], [edge for _, y, spread, _ in points for edge in (y - spread, y + spread)]
    least = 1.0 if figure.get("whole_x") else 0.0
    x_ticks, (x0, x1) = decades(min(xs), max(xs)) if log else axis(min(xs), max(xs), 7, least=least)
    y_ticks, (y0, y1) = axis(min(ys), max(ys), 6)
    flat = math.log10 if log else float

    def across(x: float) -> float:
        return LEFT + (flat(x) - flat(x0)) / (flat(x1) - flat(x0)) * (right - LEFT)

    def up(y: float) -> float:
        return bottom - (y - y0) / (y1 - y0) * HEIGHT

    for y in y_ticks:
        parts.append(f'<path class="grid" d="M{LEFT} {up(y):.1f}H{right}"/>')
        parts.append(text(LEFT - 8, up(y) + 4, number_of(y), "tick end"))
    for x in x_ticks:
        parts.append(f'<path class="axis" d="M{across(x):.1f} {bottom}v5"/>')
        parts.append(text(across(x), bottom + 19, number_of(x), "tick mid"))
    parts.append(f'<path class="axis" d="M{LEFT} {bottom}H{right}"/>')
    parts.append(text((LEFT + right) / 2, bottom + 40, figure["x"], "note mid"))
    turned = f'transform="translate(14 {(top + bottom) / 2:.0f}) rotate(-90)"'
    parts.append(f'<text class="note mid" {turned}>{escape(figure["y"])}</text>')
    for number, (series, mine) in enumerate(shown):
        look = looks(series, number)
        where = [(across(x), up(y)) for x, y, *_ in mine]
        if series.get("kind") == "line" and len(mine) > 1:
            parts.append(curve(where, look))
        for (x, y), (left, high, spread, words) in zip(where, mine, strict=True):
            colour = f"c{look[0] % COLOURS}"
            if spread:
                a, b = up(high - spread), up(high + spread)
                parts.append(f'<path class="spread {colour}" d="M{x:.1f} {a:.1f}V{b:.1f}M{x - 4:.1f} {a:.1f}h8m-8 ')
                parts[-1] += f'{b - a:.1f}h8"/>'
            hover = f"{series['name']}: {words + ', ' if words else ''}{figure['x']} {number_of(left)}, "
            hover += f"{figure['y']} {number_of(high)}" + (f" ± {number_of(spread)}" if spread else "")
            parts.append(f'<g class="dot" transform="translate({x:.1f} {y:.1f})"><title>{escape(hover)}</title>')
            parts[-1] += f'<circle class="reach" r="9"/>{mark(look)}</g>'
    return drawing(parts, bottom + 50, figure["title"])


def stacked_bars(figure: dict[str, Any]) -> str:
    """Shares as rows of bars in groups.

    {"title", "names": what the parts are, slimmest first, "groups": [{"name", "bars": [{"name", "shares": of 1,
    "note" (optional)}]}]}
    """
    bars = [bar for group in figure["groups"] for bar in group["bars"]]
    left = min(200, 20 + LETTER * max((len(bar["name"]) for bar in bars), default=0))
    right = WIDTH - min(200, 14 + LETTER * max((len(bar.get("note", "")) for bar in bars), default=0))
    title, names = heading(figure["title"]), figure["names"]
    shades = [0.14 + 0.86 * number / max(1, len(names) - 1) for number in range(len(names))]
    keys, y = legend([(name, shade) for name, shade in zip(names, shades, strict=True)], 8 + 20 * len(title))
    parts = [*texts(title), *keys]
    for group in figure["groups"]:
        if group["name"]:
            parts.append(text(10, y + 15, group["name"], "note"))
            y += 24
        for bar in group["bars"]:
            x = left
            parts.append(text(left - 8, y + 15, clipped(bar["name"], left - 10), "end"))
            for name, share, shade in zip(names, bar["shares"], shades, strict=False):
                wide = share * (right - left)
                if wide > 0:
                    hover = escape(f"{group['name']} {bar['name']}, {name}: {share:.1%}".strip())
                    parts.append(
                        f'<rect class="part" x="{x:.1f}" y="{y}" width="{wide:.1f}" height="21" '
                        f'fill-opacity="{shade:.2f}"><title>{hover}</title></rect>'
                    )
                if wide > 34:
                    parts.append(text(x + wide / 2, y + 15, f"{share:.0%}", f"in mid{' over' if shade > 0.55 else ''}"))
                x += wide
            parts.append(text(WIDTH - 8, y + 15, clipped(bar.get("note", ""), WIDTH - right), "tick end"))
            y += 25
        y += 8
    return drawing(parts, y + 4, figure["title"])


def standalone(svg: str) -> str:
    """A figure as a file of its own: its ground and colours come along, so it reads on any page."""
    width, height = re.findall(r'viewBox="0 0 (\d+) (\d+)"', svg)[0]
    ground = '<rect width="100%" height="100%" rx="6" style="fill:var(--paper)"/>'
    head, body = svg.split(">", 1)
    return f'{head} width="{width}" height="{height}"><style>{THEME}{RULES}</style>{ground}{body}\n'


def drawing(parts: Sequence[str], height: float, name: str) -> str:
    head = f'viewBox="0 0 {WIDTH} {math.ceil(height)}" role="img" aria-label="{escape(name)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" {head}>{"".join(parts)}</svg>'


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(words)}</text>' if words else ""


def heading(words: str) -> list[str]:
    return textwrap.wrap(words, 74)


def texts(lines: Sequence[str]) -> list[str]:
    return [text(10, 21 + 20 * number, line, "head") for number, line in enumerate(lines)]


def clipped(words: str, room: float) -> str:
    most = int(room / LETTER)
    return words if len(words) <= most else words[: max(1, most - 1)] + "…"


Look = tuple[int, int, str]  # colour, mark, dashes; mark -1: none


def looks(series: dict[str, Any], number: int) -> Look:
    """Series differ in colour and mark; from the ninth on, in how these go together, and in dashes."""
    colour = series.get("colour", number)
    dashes = DASHES[1] if series.get("dashed") else DASHES[number // COLOURS % len(DASHES)]
    return colour, (number + number // COLOURS) % len(MARKS), dashes if series.get("kind") == "line" else "none"


def mark(look: Look) -> str:
    return f'<path class="mark c{look[0] % COLOURS}" d="{MARKS[look[1]]}"/>'


def curve(where: Sequence[tuple[float, float]], look: Look) -> str:
    steps = "L".join(f"{x:.1f} {y:.1f}" for x, y in where)
    dashes = f' stroke-dasharray="{look[2]}"' if look[2] else ""
    return f'<path class="curve c{look[0] % COLOURS}"{dashes} d="M{steps}"/>'


def legend(names: Sequence[tuple[str, Look | float]], y: float) -> tuple[list[str], float]:
    """Keys in as many rows as they need from y on, and where they end; a look is a series', a number a shade."""
    parts, x = [], 10.0
    for name, look in names:
        name = clipped(name, WIDTH - 60)
        wide = 34 + LETTER * len(name)
        if x > 10 and x + wide > WIDTH - 4:
            x, y = 10.0, y + 20
        if isinstance(look, float):
            parts.append(f'<rect class="part" x="{x + 5}" y="{y + 5:.1f}" width="14" height="14" ')
            parts[-1] += f'fill-opacity="{look:.2f}"/>'
        else:
            line = curve([(x, y + 12), (x + 24, y + 12)], look) if look[2] != "none" else ""
            parts.append(f'{line}<g transform="translate({x + 12:.1f} {y + 12:.1f})">{mark(look)}</g>')
        parts.append(text(x + 30, y + 16.5, name))
        x += wide + 10
    return parts, y + 34


def usable(points: Sequence[Sequence[Any]], *, log: bool) -> list[tuple[float, float, float, str]]:
    """(x, y, spread, words) of points that can be drawn."""
    found = []
    for x, y, *more in points:
        if x is None or y is None or not math.isfinite(x) or not math.isfinite(y) or (log and x <= 0):
            continue
        spread = more[0] if more and more[0] is not None and math.isfinite(more[0]) else 0.0
        found.append((float(x), float(y), float(spread), str(more[1]) if len(more) > 1 else ""))
    return found


def axis(low: float, high: float, most: int, *, least: float = 0.0) -> tuple[list[float], tuple[float, float]]:
    """Round ticks, at `least` so far apart, and the range to draw: from zero where zero is near, else with some air."""
    if high - low <= 1e-12 * max(1.0, abs(high)):
        low, high = (low - 0.5 * abs(low), high + 0.5 * abs(high)) if low else (0.0, 1.0)
    if 0 < low < 0.35 * high:
        low = 0.0
    air = 0.04 * (high - low)
    low, high = low - (air if low else 0), high + air
    rough = (high - low) / most
    size = 10.0 ** math.floor(math.log10(rough))
    step = max(least, next(size * step for step in (1, 2, 2.5, 5, 10) if size * step >= rough))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 12) for number in range(first, last + 1)], (low, high)


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
