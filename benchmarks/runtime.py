"""Latency of dynamic inference, next to static networks of the same width.

    python benchmarks/runtime.py [--repeats 120] [--export docs/results/runtime]

Measures ds_mobilenet_v1 and ds_resnet50 at 224 pixels, with one image on one thread. Then measures batches of 32 images
with evenly spread widths in ONNX Runtime on two threads: grouped by width with the bundle, the same with small groups
rounded up, one by one with the dynamic file, and masked (every image runs the widest network, and channels beyond its
width are zeroed). The candidates of each comparison are interleaved. Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from turns import write_page

from dsnet.bench.candidates import Artefacts, forced_call
from dsnet.bench.timing import interleaved
from dsnet.bench.widths import bench
from dsnet.latency.files import BenchConfig
from dsnet.latency.timing import Call, machine, ratio, summary
from dsnet.manifest import Policy
from dsnet.models import Supernet, model_spec
from dsnet.nn import RouterSpec
from dsnet.report.bench import width_tables
from dsnet.report.tables import markdown_table
from dsnet.runtime.bundle import open_bundle
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import FileRunner, knobs
from dsnet.schema import plain
from dsnet.space import WidthPath

IMAGE = "image"
SHOWN = ("one by one", "rounded up", "masked")  # ways to run a batch, next to grouping it by width


def network(name: str) -> Supernet:
    """A network with fresh weights, because the time does not depend on them."""
    torch.manual_seed(0)
    return Supernet(replace(model_spec(name), router=RouterSpec())).eval()


class Masked(nn.Module):
    """Runs all images at the widest path, with the channels beyond the width of each image multiplied by zero."""

    def __init__(self, net: Supernet) -> None:
        super().__init__()
        self.net = net

    def forward(self, image: Tensor, mixes: Tensor) -> Tensor:
        return self.net.forward_mixed(image, lambda point, scores: mixes)[0]


def masked_session(net: Supernet, x: Tensor, paths: Sequence[WidthPath], folder: Path, threads: int) -> Call:
    """The masked network, exported with torch's own exporter. Only for networks with one choice point."""
    mixes = torch.zeros(len(x), len(net.spec.routing[0]))
    for row, (width,) in enumerate(paths):
        mixes[row, net.spec.routing[0].index(width)] = 1
    file = folder / "masked.onnx"
    torch.onnx.export(Masked(net), (x, mixes), str(file), input_names=[IMAGE, "mixes"], dynamo=True, verbose=False)
    session = open_session(file, threads)
    return partial(session.run, None, {IMAGE: x.numpy(), "mixes": mixes.numpy()})


def batches(
    name: str, widths: Sequence[WidthPath], *, batch: int, threads: int, repeats: int, masked: bool
) -> dict[str, Any]:
    """Measure a batch whose images take these paths in equal shares."""
    net = network(name)
    size = net.spec.image_size
    x = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(0))
    paths = [widths[row * len(widths) // batch] for row in range(batch)]
    order = torch.randperm(batch, generator=torch.Generator().manual_seed(1)).tolist()
    paths = [paths[row] for row in order]
    with tempfile.TemporaryDirectory() as folder:
        artefacts = Artefacts(net, Path(folder), size)
        bundle = open_bundle(artefacts.bundle(), threads)
        single = FileRunner(artefacts.dynamic(), threads=threads)
        images = [image.numpy() for image in x.split(1)]

        def one_by_one() -> list[np.ndarray]:
            return [
                single.session.run(["logits"], {IMAGE: image, **knobs(single.manifest, Policy(), path)})[0]
                for image, path in zip(images, paths, strict=True)
            ]

        grouped = forced_call(bundle, x, paths)
        calls: dict[str, Call] = {"grouped": grouped, "grouped again": grouped, "one by one": one_by_one}
        calls["rounded up"] = forced_call(bundle, x, paths, round_up=True)
        if masked:
            calls["masked"] = masked_session(net, x, paths, Path(folder), threads)
        answers: dict[str, Any] = {
            key: np.concatenate(call()) if key == "one by one" else call() for key, call in calls.items()
        }
        expected = answers["grouped"].logits.numpy()
        for found in (answers["one by one"], *([answers["masked"][0]] if masked else [])):
            assert np.abs(found - expected).max() <= 1e-3 * expected.std(), "the ways do not compute the same"
        times = interleaved(calls, repeats, warmup=1)
        spent = {key: float(calls[key]().madds.double().mean()) for key in ("grouped", "rounded up")}
    base = summary(times["grouped"]).p50
    return {
        "model": name,
        "batch": batch,
        "threads": threads,
        "paths": len(set(paths)),
        "images_per_second": batch / base * 1e3,
        "madds_rounded_up": spent["rounded up"] / spent["grouped"],
        "ratios": {key: ratio(found, times["grouped"]) for key, found in times.items() if key != "grouped"},
        "times": {key: plain(summary(found)) for key, found in times.items()},
    }


def batch_cells(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    return [
        [
            row["model"],
            str(row["paths"]),
            str(row["batch"]),
            str(row["threads"]),
            f"{row['images_per_second']:.1f}",
            *(f"{row['ratios'][key]:.2f}x" if key in row["ratios"] else "" for key in SHOWN),
            f"{row['madds_rounded_up']:.2f}x",
            f"{row['ratios']['grouped again']:.3f}",
        ]
        for row in rows
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=120)
    parser.add_argument("--export", default=None)
    args = parser.parse_args()
    runtimes = ("eager", "runner", "onnx")
    mobile = BenchConfig(runtimes, paths=((0,), (7,), (13,)), repeats=args.repeats)
    mixed = ((0, 0, 0, 0), (1, 2, 0, 3), (3, 3, 3, 3))
    resnet = BenchConfig(("runner", "onnx"), paths=mixed, repeats=max(8, args.repeats // 3))
    results: dict[str, Any] = {"ds_mobilenet_v1": bench(network("ds_mobilenet_v1"), mobile)}
    results["ds_resnet50"] = bench(network("ds_resnet50"), resnet)
    few = max(4, args.repeats // 10)
    spread = [tuple(path) for path in torch.randint(4, (32, 4), generator=torch.Generator().manual_seed(0)).tolist()]
    corners: list[WidthPath] = [(k,) * 4 for k in range(4)]
    four: list[WidthPath] = [(0,), (4,), (9,), (13,)]
    results["batches"] = [
        batches("ds_mobilenet_v1", four, batch=32, threads=2, repeats=few, masked=True),
        batches("ds_mobilenet_v1", [(k,) for k in range(14)], batch=32, threads=2, repeats=few, masked=True),
        batches("ds_resnet50", corners, batch=32, threads=2, repeats=few // 2, masked=False),
        batches("ds_resnet50", spread, batch=32, threads=2, repeats=few // 2, masked=False),
    ]
    columns = ["<model", "paths", "batch", "threads", "images/s, grouped", *SHOWN, "MAdds if rounded up", "A/A"]
    lines = ["# What dynamic inference costs", ""]
    for name in ("ds_mobilenet_v1", "ds_resnet50"):
        found = results[name]
        (table,) = width_tables(found)
        lines += [
            f"## {name}, {found.image_size} px, one image, one thread",
            "",
            *markdown_table(table.columns, table.rows),
        ]
        lines += ["", table.note.replace("\n", "\n\n"), ""]
    lines += ["## Batches in ONNX Runtime: time relative to grouping by width", ""]
    lines += [*markdown_table(columns, batch_cells(results["batches"])), ""]
    about = machine()
    lines += [
        "One by one: the dynamic file, image after image. Rounded up: small groups run at a wider width where that is",
        "faster. Masked: every image runs the widest network, channels beyond its width are zeroed.",
        "",
        f"Made by `python benchmarks/runtime.py --repeats {args.repeats}` with dsnet {about.dsnet},",
        f"torch {about.torch}, onnxruntime {about.onnxruntime} on {about.machine}, candidates interleaved in",
        "random order, each call after an untimed one of the same candidate; every figure is in runtime.json.",
    ]
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), results, lines)


if __name__ == "__main__":
    main()
