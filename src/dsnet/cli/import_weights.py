"""dsnet import: foreign weights into a model folder."""

from __future__ import annotations

from jsonargparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("file", help="the checkpoint: a torch file (.pth, .pth.tar) or safetensors")
    parser.add_argument("--out", required=True, help="folder to write; it must not hold a model yet")
    parser.add_argument(
        "--weights", choices=["model", "ema"], default="model", help="the trained weights, or their moving average"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def run(args: Namespace, parser: ArgumentParser) -> None:
    from dataclasses import asdict
    from pathlib import Path as File

    from dsnet.checkpoint import MODEL, CheckpointError, save
    from dsnet.cost import CostTable
    from dsnet.foreign import import_released, read_tensors
    from dsnet.reports.tables import human, print_json

    if (File(args.out) / MODEL).exists():
        raise CheckpointError(f"{args.out} already holds a model; choose another --out or remove it")
    try:
        net, report = import_released(read_tensors(args.file, args.weights))
    except CheckpointError as error:
        raise CheckpointError(str(error) if str(error).startswith(args.file) else f"{args.file}: {error}") from error
    save(net, args.out)
    if args.json:
        print_json({"out": str(args.out), "model": net.spec.name, **asdict(report)})
        return
    table = CostTable(net)
    print(f"{net.spec.name}: {len(report.loaded)} tensors loaded into {args.out}")
    print(
        f"  {human(table.slimmest)} to {human(table.widest)} MAdds, gates route among widths {net.routing.choices[0]}"
    )
    print(f"  {len(report.cut)} cut to their leading channels:")
    for name, (before, after) in report.cut.items():
        print(f"    {name}  {list(before)} -> {list(after)}")
    print(f"  {len(report.unused)} not used:")
    for name in report.unused:
        print(f"    {name}")
