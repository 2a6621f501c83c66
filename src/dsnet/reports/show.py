"""An evaluation as a table on the terminal, a figure, and a page of documentation."""

from __future__ import annotations

import json
from pathlib import Path as File
from typing import Any

from dsnet.reports.figures import accuracy_figure
from dsnet.reports.tables import human, markdown_table, print_table

COLUMNS = ["<path", "MAdds", "of widest", "parameters", "top-1", "top-5", "loss"]


def show_result(result: dict[str, Any], figure: File) -> None:
    print_table(title(result), COLUMNS, cells(result))
    print(f"figure: {accuracy_figure(result, figure)}")


def export_result(result: dict[str, Any], prefix: File) -> None:
    """PREFIX.json, PREFIX.png and PREFIX.md; nothing in them is typed by hand."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
    picture = accuracy_figure(result, prefix.with_name(prefix.name + ".png"))
    lines = [
        f"# {title(result)}",
        "",
        *markdown_table(COLUMNS, cells(result)),
        "",
        f"![accuracy against MAdds]({picture.name})",
        "",
        f"Training: {json.dumps(result['training'])}.",
        f"Made by `dsnet eval RUN --export {prefix.name}` with dsnet {result['dsnet']}, torch {result['torch']}, "
        f"{result['machine']}; every figure is in {prefix.name}.json.",
    ]
    prefix.with_name(prefix.name + ".md").write_text("\n".join(lines) + "\n")


def title(result: dict[str, Any]) -> str:
    seeds = result.get("seeds", [result.get("seed")])
    shown = f"{len(seeds)} seeds, mean and standard deviation" if len(seeds) > 1 else f"seed {seeds[0]}"
    images = result["rows"][0]["images"]
    return (
        f"{result['model']} on {result['dataset']}: {images} {result['split']} images, "
        f"{result['image_size']} px, {shown}"
    )


def cells(result: dict[str, Any]) -> list[list[str]]:
    def shown(row: dict[str, Any], key: str, form: str) -> str:
        spread = row.get(f"{key}_std")
        return format(row[key], form) + ("" if spread is None else f" ± {format(spread, form)}")

    return [
        [
            ",".join(map(str, row["path"])) or "-",
            human(row["madds"]),
            f"{row['share']:.1%}",
            human(row["params"]),
            shown(row, "top1", ".2%"),
            shown(row, "top5", ".2%"),
            shown(row, "loss", ".3f"),
        ]
        for row in result["rows"]
    ]
