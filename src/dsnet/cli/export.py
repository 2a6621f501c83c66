"""dsnet export: write a run as ONNX."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    from dsnet.export.int8 import Int8
    from dsnet.manifest import Manifest, Policy
    from dsnet.results import Evaluation, Latency
    from dsnet.runs.folder import RunFolder
    from dsnet.runs.quantise import QuantisedRun
    from dsnet.space import WidthPath

COMPARED = 16  # images on which a quantised file is compared with the network


def add_arguments(parser: Parser) -> None:
    parser.add("run", "A folder that dsnet wrote.")
    parser.add(
        "--out",
        "File or folder to write (default: RUN/model.onnx or RUN/bundle; options that change the network "
        "add to the name, as in model-int8.onnx).",
    )
    path = "Export this path alone, such as 3, 0,1,2,3, exit, or 80px:3 of several image sizes. The file takes batches."
    parser.add("--path", path)
    parser.add(
        "--triton",
        "Write a model repository for NVIDIA Triton: the dynamic network, and each width for batches.",
        metavar="DIR",
    )
    parser.add("--bundle", "Write a folder of parts, for dynamic inference on batches.", action="store_true")
    parser.add("--image_size")
    parser.add("--budget", "Default budget of the file: average MAdds per image. It can be changed when the file runs.")
    cap = "Default cap of the file: the largest width index that may run. It can be changed when the file runs."
    parser.add("--max_width", cap, type=int, metavar="INDEX")
    size = "Default cap of the file on the image size in pixels, of a network that looks at several sizes."
    parser.add("--max_size", size, type=int, metavar="PIXELS")
    window = "Default window of the file: it chooses within it as trained, unless it is given a budget. S, M, L or 0:2."
    parser.add("--window", window)
    parser.add("--latency", "Set the default budget by a mean time per image, such as 5ms. Needs `dsnet bench RUN`.")
    parser.add("--latency_cap", "Set the default cap by a time that no image may exceed. Needs `dsnet bench RUN`.")
    simple = "Leave image and budget as the only inputs of the file, for callers that need no cap and no pinned path."
    parser.add("--simple", simple, action="store_true")
    raw = "Let the file take pictures of any size, uint8 [height, width, 3] in RGB, and prepare them itself."
    parser.add("--raw", raw, action="store_true")
    widths = "Widths that the file holds, such as 0,4,9,13; fewer take less memory. Budgets are calibrated again."
    parser.add("--widths", widths)
    int8 = "Quantise the network to INT8, on calibration images of the run: a file of about a third of the size."
    parser.add("--int8", int8, action="store_true")
    parser.add("--root")
    parser.add("--json")


def run(args: Namespace) -> None:
    from dsnet.cli.predict import LIMITS
    from dsnet.export.bundle import export_bundle
    from dsnet.export.check import difference
    from dsnet.export.onnx import export_onnx
    from dsnet.export.triton import for_batches, write_config
    from dsnet.files import size_of
    from dsnet.latency import budget_for
    from dsnet.report.tables import human, print_json
    from dsnet.routing.budgets import read_latency
    from dsnet.runtime.onnx import is_artefact, open_onnx
    from dsnet.tasks import load

    if is_artefact(args.run):
        raise ValueError(f"{args.run} is exported already; give its run folder")
    net = load(args.run).float()
    manifest = net.manifest(args.image_size)
    path = None if args.path is None else manifest.parse_path(args.path)
    asked = {name: getattr(args, name) for name in LIMITS}
    given = any(value is not None for value in asked.values())
    if args.triton is not None and (args.bundle or args.out is not None):
        unfit = "Triton runs ONNX files; leave --bundle" if args.bundle else "--triton says where to write; leave --out"
        raise ValueError(f"{unfit} out")
    if args.bundle:
        if args.raw:
            raise ValueError("a bundle takes batches of prepared images; leave --raw out, or --bundle")
        if args.path is not None or args.simple or given:
            raise ValueError(
                "a bundle takes its budget, cap, window and path when it runs; leave them and --simple out"
            )
    else:
        file = out_file(args, path)
    int8 = images = None
    if args.widths is not None:
        net = narrowed_run(args, net)
    if args.int8:
        net, int8, images = quantised_run(args, net)
    if args.widths is not None or args.int8:
        manifest = net.manifest(args.image_size)
    as_trained = args.image_size is None and args.widths is None and int8 is None
    known = evaluation_of(Path(args.run)) if as_trained else None
    if args.bundle:
        folder = args.out or Path(args.run) / named("bundle", args)
        where = export_bundle(net, folder, image_size=args.image_size, evaluation=known, int8=int8)
    else:
        size, budget, caps = args.image_size, args.budget, {"max_width": args.max_width, "max_size": args.max_size}
        if given:
            if path is not None or not manifest.routes:
                why = "--path pins the widths" if path is not None else f"{args.run} {manifest.why_fixed()}"
                raise ValueError(f"{why}; leave {' and '.join(f'--{name}' for name in asked if asked[name])} out")
            policy, table = policy_of(args, net, manifest, int8)
            if args.latency is not None and table is not None:
                budget, _ = budget_for(manifest, table, read_latency(args.latency))
            caps = {"max_width": policy.max_width, "max_size": policy.max_size}
            if policy.note:
                print(policy.note, file=sys.stderr)
            if table is not None:
                print(told(manifest, table, policy), file=sys.stderr)
        knobs = {"budget": budget, **caps, "window": args.window, "simple": args.simple, "raw": args.raw}
        where = export_onnx(net, file, path=path, image_size=size, evaluation=known, int8=int8, **knobs)
    runner, models = open_onnx(where), [where]
    if args.triton is not None:
        for one in for_batches(runner.manifest):
            options = {"image_size": args.image_size, "evaluation": known, "int8": int8}
            models.append(export_onnx(net, out_file(args, one), path=one, **options))
        for model in models:
            write_config(model)
    off = difference(net, runner, None if images is None else images[:COMPARED])
    kind, held = runner.manifest.kind, len(runner.paths)
    size = size_of(where)
    if args.json:
        repository = {} if args.triton is None else {"models": [model.parents[1].name for model in models]}
        print_json({"out": str(where), "kind": kind, "bytes": size, "paths": held, "off": off, **repository})
        return
    precision = ", int8" if args.int8 else ""
    print(f"{where}: {kind}{precision}, {held} paths of {manifest.model}, {human(size)} bytes")
    answers = " and ".join(manifest.outputs)
    raw = runner.manifest.raw
    what = "pictures of any size, uint8 [height, width, 3]" if raw else f"{runner.manifest.image_size} px images"
    how = "one at a time" if raw or kind == "dynamic" else "in batches"
    print(f"  takes {what}, {how}; gives {answers}")
    ends = "of slimmest and widest path" if runner.manifest.pins else "at the lowest and highest budget"
    measure = " (root mean square)" if args.int8 else ""
    print(f"  {answers} {ends} differ from PyTorch by {off:.1e} of their spread{measure}")
    if (args.int8 or args.widths is not None) and runner.manifest.routes and not raw:
        print(f"  budgets were calibrated again; `dsnet eval {where}` tells the accuracy")
    if len(models) > 1:
        first, last = (models[number].parents[1] for number in (1, -1))
        total = human(sum(map(size_of, models[1:])))
        print(f"{first} to {last.name}: static, {len(models) - 1} paths that take batches, {total} bytes")
    if args.triton is not None:
        print(f"run: tritonserver --model-repository={args.triton}")


def run_of(args: Namespace, option: str) -> RunFolder:
    """The run whose images an option needs."""
    from dsnet.config import CONFIG
    from dsnet.runs.folder import RunFolder

    folder = Path(args.run)
    if not (folder / CONFIG).exists():
        raise ValueError(
            f"{folder} has no {CONFIG}, so its images are not known; {option} needs a run of `dsnet train`"
        )
    return RunFolder.of(folder)


def narrowed_run(args: Namespace, net: Any) -> Any:
    """The network of the run with fewer widths to choose from, and with budgets for them."""
    from dsnet.models.narrow import narrowed
    from dsnet.tasks import calibrated

    if args.path is not None:
        raise ValueError("--path exports one path alone; leave --widths out")
    try:
        widths = [int(part) for part in args.widths.split(",")]
    except ValueError:
        raise ValueError(
            f"widths {args.widths!r} are not understood; write a list of indices such as 0,4,9,13"
        ) from None
    few = narrowed(net, widths)
    if args.int8:  # which calibrates them
        return few
    run = run_of(args, "--widths")
    config, data = run.opened(args.root)
    return calibrated(run.task, few, data, config)


def quantised_run(args: Namespace, net: Any) -> QuantisedRun:
    """The network of the run with budgets for INT8, and how it is quantised."""
    from dsnet.runs.quantise import quantised

    run = run_of(args, "--int8")
    if args.image_size not in (None, net.spec.image_size):
        raise ValueError(
            f"--int8 observes the run's images, which have {net.spec.image_size} pixels; leave --image_size out"
        )
    return quantised(run, net, budgets=args.path is None, root=args.root)


def policy_of(args: Namespace, net: Any, manifest: Manifest, int8: Int8 | None) -> tuple[Policy, Latency | None]:
    """The default policy of the file, and the latency table that it was made from."""
    from dsnet.export.onnx import to_export
    from dsnet.latency import cpu, policy_in, require_any
    from dsnet.manifest import exported
    from dsnet.results import Setting
    from dsnet.routing.budgets import policy_for
    from dsnet.runtime.engine import runtime_of

    known = {name: getattr(args, name) for name in ("budget", "max_width", "max_size", "window")}
    if args.latency is None and args.latency_cap is None:
        return policy_for(manifest, **known), None
    about = exported(to_export(net, args.image_size, None, int8), kind="dynamic")
    setting = Setting(about.digest, about.image_size, runtime_of(about), 1, cpu())
    held = require_any(setting, args.run if int8 is None else f"{args.run}/model-int8.onnx")
    limits = {"latency": args.latency, "latency_cap": args.latency_cap}
    return policy_in(manifest, held, **limits, **known), held


def told(manifest: Manifest, held: Latency, policy: Policy) -> str:
    """What a latency became, as a line for the user."""
    from dsnet.cli.predict import capped
    from dsnet.latency import expected, threads_text
    from dsnet.report.tables import human

    words = [] if policy.max_width is None and policy.max_size is None else [capped(policy)]
    times = expected(manifest, held, policy) if policy.share is not None else None
    if times is not None and policy.share is not None:
        madds = human(policy.share * manifest.table.widest)
        words.insert(0, f"a budget of {madds} MAdds, {times.mean:.3g} ms on average")
    return f"defaults of the file: {', '.join(words)} (measured with {threads_text(held.setting.threads)})"


def evaluation_of(run: Path) -> Evaluation | None:
    """The evaluation of a run on its test images, or None if there is none."""
    from dsnet.errors import ResultError
    from dsnet.results import Evaluation, read

    try:
        return read(run / "results" / "test.json", Evaluation)
    except ResultError:
        return None


def out_file(args: Namespace, path: WidthPath | None) -> Path:
    """The ONNX file to write."""
    from dsnet.export.triton import model_file
    from dsnet.space import path_name

    name = "model" if path is None else f"path-{path_name(path).replace(',', '-')}"
    if args.triton is not None:
        run = Path(args.run).resolve().name
        return model_file(args.triton, named(run if path is None else f"{run}-{name}", args))
    file = Path(args.out or Path(args.run) / f"{named(name, args)}.onnx")
    if file.suffix != ".onnx":
        raise ValueError(f"{file} does not end in .onnx; name the file so, or use --bundle for a folder")
    return file


def named(name: str, args: Namespace) -> str:
    """A name with the options that change the network, so that no export overwrites another kind."""
    widths = [] if args.widths is None else ["widths", *args.widths.split(",")]
    return "-".join([name, *widths, *["int8"] * args.int8, *["raw"] * args.raw])
