"""Latency and size of INT8 files, next to files of floats and to static INT8 files of the same width.

    python benchmarks/int8.py [--model ds_mobilenet_v1] [--repeats 40] [--cuts 1 32 48 ...] [--export docs/results/int8]
    python benchmarks/int8.py --keep times --runs RUN ... --export docs/results/int8

One image on one thread. The candidates of each comparison are interleaved, and ratios are of medians and of minima. The
clock counts processor time, which is the time of one thread without what other programs take. The network has fresh
weights and its ranges come from noise, because the time depends on neither. --cuts compares where the quantised part
may begin: at the first convolution that reads so many channels at full width (1: at the stem). --runs RUN ... adds the
accuracy of trained runs, classifiers or detectors, from what `dsnet eval RUN/model.onnx RUN/model-int8.onnx` stored.
--keep times measures no times: it takes them, and the accuracy of all other runs, from PREFIX.json. --keep accuracy
measures times, and takes the accuracy of all other runs from there. Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from turns import kept, processor_seconds, write_page

from dsnet import export_onnx, quantisation
from dsnet.export import int8 as room
from dsnet.latency.timing import Call, interleaved, machine, ratio, summary
from dsnet.manifest import Policy
from dsnet.models import Supernet, model_spec
from dsnet.nn import RouterSpec
from dsnet.report.tables import markdown_table
from dsnet.results import Evaluation, PathRow, read
from dsnet.runtime.onnx import FileRunner, knobs
from dsnet.schema import plain
from dsnet.space import WidthPath, path_name

RATIOS = {
    "INT8 dynamic / INT8 static": ("int8 dynamic", "int8 static"),
    "INT8 / fp32, dynamic": ("int8 dynamic", "fp32 dynamic"),
    "INT8 / fp32, static": ("int8 static", "fp32 static"),
    "fp32 dynamic / fp32 static": ("fp32 dynamic", "fp32 static"),
    "A/A": ("int8 static again", "int8 static"),
}


def network(name: str) -> tuple[Supernet, torch.Tensor]:
    """A network with fresh weights, and noise of its image size."""
    torch.manual_seed(0)
    net = Supernet(replace(model_spec(name), router=RouterSpec())).eval()
    return net, torch.randn(4, net.spec.in_channels, net.spec.image_size, net.spec.image_size)


def call(file: Path, x: torch.Tensor, path: WidthPath) -> Call:
    """A call of an opened file with one image, along a path."""
    runner = FileRunner(file, threads=1)
    pinned = knobs(runner.manifest, Policy(), path) if runner.manifest.kind == "dynamic" else {}
    return partial(runner.session.run, ["logits"], {"image": x[:1].numpy(), **pinned})


def ends(net: Supernet) -> list[WidthPath]:
    slim, wide = net.space.slimmest, net.space.widest
    return [slim, tuple((a + b) // 2 for a, b in zip(slim, wide, strict=True)), wide]


def compared(times: dict[Any, list[float]], first: Any, second: Any) -> dict[str, float]:
    return {
        "medians": ratio(times[first], times[second]),
        "minima": min(times[first]) / min(times[second]),
    }


def widths(name: str, repeats: int, folder: Path) -> dict[str, Any]:
    """The four files of every width, and the sizes of the dynamic ones."""
    net, x = network(name)
    quantised = {"fp32": None, "int8": quantisation(net, x)}
    dynamic = {kind: export_onnx(net, folder / f"{kind}.onnx", int8=int8) for kind, int8 in quantised.items()}
    sizes = {kind: file.stat().st_size for kind, file in dynamic.items()}
    rows = []
    for path in ends(net):
        calls: dict[str, Call] = {}
        for kind, int8 in quantised.items():
            static = export_onnx(net, folder / f"{kind}-path.onnx", path=path, int8=int8)
            calls |= {f"{kind} dynamic": call(dynamic[kind], x, path), f"{kind} static": call(static, x, path)}
        calls["int8 static again"] = calls["int8 static"]
        times = interleaved(calls, repeats, clock=processor_seconds)
        rows.append(
            {
                "path": path,
                "ratios": {key: compared(times, *pair) for key, pair in RATIOS.items()},
                "times": {key: plain(summary(found)) for key, found in times.items()},
            }
        )
    return {"model": name, "bytes": sizes, "size": sizes["int8"] / sizes["fp32"], "widths": rows}


def cuts(name: str, least: Sequence[int], repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Static files whose quantised part begins at different convolutions, relative to the file of floats."""
    net, x = network(name)
    rows = []
    for path in (net.space.slimmest, net.space.widest):
        calls: dict[int, Call] = {0: call(export_onnx(net, folder / "cut.onnx", path=path), x, path)}
        for channels in least:
            room.LEAST = channels
            file = export_onnx(net, folder / "cut.onnx", path=path, int8=quantisation(net, x))
            calls[channels] = call(file, x, path)
        times = interleaved(calls, repeats, clock=processor_seconds)
        rows += [{"model": name, "path": path, "least": channels, **compared(times, channels, 0)} for channels in least]
    return rows


def accuracy(run: Path) -> dict[str, Any]:
    """Accuracy of the INT8 file of a run minus that of its file of floats, at every width and budget."""
    fp32, int8 = (read(run / "results" / f"test-{name}.json", Evaluation) for name in ("model", "model-int8"))
    assert fp32.dynamic is not None
    assert int8.dynamic is not None
    rows = []
    for kind, pairs in (
        ("width", zip(fp32.rows, int8.rows, strict=True)),
        ("budget", zip(fp32.dynamic.rows, int8.dynamic.rows, strict=True)),
    ):
        for mine, theirs in pairs:
            name = path_name(mine.path) if isinstance(mine, PathRow) else f"{mine.madds.mean / fp32.full.madds:.2f}"
            points = 100 * (theirs.score.mean - mine.score.mean)
            rows.append([kind, name, 100 * mine.score.mean, 100 * theirs.score.mean, points])
    about = {"run": run.name, "dataset": fp32.dataset, "images": fp32.images, "objects": fp32.objects}
    return {**about, "metric": fp32.metric.name, "rows": rows}


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Times and sizes, and on what they were measured."""
    with tempfile.TemporaryDirectory() as place:
        result = widths(args.model, args.repeats, Path(place))
        result["cuts"] = cuts(args.model, args.cuts, args.repeats, Path(place)) if args.cuts else []
    return {**plain(machine()), **result, "repeats": args.repeats}


def heading(found: dict[str, Any]) -> str:
    """What a table of accuracies is about."""
    objects = "" if found.get("objects") is None else f"{found['objects']} objects in "
    metric = "Accuracy" if found.get("metric", "top-1") == "top-1" else found["metric"]
    return f"{metric} of {found['run']} on {objects}{found['images']} test images of {found['dataset']}, in percent."


def both(found: dict[str, float]) -> str:
    return f"{found['medians']:.2f} ({found['minima']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ds_mobilenet_v1")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--cuts", type=int, nargs="*", default=[1, 32, 48, 64, 96])
    parser.add_argument("--runs", type=Path, nargs="*", default=[])
    parser.add_argument("--keep", choices=("times", "accuracy"))
    parser.add_argument("--export", default=None)
    args = parser.parse_args()
    before = kept(args.export) if args.keep else {"accuracy": []}
    result = before if args.keep == "times" else measured(args)
    known = {found["run"]: found for found in [*before["accuracy"], *map(accuracy, args.runs)]}
    result["accuracy"] = list(known.values())
    lines = [f"# INT8 and fp32: {result['model']}, one image, one thread, ONNX Runtime", ""]
    lines += markdown_table(
        ["<width", *RATIOS],
        [[path_name(row["path"]), *(both(row["ratios"][key]) for key in RATIOS)] for row in result["widths"]],
    )
    fp32, int8 = (result["bytes"][kind] / 1e6 for kind in ("fp32", "int8"))
    lines += ["", f"The dynamic file has {int8:.1f} MB instead of {fp32:.1f}: {result['size']:.2f}.", ""]
    if result["cuts"]:
        lines += ["Where the quantised part begins: INT8 / fp32 of static files.", ""]
        lines += markdown_table(
            ["first convolution that reads", "<width", "INT8 / fp32"],
            [[f"{row['least']} channels", path_name(row["path"]), both(row)] for row in result["cuts"]],
        )
        lines.append("")
    for found in result["accuracy"]:
        lines += [heading(found), ""]
        lines += markdown_table(
            ["<", "<width, or MAdds of the widest that the budget spends", "fp32", "INT8", "INT8 - fp32"],
            [[kind, name, f"{a:.2f}", f"{b:.2f}", f"{points:+.2f}"] for kind, name, a, b, points in found["rows"]],
        )
        lines.append("")
    model, repeats = result["model"], result.get("repeats", args.repeats)
    versions = f"dsnet {result['dsnet']}, torch {result['torch']}, onnxruntime {result['onnxruntime']}"
    lines += [
        "Processor time: ratios of medians, in brackets those of minima. A/A: the same file twice.",
        f"Made by `python benchmarks/int8.py --model {model} --repeats {repeats} --runs RUN ...` with",
        f"{versions} on {result['machine']}, candidates",
        "interleaved in random order, each call after an untimed one; every figure is in int8.json.",
    ]
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), result, lines)


if __name__ == "__main__":
    main()
