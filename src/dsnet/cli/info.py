"""dsnet info: the widths of one model and what they cost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import number, whole

if TYPE_CHECKING:
    from dsnet.manifest import Manifest


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="A name from `dsnet models`, a folder that dsnet wrote, or an ONNX file of it.")
    parser.add_argument("--image_size", type=whole, metavar="N", help="Height and width of the input, in pixels.")
    parser.add_argument("--num_classes", type=whole, metavar="N", help="Number of outputs of the classifier.")
    parser.add_argument("--width", type=number, metavar="X", help="Width multiplier of a static model.")
    parser.add_argument("--path", help="Show this path only, such as 13 or 0,1,2,3; 0 is the slimmest width.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")


def run(args: Namespace) -> None:
    from dsnet.report.tables import human, print_json, print_table

    manifest, about = find(args)
    table, router = manifest.table, manifest.router
    paths = manifest.space.uniform if args.path is None else [manifest.parse_path(args.path)]
    known = {row.path: row for row in manifest.widths}
    rows: list[dict[str, Any]] = []
    for path in paths:
        cost, row = table.cost(path), known.get(path)
        rows.append(
            {
                "path": list(path),
                "channels": list(row.channels) if row else [],
                "madds": cost.madds,
                "madds_layers": cost.layers,
                "madds_pools": cost.pools,
                "madds_routers": table.madds(path, dynamic=True) - cost.madds,
                "madds_parts": dict(row.parts) if row else {},
                "params": cost.params,
                "share": cost.madds / table.widest,
            }
        )
    if args.json:
        summary = {
            "task": manifest.task,
            "model": manifest.model,
            "image_size": manifest.image_size,
            "num_classes": manifest.num_classes,
            "choice_points": manifest.points,
            "paths": manifest.space.size,
            "routing": [list(widths) for widths in (manifest.space if router is None else router.routing).choices],
            "front_madds": table.front.madds,
        }
        print_json({**summary, "widths": rows})
        return
    size = manifest.space.size
    shown = "" if args.path or len(paths) == size else f"; {len(paths)} of {size} paths shown, see --path"
    if about:
        print(about)
    parts = list(manifest.widths[0].parts) if manifest.widths else []
    channels = "<channels behind the choice" if manifest.points else "<channels"
    print_table(
        f"{manifest.model} at {manifest.image_size} px, {manifest.num_classes} classes{shown}",
        ["<path", channels, "MAdds", *parts, "parameters", "of widest"],
        [
            [
                ",".join(map(str, row["path"])) or "-",
                " ".join(map(str, row["channels"])),
                human(row["madds"]),
                *(human(row["madds_parts"][part]) if row["madds_parts"] else "" for part in parts),
                human(row["params"]),
                f"{row['share']:.1%}",
            ]
            for row in rows
        ],
        note=f"Every path shares a front of {human(table.front.madds)} MAdds."
        if manifest.points and table.front.madds
        else "",
    )


def find(args: Namespace) -> tuple[Manifest, str]:
    """The manifest of a file, a run folder or a model's name, and what is said of the latter."""
    from dsnet.runtime.onnx import is_artefact, open_onnx

    fixed = args.width is not None or args.num_classes is not None
    if is_artefact(args.model):  # without torch
        if fixed or args.image_size is not None:
            raise ValueError(f"{args.model} is exported: its image size, width and classes are fixed")
        return open_onnx(args.model).manifest, ""
    from dsnet.models import create_model, describe, list_models

    if args.model in list_models() or not Path(args.model).exists():
        if args.model not in list_models() and Path(args.model).name != args.model:
            raise ValueError(
                f"{args.model} does not exist; give a folder that dsnet wrote, or a name from `dsnet models`"
            )
        wishes = {"width": args.width, "num_classes": args.num_classes, "image_size": args.image_size}
        with meta():
            return create_model(args.model, **wishes).manifest(), describe(args.model)
    if fixed:
        raise ValueError(f"{args.model} is a saved model: its width and classes are fixed; name a model instead")
    from dsnet.tasks import blank

    return blank(args.model).manifest(args.image_size), ""


def meta() -> AbstractContextManager[Any]:
    """Networks that are built here have no weights: only what they cost is asked for."""
    import torch

    return torch.device("meta")
