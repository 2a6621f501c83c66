"""An evaluation as tables on the terminal, figures, and a page of documentation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dsnet.report.old_figures import accuracy_figure, gates_figure
from dsnet.report.tables import human, markdown_table, print_table

COLUMNS = ["<path", "MAdds", "of widest", "parameters", "top-1", "top-5", "loss"]
DYNAMIC_COLUMNS = ["budget", "MAdds", "p50", "p95", "top-1", "uniform hull", "gain", "<images per width, first gate"]


def show_result(result: dict[str, Any], pictures: Sequence[Path] = ()) -> None:
    print_table(title(result), COLUMNS, cells(result))
    if "dynamic" in result:
        dynamic = result["dynamic"]
        print_table(dynamic_title(dynamic), DYNAMIC_COLUMNS, dynamic_cells(dynamic), note=dynamic_note(dynamic))
        for warning in dynamic["warnings"]:
            print(f"warning: {warning}")
    if pictures:
        print(f"figures: {' '.join(map(str, pictures))}")


def draw(result: dict[str, Any], prefix: Path, static: Sequence[dict[str, Any]] = ()) -> list[Path]:
    """PREFIX.png, and PREFIX-gates.png of a dynamic network."""
    pictures = [accuracy_figure(result, prefix.with_name(prefix.name + ".png"), static)]
    if "dynamic" in result:
        pictures.append(gates_figure(result, prefix.with_name(prefix.name + "-gates.png")))
    return pictures


def export_result(result: dict[str, Any], prefix: Path, static: Sequence[dict[str, Any]] = ()) -> None:
    """PREFIX.json, PREFIX.md and pictures; nothing in them is typed by hand."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    prefix.with_name(prefix.name + ".json").write_text(json.dumps(result, indent=1) + "\n")
    pictures = draw(result, prefix, static)
    lines = [f"# {title(result)}", "", *markdown_table(COLUMNS, cells(result)), ""]
    if "dynamic" in result:
        dynamic = result["dynamic"]
        lines += [f"## {dynamic_title(dynamic)}", "", *markdown_table(DYNAMIC_COLUMNS, dynamic_cells(dynamic)), ""]
        lines += [dynamic_note(dynamic), "", *(f"Warning: {text}" for text in dynamic["warnings"]), ""]
    lines += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    lines += [
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


def shown(row: dict[str, Any], key: str, form: str) -> str:
    spread = row.get(f"{key}_std")
    return format(row[key], form) + ("" if spread is None else f" ± {format(spread, form)}")


def cells(result: dict[str, Any]) -> list[list[str]]:
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


def dynamic_title(dynamic: dict[str, Any]) -> str:
    learned = "" if dynamic["router"] == "threshold" else f", targets {dynamic['targets']}"
    return f"dynamic network: router {dynamic['router']}{learned}"


def dynamic_cells(dynamic: dict[str, Any]) -> list[list[str]]:
    return [
        [
            human(row["asked"]),
            human(row["madds"]),
            human(row["p50"]),
            human(row["p95"]),
            shown(row, "top1", ".2%"),
            shown(row, "hull", ".2%"),
            f"{row['gain']:+.2f} ± {row.get('gain_std', row['gain_se']):.2f}",
            " ".join(f"{share:.0%}" for share in row["gates"][0]["shares"]),
        ]
        for row in dynamic["rows"]
    ]


def dynamic_note(dynamic: dict[str, Any]) -> str:
    share, oracle = dynamic["difficulty"], dynamic["oracle"]
    spread = "standard deviation over seeds" if "gain_std" in dynamic["rows"][0] else "paired standard error"
    first = "" if "gain_std" not in dynamic["rows"][0] else " Images per width and difficulty are the first seed's."
    return (
        f"Gain: points above the concave hull of the uniform sub-networks at the same average MAdds, ± {spread}. "
        f"Easy {share['easy']:.1%} (the slimmest is right), dependent {share['dependent']:.1%}, "
        f"hard {share['hard']:.1%} (no width is). AUC of 'the slimmest is right' {dynamic['auc']:.3f}. "
        f"An oracle of the narrowest right width would reach {oracle['top1']:.1%} at {human(oracle['madds'])}."
        f"{first}"
    )
