"""What a network meant for a clock looks like: DS-MBNet with SiLU and many gates, with ReLU, and with one gate.

    python benchmarks/clock.py [--repeats 60] [--root data --seeds 0 1 --epochs 6] [--export docs/results/clock]

Times the slimmest, middle and widest path of ds_mobilenet_v1 and of its variants at 224 pixels, as static ONNX files
with one image on one thread, beside a plain MobileNetV1 of similar MAdds. All of them take turns. Times are CPU times
of the calling thread, because the clock also counts what other programs do.

With --root, the folder of cifar-10-batches-bin, it also trains the small DS-MBNet on CIFAR-10 in these forms, and
compares every width on the test images with that of the first form, paired by image. Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dsnet.cli import main as dsnet
from dsnet.export.dynamic import export_onnx
from dsnet.latency.timing import Call, machine
from dsnet.models import Supernet, create_model, eager, model_spec, register
from dsnet.models.spec import ModelSpec
from dsnet.nn import GateSpec
from dsnet.paired import of_samples, resampled_means
from dsnet.report.tables import markdown_table
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE
from dsnet.schema import plain
from dsnet.tasks import images_of

DRAWS = 1000
WIDTHS = (0, 7, 13)
PLAIN = {0: 0.5, 7: 0.75, 13: 1.0}  # width multipliers of MobileNetV1 with similar MAdds
VARIANTS = {
    "SiLU, all gates": model_spec("ds_mobilenet_v1"),
    "ReLU, all gates": replace(model_spec("ds_mobilenet_v1"), activation="relu"),
    "ReLU, one gate": model_spec("ds_mobilenet_v1_relu"),
}


def small(name: str, activation: Literal["silu", "relu"], gate: GateSpec) -> ModelSpec:
    return replace(model_spec("ds_mobilenet_v1_tiny"), name=name, activation=activation, gate=gate)


@register
def clock_silu_all() -> ModelSpec:
    """The small DS-MBNet with the activations and gates of the released network."""
    return small("clock_silu_all", "silu", GateSpec(attention="sigmoid"))


@register
def clock_relu_all() -> ModelSpec:
    """The small DS-MBNet with ReLU and the gates of the released network."""
    return small("clock_relu_all", "relu", GateSpec(attention="sigmoid"))


@register
def clock_relu_one() -> ModelSpec:
    """The small DS-MBNet with ReLU and one gate."""
    return small("clock_relu_one", "relu", GateSpec(blocks="choose"))


SMALL = {
    "SiLU, all gates": "clock_silu_all",
    "ReLU, all gates": "clock_relu_all",
    "ReLU, one gate": "clock_relu_one",
}


def timed(repeats: int) -> list[dict[str, Any]]:
    """CPU milliseconds of every variant and width, medians over rounds in random order."""
    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype(np.float32)
    calls: dict[tuple[str, int], Call] = {}
    madds: dict[tuple[str, int], int] = {}
    with tempfile.TemporaryDirectory() as folder:

        def add(key: tuple[str, int], net: Supernet, path: tuple[int, ...]) -> None:
            session = open_session(export_onnx(net, Path(folder) / f"{len(calls)}.onnx", path=path), 1)
            calls[key] = lambda: session.run(None, {IMAGE: x})
            madds[key] = net.manifest().table.madds(path)

        for label, spec in VARIANTS.items():
            torch.manual_seed(0)
            net = Supernet(spec).eval()
            for width in WIDTHS:
                add((label, width), net, (width,))
        for width, times in PLAIN.items():
            add(("plain MobileNetV1", width), create_model("mobilenet_v1", width=times).eval(), ())
        spent: dict[tuple[str, int], list[float]] = {key: [] for key in calls}
        order, rng = list(calls), random.Random(0)
        for _ in range(repeats):
            rng.shuffle(order)
            for key in order:
                calls[key]()  # brings the weights into the cache
                start = time.thread_time()
                calls[key]()
                spent[key].append(1e3 * (time.thread_time() - start))
    per_madd = {key: float(np.median(found)) / madds[key] for key, found in spent.items()}
    return [
        {
            "network": label,
            "width": width,
            "madds": madds[label, width],
            "ms": float(np.median(spent[label, width])),
            "times_plain": per_madd[label, width] / per_madd["plain MobileNetV1", width],
        }
        for label, width in calls
    ]


def right_of(run: Path) -> np.ndarray:
    """Which test images every width gets right [widths, images]."""
    folder = RunFolder.of(run)
    net, (config, data) = folder.load().float(), folder.opened()
    runner, images = eager(net), images_of(folder.task, data, "test", config)
    paths = list(runner.manifest.space.uniform)
    scorer = folder.task.scorer(runner.manifest, {})
    traces = Traces(runner, images.batches(), scorer, paths=paths, load=images.load)
    return np.stack([traces.right(path) for path in paths])


def trained(root: str, seeds: list[int], epochs: int, runs: Path) -> dict[str, Any]:
    """Top-1 of every width of both small networks, and the difference with its 95 % interval over images and seeds."""
    right: dict[str, list[np.ndarray]] = {label: [] for label in SMALL}
    for seed in seeds:
        for label, name in SMALL.items():
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
        label: 100.0 * (theirs.astype(float) - first) for label, theirs in zip(list(SMALL)[1:], others, strict=True)
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


def time_lines(rows: list[dict[str, Any]]) -> list[str]:
    columns = ["<network", "width", "MAdds", "CPU ms", "time per MAdd, plain MobileNetV1 = 1"]
    cells = [
        [
            row["network"],
            str(row["width"]),
            f"{row['madds'] / 1e6:.0f}M",
            f"{row['ms']:.2f}",
            f"{row['times_plain']:.2f}",
        ]
        for row in rows
    ]
    return ["## Milliseconds at 224 px, one image, one thread, ONNX Runtime", "", *markdown_table(columns, cells), ""]


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
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--runs", type=Path, default=Path("runs/clock"))
    parser.add_argument("--export")
    args = parser.parse_args()
    results: dict[str, Any] = {"times": timed(args.repeats)}
    lines = ["# What a network meant for a clock looks like", "", *time_lines(results["times"])]
    if args.root is not None:
        results["accuracy"] = trained(args.root, args.seeds, args.epochs, args.runs)
        lines += accuracy_lines(results["accuracy"])
    about = machine()
    lines += [
        "CPU time of the calling thread, medians; all networks took turns. Made by `python benchmarks/clock.py` with",
        f"dsnet {about.dsnet}, torch {about.torch}, onnxruntime {about.onnxruntime} on {about.machine}.",
    ]
    print("\n".join(lines))
    if args.export:
        prefix = Path(args.export)
        prefix.with_suffix(".json").write_text(json.dumps({**plain(about), **results}, indent=1) + "\n")
        prefix.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
