"""Evaluations of detectors as tables on the terminal, a figure, and a page of documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from dsnet.report.old_figures import new_figure, saved
from dsnet.report.tables import human, markdown_table, print_table

FEW = 6  # classes that have columns; more of them get a table of their own
BY_CLASS = "average precision by class and path"
DYNAMIC = ["<budget", "MAdds", "mAP", "uniform", "<images per width"]


def show_detection(result: dict[str, Any]) -> None:
    print_table(title(result), columns(result), cells(result), note=note(result))
    if not has_few(result):
        print_table(BY_CLASS, class_columns(result), class_cells(result))
    if "dynamic" in result:
        print_table("dynamic detector", DYNAMIC, dynamic_cells(result), note=DYNAMIC_NOTE)
        for row in result["dynamic"]:
            if row["note"]:
                print(f"warning: {row['note']}")


def title(result: dict[str, Any]) -> str:
    return (
        f"{result['model']}: {result['objects']} objects in {result['images']} {result['split']} images, "
        f"{result['image_size']} px, seed {result['seed']}"
    )


def has_few(result: dict[str, Any]) -> bool:
    return len(result["rows"][0]["ap"]) <= FEW


def columns(result: dict[str, Any]) -> list[str]:
    classes = result["rows"][0]["ap"] if has_few(result) else ()
    return ["<path", "MAdds", "backbone", "parameters", "mAP", *classes]


def cells(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            path_name(row),
            human(row["madds"]),
            human(row["madds_parts"]["backbone"]),
            human(row["params"]),
            f"{row['map']:.3f}",
            *(f"{value:.3f}" for value in (row["ap"].values() if has_few(result) else ())),
        ]
        for row in result["rows"]
    ]


def class_columns(result: dict[str, Any]) -> list[str]:
    return ["<class", *map(path_name, result["rows"])]


def class_cells(result: dict[str, Any]) -> list[list[str]]:
    return [[name, *(f"{row['ap'][name]:.3f}" for row in result["rows"])] for name in result["rows"][0]["ap"]]


def path_name(row: dict[str, Any]) -> str:
    return ",".join(map(str, row["path"])) or "-"


def note(result: dict[str, Any]) -> str:
    rule = "area under the curve" if result["rule"] == "area" else "VOC 2007's 11 points"
    return f"Average precision at an overlap of {result['overlap']:g}, {rule}. MAdds of the detector and its backbone."


DYNAMIC_NOTE = (
    "S, M, L: a quarter, a half, three quarters of the way from the slimmest to the widest width's MAdds. "
    "Uniform: the mAP of fixed widths at the same MAdds, interpolated."
)


def dynamic_cells(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["name"],
            human(row["madds"]),
            f"{row['map']:.3f}",
            f"{row['uniform']:.3f}",
            " ".join(str(count) for count in row["widths"].values()),
        ]
        for row in result["dynamic"]
    ]


def export_detection(results: Sequence[dict[str, Any]], prefix: Path, sheet: Path) -> None:
    """PREFIX.json, PREFIX.md and PREFIX.png, beside a sheet of examples; nothing in them is typed by hand."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".json").write_text(json.dumps(list(results), indent=1) + "\n")
    picture = precision_figure(results, prefix.with_name(prefix.name + ".png"))
    lines = [f"# {prefix.name.replace('_', ' ')}: mean average precision against MAdds", ""]
    for result in results:
        lines += [f"## {title(result)}", "", *markdown_table(columns(result), cells(result)), "", note(result), ""]
        if not has_few(result):
            by_class = markdown_table(class_columns(result), class_cells(result))
            lines += [f"{BY_CLASS[0].upper()}{BY_CLASS[1:]}:", "", *by_class, ""]
        if "dynamic" in result:
            lines += ["Dynamic:", "", *markdown_table(DYNAMIC, dynamic_cells(result)), "", DYNAMIC_NOTE, ""]
        lines += [f"Training: {json.dumps(result['training'])}.", ""]
    first = results[0]
    lines += [
        f"![{picture.stem}]({picture.name})",
        "",
        f"![{sheet.stem}]({sheet.name})",
        "",
        examples_note(results[-1]),
        "",
        f"Made by `dsnet eval RUN ... --export {prefix.name}` with dsnet {first['dsnet']}, torch {first['torch']}, "
        f"{first['machine']}; every figure is in {prefix.name}.json.",
    ]
    prefix.with_name(prefix.name + ".md").write_text("\n".join(lines) + "\n")


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


def examples_note(result: dict[str, Any]) -> str:
    how = "at budget M" if "dynamic" in result else "at its widest"
    return (
        f"What {result['model']} finds {how} with a confidence of {result['examples']['confidence']:.0%} or more in "
        f"{result['split']} images; dashed are the annotated objects."
    )


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
