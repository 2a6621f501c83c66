"""What `dsnet eval`, `predict`, `info`, `export` and `bench` do with detectors."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.errors import must

if TYPE_CHECKING:
    from dsnet.results import RoutedTimes, WidthTimes
    from dsnet.tasks.detection import Detector, OnnxDetector


def evaluate_runs(args: Namespace) -> None:
    from dsnet.cli.evaluate import run_of
    from dsnet.config import CONFIG
    from dsnet.data.splits import check_data
    from dsnet.report.export import export_evaluations
    from dsnet.report.tables import print_json, show_evaluation
    from dsnet.results import Evaluations, as_json
    from dsnet.tasks import read_config
    from dsnet.tasks.assess import draw_examples, record
    from dsnet.tasks.detection import open_detector
    from dsnet.tasks.detection.assess import evaluate_detection, open_data

    overlap = 0.5 if args.overlap is None else args.overlap
    must("--overlap", overlap, 0 < overlap < 1, "lie between 0 and 1")
    results = []
    for name in args.runs:
        folder, label = run_of(name, args)
        detector, config = open_detector(name), read_config(folder / CONFIG)
        data = open_data(config, args.root)
        check_data(folder, data)
        how = {"budgets": args.budgets, "max_width": args.max_width, "rule": args.rule, "overlap": overlap}
        result = evaluate_detection(detector, data, config, split=args.split, **how)
        record(folder, label, result, data)
        results.append(result)
        if not args.json:
            show_evaluation(result)
    if args.json:
        print_json(as_json(results[0] if len(results) == 1 else Evaluations(tuple(results))))
    if args.export:
        prefix = Path(args.export)
        sheet = draw_examples(results[-1], data, prefix.with_name(f"{prefix.name}-examples.png"))
        export_evaluations(results, prefix, sheet=sheet)


def show_widths(args: Namespace) -> None:
    """What `dsnet info` tells of a detector."""
    from dsnet.cli.info import parse_path
    from dsnet.report.tables import human, print_json, print_table
    from dsnet.tasks.detection import DetectorCost, open_detector
    from dsnet.tasks.detection.cost import PARTS

    if args.image_size is not None or args.num_classes is not None or args.width is not None:
        raise ValueError(f"{args.model} is a saved detector: its image size, classes and width are fixed")
    detector = open_detector(args.model)
    spec, table = detector.spec, DetectorCost(detector.spec)
    paths = detector.space.uniform if args.path is None else [parse_path(spec.backbone, args.path)]
    rows: list[dict[str, Any]] = [
        {
            "path": list(path),
            "madds": table.madds(path),
            "madds_parts": {name: cost.madds for name, cost in table.of_parts(path).items()},
            "params": table.params(path),
        }
        for path in paths
    ]
    if args.json:
        print_json({"model": spec.name, "image_size": spec.image_size, "num_classes": spec.num_classes, "widths": rows})
        return
    print_table(
        f"{spec.name} at {spec.image_size} px, {spec.num_classes} classes, maps of {spec.sides}",
        ["<path", "MAdds", *PARTS, "parameters"],
        [
            [
                ",".join(map(str, row["path"])) or "-",
                human(row["madds"]),
                *(human(row["madds_parts"][part]) for part in PARTS),
                human(row["params"]),
            ]
            for row in rows
        ],
    )


def predict_objects(args: Namespace, files: Sequence[Path]) -> int:
    from dsnet.cli.info import parse_path
    from dsnet.cli.predict import tell_refused
    from dsnet.images import read_image
    from dsnet.report.tables import human, print_json, print_table
    from dsnet.routing import Policy
    from dsnet.tasks.detection import detector_policy, open_detector
    from dsnet.tasks.detection.predict import drawn, find_objects

    confidence = 0.5 if args.confidence is None else args.confidence
    must("--confidence", confidence, 0 < confidence < 1, "lie between 0 and 1")
    detector, policy = open_detector(args.run), Policy()
    path = None if args.path is None else parse_path(detector.spec.backbone, args.path)
    if path is None and detector.routes:
        policy = detector_policy(detector, args.budget, max_width=args.max_width)
    elif path is None:
        why = "has not learned to route" if detector.spec.backbone.router is None else "holds a single path"
        if args.budget is not None or args.max_width is not None:
            raise ValueError(f"{args.run} {why}, so it has no budgets and no cap")
        path = detector.space.widest
        print(f"{args.run} {why}: path {','.join(map(str, path)) or '-'} runs", file=sys.stderr)
    if policy.note:
        print(policy.note, file=sys.stderr)
    how: dict[str, Any] = {"path": path, "confidence": confidence, "batch_size": min(args.batch_size, 16)}
    refused: list[str] = []
    sights = list(find_objects(detector, files, policy, **how, refused=refused))
    if args.draw is not None:
        out = Path(args.draw)
        out.mkdir(parents=True, exist_ok=True)
        for number, sight in enumerate(sights):
            place = out / f"{number:04d}-{Path(sight.file).stem}.png"  # names may repeat in different folders
            drawn(read_image(Path(sight.file)), sight, detector.spec.num_classes).save(place)
        print(f"{len(sights)} images with boxes in {out}", file=sys.stderr)
    rows = []
    for sight in sights:
        names = [thing.name for thing in sight.objects]
        counts = ", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "nothing"
        rows.append([sight.file, counts, ",".join(map(str, sight.path)) or "-", human(sight.madds)])
    if args.json:
        print_json([asdict(sight) for sight in sights])
    elif rows:
        print_table(
            f"{detector.spec.name} on {len(sights)} images",
            ["<image", f"<objects of {confidence:.0%} confidence or more", "<path", "MAdds"],
            rows,
            note=f"{human(sum(sight.madds for sight in sights) / len(sights))} MAdds per image on average.",
        )
    return tell_refused(refused)


def export_file(args: Namespace) -> None:
    """What `dsnet export` does with a detector."""
    from dsnet.cli.export import out_file
    from dsnet.cli.info import parse_path
    from dsnet.report.tables import human, print_json
    from dsnet.tasks.detection import OnnxDetector, detector_policy, export_detector, load_detector

    if args.bundle:
        raise ValueError("a detector is not exported as a bundle; leave --bundle out, or export one --path for batches")
    detector = load_detector(args.run).float()
    if args.image_size not in (None, detector.spec.image_size):
        raise ValueError(
            f"--image_size is {args.image_size} but a detector keeps its own, {detector.spec.image_size}; leave it out"
        )
    path = None if args.path is None else parse_path(detector.spec.backbone, args.path)
    knobs = {"budget": args.budget, "max_width": args.max_width, "defaults": not args.no_defaults}
    file = OnnxDetector(export_detector(detector, out_file(args, path), path=path, **knobs))
    if args.budget is not None and (note := detector_policy(detector, args.budget).note):
        print(note, file=sys.stderr)
    off, held, paths = difference(detector, file), file.file.stat().st_size, len(file.paths)
    if args.json:
        print_json({"out": str(file.file), "kind": file.kind, "bytes": held, "paths": paths, "off": off})
        return
    print(f"{file.file}: {file.kind}, {paths} paths of {detector.spec.name}, {human(held)} bytes")
    how = "one at a time" if file.kind == "dynamic" else "in batches"
    print(f"  takes {detector.spec.image_size} px images, {how}; gives boxes and scores before suppression")
    print(f"  boxes and scores of slimmest and widest path differ from PyTorch by {off:.1e} at most")


def difference(detector: Detector, file: OnnxDetector) -> float:
    """The largest difference of boxes, shares of the image, and scores from the file's; refuses a wrong file."""
    import torch

    shape = (2, detector.spec.in_channels, detector.spec.image_size, detector.spec.image_size)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ends = list(dict.fromkeys([file.space.slimmest, file.space.widest]))
    with torch.no_grad():
        pairs = zip(file.look(x, ends)[0], detector.look(x, ends)[0], strict=True)
    off = [float((a - b).abs().max()) for mine, theirs in pairs for a, b in zip(mine, theirs, strict=True)]
    if not max(off) < 1e-3:
        raise ValueError(f"{file.file} answers otherwise than the detector, by {max(off):.2g}; report it as a bug")
    return max(off)


def bench_parts(args: Namespace, common: dict[str, Any]) -> tuple[WidthTimes, RoutedTimes | None]:
    """What `dsnet bench` measures of a detector: its widths, and its budgets where it routes."""
    from dsnet.cli.bench import routed
    from dsnet.cli.info import parse_path
    from dsnet.runtime import is_artefact
    from dsnet.runtime.bench import BenchConfig, bench_file
    from dsnet.tasks.detection import OnnxDetector, load_detector
    from dsnet.tasks.detection.bench import bench_detector

    if args.routers is not None:
        raise ValueError("--routers compares networks for classification; leave it out for a detector")
    if is_artefact(args.model):
        if args.against:
            raise ValueError(f"{args.model} is a file: --against needs the run it came from")
        return bench_file(args.model, BenchConfig(**common), paths=args.paths, opened=OnnxDetector), None
    detector = load_detector(args.model).float()
    paths = None
    if args.paths == ["all"]:
        paths = tuple(detector.backbone.routing.uniform if detector.routes else detector.space.uniform)
    elif args.paths is not None:
        paths = tuple(parse_path(detector.spec.backbone, text) for text in args.paths)
    runtimes = tuple(args.runtimes or ("eager", "onnx"))
    config = BenchConfig(runtimes=runtimes, paths=paths, image_size=args.image_size, **common)
    return bench_detector(detector, config), routed(args) if detector.routes else None
