"""dsnet train --task detection: a detector on the backbone of a classification run, or a gate for a trained one."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from dsnet.cli.train import expand as expand
from dsnet.config import CONFIG
from dsnet.tasks.detection.config import (
    DetectionConfig,
    add_detection_config,
    detection_config_of,
    read_detection_config,
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = (
        "dsnet train --task detection --backbone RUN --data.root FOLDER [--config FILE] [--stage gate --from RUN] "
        "[--out FOLDER | --resume FOLDER] [--KEY VALUE ...]"
    )
    parser.add_argument(
        "--out", type=str | None, default=None, help="folder of the run; by default a new one below runs/"
    )
    parser.add_argument("--resume", type=str | None, default=None, help="continue the run in this folder, bit for bit")
    parser.add_argument(
        "--from",
        type=str | None,
        default=None,
        help="with --stage gate: the run whose detector gets a gate; its config is where this one starts from",
    )
    add_detection_config(parser)


def run(args: Namespace, parser: ArgumentParser) -> int | None:
    from dsnet.report.detection import show_detection
    from dsnet.runs.train import train
    from dsnet.training import Interrupted

    if args.resume is not None:
        folder = Path(args.resume)
        config = resumed(read_detection_config(folder / CONFIG), detection_config_of(parser, args))
    else:
        config = replace(detection_config_of(parser, args), source=args["from"])
        if (config.stage == "gate") != (config.source is not None):
            raise ValueError("--stage gate and --from RUN belong together: the gate needs a trained detector")
        folder = Path(args.out) if args.out else new_folder(config)
    try:
        result = train(config, folder, resume=args.resume is not None)
    except Interrupted as stop:
        if os.environ.get("RANK", "0") == "0":
            print(f"dsnet train: {stop}", file=sys.stderr)
        return stop.exit_code
    if result:
        show_detection(result)
        print(f"run: {folder}")
    return None


def resumed(config: DetectionConfig, given: DetectionConfig) -> DetectionConfig:
    """The config of a run that goes on: only where its data is, and how it is run, may change."""
    plain = DetectionConfig()
    where = {key: getattr(given.data, key) for key in ("root", "workers") if getattr(given.data, key)}
    if given != replace(plain, threads=given.threads, data=replace(plain.data, **where)):
        raise ValueError(
            "--resume goes on with the run's own config; besides it only --data.root, --data.workers and --threads "
            "may be given. To change anything else, start a new run"
        )
    return replace(config, threads=given.threads or config.threads, data=replace(config.data, **where))


def new_folder(config: DetectionConfig) -> Path:
    """runs/fssd-BACKBONE-DATA-seedN, with a number behind it if that is taken."""
    backbone, data = Path(config.source or config.backbone or "none").name, Path(config.data.root).name
    stem = f"fssd-{backbone}-{data}-seed{config.seed}" + ("-gate" if config.stage == "gate" else "")
    names = [stem, *(f"{stem}-{number}" for number in range(2, 10_000))]
    return next(folder for name in names if not (folder := Path("runs") / name).exists())
