"""A report as Markdown with PNGs beside it, for a README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from dsnet.report.blocks import Bars, Block, Claims, Code, Missing, Pictures, Plot, Report, Sheet, Table, Text, Tiles
from dsnet.report.old_figures import new_figure, saved
from dsnet.report.svg import COLOURS, DASHES, LIGHT, number_of, usable
from dsnet.report.tables import markdown_table

PALETTE = re.findall(r"--c\d:(#\w+)", LIGHT)
MARKERS = "os^Dv+xh"
VERDICTS = {True: "✓ holds", False: "✗ does not hold", None: "? no verdict"}


def export_report(report: Report, prefix: Path, *, command: str) -> list[Path]:
    """PREFIX.md and PREFIX-1.png, ...; returns what was written."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    pictures: list[Path] = []

    def beside() -> Path:
        return prefix.with_name(f"{prefix.name}-{len(pictures) + 1}.png")

    def lines_of(block: Block) -> list[str]:
        match block:
            case Plot(figure) | Bars(figure):
                draw = plot if isinstance(block, Plot) else bars
                pictures.append(draw(figure, beside()))
                return [f"![{plain(figure['title'])}]({pictures[-1].name})"]
            case Sheet(png, words):
                beside().write_bytes(png)
                pictures.append(beside())
                return [f"![{plain(words)}]({pictures[-1].name})"]
            case Pictures():
                pictures.append(sheet(block, beside()))
                return [f"![{plain(block.title)}]({pictures[-1].name})"]
            case Code():  # a README is not the place
                return []
            case _:
                return words_of(block)

    lines = [f"# {plain(report.title)}", "", plain(report.about), ""]
    for chapter in report.chapters:
        if len(report.chapters) > 1:
            lines += [f"## {plain(chapter.title)}", "", plain(chapter.about), ""]
        for block in chapter.lead:
            lines += [*lines_of(block), ""]
        for section in chapter.sections:
            lines += ["#" * (2 + (len(report.chapters) > 1)) + f" {section.title}", ""]
            for block in section.blocks:
                lines += [*lines_of(block), ""]
    page = prefix.with_name(prefix.name + ".md")
    page.write_text("\n".join([*lines, f"Made by `{command}`."]) + "\n", encoding="utf-8")
    return [page, *pictures]


def words_of(block: Block) -> list[str]:
    match block:
        case Text(words):
            return [plain(words)]
        case Missing(what, remedy):
            return [f"*Missing: {plain(what)}. {plain(remedy)}*"]
        case Tiles(figures):
            return markdown_table(["<", "", "<"], [[plain(cell) for cell in row] for row in figures])
        case Table():
            rows = [[plain(cell) for cell in row] for row in block.rows]
            lines = [*markdown_table(block.columns, rows), *(["", plain(block.note)] if block.note else [])]
            if block.folded:
                return [f"<details><summary>{plain(block.title)}</summary>", "", *lines, "", "</details>"]
            return [f"**{plain(block.title)}**", "", *lines] if block.title else lines
        case Claims(claims):
            rows = [
                [
                    *(plain(str(claim.get(key, ""))) for key in ("claim", "paper", "ours")),
                    VERDICTS.get(claim.get("holds"), VERDICTS[None]),
                ]
                for claim in claims
            ]
            return markdown_table(["<claim", "<paper", "<ours", "<verdict"], rows)
    raise AssertionError(block)


def plain(words: str) -> str:
    """Words that stay in their line and their cell, and are no HTML."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")


def plot(figure: dict[str, Any], file: Path) -> Path:
    """The same as svg.chart, as PNG."""
    drawn = new_figure(6.4, 4)
    axes = drawn.add_subplot()
    for number, series in enumerate(figure["series"]):
        points = usable(series["points"], log=bool(figure.get("log_x")))
        if not points:
            continue
        xs, ys, spreads, _ = zip(*points, strict=True)
        dashed = series.get("dashed") or DASHES[number // COLOURS % len(DASHES)]
        axes.errorbar(
            xs,
            ys,
            yerr=spreads if any(spreads) else None,
            linestyle=("--" if dashed else "-") if series.get("kind") == "line" else "none",
            marker=MARKERS[(number + number // COLOURS) % len(MARKERS)],
            color=PALETTE[series.get("colour", number) % COLOURS],
            label=series["name"],
            markersize=5,
            capsize=2,
        )
    if figure.get("log_x"):
        axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: number_of(value))
    axes.set(xlabel=figure["x"], ylabel=figure["y"])
    axes.set_title(figure["title"], fontsize=10)
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        drawn.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8)
    return saved(drawn, file)


def bars(figure: dict[str, Any], file: Path) -> Path:
    """The same as svg.stacked_bars, as PNG."""
    import matplotlib

    rows = [(group["name"], bar) for group in figure["groups"] for bar in group["bars"]]
    drawn = new_figure(7, 1.2 + 0.3 * len(rows))
    axes = drawn.add_subplot()
    shades = matplotlib.colormaps["Blues"]
    left = [0.0] * len(rows)
    for number, name in enumerate(figure["names"]):
        shares = [100 * bar["shares"][number] if number < len(bar["shares"]) else 0.0 for _, bar in rows]
        shade = shades(0.15 + 0.8 * number / max(1, len(figure["names"]) - 1))
        axes.barh(range(len(rows)), shares, left=left, color=shade, label=name, height=0.75)
        left = [start + share for start, share in zip(left, shares, strict=True)]
    alike = len({bar["name"] for _, bar in rows}) < len(rows)  # the same gates in every group
    names = [", ".join(filter(None, (group if alike else "", bar["name"], bar.get("note")))) for group, bar in rows]
    axes.set_yticks(range(len(rows)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set(xlim=(0, 100), xlabel="images (%)")
    axes.set_title(figure["title"], fontsize=10)
    drawn.legend(loc="outside lower center", ncols=7, frameon=False, fontsize=8)
    return saved(drawn, file)


def sheet(part: Pictures, file: Path) -> Path:
    import io

    import numpy as np
    from PIL import Image

    columns = 6
    rows = -(-len(part.pictures) // columns)
    drawn = new_figure(1.25 * columns, 1.65 * rows + 0.3)
    for axes in (grid := drawn.subplots(rows, columns, squeeze=False)).flat:
        axes.axis("off")
    for axes, picture in zip(grid.flat, part.pictures, strict=False):
        axes.imshow(np.asarray(Image.open(io.BytesIO(picture.png)).convert("RGB")), interpolation="nearest")
        axes.set_title("\n".join(picture.lines), fontsize=6, pad=2)
    drawn.suptitle(part.title, fontsize=9)
    return saved(drawn, file)
