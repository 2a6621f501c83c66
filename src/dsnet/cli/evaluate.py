"""dsnet eval: evaluate every width and the dynamic network."""

from __future__ import annotations

import sys
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.report.advice import Kind
    from dsnet.results import Evaluation
    from dsnet.runs.evaluate import EvalOptions
    from dsnet.runtime.runner import Runner


def add_arguments(parser: Parser) -> None:
    what = "Folders that `dsnet train` wrote, ONNX files or bundles. Several seeds are shown as mean and spread."
    parser.add("runs", what, nargs="+")
    parser.add("--run", "Run that an ONNX file came from, if it is not in its folder.", metavar="FOLDER")
    parser.add("--split", "Images to evaluate on.", choices=("test", "calibration", "train"), default="test")
    paths = "Number of random paths to evaluate besides the uniform ones, if there are several gates."
    parser.add("--sample", paths, type=int, default=16)
    budgets = "Average MAdds of the dynamic network, such as 150M, or shares of the widest such as 0.5 (default: five)."
    parser.add("--budgets", budgets, nargs="+", metavar="BUDGET")
    parser.add("--max_width")
    parser.add("--max_size")
    parser.add("--runtime")
    parser.add("--device")
    times = "Mean times per image of the dynamic network, such as 5ms, besides --budgets. Needs `dsnet bench` first."
    parser.add("--latency", times, nargs="+", metavar="TIME")
    parser.add("--latency_cap")
    drift = (
        "Also evaluate the budgets on corrupted copies of the images (noise, blur, JPEG): asked against spent MAdds."
    )
    parser.add("--drift", drift, action="store_true")
    parser.add("--static")
    rule = "How a detector's average precision is computed; VOC 2007 uses 11point (default: that of the run)."
    parser.add("--rule", rule, choices=("area", "11point"))
    overlap = "Least overlap (IoU) with an object for a detection to count as correct (default: 0.5)."
    parser.add("--overlap", overlap, type=float)
    parser.add("--root")
    parser.add("--seed", "Seed of the random paths (default: 0).", type=int, default=0)
    parser.add("--json")
    parser.add("--export")


def run(args: Namespace) -> None:
    from dsnet.cli.advise import bench_of
    from dsnet.opening import open_runner
    from dsnet.report.advice import show_advice
    from dsnet.report.drift import drift_tables
    from dsnet.report.export import draw, export
    from dsnet.report.seeds import together
    from dsnet.report.tables import print_json, show, show_evaluation
    from dsnet.results import Evaluations, as_json
    from dsnet.runs.drift import with_drift
    from dsnet.runs.evaluate import EvalOptions, evaluate
    from dsnet.runs.folder import RunFolder
    from dsnet.runs.record import draw_examples
    from dsnet.runtime.onnx import is_artefact
    from dsnet.training.distributed import barrier, process_group, rank

    options = {"rule": args.rule, "overlap": args.overlap}
    asked = EvalOptions(args.split, args.budgets, args.max_width, args.sample, args.seed, options, args.max_size)
    static = [read_result(Path(name), args.split) for name in args.static]
    results = []
    files = [is_artefact(where) for where in args.runs]
    with process_group(device="cpu" if all(files) else args.device) as device:  # under torchrun all share the images
        first = rank() == 0
        for where, is_file in zip(args.runs, files, strict=True):  # run folders, ONNX files, bundles
            place, label = run_of(where, args)
            folder = RunFolder.of(place)
            config, data = folder.opened(args.root)
            on = args.device if is_file else str(device)
            runner = open_runner(where, eager=True, runtime=args.runtime, device=on)
            wanted = in_milliseconds(asked, runner, args)
            result = evaluate(runner, data, folder.task, config, wanted)
            if args.drift:
                note = partial(print, file=sys.stderr) if first else lambda words: None
                result = with_drift(result, runner, data, folder.task, config, note=note, **wanted.caps)
            results.append(result)
            pictures = folder.record(label, result, data) if first else []
        barrier()
    if not first:  # one process tells the result
        return
    shown = together(results)
    if len(shown) < len(results) or static:
        place, _ = run_of(args.runs[0], args)
        pictures = draw(shown, place / "results" / f"{args.split}-{len(args.runs)}-seeds", static)
    combined = shown[0] if len(shown) == 1 else Evaluations(tuple(shown))
    if args.json:
        print_json(as_json(combined))
    else:
        for number, result in enumerate(shown, start=1):
            show_evaluation(result, pictures if number == len(shown) else ())
            show(drift_tables(result))
            one = len(results) == 1
            kind: Kind = "file" if one and is_artefact(args.runs[0]) else "run"
            show_advice(result, bench_of(place) if one else None, args.runs[0] if one else "RUN", kind)
    if args.export:
        prefix = Path(args.export)
        sheet = None
        if shown[-1].objects is not None:
            sheet = draw_examples(shown[-1], data, prefix.with_name(f"{prefix.name}-examples.png"))
        export(combined, prefix, sheet=sheet, static=static)


def in_milliseconds(asked: EvalOptions, runner: Runner, args: Namespace) -> EvalOptions:
    """The options with latencies turned into budgets and a cap, by the latency table of what is evaluated."""
    from dsnet.cli.predict import capped
    from dsnet.latency import budget_for, policy_in, require_any, threads_text
    from dsnet.report.tables import human
    from dsnet.routing.budgets import read_latency

    if args.latency is None and args.latency_cap is None:
        return asked
    manifest = runner.manifest
    if not manifest.routes:
        raise ValueError(f"{runner.place} {manifest.why_fixed()}, so it has no latency to choose")
    held, budgets = require_any(runner.setting(), runner.place), list(asked.budgets or ())
    threads = threads_text(held.setting.threads)
    for text in args.latency or ():
        madds, note = budget_for(manifest, held, read_latency(text))
        budgets.append(madds)
        print(note or f"{text}: {human(madds)} MAdds ({held.setting.runtime}, {threads})", file=sys.stderr)
    policy = policy_in(manifest, held, latency_cap=args.latency_cap, **asked.caps)
    if args.latency_cap is not None:
        print(f"at most {args.latency_cap}: {capped(policy)} ({held.setting.runtime}, {threads})", file=sys.stderr)
    return replace(asked, budgets=budgets or None, max_width=policy.max_width, max_size=policy.max_size)


def run_of(name: str, args: Namespace) -> tuple[Path, str]:
    """The run folder that belongs to a run or an ONNX file, and the name of the result."""
    from dsnet.config import CONFIG
    from dsnet.runtime.onnx import is_artefact

    if not is_artefact(name):
        return Path(name), args.split
    folder = Path(args.run or Path(name).resolve().parent)
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} is not the run that {name} came from: there is no {CONFIG}; name it with --run")
    return folder, "-".join(
        [args.split, Path(name).stem, *([args.runtime] if args.runtime not in (None, "onnx") else [])]
    )


def read_result(folder: Path, split: str) -> Evaluation:
    """Read the stored evaluation of another run."""
    from dsnet.results import Evaluation, read

    file = folder / "results" / f"{split}.json"
    return read(file, Evaluation, remedy=f"run `dsnet eval {folder} --split {split}` first")
