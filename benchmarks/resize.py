"""Latency and multiply-adds of ways to make an image smaller in ONNX Runtime, relative to two matrix products.

    python benchmarks/resize.py [--repeats 100] [--networks 40] [--export docs/results/resize]

One image in three colours per call, one thread, the candidates in turns: first the resizing alone, then whole networks
with matrix products and with what dsnet does. All forms compute the same. Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from onnx import helper
from turns import write_page

import dsnet
from dsnet.export.layers import resized
from dsnet.export.whole import finish
from dsnet.export.writer import FLOAT, Graph, Model
from dsnet.latency.timing import interleaved, machine, ratio
from dsnet.nn.resize import Blocks, Dense, Resize, blocks, resizing
from dsnet.report.tables import markdown_table
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE

SIDES = {32: (16, 24), 112: (48, 64, 80, 96), 224: (96, 128, 160, 192)}
NETWORKS = {
    "ds_mobilenet_v1_tiny": ((16, 24, 32), (0, 5)),
    "ds_mobilenet_v1": ((48, 64, 80, 96, 112), (13,)),
}
COLOURS = 3
PRODUCTS, OURS, SQUARE, GATHERED = "products", "ours", "one convolution", "products of blocks"
Form = Callable[[Graph, str, int, int], str]


def layer_of(source: int, target: int, *, dense: bool = False) -> Resize:
    layer = Resize((target, source), COLOURS)
    if dense:
        layer.ways[0] = Dense(resizing(source, target))
    return layer


def found_blocks(source: int, target: int) -> Blocks:
    found = blocks(source, target)
    assert found is not None, f"{target} of {source} px has no blocks"
    return found


def square(graph: Graph, x: str, source: int, target: int) -> str:
    """One convolution for both sides, whose channels are the pixels of a square block."""
    step, reach, taps, cut = found_blocks(source, target)
    both = np.einsum("ai,bj->abij", taps, taps).reshape(-1, 1, *taps.shape[1:] * 2)
    weights = graph.constant(np.tile(both, (COLOURS, 1, 1, 1)), np.float32)
    x = graph.op("Conv", x, weights, strides=[step] * 2, pads=[reach] * 4, group=COLOURS)
    x = graph.op("DepthToSpace", x, blocksize=len(taps), mode="CRD")
    return graph.op("Mul", x, graph.constant(1 / np.outer(cut, cut), np.float32))


def gathered(graph: Graph, x: str, source: int, target: int) -> str:
    """For each side, the pixels that the blocks read are copied; a batch of small products follows."""
    step, reach, taps, _ = found_blocks(source, target)
    places = np.arange(source // step)[:, None] * step + np.arange(-reach, step + reach)
    read, within = places.clip(0, source - 1), (places >= 0) & (places < source)
    rows = resizing(source, target).reshape(len(places), len(taps), source)
    weights = np.take_along_axis(rows, read[:, None], 2) * within[:, None]
    for across in (source, target):
        x = graph.op("Gather", x, graph.constant(read), axis=2)
        x = graph.op("MatMul", graph.constant(weights, np.float32), x)
        x = graph.op("Reshape", x, graph.constant([1, COLOURS, target, across]))
        x = graph.op("Transpose", x, perm=[0, 1, 3, 2])
    return x


FORMS: dict[str, Form] = {
    PRODUCTS: lambda graph, x, source, target: resized(graph, layer_of(source, target, dense=True), x, 0),
    OURS: lambda graph, x, source, target: resized(graph, layer_of(source, target), x, 0),
    SQUARE: square,
    GATHERED: gathered,
}


def session_of(form: Form, source: int, target: int, file: Path) -> Any:
    graph = Graph(Model(shared=False))
    y = graph.op("Identity", form(graph, IMAGE, source, target))
    image = helper.make_tensor_value_info(IMAGE, FLOAT, [1, COLOURS, source, source])
    output = helper.make_tensor_value_info(y, FLOAT, [1, COLOURS, target, target])
    file.write_bytes(finish(graph, "resize", [image], [output]).SerializeToString())
    return open_session(file, 1)


def alone(source: int, target: int, folder: Path, repeats: int) -> dict[str, Any]:
    """The resizing without a network."""
    image = {IMAGE: np.random.default_rng(0).normal(size=(1, COLOURS, source, source)).astype(np.float32)}
    sessions = {name: session_of(form, source, target, folder / "resize.onnx") for name, form in FORMS.items()}
    expected = sessions[PRODUCTS].run(None, image)[0]
    for name, session in sessions.items():
        assert np.abs(session.run(None, image)[0] - expected).max() < 1e-4, f"{name} computes something else"
    times = interleaved({name: partial(each.run, None, image) for name, each in sessions.items()}, repeats)
    shape = 1, COLOURS, source, source
    madds = {name: layer_of(source, target, dense=name == PRODUCTS).madds(shape, 0) for name in (PRODUCTS, OURS)}
    return {
        "source": source,
        "target": target,
        "madds": madds,
        "microseconds": 1e6 * float(np.median(times[PRODUCTS])),
        "ratios": {name: ratio(found, times[PRODUCTS]) for name, found in times.items() if name != PRODUCTS},
    }


def inside(name: str, folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Whole networks: static files of each size, with matrix products and with what dsnet does."""
    sizes, widths = NETWORKS[name]
    torch.manual_seed(0)
    nets: dict[str, Any] = {}
    for form in (PRODUCTS, OURS):
        nets[form] = dsnet.create_model(name, num_classes=100, sizes=sizes).eval()
    nets[PRODUCTS].load_state_dict(nets[OURS].state_dict())
    for number, size in enumerate(sizes[:-1]):
        nets[PRODUCTS].resize.ways[number] = Dense(resizing(sizes[-1], size))
    x, rows = torch.randn(1, COLOURS, sizes[-1], sizes[-1]), []
    for number, size in enumerate(sizes[:-1]):
        for width in widths:
            calls: dict[str, Any] = {}
            for form in (PRODUCTS, OURS, f"{PRODUCTS} again"):
                net = nets.get(form, nets[PRODUCTS])
                file = dsnet.export_onnx(net, folder / "net.onnx", path=(number, width))
                calls[form] = partial(open_session(file, 1).run, ["logits"], {IMAGE: x.numpy()})
            times = interleaved(calls, repeats)
            table, image = dsnet.count(nets[OURS]), tuple(x.shape)
            ours, dense = (nets[form].resize.madds(image, number) for form in (OURS, PRODUCTS))
            whole = table.madds((number, width))
            rows.append({
                "model": name, "setting": f"{size}px:{width} of {sizes[-1]}px",
                "shares": {PRODUCTS: dense / (whole - ours + dense), OURS: ours / whole},
                "microseconds": 1e6 * float(np.median(times[PRODUCTS])),
                "ratios": {form: ratio(found, times[PRODUCTS]) for form, found in times.items() if form != PRODUCTS},
            })  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--networks", type=int, default=40, help="repeats for whole networks")
    parser.add_argument("--export", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = [alone(source, size, Path(folder), args.repeats) for source, sizes in SIDES.items() for size in sizes]
        networks = [row for name in NETWORKS for row in inside(name, Path(folder), args.networks)]
    others, about = [OURS, SQUARE, GATHERED], machine()
    lines = [
        "# Making an image smaller",
        "",
        *markdown_table(
            ["<from", "to", "MAdds, products", "MAdds, ours", "µs, products", *others],
            [
                [f"{row['source']} px", f"{row['target']} px", f"{row['madds'][PRODUCTS]:,}", f"{row['madds'][OURS]:,}",
                 f"{row['microseconds']:.0f}", *(f"{row['ratios'][form]:.2f}" for form in others)]
                for row in pairs
            ],
        ),
        "",
        "The last columns are times as shares of that of two products with whole matrices. Ours: a strided convolution",
        "for each side. One convolution does both sides. Products of blocks copy the pixels that each block reads.",
        "",
        *markdown_table(
            ["<model", "<setting", "share of MAdds, products", "ours", "µs, products", "ours", "A/A"],
            [
                [row["model"], row["setting"], *(f"{row['shares'][form]:.1%}" for form in (PRODUCTS, OURS)),
                 f"{row['microseconds']:.0f}", *(f"{found:.3f}" for found in row["ratios"].values())]
                for row in networks
            ],
        ),
        "",
        "Static files of a setting that resize the image themselves. The shares are those of the resizing in the",
        "MAdds of the setting; times are shares of that with matrix products.",
        "",
        f"Made by `python benchmarks/resize.py --repeats {args.repeats} --networks {args.networks}` with dsnet",
        f"{about.dsnet}, onnxruntime {about.onnxruntime} on {about.machine}: one image per call, one thread,",
        "candidates in turns; ratios are medians of the rounds.",
    ]  # fmt: skip
    print("\n".join(lines))
    if args.export is not None:
        write_page(args.export, {"repeats": args.repeats, "pairs": pairs, "networks": networks}, lines)


if __name__ == "__main__":
    main()
