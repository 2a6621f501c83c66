"""dsnet shards: write a folder of images as tar shards, or an index of shards that exist."""

from __future__ import annotations

from argparse import Namespace

from dsnet.cli.arguments import Parser

FOLDER = {"labels": None, "images": 1000, "calibration": 0.1, "on_corrupt": "stop", "workers": 0, "seed": 0}  # defaults


def add_arguments(parser: Parser) -> None:
    parser.usage = "dsnet shards FOLDER OUT [options]"
    parser.epilog = (
        "Train on them with `dsnet train --data.dataset shards --data.root OUT`. The splits are those of a training on "
        "FOLDER itself, and the files are those of the WebDataset library."
    )
    source = (
        "Folder of images with one folder per class; or tar files of WebDataset's layout that only need an index, as "
        "a pattern such as 'data/train-{0000..1023}.tar', with paths or URLs."
    )
    parser.add("source", source, metavar="FOLDER")
    parser.add("out", "Folder to write. It must not hold shards yet.", metavar="OUT")
    parser.add("--labels", "CSV file with the columns file, label and split, for files below FOLDER.", metavar="FILE")
    parser.add("--images", "Images in a shard. A shard of 256 MB is full too.", type=int, default=1000)
    share = "Share of the training images to set aside for calibration, in shards of their own."
    parser.add("--calibration", share, type=float, default=0.1)
    parser.add("--on_corrupt", "Stop at a damaged file, or leave it out.", choices=("stop", "skip"), default="stop")
    parser.add("--workers", "Threads that read and check images (default: one per processor).", type=int, default=0)
    parser.add("--test", "Pattern of the test shards, if FOLDER is a pattern.", metavar="PATTERN")
    held = "Pattern of the calibration shards, if FOLDER is a pattern."
    parser.add("--calibration_shards", held, metavar="PATTERN")
    names = "Text file with the name of every class, one per line, if FOLDER is a pattern (default: their numbers)."
    parser.add("--classes", names, metavar="FILE")
    seed = "Seed of the choice of calibration images, and of the order of training images."
    parser.add("--seed", seed, type=int, default=0)
    parser.add("--json")


def run(args: Namespace) -> None:
    import sys
    from pathlib import Path

    from dsnet.data.config import DataConfig
    from dsnet.data.folders import listed
    from dsnet.data.packing import index_shards, pack
    from dsnet.data.remote import is_url
    from dsnet.data.shards import Kind
    from dsnet.report.tables import print_json
    from dsnet.schema import plain

    out, skipped = Path(args.out), tuple[str, ...]()
    shown = progress if sys.stdout.isatty() and not args.json else None
    if "{" in args.source or args.source.endswith(".tar") or is_url(args.source):
        for option, usual in FOLDER.items():
            if getattr(args, option) != usual:
                raise ValueError(f"--{option} is for a folder of images, and {args.source} are shards; leave it out")
        patterns: dict[Kind, str] = {"train": args.source}
        patterns |= {} if args.calibration_shards is None else {"calibration": args.calibration_shards}
        patterns |= {} if args.test is None else {"test": args.test}
        names = [] if args.classes is None else Path(args.classes).read_text().splitlines()
        index = index_shards(patterns, out, classes=names, report=shown)
    else:
        for option in ("test", "calibration_shards", "classes"):
            if getattr(args, option) is not None:
                raise ValueError(f"--{option} is for shards that exist, and {args.source} is a folder; leave it out")
        config = DataConfig(
            "folder",
            root=args.source,
            labels=args.labels,
            calibration=args.calibration,
            split_seed=args.seed,
            on_corrupt=args.on_corrupt,
            workers=args.workers,
        )
        index, skipped = pack(config, out, images=args.images, seed=args.seed, report=shown)
    if args.json:
        print_json({"index": plain(index), "skipped": list(skipped)})
        return
    if shown is not None:
        print("\r", end="")
    for name, part in index.splits.items():
        size = sum(shard.bytes for shard in part.shards)
        print(f"{name}: {part.images:,} images in {len(part.shards):,} shards, {size / 1e6:,.1f} MB")
    if skipped:
        print(f"damaged files that were left out: {len(skipped):,}\n{listed(skipped)}")
    print(f"train on them: dsnet train --data.dataset shards --data.root {args.out}")


def progress(kind: str, count: int) -> None:
    print(f"\r{kind}: {count:,} images", end="", flush=True)
