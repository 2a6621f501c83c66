"""dsnet info: the widths of one model and what they cost."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.manifest import Manifest
    from dsnet.space import WidthPath

    Routing = tuple[tuple[int, ...], ...]


def add_arguments(parser: Parser) -> None:
    parser.add("model", "A name from `dsnet models`, a folder that dsnet wrote, or an ONNX file that dsnet exported.")
    parser.add("--image_size")
    parser.add("--num_classes", "Number of outputs of the classifier.", type=int)
    parser.add("--width", "Width multiplier of a static model.", type=float)
    parser.add(
        "--path", "Show this path only, such as 13, 0,1,2,3, exit, 80px:3 or 80px:exit; 0 is the slimmest width."
    )
    parser.add("--json")


def run(args: Namespace) -> None:
    from dsnet.report.tables import human, print_json, print_table

    manifest, routing, about = find(args)
    table = manifest.table
    space = table.space  # of the whole network; a file may hold only some of its paths
    exits = space.exits
    paths = [*exits, *space.uniform] if args.path is None else [manifest.parse_path(args.path)]
    known = {row.path: row for row in manifest.widths}
    rows: list[dict[str, Any]] = []
    for path in paths:
        cost, row = table.cost(path), known.get(path)
        rows.append(
            {
                "path": list(path),
                "channels": channels_of(manifest, path),
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
            "precision": manifest.precision,
            "image_size": manifest.image_size,
            "sizes": list(manifest.sizes),
            "num_classes": manifest.num_classes,
            "raw": manifest.raw,
            "choice_points": manifest.points,
            "paths": space.size,
            "routing": [list(widths) for widths in routing],
            "front_madds": table.whole.front.madds,
        }
        print_json({**summary, "widths": rows})
        return
    size = space.size + len(exits)
    shown = "" if args.path or len(paths) == size else f"; {len(paths)} of {size} paths shown, see --path"
    if about:
        print(about)
    parts = list(manifest.widths[0].parts) if manifest.widths else []
    channels = "<channels behind the choice" if space.widths_of(space.widest) else "<channels"
    precision = "" if manifest.precision == "fp32" else f", {manifest.precision}"
    sizes = ", ".join(map(str, manifest.sizes))
    print_table(
        f"{manifest.model} at {sizes} px, {manifest.num_classes} classes{precision}{shown}",
        ["<setting" if space.sized else "<path", channels, "MAdds", *parts, "parameters", "of widest"],
        [
            [
                manifest.name_of(tuple(row["path"])),
                " ".join(map(str, row["channels"])),
                human(row["madds"]),
                *(human(row["madds_parts"][part]) if row["madds_parts"] else "" for part in parts),
                human(row["params"]),
                f"{row['share']:.1%}",
            ]
            for row in rows
        ],
        note=front_words(manifest),
    )


def front_words(manifest: Manifest) -> str:
    """What the paths of a network have in common. With several image sizes, every size has a front of its own."""
    from dsnet.report.tables import human

    space, fronts = manifest.table.space, [table.front.madds for table in manifest.costs]
    if not manifest.points or not any(fronts):
        return ""
    if not space.sized:
        return f"Every path shares a front of {human(fronts[0])} MAdds."
    if not space.widths_of(space.widest):
        return "All image sizes share their weights. MAdds contain the resizing."
    each = ", ".join(f"{human(madds)} at {size} px" for size, madds in zip(manifest.sizes, fronts, strict=True))
    return f"Widths at one image size share a front. Its MAdds, which contain the resizing: {each}."


def channels_of(manifest: Manifest, path: WidthPath) -> list[int]:
    """The number of channels after each choice point of a path, or those of a static network."""
    widths_of = manifest.table.space.widths_of
    if not widths_of(path):
        return list(manifest.widths[0].channels) if manifest.widths else []
    behind = {
        (point, width): row.channels[point]
        for row in manifest.widths
        for point, width in enumerate(widths_of(row.path))
    }
    return [behind[step] for step in enumerate(widths_of(path)) if step in behind]


def find(args: Namespace) -> tuple[Manifest, Routing, str]:
    """The manifest of a file, run folder or named model, the widths that its gates may choose, and its description."""
    from dsnet.runtime.onnx import is_artefact, open_onnx

    fixed = args.width is not None or args.num_classes is not None
    if is_artefact(args.model):  # without torch
        if fixed or args.image_size is not None:
            raise ValueError(f"{args.model} is exported: its image size, width and classes are fixed")
        manifest = open_onnx(args.model).manifest
        about = "It takes raw pictures of any size, uint8 [height, width, 3], and prepares them itself."
        routing = manifest.table.space if manifest.router is None else manifest.router.routing
        return manifest, routing.choices, about if manifest.raw else ""
    import torch

    from dsnet.models import create_model, describe, list_models
    from dsnet.tasks import blank

    if args.model in list_models() or not Path(args.model).exists():
        if args.model not in list_models() and Path(args.model).name != args.model:
            raise ValueError(
                f"{args.model} does not exist; give a folder that dsnet wrote, or a name from `dsnet models`"
            )
        wishes = {"width": args.width, "num_classes": args.num_classes, "image_size": args.image_size}
        with torch.device("meta"):  # without weights: only costs are needed
            net = create_model(args.model, **wishes)
        return net.manifest(), net.spec.routing, describe(args.model)
    if fixed:
        raise ValueError(f"{args.model} is a saved model: its width and classes are fixed; name a model instead")
    net = blank(args.model)
    return net.manifest(args.image_size), net.spec.routing, ""
