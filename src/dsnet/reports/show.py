"""An evaluation as a table on the terminal and a figure in the run folder."""

from __future__ import annotations

from pathlib import Path as File
from typing import Any

from dsnet.reports.figures import accuracy_figure
from dsnet.reports.tables import human, print_table


def show_result(result: dict[str, Any], folder: File) -> None:
    rows = result["rows"]
    images = rows[0]["images"]
    print_table(
        f"{result['model']} on {result.get('dataset', 'data')} ({result['split']}, {images} images, "
        f"{result['image_size']} px)",
        ["<path", "MAdds", "of widest", "parameters", "top-1", "top-5", "loss"],
        [
            [
                ",".join(map(str, row["path"])) or "-",
                human(row["madds"]),
                f"{row['share']:.1%}",
                human(row["params"]),
                f"{row['top1']:.2%}",
                f"{row['top5']:.2%}",
                f"{row['loss']:.3f}",
            ]
            for row in rows
        ],
    )
    figure = accuracy_figure(result, folder / "results" / f"{result['split']}.png")
    print(f"run folder {folder}, figure {figure}")
