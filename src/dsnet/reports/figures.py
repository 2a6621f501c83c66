"""Figures from result JSON."""

from __future__ import annotations

from pathlib import Path as File
from typing import Any


def accuracy_figure(result: dict[str, Any], file: File) -> File:
    """Accuracy against MAdds: uniform paths joined by a line, other paths as points."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    unit, scale = ("M", 1e6) if max(row["madds"] for row in result["rows"]) < 1e9 else ("B", 1e9)
    points = [(row["madds"] / scale, 100 * row["top1"], len(set(row["path"])) <= 1) for row in result["rows"]]
    others = [(x, y) for x, y, uniform in points if not uniform]
    if others:
        xs, ys = zip(*others, strict=True)
        axes.scatter(xs, ys, s=18, color="#9aa5b1", label="other paths")
    uniform = [(x, y) for x, y, same in points if same]
    label = "all choice points alike" if others else "one width each"
    axes.plot(*zip(*uniform, strict=True), marker="o", color="#1f5fa8", label=label)
    axes.set_xlabel(f"MAdds ({unit})")
    axes.set_ylabel("top-1 accuracy (%)")
    axes.set_title(f"{result['model']}, {result.get('dataset', '')} {result['split']}", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file
