"""dsnet bench: milliseconds of every width and budget."""

from __future__ import annotations

import shlex
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import several, whole

if TYPE_CHECKING:
    from dsnet.results import RoutedTimes


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("model", help="A name from `dsnet models`, a run folder, an ONNX file or a bundle.")
    parser.add_argument(
        "--runtimes",
        nargs="+",
        metavar="NAME",
        help="How the network is run: eager (sliced at every call), runner, compiled, onnx or openvino. By default "
        "eager, runner and onnx.",
    )
    parser.add_argument(
        "--paths",
        nargs="+",
        metavar="PATH",
        help="Paths to time, such as 0 7 13 or 0,0,0,0; `all` takes every width (default: three).",
    )
    parser.add_argument(
        "--threads", nargs="+", type=several, default=[1], metavar="N", help="Numbers of threads (default: 1)."
    )
    parser.add_argument(
        "--batch_sizes", nargs="+", type=several, default=[1], metavar="N", help="Images per call (default: 1)."
    )
    parser.add_argument("--image_size", type=whole, metavar="N", help="Height and width of the input, in pixels.")
    parser.add_argument(
        "--repeats",
        type=whole,
        default=30,
        metavar="N",
        help="Number of rounds. Each candidate is timed once in every round (default: 30).",
    )
    parser.add_argument(
        "--table1", action="store_true", help="Also measure the paper's Table 1: masking, indexing and slicing."
    )
    parser.add_argument(
        "--against",
        nargs="+",
        default=(),
        metavar="NAME",
        help="Static networks to time in the same rounds, such as mobilenet_v1:0.75 or resnet50.",
    )
    parser.add_argument(
        "--routers",
        nargs="+",
        metavar="RUN",
        help="Other runs on the same data. Their routers are compared in milliseconds at equal accuracy.",
    )
    parser.add_argument("--root", metavar="FOLDER", help="Folder of the data, if it has moved since training.")
    parser.add_argument("--json", action="store_true", help="Print JSON instead of tables.")
    parser.add_argument("--export", metavar="PREFIX", help="Also write PREFIX.json, PREFIX.md and PREFIX.png.")


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

    common: dict[str, Any] = {
        "threads": tuple(args.threads),
        "batch_sizes": tuple(args.batch_sizes),
        "repeats": args.repeats,
        "against": tuple(args.against),
    }
    result = Bench(shlex.join(["dsnet", *without_places(sys.argv[1:])]))
    if is_artefact(args.model):
        if args.routers is not None or args.against:
            raise ValueError(f"{args.model} is a file: --routers and --against need the run it came from")
        result = replace(result, widths=bench_file(args.model, BenchConfig(**common), paths=args.paths))
    else:
        net = network(args.model)
        manifest = net.manifest(args.image_size)
        paths: tuple[Any, ...] | None = None
        if args.paths == ["all"]:
            paths = tuple(manifest.space.uniform if manifest.router is None else manifest.router.candidates)
        elif args.paths is not None:
            paths = tuple(manifest.parse_path(text) for text in args.paths)
        runtimes = tuple(args.runtimes or ("eager", "runner", "onnx"))
        config = BenchConfig(runtimes=runtimes, paths=paths, image_size=args.image_size, **common)
        result = replace(result, widths=bench(net, config))
        if args.model not in list_models() and manifest.routes:
            result = replace(result, routed=routed(args))
    if args.table1:
        result = replace(result, table1=table1(threads=args.threads[0], repeats=args.repeats))
    if (Path(args.model) / CONFIG).is_file() and args.model not in list_models():  # `dsnet report` finds it there
        write(result, Path(args.model) / BENCH)
    if args.export:
        export(result, Path(args.export))
    if args.json:
        print_json(as_json(result))
    else:
        show(bench_tables(result))


def without_places(words: list[str]) -> list[str]:
    """The command as others may repeat it: where data and results lie is their own affair."""
    kept = []
    for number, word in enumerate(words):
        option = word.partition("=")[0]
        if option not in ("--root", "--export") and words[number - 1] not in ("--root", "--export"):
            kept.append(word)
    return kept


def network(name: str) -> Any:
    """A saved network, or a fresh one; a fresh one that could route gets a router, whose decisions then cost time."""
    from dsnet.manifest import RouterSpec
    from dsnet.models import list_models, model_spec
    from dsnet.tasks import load

    if name not in list_models() and Path(name).exists():
        return load(name).float()
    spec = model_spec(name)
    gated = spec.gate is not None and spec.gate.slimming is not None and spec.widths
    return (replace(spec, router=RouterSpec()) if gated else spec).build().eval()


def routed(args: Namespace) -> RoutedTimes | None:
    """The dynamic network on its own test images; None, and a word about it, where the data cannot be had."""
    from dsnet.bench.runs import bench_runs

    how = {"root": args.root, "threads": args.threads[0], "rounds": max(1, args.repeats // 30)}
    try:
        return bench_runs([args.model, *(args.routers or [])], scored=args.routers is not None, **how)
    except (ValueError, OSError) as error:
        if args.routers is not None:
            raise
        print(f"the dynamic network is left out: {error}", file=sys.stderr)
        return None
