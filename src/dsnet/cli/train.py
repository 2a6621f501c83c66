"""dsnet train: a supernet from a config."""

from __future__ import annotations

import os
import sys
from pathlib import Path as File

from jsonargparse import ArgumentParser, Namespace

from dsnet.config import TrainConfig, add_config, config_of, read_config


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "dsnet train [--config FILE] [--out FOLDER | --resume FOLDER] [--KEY VALUE ...]"
    parser.add_argument(
        "--out", type=str | None, default=None, help="folder of the run; by default a new one below runs/"
    )
    parser.add_argument("--resume", type=str | None, default=None, help="continue the run in this folder, bit for bit")
    add_config(parser)


def run(args: Namespace, parser: ArgumentParser) -> int | None:
    from dsnet.pipeline import CONFIG, train
    from dsnet.training import Interrupted
    from dsnet.training.distributed import rank

    restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"  # torchrun --max-restarts
    many = int(os.environ.get("WORLD_SIZE", "1")) > 1
    resume = args.resume
    if restarted and args.out and (File(args.out) / "state" / "last.pt").exists():
        resume = args.out
    if resume is not None:
        folder = File(resume)
        config = read_config(folder / CONFIG)
    elif many and not args.out:
        raise ValueError("several processes must agree on a folder; give --out FOLDER")
    else:
        config = config_of(parser, args)
        folder = File(args.out) if args.out else new_folder(config)
    try:
        result = train(config, folder, resume=resume is not None)
    except Interrupted as stop:
        if rank() == 0:
            print(f"dsnet train: {stop}", file=sys.stderr)
        return stop.exit_code
    if result:
        from dsnet.reports.show import show_result

        show_result(result, folder / "results" / "test.png")
        print(f"run: {folder}")
    return None


def new_folder(config: TrainConfig) -> File:
    """runs/MODEL-DATASET-seedN, with a number behind it if that is taken."""
    stem = f"{config.model.name}-{config.data.dataset}-seed{config.seed}"
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(folder for name in names if not (folder := File("runs") / name).exists())
