"""dsnet predict: classify images or detect objects in them, with the MAdds of each image."""

from __future__ import annotations

import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import Parser
from dsnet.errors import must

if TYPE_CHECKING:
    from dsnet.manifest import Manifest, Policy
    from dsnet.prediction.answers import Answer
    from dsnet.runtime.runner import Runner

STDOUT = "-"
BATCH = 64
LIMITS = ("budget", "max_width", "max_size", "latency", "latency_cap", "window")
WIDE = 140  # columns of a table that is not printed to a terminal


def add_arguments(parser: Parser) -> None:
    parser.add("run", "A run folder, an ONNX file or a bundle that dsnet wrote.")
    parser.add("images", "Image files, or folders that are searched to any depth.", nargs="+")
    parser.add("--budget")
    parser.add("--max_width")
    parser.add("--max_size")
    parser.add("--window")
    parser.add("--latency")
    parser.add("--latency_cap")
    parser.add("--runtime")
    parser.add("--device")
    threads = "Threads of the runtime (default: all cores; with a latency, those that were measured)."
    parser.add("--threads", threads, type=int)
    tracking = "Correct the budget while images run, so that their average is met on any images (needs a budget)."
    parser.add("--budget_tracking", tracking, action="store_true")
    rounding = "Run images of small groups at a wider width where that is faster (for bundles; costs more MAdds)."
    parser.add("--round_up", rounding, action="store_true")
    path = "Run this path for every image, such as 3, 0,1,2,3, exit, or 80px:3 of several image sizes."
    parser.add("--path", path)
    parser.add("--draw", "Folder for copies of the images with the detected boxes drawn on them.", metavar="FOLDER")
    parser.add("--confidence", "Least confidence of the detections that are shown (default: 0.5).", type=float)
    batch = "Number of images that run together (default: 64; a latency is of one image at a time)."
    parser.add("--batch_size", batch, type=int)
    parser.add("--top", "Show this many of the most probable classes of each image.", type=int)
    rows = "Write one CSV row per image, or per detected object, to this file; without a file, print the rows."
    parser.add("--csv", rows, nargs="?", const=STDOUT, metavar="FILE")
    parser.add("--json")


def run(args: Namespace) -> int:
    from dsnet.manifest import Policy
    from dsnet.opening import open_runner, open_timed
    from dsnet.pictures import image_files
    from dsnet.prediction import predict
    from dsnet.prediction.answers import CONFIDENCE, finds_boxes
    from dsnet.routing.tracking import BudgetTracker

    check(args)
    confidence = CONFIDENCE if args.confidence is None else args.confidence
    must("--confidence", confidence, 0 < confidence < 1, "lie between 0 and 1")
    files = image_files(args.images)
    timed = args.latency is not None or args.latency_cap is not None
    opened = open_timed if timed else open_runner
    runner = opened(args.run, threads=args.threads or 0, runtime=args.runtime, device=args.device)
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
        limits = {name: getattr(args, name) for name in LIMITS}
        policy = runner.policy(**limits)
        if args.budget_tracking:
            if args.round_up:
                raise ValueError("--round_up spends more than the budget that --budget_tracking keeps; leave one out")
            if args.window is not None:
                raise ValueError("--window asks for no budget, so there is nothing to track; leave one of them out")
            tracker = BudgetTracker(runner, **{name: limits[name] for name in limits if name != "window"})
    elif path is None:
        if limited(args):
            raise ValueError(f"{args.run} {manifest.why_fixed()}, so it has no budgets and no cap")
        *_, path = runner.paths
        print(f"{args.run} {manifest.why_fixed()}: path {manifest.name_of(path)} runs", file=sys.stderr)
    if policy.note:
        print(policy.note, file=sys.stderr)
    refused: list[str] = []
    seconds: list[float] = []
    if timed:
        warm_up(runner, policy)
    batch = args.batch_size or (1 if timed else BATCH)
    options: dict[str, Any] = {
        "batch_size": batch,
        "seconds": seconds,
        "confidence": confidence,
        "top": top,
        "tracker": tracker,
        "round_up": args.round_up,
    }
    began = time.perf_counter()
    found = list(predict(runner, files, policy, path=path, refused=refused, **options))
    elapsed = time.perf_counter() - began
    if args.draw is not None:
        draw(found, Path(args.draw), manifest)
    if timed:
        found = [replace(answer, ms=round(1e3 * took, 4)) for answer, took in zip(found, seconds, strict=True)]
    show(found, manifest, args, confidence, spent_on(found, manifest, policy, args, seconds))
    if found:
        print(f"{len(found) / elapsed:.0f} images per second, from file to answer", file=sys.stderr)
    for why in refused:  # the predictions for all other images were printed above
        print(f"dsnet predict: error: {why}", file=sys.stderr)
    return 2 if refused else 0


def check(args: Namespace) -> None:
    """Refuse options that contradict each other, before anything is opened."""
    for name in ("batch_size", "threads"):
        value = getattr(args, name)
        must(f"--{name}", value, value is None or value >= 1, "be at least 1")
    if args.path is not None and (given := limited(args)):
        raise ValueError(f"--path pins the widths; leave {' and '.join(given)} out")
    if args.batch_size not in (None, 1) and (args.latency is not None or args.latency_cap is not None):
        raise ValueError(f"--batch_size is {args.batch_size}, but a latency is of one image at a time; leave it out")
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


def limited(args: Namespace) -> list[str]:
    """The given options that only a router can follow."""
    given = [name for name in LIMITS if getattr(args, name) is not None]
    switches = [name for name in ("budget_tracking", "round_up") if getattr(args, name)]
    return [f"--{name}" for name in (*given, *switches)]


def warm_up(runner: Runner, policy: Policy) -> None:
    """Run every width once, so that the first images do not pay for what is prepared at the first call."""
    from dsnet.latency.measure import noise, uniform_paths

    image = noise(runner.manifest, 1)
    runner.run(image, policy)
    for path in uniform_paths(runner.manifest):
        runner.run_path(image, path)


def spent_on(
    found: Sequence[Answer], manifest: Manifest, policy: Policy, args: Namespace, seconds: Sequence[float]
) -> str:
    """What was asked and what was spent, in a sentence. seconds: what the network took for each call."""
    from dsnet.report.tables import human

    if not found:
        return ""
    words = [f"{human(sum(one.madds for one in found) / len(found))} MAdds per image on average"]
    asked = [args.latency] if args.latency is not None else []
    if policy.share is not None and (args.budget is not None or asked):
        asked.append(f"{human(policy.share * manifest.table.widest)} MAdds")
    if args.latency_cap is not None:
        asked.append(f"at most {args.latency_cap}: {capped(policy)}")
    if asked:
        words[0] += f" (asked: {', '.join(asked)})"
    timed = args.latency is not None or args.latency_cap is not None
    if timed and seconds:
        ms = [1e3 * took for took in seconds]
        words.append(f"{sum(ms) / len(ms):.3g} ms in the network, {max(ms):.3g} ms at most")
    return f"{'; '.join(words)}."


def capped(policy: Policy) -> str:
    """What a cap on the latency became."""
    return f"widths up to {policy.max_width}" if policy.max_size is None else f"images of up to {policy.max_size} px"


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


def show(found: Sequence[Answer], manifest: Manifest, args: Namespace, confidence: float, note: str) -> None:
    """Print the answers as a table, JSON or CSV, or write them into a CSV file. note: what was spent."""
    from dsnet.files import write_whole
    from dsnet.prediction.answers import finds_boxes, plain
    from dsnet.prediction.output import as_csv, with_short_names
    from dsnet.report.tables import human, print_json, print_table

    boxes = finds_boxes(manifest)
    if args.csv is not None:
        rows = as_csv(found, manifest.name_of, boxes=boxes, top=args.top or 0)
        if args.csv == STDOUT:
            print(rows, end="")
        else:
            write_whole(Path(args.csv), rows.encode("utf-8", "surrogateescape"))
            print(f"answers for {len(found)} images in {args.csv}", file=sys.stderr)
    if args.json:
        print_json([plain(answer) for answer in found])
    if args.csv is not None or args.json or not found:
        if args.latency is not None or args.latency_cap is not None or args.budget is not None:
            print(note, file=sys.stderr)
        return
    answers = [f"<objects of {confidence:.0%} confidence or more"] if boxes else ["<class", "confidence"]
    columns = ["<image", *answers, *(["<next"] if (args.top or 0) > 1 else []), "<path", "MAdds"]
    cells = [[one.file, *one.words, manifest.name_of(one.path), human(one.madds)] for one in found]
    print_table(
        f"{manifest.model} on {len(found)} images",
        columns,
        with_short_names(columns, cells, shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDE),
        note=note,
    )
