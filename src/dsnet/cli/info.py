"""dsnet info: the widths of one model and what they cost."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import number, whole

if TYPE_CHECKING:
    from dsnet.models import ModelSpec
    from dsnet.space import WidthPath


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="A name from `dsnet models`, a folder that dsnet wrote, or an ONNX file of it.")
    parser.add_argument("--image_size", type=whole, metavar="N", help="Height and width of the input, in pixels.")
    parser.add_argument("--num_classes", type=whole, metavar="N", help="Number of outputs of the classifier.")
    parser.add_argument("--width", type=number, metavar="X", help="Width multiplier of a static model.")
    parser.add_argument("--path", help="Show this path only, such as 13 or 0,1,2,3; 0 is the slimmest width.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")


def run(args: Namespace) -> None:
    from dsnet.cost import CostTable
    from dsnet.models import describe, list_models
    from dsnet.report.tables import human, print_json, print_table
    from dsnet.tasks.detection import is_detector

    if args.model not in list_models() and is_detector(args.model):
        from dsnet.cli.detection import show_widths

        return show_widths(args)
    spec = find_spec(args)
    table = CostTable(spec, args.image_size)
    paths = spec.space.uniform if args.path is None else [parse_path(spec, args.path)]
    rows: list[dict[str, Any]] = []
    for path in paths:
        cost = table.cost(path)
        rows.append(
            {
                "path": list(path),
                "channels": channels(spec, path),
                "madds": cost.madds,
                "madds_layers": cost.layers,
                "madds_pools": cost.pools,
                "madds_routers": table.madds(path, dynamic=True) - cost.madds,
                "params": cost.params,
                "share": cost.madds / table.widest,
            }
        )
    summary = {
        "model": spec.name,
        "image_size": table.image_size,
        "num_classes": spec.num_classes,
        "choice_points": len(spec.widths),
        "paths": spec.space.size,
        "routing": [list(allowed) for allowed in spec.routing],
        "front_madds": table.front.madds,
    }
    if args.json:
        print_json({**summary, "widths": rows})
        return
    shown = (
        ""
        if args.path or len(paths) == spec.space.size
        else f"; {len(paths)} of {spec.space.size} paths shown, see --path"
    )
    if args.model in list_models():
        print(describe(args.model))
    print_table(
        f"{spec.name} at {table.image_size} px, {spec.num_classes} classes{shown}",
        ["<path", "<channels behind the choice" if spec.widths else "<channels", "MAdds", "parameters", "of widest"],
        [
            [
                ",".join(map(str, row["path"])) or "-",
                " ".join(map(str, row["channels"])),
                human(row["madds"]),
                human(row["params"]),
                f"{row['share']:.1%}",
            ]
            for row in rows
        ],
        note=f"Every path shares a front of {human(table.front.madds)} MAdds."
        if spec.widths and table.front.madds
        else "",
    )


def find_spec(args: Namespace) -> ModelSpec:
    from pathlib import Path

    from dsnet.models import list_models, model_spec
    from dsnet.opening import open_runner
    from dsnet.runtime import is_artefact
    from dsnet.tasks import load_spec

    if args.model in list_models():
        return model_spec(args.model, width=args.width, num_classes=args.num_classes, image_size=args.image_size)
    if args.model and Path(args.model).exists():
        if args.width is not None or args.num_classes is not None:
            raise ValueError(f"{args.model} is a saved model: its width and classes are fixed; name a model instead")
        if is_artefact(args.model):
            return open_runner(args.model).spec
        return load_spec(args.model, "classification")
    if Path(args.model).name != args.model:
        raise ValueError(f"{args.model} does not exist; give a folder that dsnet wrote, or a name from `dsnet models`")
    return model_spec(args.model)  # says which names are close


def parse_path(spec: ModelSpec, text: str) -> WidthPath:
    try:
        path = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"path {text!r} is not a list of width indices; write for example 0,1,2,3") from None
    return spec.space.validate(path)


def channels(spec: ModelSpec, path: WidthPath) -> list[int]:
    """Output channels of the stages that a choice reaches (of all stages in a static model), repeats left out."""
    counts: list[int] = []
    for stage in spec.stages:
        if stage.block == "max_pool" or (spec.widths and stage.choice is None):
            continue
        out = stage.out if isinstance(stage.out, int) else stage.out[path[stage.choice or 0]]
        if not counts or counts[-1] != out:
            counts.append(out)
    return counts
