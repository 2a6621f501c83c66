"""dsnet import: turn weights of other libraries, or of another model, into a model folder."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.models import Supernet
    from dsnet.weights.account import Account


def add_arguments(parser: Parser) -> None:
    parser.add("file", "Weights: a torch file (.pth, .pth.tar), safetensors, or a folder that dsnet wrote.")
    parser.add("--out", "Folder to write. It must not hold a model yet.", required=True, metavar="FOLDER")
    model = (
        "Model that the weights become, from `dsnet models`. The file is then a plain ResNet, MobileNetV1 or "
        "EfficientNet of torchvision or timm. Without this option the file is the authors' released DS-MBNet, or a "
        "folder that keeps its model."
    )
    parser.add("--as", model, dest="as_", metavar="MODEL")
    sort = (
        "Sort the channels by importance first, so that slim widths keep the best ones: by the L1 norm of the filters "
        "that produce them (l1), or by that of the weights that read them times their batch-norm scale (scale)."
    )
    parser.add("--sort", sort, choices=("none", "l1", "scale"), default="none")
    parser.add("--num_classes", "Number of outputs (default: as in the weights).", type=int)
    weights = "Take the trained weights, or their moving average."
    parser.add("--weights", weights, choices=("model", "ema"), default="model")
    parser.add("--seed", "Seed for the weights that the file does not contain.", type=int, default=0)
    parser.add("--json")


def run(args: Namespace) -> None:
    from dataclasses import asdict
    from pathlib import Path

    import torch

    from dsnet.checkpoint import MODEL
    from dsnet.errors import CheckpointError
    from dsnet.report.tables import print_json
    from dsnet.tasks import save

    if (Path(args.out) / MODEL).exists():
        raise CheckpointError(f"{args.out} already holds a model; choose another --out or remove it")
    torch.manual_seed(args.seed)
    try:
        net, account = read(args)
    except ValueError as error:
        raise CheckpointError(str(error) if str(error).startswith(args.file) else f"{args.file}: {error}") from error
    save(net, args.out)
    if args.json:
        print_json({"out": str(args.out), "model": net.spec.name, **asdict(account)})
    else:
        show(net, account, args.out)


def read(args: Namespace) -> tuple[Supernet, Account]:
    """Build the network that the options ask for, and an account of where its weights came from."""
    from pathlib import Path

    from dsnet.models import model_spec
    from dsnet.models.spec import customise
    from dsnet.tasks import load
    from dsnet.weights.files import read_tensors
    from dsnet.weights.plain import Source, import_released, read_plain
    from dsnet.weights.schemes import RELEASED, find_scheme, unknown_names
    from dsnet.weights.transfer import import_as, transfer

    name, sort = args.as_, None if args.sort == "none" else args.sort
    if name is not None:
        model_spec(name, num_classes=args.num_classes)  # reports a wrong name before a large file is read
    folder = Path(args.file).is_dir()
    if folder and name is None:
        net = load(args.file, "classification")
        return transfer(net, customise(net.spec, num_classes=args.num_classes), sort=sort)
    if name is not None:
        source = (
            Source(load(args.file, "classification")) if folder else read_plain(read_tensors(args.file, args.weights))
        )
        return import_as(name, source, num_classes=args.num_classes, sort=sort)
    tensors = read_tensors(args.file, args.weights)
    if (scheme := find_scheme(tensors)) is not None:
        raise ValueError(
            f"this looks like {scheme.title}; say which model it shall become with --as, see `dsnet models`"
        )
    if RELEASED not in tensors:
        raise ValueError(unknown_names(tensors))
    if sort is not None or args.num_classes is not None:
        raise ValueError("--sort and --num_classes go with --as; the released DS-MBNet is imported unchanged")
    return import_released(tensors)


def show(net: Supernet, account: Account, out: str) -> None:
    from dsnet.models.count import count
    from dsnet.report.tables import human

    table = count(net)
    print(f"{net.spec.name}: {len(account.loaded)} tensors loaded into {out}")
    routes = f", gates route among widths {net.routing.choices[0]}" if net.spec.router is not None else ""
    print(
        f"  {human(table.slimmest)} to {human(table.widest)} MAdds{routes}"
        if net.spec.widths
        else f"  {human(table.widest)} MAdds"
    )
    print("\n".join(account.lines()))
