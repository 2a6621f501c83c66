"""dsnet predict: classes of images, and what each of them cost."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from dsnet.cli.arguments import number, whole
from dsnet.errors import must

if TYPE_CHECKING:
    from dsnet.runtime import Runner


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="A run folder, an ONNX file or a bundle that dsnet wrote.")
    parser.add_argument("images", nargs="+", help="Image files, or folders that are searched to any depth.")
    parser.add_argument(
        "--budget", help="Average MAdds to spend per image, such as 150M, or a share of the widest such as 0.5."
    )
    parser.add_argument(
        "--max_width", type=whole, metavar="INDEX", help="Largest width index that may run; 0 is the slimmest."
    )
    parser.add_argument("--path", help="Run this path for every image instead of routing, such as 3 or 0,1,2,3.")
    parser.add_argument(
        "--draw", metavar="FOLDER", help="Folder for copies of the images with the detected boxes drawn on them."
    )
    parser.add_argument(
        "--confidence",
        type=number,
        metavar="X",
        help="Least confidence of the detections that are shown (default: 0.5).",
    )
    parser.add_argument(
        "--batch_size", type=whole, default=64, metavar="N", help="Number of images that run together (default: 64)."
    )
    parser.add_argument("--json", action="store_true", help="Print JSON instead of a table.")


def run(args: Namespace) -> int:
    from dsnet.cli.info import parse_path
    from dsnet.opening import open_runner
    from dsnet.predict import image_files, predict
    from dsnet.report.tables import human, print_json, print_table
    from dsnet.routing import Policy
    from dsnet.tasks.detection import is_detector

    must("--batch_size", args.batch_size, args.batch_size >= 1, "be at least 1")
    if args.path is not None and (args.budget is not None or args.max_width is not None):
        raise ValueError("--path pins the widths; leave --budget and --max_width out")
    files = image_files(args.images)
    if is_detector(args.run):
        from dsnet.cli.detection import predict_objects

        return predict_objects(args, files)
    for option in ("draw", "confidence"):
        if getattr(args, option) is not None:
            raise ValueError(f"--{option} is for detectors, which find boxes; {args.run} classifies whole images")
    runner = open_runner(args.run)
    path = None if args.path is None else parse_path(runner.spec, args.path)
    policy = Policy()
    if runner.routes and path is None:
        policy = runner.policy(args.budget, args.max_width)
    elif path is None:
        if args.budget is not None or args.max_width is not None:
            raise ValueError(f"{args.run} {why_fixed(runner)}, so it has no budgets and no cap")
        *_, path = runner.paths
        print(f"{args.run} {why_fixed(runner)}: path {','.join(map(str, path)) or '-'} runs", file=sys.stderr)
    if policy.note:
        print(policy.note, file=sys.stderr)
    refused: list[str] = []
    rows = list(predict(runner, files, policy, path=path, batch_size=args.batch_size, refused=refused))
    if args.json:
        print_json([asdict(row) for row in rows])
    elif rows:
        print_table(
            f"{runner.spec.name} on {len(rows)} images",
            ["<image", "<class", "confidence", "<path", "MAdds"],
            [
                [row.file, row.name, f"{row.confidence:.1%}", ",".join(map(str, row.path)) or "-", human(row.madds)]
                for row in rows
            ],
            note=f"{human(sum(row.madds for row in rows) / len(rows))} MAdds per image on average.",
        )
    return tell_refused(refused)


def tell_refused(refused: Sequence[str]) -> int:
    """The exit code: files that could not be read are an error, but the answers for the others were given."""
    for why in refused:
        print(f"dsnet predict: error: {why}", file=sys.stderr)
    return 2 if refused else 0


def why_fixed(runner: Runner) -> str:
    if runner.spec.router is None:
        return "has not learned to route (`dsnet train --stage gate --from` teaches it)"
    return "holds a single path"
