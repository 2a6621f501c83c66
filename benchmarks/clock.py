"""What a network meant for a clock looks like: DS-MBNet with SiLU, hard-swish and ReLU, with many gates and with one,
with and without activations behind depthwise convolutions.

    python benchmarks/clock.py [--repeats 60] [--root data --seeds 0 1 --epochs 6] [--export docs/results/clock]

Times the slimmest, middle and widest path of ds_mobilenet_v1 and of its forms at 224 pixels, in the dynamic ONNX file,
in floats and in INT8, with one image on one thread, beside static files of a plain MobileNetV1 of similar MAdds. All of
them take turns. Times are CPU times of the calling thread, because the clock also counts what other programs do. The
networks have fresh weights, and the ranges of INT8 come from noise.

With --root, the folder of cifar-10-batches-bin, it also trains the small DS-MBNet on CIFAR-10 in these forms, and
compares every width on the test images with that of the first form, paired by image. --forms leaves some of them out.
Writes PREFIX.json and PREFIX.md. Accuracies that are there are kept without --root, and times with --repeats 0. With
--root those of other forms are kept if seeds and epochs are the same and the first form has the same accuracies again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from turns import in_turns

from dsnet.cli import main as dsnet
from dsnet.export.int8 import quantisation
from dsnet.export.onnx import export_onnx
from dsnet.latency.timing import Call, machine
from dsnet.manifest import Policy
from dsnet.models import Supernet, create_model, eager, model_spec, register
from dsnet.models.spec import ModelSpec
from dsnet.nn import GateSpec, RouterSpec
from dsnet.nn.gate import Activation
from dsnet.paired import of_samples, resampled_means
from dsnet.report.tables import markdown_table
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.schema import plain
from dsnet.tasks import images_of

DRAWS = 1000
WIDTHS = (0, 7, 13)
PLAIN = {0: 0.5, 7: 0.75, 13: 1.0}  # width multipliers of MobileNetV1 with similar MAdds
ALL, ONE = GateSpec(attention="sigmoid"), GateSpec(blocks="choose")


class Form(NamedTuple):
    activation: Activation
    gate: GateSpec
    active: bool = True  # behind depthwise convolutions


FORMS = {
    "SiLU, all gates": Form("silu", ALL),
    "SiLU, one gate": Form("silu", ONE),
    "SiLU, one gate, linear depthwise": Form("silu", ONE, active=False),
    "hard-swish, all gates": Form("hardswish", ALL),
    "hard-swish, one gate": Form("hardswish", ONE),
    "hard-swish, one gate, linear depthwise": Form("hardswish", ONE, active=False),
    "ReLU, all gates": Form("relu", ALL),
    "ReLU, one gate": Form("relu", ONE),
    "ReLU, one gate, linear depthwise": Form("relu", ONE, active=False),
}
SHORT = {"silu": "silu", "hardswish": "hswish", "relu": "relu"}
PRECISIONS = ("fp32", "int8")
PLAINLY = "plain MobileNetV1"


def form(label: str, model: str, **options: Any) -> ModelSpec:
    activation, gate, active = FORMS[label]
    spec = model_spec(model)
    stages = spec.stages
    if gate is ONE:  # the hidden sizes of the released network belong to its many gates
        stages = tuple(replace(stage, hidden=None) for stage in stages)
    return replace(spec, stages=stages, activation=activation, depthwise_activation=active, gate=gate, **options)


def small_name(label: str) -> str:
    """The name of the small DS-MBNet in a form, such as clock_hswish_one."""
    activation, gate, active = FORMS[label]
    return f"clock_{SHORT[activation]}_{'one' if gate is ONE else 'all'}{'' if active else '_linear'}"


def register_small(label: str) -> None:
    def entry() -> ModelSpec:
        return form(label, "ds_mobilenet_v1_tiny", name=small_name(label))

    entry.__name__, entry.__doc__ = small_name(label), f"The small DS-MBNet: {label}."
    register(entry)


for each in FORMS:
    register_small(each)


def timed(repeats: int) -> list[dict[str, Any]]:
    """CPU milliseconds of every form, precision and width, medians over rounds in random order."""
    images = torch.randn(4, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    feed = {IMAGE: images[:1].numpy()}
    calls: dict[tuple[str, str, int], Call] = {}
    madds: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory() as folder:
        for label in FORMS:
            torch.manual_seed(0)
            net = Supernet(form(label, "ds_mobilenet_v1", router=RouterSpec())).eval()
            for precision, int8 in zip(PRECISIONS, (None, quantisation(net, images)), strict=True):
                runner = FileRunner(export_onnx(net, Path(folder) / "model.onnx", int8=int8), threads=1)
                for width in WIDTHS:
                    pinned = {**feed, **knobs(runner.manifest, Policy(), (width,))}
                    calls[label, precision, width] = partial(runner.session.run, None, pinned)
                    madds[label, width] = runner.manifest.table.madds((width,))
        for width, times in PLAIN.items():
            net = create_model("mobilenet_v1", width=times).eval()
            for precision, int8 in zip(PRECISIONS, (None, quantisation(net, images)), strict=True):
                session = open_session(export_onnx(net, Path(folder) / "plain.onnx", path=(), int8=int8), 1)
                calls[PLAINLY, precision, width] = partial(session.run, None, feed)
            madds[PLAINLY, width] = net.manifest().table.madds(())
        spent = in_turns(calls, repeats)
    ms = {key: float(np.median(found)) for key, found in spent.items()}
    return [
        {
            "network": label,
            "precision": precision,
            "width": width,
            "madds": madds[label, width],
            "ms": ms[label, precision, width],
            "to_first": ms[label, precision, width] / ms[next(iter(FORMS)), precision, width],
            "times_plain": ms[label, precision, width]
            / ms[PLAINLY, precision, width]
            * madds[PLAINLY, width]
            / madds[label, width],
        }
        for label, precision, width in calls
    ]


def right_of(run: Path) -> np.ndarray:
    """Which test images every width gets right [widths, images], computed once."""
    folder, kept = RunFolder.of(run), run / "results" / "right.npy"
    if kept.exists():
        return np.load(kept)
    net, (config, data) = folder.load().float(), folder.opened()
    runner, images = eager(net), images_of(folder.task, data, "test", config)
    paths = list(runner.manifest.space.uniform)
    scorer = folder.task.scorer(runner.manifest, {})
    traces = Traces(runner, images.batches(), scorer, paths=paths, load=images.load)
    right = np.stack([traces.right(path) for path in paths])
    np.save(kept, right)
    return right


def trained(root: str, forms: list[str], seeds: list[int], epochs: int, runs: Path) -> dict[str, Any]:
    """Top-1 of every width of the small networks, and the difference with its 95 % interval over images and seeds."""
    right: dict[str, list[np.ndarray]] = {label: [] for label in forms}
    for seed in seeds:
        for label, name in zip(forms, map(small_name, forms), strict=True):
            out = runs / f"{name}-{seed}"
            if not (out / "results" / "test.json").exists():
                done = ["--resume", str(out)] if (out / "state").exists() else ["--out", str(out)]
                options = {
                    "config": "cifar10_ds_mobilenet_v1_tiny",
                    "data.root": root,
                    "model.name": name,
                    "seed": seed,
                }
                options |= {"stage": "supernet", "optim.epochs": epochs}
                flags = [part for key, value in options.items() for part in (f"--{key}", str(value))]
                dsnet(["train", *(done if done[0] == "--resume" else [*flags, *done])])
            right[label].append(right_of(out))
    first, *others = (np.stack(mine) for mine in right.values())  # [seeds, widths, images]
    differences = {
        label: 100.0 * (theirs.astype(float) - first) for label, theirs in zip(forms[1:], others, strict=True)
    }
    return {
        "seeds": seeds,
        "epochs": epochs,
        "top1": {label: (100 * np.stack(mine).mean(2)).tolist() for label, mine in right.items()},  # by seed and width
        "differences": {
            label: {
                "widths": each.mean((0, 2)).tolist(),
                "seeds": each.mean((1, 2)).tolist(),
                "all": plain(of_samples(float(each.mean()), resampled_means(each.mean((0, 1)), DRAWS)[1:])),
            }
            for label, each in differences.items()
        },
    }


def joined(before: dict[str, Any] | None, found: dict[str, Any]) -> dict[str, Any]:
    """The accuracies, with those of other forms that were trained before, if the first form came out the same."""
    first = next(iter(found["top1"]))
    if before is None or any(before[key] != found[key] for key in ("seeds", "epochs")):
        return found
    if before["top1"].get(first) != found["top1"][first]:
        return found
    both = {key: {**before[key], **found[key]} for key in ("top1", "differences")}
    return {**found, **{key: {label: rows[label] for label in FORMS if label in rows} for key, rows in both.items()}}


def time_lines(rows: list[dict[str, Any]]) -> list[str]:
    found = {(row["network"], row["width"], row["precision"]): row for row in rows}
    labels = dict.fromkeys((row["network"], row["width"]) for row in rows)
    columns = ["<network", "width", "MAdds"]
    for precision in ("fp32", "INT8"):
        columns += [f"{precision}, CPU ms", f"to {next(iter(FORMS))}", "per MAdd, to plain MobileNetV1"]
    cells = []
    for label, width in labels:
        both = [found[label, width, precision] for precision in PRECISIONS]
        figures = [f"{row[key]:.2f}" for row in both for key in ("ms", "to_first", "times_plain")]
        cells.append([label, str(width), f"{both[0]['madds'] / 1e6:.0f}M", *figures])
    title = "## Milliseconds at 224 px, one image, one thread, ONNX Runtime"
    about = "The DS-MBNets are paths of dynamic files. The plain networks are static files."
    return [title, "", *markdown_table(columns, cells), "", about, ""]


def accuracy_lines(found: dict[str, Any]) -> list[str]:
    widths = range(len(np.mean(next(iter(found["top1"].values())), 0)))
    cells = [[label, *(f"{value:.2f}" for value in np.mean(mine, 0)), ""] for label, mine in found["top1"].items()]
    for label, each in found["differences"].items():
        low, high = each["all"]["low"][0], each["all"]["high"][0]
        whole = f"{each['all']['mean']:+.2f} ({low:+.2f} to {high:+.2f})"
        cells.append([f"{label}, difference", *(f"{value:+.2f}" for value in each["widths"]), whole])
    columns = ["<network", *(f"width {width}" for width in widths), "all widths"]
    return [
        "## Top-1 of the small DS-MBNet on CIFAR-10",
        "",
        *markdown_table(columns, cells),
        "",
        f"{found['epochs']} epochs of stage I, means over seeds {', '.join(map(str, found['seeds']))}. "
        f"In brackets the 95 % interval over images.",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--root")
    parser.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS), metavar="FORM")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--runs", type=Path, default=Path("runs/clock"))
    parser.add_argument("--export")
    args = parser.parse_args()
    prefix = Path(args.export or "clock")
    results: dict[str, Any] = {}
    if args.export and prefix.with_suffix(".json").exists():
        before = json.loads(prefix.with_suffix(".json").read_text())
        results = {key: before[key] for key in ("times", "accuracy") if key in before}
    if args.repeats:
        results["times"] = timed(args.repeats)
    lines = ["# What a network meant for a clock looks like", ""]
    if "times" in results:
        lines += time_lines(results["times"])
    if args.root is not None:
        found = trained(args.root, args.forms, args.seeds, args.epochs, args.runs)
        results["accuracy"] = joined(results.get("accuracy"), found)
    if "accuracy" in results:
        lines += accuracy_lines(results["accuracy"])
    about = machine()
    lines += [
        "CPU time of the calling thread, medians; all networks took turns. Made by `python benchmarks/clock.py` with",
        f"dsnet {about.dsnet}, torch {about.torch}, onnxruntime {about.onnxruntime} on {about.machine}.",
    ]
    print("\n".join(lines))
    if args.export:
        prefix.with_suffix(".json").write_text(json.dumps({**plain(about), **results}, indent=1) + "\n")
        prefix.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
