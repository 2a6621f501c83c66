"""dsnet models: list the models that dsnet can create."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from dsnet.cli.arguments import Parser


def add_arguments(parser: Parser) -> None:
    parser.add("--json")


def run(args: Namespace) -> None:
    from dsnet.models import describe, list_models, model_spec
    from dsnet.models.count import count
    from dsnet.report.tables import human, print_json, print_table

    rows: list[dict[str, Any]] = []
    for name in list_models():
        spec = model_spec(name)
        table = count(spec)
        rows.append(
            {
                "name": name,
                "description": describe(name),
                "choice_points": len(spec.widths),
                "paths": spec.space.size,
                "image_size": spec.image_size,
                "madds_slimmest": table.slimmest,
                "madds_widest": table.widest,
                "params": table.params(spec.space.widest, dynamic=True),
            }
        )
    if args.json:
        print_json(rows)
        return
    print_table(
        "Models, with the MAdds of their slimmest and widest path",
        ["<name", "choices", "paths", "px", "slimmest", "widest", "parameters"],
        [
            [
                row["name"],
                row["choice_points"],
                row["paths"],
                row["image_size"],
                human(row["madds_slimmest"]),
                human(row["madds_widest"]),
                human(row["params"]),
            ]
            for row in rows
        ],
        note="dsnet info NAME shows every width of one model.",
    )
