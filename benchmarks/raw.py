"""Raw files against plain ones: do they see the same pixels, give the same answers, and what does preparing cost?

A run is exported plain and with --raw. For photographs that are decoded whole, the answers of both must agree; for
enlarged JPEGs they may differ, because dsnet decodes large JPEGs at a reduced scale for a plain file. Pixels are those
of the graph against Pillow's, for the photographs and for noise of random shapes. Times are processor times of
preparing noise in the graph and with Pillow, interleaved in rotating order. Ratios are of medians, and that of `Pillow
again` shows how noisy they are.

    python benchmarks/raw.py RUN data/imagenette data/caltech101 [--out docs/results/bench_raw.json]
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime
import PIL
import torch
from onnx import helper
from PIL import Image

import dsnet
from dsnet.export.raw import write_image
from dsnet.export.whole import finish
from dsnet.export.writer import FLOAT, Graph, Model
from dsnet.images import read_image
from dsnet.manifest import Manifest
from dsnet.pictures import as_batch, image_files
from dsnet.runtime.onnx import FileRunner

SHAPES = {"500 x 375": (375, 500), "1920 x 1080": (1080, 1920), "4000 x 3000": (3000, 4000)}
BUDGETS = 3
LARGE = 1280, 960  # pixels of the enlarged JPEGs


def sampled(folder: Path, count: int) -> list[Path]:
    files = image_files([folder])
    return files[:: max(1, len(files) // count)][:count]


def agreement(plain: FileRunner, raw: FileRunner, files: list[Path]) -> dict[str, Any]:
    """Shares of images whose class and path are the same, over several budgets."""
    router = plain.manifest.router
    assert router is not None
    budgets = [router.budgets[place].madds for place in np.linspace(0, len(router.budgets) - 1, BUDGETS).astype(int)]
    whole = [read_image(file) for file in files]
    found: dict[str, list[bool]] = {"decoded whole": [], "enlarged JPEGs": []}
    with tempfile.TemporaryDirectory() as folder:
        large = [Path(folder, f"{number}.jpg") for number in range(len(files))]
        for image, file in zip(whole, large, strict=True):
            image.resize(LARGE, Image.Resampling.BICUBIC).save(file, quality=90)
        given: dict[str, tuple[Any, Any]] = {"decoded whole": (whole, files), "enlarged JPEGs": (large, large)}
        for budget, (name, (pictures, same)) in product(budgets, given.items()):
            expected, answers = dsnet.predict(pictures, plain, budget=budget), dsnet.predict(same, raw, budget=budget)
            found[name] += [(a.label, a.path) == (b.label, b.path) for a, b in zip(expected, answers, strict=True)]
    shares = {name: round(float(np.mean(same)), 4) for name, same in found.items()}
    return {"images": len(files), "budgets": len(budgets), "same class and path": shares}


def preparing(manifest: Manifest) -> onnxruntime.InferenceSession:
    """A file that prepares a picture, and does no more."""
    graph, shape = Graph(Model(shared=False)), [1, manifest.in_channels, manifest.image_size, manifest.image_size]
    x, image = write_image(graph, manifest, 1)
    graph.nodes.append(helper.make_node("Identity", [x], ["x"]))
    proto = finish(graph, "prepare", [image], [helper.make_tensor_value_info("x", FLOAT, shape)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(proto.SerializeToString(), options)


def pixels(manifest: Manifest, pictures: list[np.ndarray]) -> dict[str, Any]:
    """The largest difference to Pillow in levels of 255, and the share of pixels that differ."""
    session, plain, off = preparing(manifest), replace(manifest, raw=False), []
    for picture in pictures:
        levels = np.abs(session.run(None, {"image": picture})[0] - as_batch(picture, plain)) * 255
        off.append((levels * np.reshape(manifest.preprocessing.std, (1, -1, 1, 1))).round(3).ravel())
    together = np.concatenate(off)
    return {"pictures": len(pictures), "largest": float(together.max()), "differ": float((together > 0).mean())}


def times(manifest: Manifest, picture: np.ndarray, repeats: int) -> dict[str, float]:
    session, plain = preparing(manifest), replace(manifest, raw=False)
    image = Image.fromarray(picture)
    calls: dict[str, Callable[[], object]] = {"Pillow": partial(as_batch, image, plain)}
    calls |= {"Pillow again": calls["Pillow"], "graph": partial(session.run, None, {"image": picture})}
    found: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for step in range(repeats + 1):
        for name in order:
            began = time.process_time()
            calls[name]()
            if step:  # the first round warms up
                found[name].append(time.process_time() - began)
        order.append(order.pop(0))
    typical = {name: 1000 * median(values) for name, values in found.items()}
    ratios = {f"{name} / Pillow": round(typical[name] / typical["Pillow"], 3) for name in ("Pillow again", "graph")}
    return {**{f"{name}, ms": round(typical[name], 2) for name in ("Pillow", "graph")}, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run with calibrated budgets")
    parser.add_argument("folders", type=Path, nargs="+", help="folders of photographs")
    parser.add_argument("--images", type=int, default=200, help="photographs of each folder")
    parser.add_argument("--repeats", type=int, default=25)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    net, rng = dsnet.load(args.run).float(), np.random.default_rng(0)
    noise = [rng.integers(0, 256, (*rng.integers(1, 600, 2), 3), np.uint8) for _ in range(args.images)]
    result: dict[str, Any] = {"onnxruntime": onnxruntime.__version__, "pillow": PIL.__version__}
    result |= {"machine": platform.machine()}
    with tempfile.TemporaryDirectory() as name:
        plain, raw = (
            FileRunner(dsnet.export_onnx(net, Path(name, f"{raw}.onnx"), raw=raw), threads=1) for raw in (False, True)
        )
        result |= {"model": raw.manifest.model, "image_size": raw.manifest.image_size}
        for folder in args.folders:
            files = sampled(folder, args.images)
            result[folder.name] = {
                **agreement(plain, raw, files),
                "pixels": pixels(raw.manifest, [np.asarray(read_image(file)) for file in files]),
            }
    for interpolation in ("nearest", "bilinear", "bicubic"):
        how = replace(raw.manifest.preprocessing, interpolation=interpolation)
        result[f"noise, {interpolation}"] = pixels(replace(raw.manifest, preprocessing=how), noise)
    for shape, (height, width) in SHAPES.items():
        picture = rng.integers(0, 256, (height, width, 3), np.uint8)
        sizes = {size: replace(raw.manifest, sizes=(size,)) for size in (32, 224)}
        result[shape] = {f"{size} px": times(manifest, picture, args.repeats) for size, manifest in sizes.items()}
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
