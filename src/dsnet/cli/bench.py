"""dsnet bench: latency of every width and budget."""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.results import RoutedTimes


def add_arguments(parser: Parser) -> None:
    parser.add("model", "A name from `dsnet models`, a run folder, an ONNX file or a bundle.")
    how = "How to run the network: eager (slices weights at every call), runner, compiled, onnx or openvino."
    parser.add("--runtimes", how, nargs="+", default=["eager", "runner", "onnx"], metavar="NAME")
    paths = "Paths to time, such as 0 7 13 or 0,0,0,0; `all` times every width (default: slimmest, middle and widest)."
    parser.add("--paths", paths, nargs="+", metavar="PATH")
    parser.add("--threads", "Numbers of threads to measure with.", nargs="+", type=int, default=[1])
    parser.add("--batch_sizes", "Numbers of images per call.", nargs="+", type=int, default=[1])
    parser.add("--image_size")
    rounds = "Number of rounds. Each candidate is timed once in every round."
    parser.add("--repeats", rounds, type=int, default=30)
    table1 = "Also measure the paper's Table 1: masking, indexing and slicing."
    parser.add("--table1", table1, action="store_true")
    against = "Static networks to time in the same rounds, such as mobilenet_v1:0.75 or resnet50."
    parser.add("--against", against, nargs="+", default=(), metavar="NAME")
    routers = "Other runs on the same data. The latency of their routers is compared at equal accuracy."
    parser.add("--routers", routers, nargs="+", metavar="RUN")
    parser.add("--root")
    parser.add("--json")
    parser.add("--export")


def run(args: Namespace) -> None:
    from dsnet.bench.table1 import table1
    from dsnet.bench.widths import BenchConfig, bench, bench_file
    from dsnet.config import CONFIG
    from dsnet.models import list_models
    from dsnet.report.export import export
    from dsnet.report.tables import bench_tables, print_json, show
    from dsnet.results import Bench, as_json, write
    from dsnet.runs.folder import BENCH
    from dsnet.runtime.onnx import is_artefact

    config = BenchConfig(
        runtimes=tuple(args.runtimes),
        paths=None if args.paths is None else tuple(args.paths),
        threads=tuple(args.threads),
        batch_sizes=tuple(args.batch_sizes),
        image_size=args.image_size,
        repeats=args.repeats,
        against=tuple(args.against),
    )
    result, is_run = Bench(shlex.join(["dsnet", *without_places(sys.argv[1:])])), False
    if is_artefact(args.model):
        if args.routers is not None or args.against:
            raise ValueError(f"{args.model} is a file: --routers and --against need the run it came from")
        result = replace(result, widths=bench_file(args.model, config))
    else:
        net = network(args.model)
        is_run = args.model not in list_models()
        routes = is_run and net.manifest(args.image_size).routes
        result = replace(result, widths=bench(net, config), routed=routed(args) if routes else None)
    if args.table1:
        result = replace(result, table1=table1(threads=args.threads[0], repeats=args.repeats))
    if is_run and (Path(args.model) / CONFIG).is_file():  # `dsnet report` finds it there
        write(result, Path(args.model) / BENCH)
    if args.export:
        export(result, Path(args.export))
    if args.json:
        print_json(as_json(result))
    else:
        show(bench_tables(result))


def without_places(words: list[str]) -> list[str]:
    """The command without --root and --export, whose values differ between machines."""
    places = ("--root", "--export")
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if before not in places and word.partition("=")[0] not in places]


def network(name: str) -> Any:
    """A saved network, or a new one. A new one with gates gets a router, so that its decisions are timed too."""
    from dsnet.manifest import RouterSpec
    from dsnet.models import list_models, model_spec
    from dsnet.tasks import load

    if name not in list_models() and Path(name).exists():
        return load(name).float()
    spec = model_spec(name)
    gated = spec.gate is not None and spec.gate.slimming is not None and spec.widths
    return (replace(spec, router=RouterSpec()) if gated else spec).build().eval()


def routed(args: Namespace) -> RoutedTimes | None:
    """Time the dynamic network on its own test images. Without the data, print a note and return None."""
    from dsnet.bench.runs import bench_runs

    how = {"root": args.root, "threads": args.threads[0], "rounds": max(1, args.repeats // 30)}
    try:
        return bench_runs([args.model, *(args.routers or [])], scored=args.routers is not None, **how)
    except (ValueError, OSError) as error:
        if args.routers is not None:
            raise
        print(f"the dynamic network is left out: {error}", file=sys.stderr)
        return None
