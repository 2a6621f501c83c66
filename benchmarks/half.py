"""What half precision gains on a CPU: fp16 and bf16 in ONNX Runtime and OpenVINO, next to fp32 and INT8.

    python benchmarks/half.py [--model ds_mobilenet_v1] [--repeats 30] [--run RUN] [--export docs/results/half]
    python benchmarks/half.py --keep times --run RUN --export docs/results/half

Times the slimmest and the widest path as static files, with one image on one thread:

    fp16 weights    weights are stored in fp16, and the runtime makes floats of them when it opens the file
    fp16            all of the network is in fp16
    bf16            OpenVINO computes the file of floats in bfloat16 (INFERENCE_PRECISION_HINT)

The candidates take turns, and times are processor times. --run, a trained run of classification, adds the share of its
test images whose path and whose class are those of the file of floats, and the MAdds that they spend in relation to
it, at several of its budgets. --keep times takes the times from PREFIX.json, and --keep agreement the other part.
Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from turns import kept, processor_seconds, write_page

from dsnet import export_onnx, quantisation
from dsnet.latency.timing import Call, interleaved, machine, summary
from dsnet.models import Supernet, model_spec
from dsnet.report.tables import markdown_table
from dsnet.routing.parts import Routed
from dsnet.runs.folder import RunFolder
from dsnet.runtime import openvino
from dsnet.runtime.engine import ONNX_RUNTIME, Engine
from dsnet.runtime.onnx import IMAGE, FileRunner
from dsnet.runtime.seal import sealed
from dsnet.schema import plain
from dsnet.space import path_name
from dsnet.tasks import images_of

BUDGETS = 3  # at which images are compared
LARGE = 256  # numbers of a tensor that is worth storing in fp16


def with_half_weights(file: Path, out: Path) -> Path:
    """The file with its large weights in fp16 and a cast to floats behind each of them."""
    proto = onnx.load(file)
    graph, casts = proto.graph, []
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT and np.prod(tensor.dims) >= LARGE:
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), f"{name}.half"))
            casts.append(helper.make_node("Cast", [f"{name}.half"], [name], to=TensorProto.FLOAT))
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    out.write_bytes(sealed(proto.SerializeToString()))
    return out


def in_half(file: Path, out: Path) -> Path:
    """A static file whose every number is in fp16, between a cast of its input and one of its output."""
    proto = onnx.load(file)
    graph = proto.graph
    for tensor in graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name))
    (answer,) = (slot.name for slot in graph.output)
    names = {IMAGE: "image.half", answer: "answer.half"}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    nodes = [
        helper.make_node("Cast", [IMAGE], ["image.half"], to=TensorProto.FLOAT16),
        *graph.node,
        helper.make_node("Cast", ["answer.half"], [answer], to=TensorProto.FLOAT),
    ]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(proto, out)
    return out


def engines() -> dict[str, Engine]:
    return {
        "ONNX Runtime": ONNX_RUNTIME,
        "OpenVINO": openvino.engine(),
        "OpenVINO bf16": openvino.engine(openvino.HALF),
    }


def timed(name: str, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """Processor milliseconds of every file in every engine, for the slimmest and the widest path."""
    torch.manual_seed(0)
    net = Supernet(model_spec(name)).eval()
    x, rows = torch.randn(4, net.spec.in_channels, net.spec.image_size, net.spec.image_size), []
    for path in (net.space.slimmest, net.space.widest):
        floats = export_onnx(net, folder / "fp32.onnx", path=path)
        files = {
            "fp32": floats,
            "fp16 weights": with_half_weights(floats, folder / "weights.onnx"),
            "fp16": in_half(floats, folder / "fp16.onnx"),
            "INT8": export_onnx(net, folder / "int8.onnx", path=path, int8=quantisation(net, x)),
        }
        calls: dict[tuple[str, str], Call] = {}
        for kind, file in files.items():
            for label, engine in engines().items():
                if label != "OpenVINO bf16" or kind == "fp32":
                    calls[kind, label] = partial(engine.open(file, 1).run, None, {IMAGE: x[:1].numpy()})
        times = interleaved(calls, repeats, clock=processor_seconds)
        base = summary(times["fp32", "ONNX Runtime"]).p50
        rows += [
            {
                "path": path,
                "file": kind,
                "engine": label,
                "bytes": files[kind].stat().st_size,
                "ms": summary(found).p50,
                "to_fp32": summary(found).p50 / base,
            }
            for (kind, label), found in times.items()
        ]
    return rows


def agreement(run: Path, count: int, folder: Path) -> list[dict[str, Any]]:
    """How much test images differ from the file of floats in ONNX Runtime at several budgets: shares of equal paths and
    of equal classes, and MAdds."""
    held = RunFolder.of(run)
    net, (config, data) = held.load().float(), held.opened()
    images = images_of(held.task, data, "test", config)
    x = torch.cat([batch.images for batch, _ in zip(images.batches(), range(-(-count // 100)), strict=False)])[:count]
    floats = export_onnx(net, folder / "model.onnx")
    half = with_half_weights(floats, folder / "half.onnx")
    kinds: dict[str, Callable[[], FileRunner]] = {
        "fp32, ONNX Runtime": lambda: FileRunner(floats, threads=1),
        "fp16 weights, ONNX Runtime": lambda: FileRunner(half, threads=1),
        "fp32, OpenVINO": lambda: FileRunner(floats, threads=1, engine=openvino.engine()),
        "fp32, OpenVINO bf16": lambda: FileRunner(floats, threads=1, engine=openvino.engine(openvino.HALF)),
    }
    known = net.manifest().router.budgets
    budgets = [known[round(place * (len(known) - 1) / (BUDGETS + 1))].madds for place in range(1, BUDGETS + 1)]
    rows: list[dict[str, Any]] = []
    first: list[Routed] = []
    for label, opened in kinds.items():
        runner = opened()
        found = [runner(x, budget=madds) for madds in budgets]
        first = first or found
        pairs = list(zip(found, first, strict=True))
        row: dict[str, Any] = {"file": label, "run": run.name, "images": len(x), "budgets": budgets}
        row["path"] = np.mean([(a.paths == b.paths).all(1).numpy().mean() for a, b in pairs])
        row["class"] = np.mean([(a.logits.argmax(1) == b.logits.argmax(1)).numpy().mean() for a, b in pairs])
        row["madds"] = [int(a.madds.sum()) / int(b.madds.sum()) for a, b in pairs]
        rows.append({**row, "bytes": (half if "fp16" in label else floats).stat().st_size})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ds_mobilenet_v1")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--keep", choices=("times", "agreement"))
    parser.add_argument("--export")
    args = parser.parse_args()
    before = kept(args.export) if args.keep else {}
    with tempfile.TemporaryDirectory() as place:
        about = {**plain(machine()), "openvino": openvino.engine().name, "model": args.model, "repeats": args.repeats}
        results = before
        if args.keep != "times":
            results = before | about | {"times": timed(args.model, args.repeats, Path(place))}
        if args.run is not None:
            results["agreement"] = agreement(args.run, args.images, Path(place))
    columns = ["<path", "<file", "<engine", "MB", "CPU ms", "to fp32 in ONNX Runtime"]
    cells = [
        [
            path_name(row["path"]),
            row["file"],
            row["engine"],
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['ms']:.2f}",
            f"{row['to_fp32']:.2f}",
        ]
        for row in results["times"]
    ]
    model, repeats = (results.get(name, getattr(args, name)) for name in ("model", "repeats"))
    lines = [f"# Half precision on a CPU: {model}, one image, one thread", "", *markdown_table(columns, cells), ""]
    if rows := results.get("agreement"):
        cells = [
            [
                row["file"],
                f"{row['bytes'] / 1e6:.2f}",
                f"{row['path']:.2%}",
                f"{row['class']:.2%}",
                f"{min(row['madds']):.3f} to {max(row['madds']):.3f}",
            ]
            for row in rows
        ]
        lines += [f"{rows[0]['images']} test images of a trained run at {len(rows[0]['budgets'])} of its budgets.", ""]
        columns = ["<file", "MB", "same path", "same class", "MAdds spent, to fp32 in ONNX Runtime"]
        lines += [*markdown_table(columns, cells), ""]
    lines += [
        f"Processor time, medians. Made by `python benchmarks/half.py --repeats {repeats} --run RUN` with",
        f"dsnet {results['dsnet']}, onnxruntime {results['onnxruntime']}, "
        f"{results.get('openvino', openvino.engine().name)} on {results['machine']};",
        "every figure is in half.json.",
    ]
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), results, lines)


if __name__ == "__main__":
    main()
