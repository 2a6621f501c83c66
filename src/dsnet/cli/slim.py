"""dsnet slim: turn a CNN, with its weights, into a supernet that `dsnet train --from` goes on with."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.card import Preprocessing
    from dsnet.slimming.report import SlimReport


def add_arguments(parser: Parser) -> None:
    parser.usage = "dsnet slim PACKAGE.MODULE:FACTORY [--weights FILE] --out RUN"
    model = (
        "The network: PACKAGE.MODULE:FACTORY, a function without arguments that returns an nn.Module, or the name of a "
        "pretrained network: efficientnet_lite0, efficientnet_lite1 or efficientnet_lite2."
    )
    parser.add("model", model)
    parser.add("--weights", "Its weights: safetensors, or a torch file. Nothing in the file is run.", metavar="FILE")
    parser.add("--out", "Folder to write. It must not hold a model yet.", required=True, metavar="RUN")
    parser.add("--image_size", "Side of the images (default: 224, or that of the pretrained network).", type=int)
    parser.add("--in_channels", "Channels of the images.", type=int, default=3)
    widths = (
        "Shares of the channels that each width keeps, slimmest first; the last is 1. A pair is for hidden and "
        "residual channels: 0.35/0.5 0.5/0.75 1."
    )
    parser.add("--widths", widths, nargs="+", default=["0.25", "0.5", "0.75", "1"], metavar="SHARE")
    override = (
        "Other shares for the channels that one layer writes, and for all that must be as wide: LAYER=SHARES, with "
        "commas, one share for each width. The report names the layers."
    )
    parser.add("--override", override, nargs="+", action="extend", default=[], metavar="LAYER=SHARES")
    sizes = (
        "Image sizes that the network runs at, smallest first, such as 64 96 128; with them, --widths 1 keeps all "
        "channels (default: one size)."
    )
    parser.add("--sizes", sizes, type=int, nargs="+", default=[], metavar="PX")
    cut = (
        "Where the shared front ends: the name of a module, or a share of the MAdds (default: about 0.2). With "
        "several, a gate at each chooses the width of what follows; the network must have group or layer norms."
    )
    parser.add("--cut", cut, nargs="+", metavar="NAME|SHARE")
    parser.add("--multiple", "Round channels to multiples of this number; 16 suits INT8.", type=int, default=8)
    images = "Folder of images like those that the network will see. About 300 of them tell which channels matter."
    parser.add("--images", images, metavar="FOLDER")
    sort = (
        "Importance that channels are sorted by. components also mixes channels between linear layers into principal "
        "components (default: components with --images, otherwise scale)."
    )
    parser.add("--sort", sort, choices=("components", "activation", "scale", "l1", "none"))
    parser.add(
        "--mean", "Mean of the normalised images, one number per channel (default: ImageNet's).", type=float, nargs="+"
    )
    parser.add("--std", "Their standard deviation (default: ImageNet's).", type=float, nargs="+")
    affine = "Scale and shift of batch norms behind the front: shared by all widths, or of their own for each width."
    parser.add("--affine", affine, choices=("shared", "width"), default="shared")
    parser.add("--json")


def run(args: Namespace) -> None:
    from dataclasses import asdict, replace
    from pathlib import Path

    import torch

    from dsnet.checkpoint import MODEL
    from dsnet.errors import CheckpointError, SlimError
    from dsnet.report.tables import print_json
    from dsnet.slimming.network import slim_with_report
    from dsnet.slimming.pretrained import PRETRAINED
    from dsnet.slimming.sources import load_weights, model_from, read_images
    from dsnet.slimming.widths import pairs, read_overrides, read_share
    from dsnet.tasks import save

    if (Path(args.out) / MODEL).exists():
        raise CheckpointError(f"{args.out} already holds a model; choose another --out or remove it")
    widths = [read_share(text) for text in args.widths]
    pairs(widths, least=1 if args.sizes else 2)  # reports a wrong width before a large network is made
    overrides = read_overrides(args.override)
    known = PRETRAINED.get(args.model)
    size = args.image_size or (max(args.sizes) if args.sizes else 224 if known is None else known.image_size)
    if known is not None and (args.mean is not None or args.std is not None):
        raise ValueError(f"{args.model} wants the pixels that it learned on; leave --mean and --std out")
    if known is not None:
        model, name = known.model(size), args.model
        preprocessing = known.preprocessing
    else:
        model, name = model_from(args.model), args.model.rpartition(":")[2].lower()
        preprocessing = normalised(args)
    if args.weights is not None:
        load_weights(model, args.weights)
    images = None if args.images is None else read_images(args.images, args.in_channels, size, preprocessing)
    example = torch.zeros(1, args.in_channels, size, size)
    if images is not None:
        text = f"{name}: {len(images)} images of {args.images} tell which channels matter, which may take a minute"
        print(text, file=sys.stderr, flush=True)
    try:
        net, report = slim_with_report(
            model,
            example,
            widths,
            None if args.cut is None else list(map(share_or_name, args.cut)),
            images=images,
            sort=args.sort,
            multiple=args.multiple,
            overrides=overrides,
            sizes=args.sizes,
            affine=args.affine,
            name=name,
        )
    except SlimError as error:
        raise SlimError(f"{args.model}: {error}") from error
    net.card = replace(net.card, preprocessing=preprocessing)
    save(net, args.out)
    if args.json:
        print_json({"out": str(args.out), "model": name, **asdict(report)})
    else:
        show(name, report, size, args.out)


def share_or_name(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def normalised(args: Namespace) -> Preprocessing:
    from dsnet.card import Preprocessing

    usual = Preprocessing.for_channels(args.in_channels)
    mean, std = tuple(args.mean or usual.mean), tuple(args.std or usual.std)
    if len(mean) != args.in_channels or len(std) != args.in_channels:
        raise ValueError(f"--mean {mean} and --std {std} must have {args.in_channels} numbers, one per channel")
    return Preprocessing(mean=mean, std=std)


def show(name: str, report: SlimReport, size: int, out: str) -> None:
    from dsnet.report.tables import human, print_table

    whole = report.madds[-1]
    gates = f", more gates behind {', '.join(report.cuts)}" if report.cuts else ""
    print_table(
        f"{name} at {size} px, front to {report.cut}: {report.front / whole:.0%} of the MAdds{gates}",
        ["<width", "MAdds", "of widest"],
        [[str(width), human(madds), f"{madds / whole:.1%}"] for width, madds in enumerate(report.madds)],
        note=f"{report.sliceable:.0%} of the MAdds are in layers that slim widths make cheaper. The widest differs "
        f"from the original by {report.error:.1g} of the spread of its answers.",
    )
    behind = [row for row in report.groups if "shared front" not in row.fixed]
    if len(report.madds) > 1:
        print_table(
            "channel groups behind the front",
            ["<layers", "<channels", "of MAdds", "<fixed because"],
            [[layers(row.layers), " ".join(map(str, row.channels)), f"{row.share:.1%}", row.fixed] for row in behind],
        )
    print(f"written to {out}; go on with: dsnet train --from {out} --data.root FOLDER")


def layers(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
