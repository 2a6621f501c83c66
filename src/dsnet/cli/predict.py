"""dsnet predict: classify images or detect objects in them, with the MAdds of each image."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from dsnet.cli.arguments import Parser
from dsnet.errors import must


def add_arguments(parser: Parser) -> None:
    parser.add("run", "A run folder, an ONNX file or a bundle that dsnet wrote.")
    parser.add("images", "Image files, or folders that are searched to any depth.", nargs="+")
    parser.add("--budget")
    parser.add("--max_width")
    parser.add("--path", "Run this path for every image instead of routing, such as 3 or 0,1,2,3.")
    parser.add("--draw", "Folder for copies of the images with the detected boxes drawn on them.", metavar="FOLDER")
    parser.add("--confidence", "Least confidence of the detections that are shown (default: 0.5).", type=float)
    parser.add("--batch_size", "Number of images that run together.", type=int, default=64)
    parser.add("--json")


def run(args: Namespace) -> int:
    from dsnet.images import read_image
    from dsnet.manifest import Policy
    from dsnet.opening import open_runner
    from dsnet.pictures import image_files
    from dsnet.prediction import predict
    from dsnet.prediction.answers import CONFIDENCE, ImageDetections, drawn, finds_boxes, plain
    from dsnet.report.tables import human, print_json, print_table

    must("--batch_size", args.batch_size, args.batch_size >= 1, "be at least 1")
    if args.path is not None and (args.budget is not None or args.max_width is not None):
        raise ValueError("--path pins the widths; leave --budget and --max_width out")
    confidence = CONFIDENCE if args.confidence is None else args.confidence
    must("--confidence", confidence, 0 < confidence < 1, "lie between 0 and 1")
    files = image_files(args.images)
    runner = open_runner(args.run)
    manifest, policy = runner.manifest, Policy()
    for option in ("draw", "confidence"):
        if getattr(args, option) is not None and not finds_boxes(manifest):
            raise ValueError(f"--{option} is for detectors; {args.run} classifies whole images")
    path = None if args.path is None else manifest.parse_path(args.path)
    if manifest.routes and path is None:
        policy = runner.policy(args.budget, args.max_width)
    elif path is None:
        if args.budget is not None or args.max_width is not None:
            raise ValueError(f"{args.run} {manifest.why_fixed()}, so it has no budgets and no cap")
        *_, path = runner.paths
        print(f"{args.run} {manifest.why_fixed()}: path {','.join(map(str, path)) or '-'} runs", file=sys.stderr)
    if policy.note:
        print(policy.note, file=sys.stderr)
    refused: list[str] = []
    options = {"batch_size": args.batch_size, "confidence": confidence}
    found = list(predict(runner, files, policy, path=path, refused=refused, **options))
    if args.draw is not None:
        out = Path(args.draw)
        out.mkdir(parents=True, exist_ok=True)
        for place, answer in enumerate(found):
            assert isinstance(answer, ImageDetections)
            file = out / f"{place:04d}-{Path(answer.file).stem}.png"  # names may repeat in different folders
            drawn(read_image(Path(answer.file)), answer, manifest.num_classes).save(file)
        print(f"{len(found)} images with boxes in {out}", file=sys.stderr)
    if args.json:
        print_json([plain(answer) for answer in found])
    elif found:
        objects = [f"<objects of {confidence:.0%} confidence or more"]
        columns = ["<image", *(objects if finds_boxes(manifest) else ["<class", "confidence"]), "<path", "MAdds"]
        print_table(
            f"{manifest.model} on {len(found)} images",
            columns,
            [[one.file, *one.words, ",".join(map(str, one.path)) or "-", human(one.madds)] for one in found],
            note=f"{human(sum(one.madds for one in found) / len(found))} MAdds per image on average.",
        )
    for why in refused:  # the predictions for all other images were printed above
        print(f"dsnet predict: error: {why}", file=sys.stderr)
    return 2 if refused else 0
