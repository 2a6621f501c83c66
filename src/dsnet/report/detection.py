"""Figures of detectors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from dsnet.report.old_figures import new_figure, saved


def precision_figure(results: Sequence[dict[str, Any]], file: Path) -> Path:
    """mAP over MAdds: the widths of each detector, and its dynamic budgets."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    for result in results:
        madds, precision = [row["madds"] / 1e6 for row in result["rows"]], [row["map"] for row in result["rows"]]
        axes.plot(madds, precision, marker="o", label=f"{result['model']}, fixed widths")
        if "dynamic" in result:
            rows = result["dynamic"]
            spent, reached = [row["madds"] / 1e6 for row in rows], [row["map"] for row in rows]
            axes.plot(spent, reached, marker="s", linestyle="--", label=f"{result['model']}, dynamic")
    axes.set_xlabel("million MAdds of the whole detector")
    axes.set_ylabel(f"mAP at {results[0]['overlap']:g}, {results[0]['split']}")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)
    return file


def examples_sheet(result: dict[str, Any], images: Sequence[Image.Image], file: Path) -> Path:
    """The example images with the boxes that were found, and dashed those that are annotated."""
    import matplotlib
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    shown, classes = result["examples"]["images"], result["examples"]["classes"]
    palette = matplotlib.colormaps["tab10" if len(classes) <= 10 else "tab20"]
    colours = {name: palette(number % palette.N) for number, name in enumerate(classes)}
    columns = min(3, len(shown))
    figure = new_figure(2.6 * columns, 2.2 * -(-len(shown) // columns) + 0.6)
    for axes in (grid := figure.subplots(-(-len(shown) // columns), columns, squeeze=False)).flat:
        axes.axis("off")
    used: dict[str, Rectangle] = {}
    for axes, example, image in zip(grid.flat, shown, images, strict=False):
        axes.imshow(image)
        light: dict[str, Any] = {"linewidth": 0.8, "linestyle": "--", "edgecolor": "black"}
        light["path_effects"] = [withStroke(linewidth=1.6, foreground="white")]  # seen on dark images, too
        bold: dict[str, Any] = {"linewidth": 1.4}
        for things, style in ((example["objects"], light), (example["found"], bold)):
            for thing in things:
                left, top, right, bottom = thing["box"]
                corner = left * image.width, top * image.height
                size = (right - left) * image.width, (bottom - top) * image.height
                box = Rectangle(corner, *size, fill=False, **{"edgecolor": colours[thing["class"]], **style})
                axes.add_patch(box)
                used[thing["class"] if things is example["found"] else "annotated"] = box
        width = f"width {','.join(map(str, example['path']))}, " if example["path"] else ""
        sure = [find for find in example["found"] if find["score"] >= result["examples"]["confidence"]]
        surest = [f"surest {find['class']} {find['score']:.0%}" for find in example["found"]]
        said = f"{len(sure)} found" if sure or not surest else surest[0]
        axes.set_title(f"{width}{said}, {len(example['objects'])} annotated", fontsize=7, pad=2)
    if used:
        figure.legend(list(used.values()), list(used), loc="outside lower center", ncols=6, frameon=False, fontsize=7)
    saved(figure, file)
    with Image.open(file) as picture:  # photographs in few colours take a fifth of the space
        few = picture.convert("RGB").quantize(96)
    few.save(file, optimize=True)
    return file
