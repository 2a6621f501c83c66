"""dsnet predict: classify images or detect objects in them, with the MAdds of each image."""

from __future__ import annotations

import shutil
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser
from dsnet.errors import must

if TYPE_CHECKING:
    from dsnet.manifest import Manifest, Policy
    from dsnet.prediction.answers import Answer

STDOUT = "-"
WIDE = 140  # columns of a table that is not printed to a terminal


def add_arguments(parser: Parser) -> None:
    parser.add("run", "A run folder, an ONNX file or a bundle that dsnet wrote.")
    parser.add("images", "Image files, or folders that are searched to any depth.", nargs="+")
    parser.add("--budget")
    parser.add("--max_width")
    tracking = "Correct the budget while images run, so that their average is met on any images (needs a budget)."
    parser.add("--budget_tracking", tracking, action="store_true")
    parser.add("--path", "Run this path for every image instead of routing, such as 3 or 0,1,2,3.")
    parser.add("--draw", "Folder for copies of the images with the detected boxes drawn on them.", metavar="FOLDER")
    parser.add("--confidence", "Least confidence of the detections that are shown (default: 0.5).", type=float)
    parser.add("--batch_size", "Number of images that run together.", type=int, default=64)
    parser.add("--top", "Show this many of the most probable classes of each image.", type=int)
    rows = "Write one CSV row per image, or per detected object, to this file; without a file, print the rows."
    parser.add("--csv", rows, nargs="?", const=STDOUT, metavar="FILE")
    parser.add("--json")


def run(args: Namespace) -> int:
    from dsnet.manifest import Policy
    from dsnet.opening import open_runner
    from dsnet.pictures import image_files
    from dsnet.prediction import predict
    from dsnet.prediction.answers import CONFIDENCE, finds_boxes
    from dsnet.routing.tracking import BudgetTracker

    check(args)
    confidence = CONFIDENCE if args.confidence is None else args.confidence
    must("--confidence", confidence, 0 < confidence < 1, "lie between 0 and 1")
    files = image_files(args.images)
    runner = open_runner(args.run)
    manifest, policy, tracker = runner.manifest, Policy(), None
    for option in ("draw", "confidence"):
        if getattr(args, option) is not None and not finds_boxes(manifest):
            raise ValueError(f"--{option} is for detectors; {args.run} classifies whole images")
    if args.top is not None and finds_boxes(manifest):
        raise ValueError(f"--top is for classifiers; {args.run} detects objects")
    top, most = args.top or 0, manifest.num_classes
    must("--top", top, args.top is None or 1 <= top <= most, f"lie in 1 to {most}, the number of classes")
    path = None if args.path is None else manifest.parse_path(args.path)
    if manifest.routes and path is None:
        policy = runner.policy(args.budget, args.max_width)
        if args.budget_tracking:
            tracker = BudgetTracker(runner, budget=args.budget, max_width=args.max_width)
    elif path is None:
        if args.budget is not None or args.max_width is not None or args.budget_tracking:
            raise ValueError(f"{args.run} {manifest.why_fixed()}, so it has no budgets and no cap")
        *_, path = runner.paths
        print(f"{args.run} {manifest.why_fixed()}: path {','.join(map(str, path)) or '-'} runs", file=sys.stderr)
    if policy.note:
        print(policy.note, file=sys.stderr)
    refused: list[str] = []
    options = {"batch_size": args.batch_size, "confidence": confidence, "top": top, "tracker": tracker}
    found = list(predict(runner, files, policy, path=path, refused=refused, **options))
    if args.draw is not None:
        draw(found, Path(args.draw), manifest)
    show(found, manifest, policy, args, confidence)
    for why in refused:  # the predictions for all other images were printed above
        print(f"dsnet predict: error: {why}", file=sys.stderr)
    return 2 if refused else 0


def check(args: Namespace) -> None:
    """Refuse options that contradict each other, before anything is opened."""
    must("--batch_size", args.batch_size, args.batch_size >= 1, "be at least 1")
    pinned = args.budget is not None or args.max_width is not None or args.budget_tracking
    if args.path is not None and pinned:
        raise ValueError("--path pins the widths; leave --budget, --max_width and --budget_tracking out")
    if args.csv == STDOUT and args.json:
        raise ValueError("--csv and --json would both be printed; leave one out, or name a file: --csv answers.csv")
    if args.csv in (None, STDOUT):
        return
    file = Path(args.csv)
    if file.suffix.lower() != ".csv":
        raise ValueError(
            f"--csv is {args.csv!r}; it must be a file that ends in .csv, or come last to print the rows instead"
        )
    if not file.parent.is_dir() or file.is_dir():
        raise ValueError(f"--csv {file} cannot be written: its folder must exist, and it must not be a folder itself")


def draw(found: Sequence[Answer], out: Path, manifest: Manifest) -> None:
    """Write copies of the images with their boxes."""
    from dsnet.images import read_image
    from dsnet.prediction.answers import ImageDetections, drawn

    out.mkdir(parents=True, exist_ok=True)
    for place, answer in enumerate(found):
        assert isinstance(answer, ImageDetections)
        file = out / f"{place:04d}-{Path(answer.file).stem}.png"  # names may repeat in different folders
        drawn(read_image(Path(answer.file)), answer, manifest.num_classes).save(file)
    print(f"{len(found)} images with boxes in {out}", file=sys.stderr)


def show(found: Sequence[Answer], manifest: Manifest, policy: Policy, args: Namespace, confidence: float) -> None:
    """Print the answers as a table, JSON or CSV, or write them into a CSV file."""
    from dsnet.files import write_whole
    from dsnet.prediction.answers import finds_boxes, plain
    from dsnet.prediction.output import as_csv, path_text, with_short_names
    from dsnet.report.tables import human, print_json, print_table

    boxes = finds_boxes(manifest)
    if args.csv is not None:
        rows = as_csv(found, boxes=boxes, top=args.top or 0)
        if args.csv == STDOUT:
            print(rows, end="")
        else:
            write_whole(Path(args.csv), rows.encode("utf-8", "surrogateescape"))
            print(f"answers for {len(found)} images in {args.csv}", file=sys.stderr)
    if args.json:
        print_json([plain(answer) for answer in found])
    if args.csv is not None or args.json or not found:
        return
    answers = [f"<objects of {confidence:.0%} confidence or more"] if boxes else ["<class", "confidence"]
    columns = ["<image", *answers, *(["<next"] if (args.top or 0) > 1 else []), "<path", "MAdds"]
    cells = [[one.file, *one.words, path_text(one), human(one.madds)] for one in found]
    asked = (
        "" if policy.share is None or args.budget is None else f", {human(policy.share * manifest.table.widest)} asked"
    )
    print_table(
        f"{manifest.model} on {len(found)} images",
        columns,
        with_short_names(columns, cells, shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE),
        note=f"{human(sum(one.madds for one in found) / len(found))} MAdds per image on average{asked}.",
    )
