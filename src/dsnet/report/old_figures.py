"""Figures from result JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure

BLUE, RED, GREY, GREEN = "#1f5fa8", "#c8442d", "#9aa5b1", "#3c8d5a"


def accuracy_figure(result: dict[str, Any], file: Path, static: Sequence[dict[str, Any]] = ()) -> Path:
    """Accuracy against MAdds: uniform paths, other paths, dynamic budgets, and separately trained static networks."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    unit, scale = ("M", 1e6) if max(row["madds"] for row in result["rows"]) < 1e9 else ("B", 1e9)
    points = [(row["madds"] / scale, 100 * row["top1"], len(set(row["path"])) <= 1) for row in result["rows"]]
    others = [(x, y) for x, y, uniform in points if not uniform]
    if others:
        xs, ys = zip(*others, strict=True)
        axes.scatter(xs, ys, s=18, color=GREY, label="other paths")
    uniform = [(x, y) for x, y, same in points if same]
    label = "all choice points alike" if others else "one width each"
    axes.plot(*zip(*uniform, strict=True), marker="o", color=BLUE, label=label)
    if "dynamic" in result:
        dynamic = result["dynamic"]
        rows = [(row["madds"] / scale, 100 * row["top1"], 100 * row.get("top1_std", 0)) for row in dynamic["rows"]]
        xs, ys, spread = zip(*rows, strict=True)
        name = f"dynamic, router {dynamic['router']}"
        axes.errorbar(xs, ys, yerr=spread if any(spread) else None, marker="s", color=RED, capsize=2, label=name)
    for other in static:
        for row in other["rows"]:
            axes.scatter([row["madds"] / scale], [100 * row["top1"]], marker="^", color=GREEN, label=other["model"])
    axes.set_xlabel(f"MAdds ({unit}), average over images")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.set_title(f"{result['model']}, {result.get('dataset', '')} {result['split']}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    return saved(figure, file)


def gates_figure(result: dict[str, Any], file: Path) -> Path:
    """How the images spread over the widths of each gate, one panel per budget (the paper's gate distribution)."""
    import matplotlib

    rows = result["dynamic"]["rows"]
    figure = new_figure(2.2 * len(rows), 3.2)
    panels = figure.subplots(1, len(rows), sharey=True, squeeze=False)[0]
    widths = max(len(gate["shares"]) for gate in rows[0]["gates"])
    colours = matplotlib.colormaps["viridis_r"]
    for axes, row in zip(panels, rows, strict=True):
        places = range(len(row["gates"]))
        bottom = [0.0] * len(row["gates"])
        for width in range(widths):
            shares = [100 * gate["shares"][width] if width < len(gate["shares"]) else 0.0 for gate in row["gates"]]
            shade = colours(width / max(1, widths - 1))
            axes.bar(places, shares, bottom=bottom, color=shade, width=0.7, label=f"width {width}")
            bottom = [low + share for low, share in zip(bottom, shares, strict=True)]
        axes.set_title(f"{row['madds'] / 1e6:.3g}M, {row['top1']:.1%}", fontsize=9)
        axes.set_xticks(list(places), [f"gate {place}" for place in places], fontsize=8)
    panels[0].set_ylabel("images (%)")
    handles, labels = panels[-1].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, fontsize=8)
    figure.suptitle(f"{result['model']}: widths chosen by router {result['dynamic']['router']}", fontsize=10)
    return saved(figure, file)


def examples_figure(groups: Sequence[tuple[str, np.ndarray, Sequence[str]]], file: Path, *, title: str) -> Path:
    """Rows of images [N, H, W, C] with captions, one group of rows per title."""
    columns = max(6, *(len(images) for _, images, _ in groups)) // 2
    figure = new_figure(1.1 * columns, 1.35 * 2 * len(groups) + 0.5)
    for part, (name, images, captions) in zip(
        figure.subfigures(len(groups), 1, squeeze=False)[:, 0], groups, strict=True
    ):
        part.suptitle(f"routed {name}", fontsize=9, fontweight="bold")
        for axes in (grid := part.subplots(2, columns, squeeze=False)).flat:
            axes.axis("off")
        for axes, image, caption in zip(grid.flat, images, captions, strict=False):
            axes.imshow(image.squeeze(), cmap="gray", interpolation="nearest")
            axes.set_title(caption, fontsize=7, pad=2)
    figure.suptitle(title, fontsize=10)
    return saved(figure, file)


def new_figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def saved(figure: Figure, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file
