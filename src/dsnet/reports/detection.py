"""Evaluations of detectors as tables on the terminal, a figure, and a page of documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path as File
from typing import Any

from dsnet.reports.figures import new_figure
from dsnet.reports.tables import human, markdown_table, print_table

DYNAMIC = ["<budget", "MAdds", "mAP", "uniform", "<images per width"]


def show_detection(result: dict[str, Any]) -> None:
    print_table(title(result), columns(result), cells(result), note=note(result))
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


def columns(result: dict[str, Any]) -> list[str]:
    return ["<path", "MAdds", "backbone", "parameters", "mAP", *result["rows"][0]["ap"]]


def cells(result: dict[str, Any]) -> list[list[str]]:
    return [
        [
            ",".join(map(str, row["path"])) or "-",
            human(row["madds"]),
            human(row["madds_parts"]["backbone"]),
            human(row["params"]),
            f"{row['map']:.3f}",
            *(f"{value:.3f}" for value in row["ap"].values()),
        ]
        for row in result["rows"]
    ]


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


def export_detection(results: Sequence[dict[str, Any]], prefix: File) -> None:
    """PREFIX.json, PREFIX.md and PREFIX.png; nothing in them is typed by hand."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".json").write_text(json.dumps(list(results), indent=1) + "\n")
    picture = precision_figure(results, prefix.with_name(prefix.name + ".png"))
    lines = [f"# {prefix.name.replace('_', ' ')}: mean average precision against MAdds", ""]
    for result in results:
        lines += [f"## {title(result)}", "", *markdown_table(columns(result), cells(result)), "", note(result), ""]
        if "dynamic" in result:
            lines += ["Dynamic:", "", *markdown_table(DYNAMIC, dynamic_cells(result)), "", DYNAMIC_NOTE, ""]
        lines += [f"Training: {json.dumps(result['training'])}.", ""]
    first = results[0]
    lines += [
        f"![{picture.stem}]({picture.name})",
        "",
        f"Made by `dsnet eval RUN ... --export {prefix.name}` with dsnet {first['dsnet']}, torch {first['torch']}, "
        f"{first['machine']}; every figure is in {prefix.name}.json.",
    ]
    prefix.with_name(prefix.name + ".md").write_text("\n".join(lines) + "\n")


def precision_figure(results: Sequence[dict[str, Any]], file: File) -> File:
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
