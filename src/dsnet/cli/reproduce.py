"""dsnet reproduce: run the paper's experiments."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from argparse import Namespace
from contextlib import nullcontext, redirect_stdout
from dataclasses import replace
from pathlib import Path

from dsnet.cli.arguments import Parser
from dsnet.errors import must


def add_arguments(parser: Parser) -> None:
    parser.add("experiments", "Names from --list, or `all`.", nargs="*", default=[])
    parser.add("--list", "Show the experiments and how many of their runs are done.", action="store_true")
    scale = "How much to train: smoke (a minute, digits), cpu (hours, CIFAR-10), or paper (ImageNet, with torchrun)."
    parser.add("--scale", scale, choices=("smoke", "cpu", "paper"), default="cpu")
    root = "Folder of the data: cifar-10-batches-bin, imagenette, BCCD, caltech101 and VOCdevkit; or imagenet."
    parser.add("--root", root, metavar="FOLDER")
    parser.add("--out", "Folder of runs and results (default: runs/SCALE).", metavar="FOLDER")
    parser.add("--seeds", "Seeds to train with (default: those of the scale).", nargs="+", type=int)
    longer = "Multiply the epochs of every training by N. The results are called NAME-longerN."
    parser.add("--longer", longer, type=int, default=1)
    parser.add("--workers", "Number of runs that train at the same time.", type=int, default=1)
    parser.add("--device")
    parser.add("--finished", "Train nothing, and show the results of finished runs.", action="store_true")
    parser.add("--export", "Folder to which the results are also written.", metavar="FOLDER")
    parser.add("--json")


def run(args: Namespace) -> int:
    from dsnet.experiments import EXPERIMENTS, SCALES, progress, reproduce
    from dsnet.report.tables import print_json, print_table, show_experiment
    from dsnet.results import as_json
    from dsnet.training import Interrupted

    must("longer", args.longer, args.longer >= 1, "be at least 1, a factor of all epochs")
    scale = replace(SCALES[args.scale], longer=args.longer)
    out = Path(args.out or f"runs/{scale.name}")
    if args.seeds:
        scale = replace(scale, seeds=tuple(args.seeds), few={})
    if args.list:
        done = progress(list(EXPERIMENTS), scale, out, args.root or "data")
        rows = [
            [name, experiment.title, f"{done[name][0]}/{done[name][1]}" if done[name][1] else "-"]
            for name, experiment in EXPERIMENTS.items()
        ]
        print_table(
            f"experiments at scale {scale.name}, runs in {out}", ["<name", "<experiment", "finished runs"], rows
        )
        return 0
    names = list(EXPERIMENTS) if args.experiments == ["all"] else list(args.experiments)
    if not names:
        raise ValueError("name an experiment: one from `dsnet reproduce --list`, or all")
    if unknown := [name for name in names if name not in EXPERIMENTS]:
        raise ValueError(f"experiment {unknown[0]!r} is unknown; choose from {', '.join(EXPERIMENTS)}, or all")
    most = 1 if int(os.environ.get("WORLD_SIZE", "1")) > 1 else args.workers
    must("workers", args.workers, 1 <= args.workers <= most, "be at least 1, and 1 under torchrun")
    words = ["dsnet", "reproduce", *args.experiments, "--scale", scale.name]
    words += ["--seeds", *map(str, args.seeds)] if args.seeds else []
    words += ["--longer", str(args.longer)] if args.longer > 1 else []
    try:
        with redirect_stdout(sys.stderr) if args.json else nullcontext():  # training prints progress, which is not JSON
            results = reproduce(
                names,
                scale,
                out,
                root=args.root,
                workers=args.workers,
                device=args.device,
                train=not args.finished,
                export=None if args.export is None else Path(args.export),
                command=shlex.join(words),
            )
    except Interrupted as stop:
        why = signal.Signals(stop.number).name
        print(f"dsnet reproduce: stopped by {why}, state saved; run the same command to continue", file=sys.stderr)
        return stop.exit_code
    shown = {result.experiment for result in results}
    if args.finished and (missing := [name for name in names if name not in shown]):
        print(f"nothing is finished in {out} for: {', '.join(missing)}", file=sys.stderr)
    if args.json:
        print_json([as_json(result) for result in results])
        return 0
    for result in results:
        show_experiment(result)
    if results:
        print(f"written: {' '.join(str(out / (result.experiment + scale.suffix)) + '.md' for result in results)}")
    return 0
