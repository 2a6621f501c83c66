"""dsnet bench: latency of every width and budget."""

from __future__ import annotations

import shlex
import sys
import tempfile
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from dsnet.latency.files import BenchConfig
    from dsnet.manifest import Manifest
    from dsnet.results import Bench


def add_arguments(parser: Parser) -> None:
    parser.add("model", "A name from `dsnet models`, a run folder, an ONNX file or a bundle.")
    how = "How to run the network: eager (slices weights), runner, compiled, onnx, openvino or openvino-bf16."
    parser.add("--runtimes", f"{how} Default: runner and onnx.", nargs="+", metavar="NAME")
    paths = (
        "Paths to compare with their ideal, such as 0 7 13 or 0,0,0,0, or `all` (default: slimmest, middle, widest)."
    )
    parser.add("--paths", paths, nargs="+", metavar="PATH")
    parser.add("--threads", "Numbers of threads to measure with.", nargs="+", type=int, default=[1])
    parser.add("--batch_sizes", "Numbers of images per call.", nargs="+", type=int, default=[1])
    where = "Where to run: auto, cpu, cuda, cuda:N or mps. Networks are timed there in PyTorch, files in ONNX Runtime."
    parser.add("--device", where, default="cpu", metavar="NAME")
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
    from dsnet import latency
    from dsnet.latency.files import BenchConfig
    from dsnet.report.bench import bench_tables
    from dsnet.report.tables import print_json, show
    from dsnet.results import Bench, as_json
    from dsnet.runtime.onnx import is_artefact

    config = BenchConfig(
        runtimes=tuple(args.runtimes or BenchConfig.runtimes),
        paths=None if args.paths is None else tuple(args.paths),
        threads=tuple(args.threads),
        batch_sizes=tuple(args.batch_sizes),
        image_size=args.image_size,
        repeats=args.repeats,
        against=tuple(args.against),
    )
    result = Bench(shlex.join(["dsnet", *without_places(sys.argv[1:])]))
    result = of_file(args, config, result) if is_artefact(args.model) else of_network(args, config, result)
    for table in result.latency:
        try:
            latency.keep(table)
        except OSError as error:  # what was measured is shown all the same
            print(f"warning: {error.strerror}", file=sys.stderr)
    if args.export:
        from dsnet.report.export import export

        export(result, Path(args.export))
    if args.json:
        print_json(as_json(result))
    else:
        show(bench_tables(result))
        if result.latency:
            print(f"latency tables for --latency: {latency.folder()}")


def of_file(args: Namespace, config: BenchConfig, result: Bench) -> Bench:
    """Measure an ONNX file or a bundle in ONNX Runtime, or in OpenVINO if it is among the runtimes.

    Its dynamic network is measured with images if its run or --root has them.
    """
    from dsnet.bench.memory import loaded
    from dsnet.latency.files import bench_file
    from dsnet.opening import engine_of
    from dsnet.runtime.onnx import open_onnx

    if args.routers is not None or args.against or args.table1:
        raise ValueError(f"{args.model} is a file: --routers, --against and --table1 need the run it came from")
    if args.image_size is not None:
        raise ValueError(f"{args.model} is a file, which has one image size; leave --image_size out, or name the run")
    runner = open_onnx(args.model)
    runner.setting()  # refuses a raw file
    evaluation = runner.manifest.evaluation
    if wrong := [name for name in args.runtimes or () if name != "onnx" and not name.startswith("openvino")]:
        raise ValueError(
            f"{args.model} is a file, which {wrong[0]} does not run; leave {wrong[0]} out, or name the run"
        )
    named = [name for name in config.runtimes if name.startswith("openvino")]
    if named and "onnx" in (args.runtimes or ()):
        named.append("onnx")
    if len(named) > 1:
        raise ValueError(f"{args.model} is a file, which is measured in one runtime; name {named[0]} or {named[1]}")
    engine = engine_of(named[0] if named else None, args.device)
    images = images_beside(args)
    opened = partial(open_onnx, args.model, engine=engine)
    widths, tables, ways = bench_file(
        lambda threads: opened(threads=threads), config, images=images, evaluation=evaluation
    )
    on = [named[0] if named else "onnx", args.device]
    widths = replace(widths, file=loaded(kind_of(runner.manifest), Path(args.model), *on))
    return replace(result, widths=widths, latency=tuple(tables), deployed=tuple(ways))


def kind_of(manifest: Manifest) -> str:
    """What an exported network is, in words."""
    words = ["INT8"] * (manifest.precision == "int8") + [manifest.kind] + ["file"] * (manifest.kind != "bundle")
    return " ".join(words)


def images_beside(args: Namespace) -> np.ndarray | None:
    """Test images of the run in whose folder a file lies. Without a run, its data or torch, a note is printed."""
    from dsnet.runtime.onnx import open_onnx

    run, manifest = Path(args.model).resolve().parent, open_onnx(args.model).manifest
    if not manifest.routes:
        return None
    try:
        from dsnet.bench.runs import sample_images

        images = sample_images(run, args.root).numpy()
    except (ValueError, OSError, ImportError) as error:
        print(f"the times of budgets are computed, not measured: {error}", file=sys.stderr)
        return None
    return images if images.shape[-1] == manifest.image_size else None


def of_network(args: Namespace, config: BenchConfig, result: Bench) -> Bench:
    """Measure a run, or a new network of a name."""
    from dsnet.bench.candidates import Artefacts
    from dsnet.bench.runs import Benched, bench_deployed, bench_runs, evaluation_of
    from dsnet.bench.table1 import table1
    from dsnet.bench.widths import bench_widths
    from dsnet.config import CONFIG
    from dsnet.models import list_models
    from dsnet.models.devices import find_device
    from dsnet.results import write
    from dsnet.runs.folder import BENCH

    place = find_device(args.device)
    if place.type != "cpu":
        config = elsewhere(args, config)
    net, run = network(args.model).to(place), Path(args.model)
    is_run = args.model not in list_models()
    if args.routers is not None:
        check_routers(args, config, net)
    with tempfile.TemporaryDirectory() as folder:
        artefacts = Artefacts(net, Path(folder), args.image_size)
        result = replace(result, widths=bench_widths(artefacts, config))
        if is_run:
            benched = Benched(args.model, artefacts, evaluation_of(run) if args.image_size is None else None)
            images, routed = sample(args) if artefacts.manifest.routes else None, None
            if images is not None and "onnx" in config.runtimes:
                how = {"root": args.root, "threads": config.threads[0], "rounds": config.rounds}
                routed = bench_runs(benched, args.routers or [], images, **how)
            tables, ways = bench_deployed(benched, config, images, routed)
            result = replace(result, routed=routed, latency=tuple(tables), deployed=tuple(ways))
    if args.table1:
        result = replace(result, table1=table1(threads=args.threads[0], repeats=args.repeats))
    if is_run and (run / CONFIG).is_file():  # `dsnet report` finds it there
        write(result, run / BENCH)
    return result


def elsewhere(args: Namespace, config: BenchConfig) -> BenchConfig:
    """What is measured of a network on another device than the CPU: PyTorch alone."""
    asked = {
        f"--runtimes {name}": name in (args.runtimes or ())
        for name in config.runtimes
        if name == "onnx" or name.startswith("openvino")
    }
    asked |= {"--against": bool(args.against), "--routers": args.routers is not None, "--table1": args.table1}
    if wrong := [name for name, given in asked.items() if given]:
        raise ValueError(
            f"{wrong[0]} runs on the CPU, and PyTorch alone runs a network on {args.device}; leave it out, or export "
            f"the run, and time the file there"
        )
    return config if args.runtimes else replace(config, runtimes=("runner",))


def check_routers(args: Namespace, config: BenchConfig, net: Any) -> None:
    """Refuse --routers where it would have no effect, and runs that have no router, before anything is measured."""
    from dsnet.bench.runs import check_routed
    from dsnet.models import list_models
    from dsnet.runs.folder import RunFolder

    why = {
        f"{args.model} is a new network": args.model in list_models(),
        f"{args.model} has no router": net.spec.router is None,
        f"it is measured in ONNX Runtime, and --runtimes are {' '.join(config.runtimes)}": "onnx"
        not in config.runtimes,
        "it takes images of the run's own size": args.image_size is not None,
    }
    if wrong := [reason for reason, holds in why.items() if holds]:
        raise ValueError(f"--routers compares routers of runs, but {wrong[0]}; leave it out")
    for name in [args.model, *args.routers]:
        check_routed(name, RunFolder.of(Path(name)).load().manifest())


def without_places(words: list[str]) -> list[str]:
    """The command without --root and --export, whose values differ between machines."""
    places = ("--root", "--export")
    pairs = zip(["", *words], words, strict=False)
    return [word for before, word in pairs if before not in places and word.partition("=")[0] not in places]


def network(name: str) -> Any:
    """A saved network, or a new one. A new one with gates gets a router, so that its decisions are timed too."""
    from dsnet.models import list_models, model_spec
    from dsnet.routers import RouterSpec
    from dsnet.tasks import load

    if name not in list_models() and Path(name).exists():
        return load(name).float()
    spec = model_spec(name)
    gated = spec.gate is not None and spec.gate.slimming is not None and spec.widths
    return (replace(spec, router=RouterSpec()) if gated else spec).build().eval()


def sample(args: Namespace) -> Tensor | None:
    """Test images of a run. Without its data, a note is printed."""
    from dsnet.bench.runs import sample_images

    try:
        images = sample_images(Path(args.model), args.root)
    except (ValueError, OSError) as error:
        if args.routers is not None:
            raise
        print(f"the times of budgets are computed, not measured: {error}", file=sys.stderr)
        return None
    return images if args.image_size in (None, images.shape[-1]) else None
