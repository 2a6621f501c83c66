"""Latency of ds_resnet50 with different ONNX forms of group norm, relative to the network without its norms.

    python benchmarks/group_norm.py [--repeats 12] [--export docs/results/bench_group_norm.json]

One image of 224 pixels on one thread, at the slimmest and the widest path, in ONNX Runtime and, if installed, OpenVINO.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsnet.bench.timing import interleaved
from dsnet.export import layers, whole
from dsnet.export.onnx import export_onnx
from dsnet.export.writer import Graph
from dsnet.latency.timing import machine
from dsnet.models import create_model
from dsnet.nn import SliceGroupNorm
from dsnet.nn.norm import EPS
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE
from dsnet.schema import plain

Form = Callable[[Graph, SliceGroupNorm, str, str, int], str]
OURS = "instance norm, batch norm as the affine"


def affine(graph: Graph, layer: SliceGroupNorm, name: str, y: str, shape: list[int]) -> str:
    scale, shift = (
        graph.op("Reshape", graph.weight(f"{name}.{part}", tensor, [shape[1]]), graph.constant(shape))
        for part, tensor in (("weight", layer.weight), ("bias", layer.bias))
    )
    return graph.op("Add", graph.op("Mul", y, scale), shift)


def grouped(graph: Graph, layer: SliceGroupNorm, x: str, count: int) -> str:
    return graph.op("Reshape", x, graph.constant([0, count // layer.group_size, -1]))


def instance_norm(graph: Graph, layer: SliceGroupNorm, name: str, x: str, count: int) -> str:
    groups = count // layer.group_size
    ones, zeros = (graph.constant(np.full(groups, value), np.float32) for value in (1.0, 0.0))
    rows = graph.op("InstanceNormalization", grouped(graph, layer, x, count), ones, zeros, epsilon=EPS)
    return affine(graph, layer, name, graph.op("Reshape", rows, graph.op("Shape", x)), [1, count, 1, 1])


def layer_norm(graph: Graph, layer: SliceGroupNorm, name: str, x: str, count: int) -> str:
    rows = grouped(graph, layer, x, count)
    length = graph.op("Gather", graph.op("Shape", rows), graph.constant([2]))
    ones = graph.op("Expand", graph.constant([1.0], np.float32), length)
    rows = graph.op("LayerNormalization", rows, ones, axis=-1, epsilon=EPS)
    return affine(graph, layer, name, graph.op("Reshape", rows, graph.op("Shape", x)), [1, count, 1, 1])


def moments(graph: Graph, layer: SliceGroupNorm, name: str, x: str, count: int) -> str:
    """Compute mean and mean square of every group, then one multiplication and one addition per pixel."""
    rows, axis = grouped(graph, layer, x, count), graph.constant([2])
    mean = graph.op("ReduceMean", rows, axis, keepdims=1)
    square = graph.op("ReduceMean", graph.op("Mul", rows, rows), axis, keepdims=1)
    variance = graph.op("Sub", square, graph.op("Mul", mean, mean))
    inverse = graph.op("Reciprocal", graph.op("Sqrt", graph.op("Add", variance, graph.constant(EPS, np.float32))))
    shape = graph.constant([1, count // layer.group_size, layer.group_size])
    weight, bias = (
        graph.op("Reshape", graph.weight(f"{name}.{part}", tensor, [count]), shape)
        for part, tensor in (("weight", layer.weight), ("bias", layer.bias))
    )
    scale = graph.op("Mul", inverse, weight)
    shift = graph.op("Sub", bias, graph.op("Mul", mean, scale))
    scale, shift = (graph.op("Reshape", part, graph.constant([0, count, 1, 1])) for part in (scale, shift))
    return graph.op("Add", graph.op("Mul", x, scale), shift)


def native(graph: Graph, layer: SliceGroupNorm, name: str, x: str, count: int) -> str:
    scale, shift = (
        graph.weight(f"{name}.{part}", tensor, [count])
        for part, tensor in (("weight", layer.weight), ("bias", layer.bias))
    )
    return graph.op("GroupNormalization", x, scale, shift, epsilon=EPS, num_groups=count // layer.group_size)


def without(graph: Graph, layer: SliceGroupNorm, name: str, x: str, count: int) -> str:
    return x


FORMS: dict[str, Form] = {
    "without norm": without,
    OURS: layers.group_norm,
    "instance norm": instance_norm,
    "layer norm": layer_norm,
    "moments": moments,
    "GroupNormalization": native,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--export", default=None)
    args = parser.parse_args()
    torch.manual_seed(0)
    net = create_model("ds_resnet50").eval()
    for module in net.modules():
        if isinstance(module, SliceGroupNorm):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias)
    x = torch.randn(1, 3, 224, 224)
    image = {IMAGE: x.numpy()}
    calls: dict[Any, Any] = {}
    failed: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for path in (net.space.slimmest, net.space.widest):
            with torch.no_grad():
                expected = net(x, path).numpy()
            for name, form in FORMS.items():
                layers.group_norm = form  # type: ignore[assignment]
                whole.OPSET, whole.IR_VERSION = (21, 10) if form is native else (18, 8)
                file = export_onnx(net, Path(folder) / f"{len(calls)}.onnx", path=path)
                session = open_session(file, 1)
                calls["onnxruntime", path, name] = partial(session.run, ["logits"], image)
                found = session.run(["logits"], image)[0]
                assert form is without or np.abs(found - expected).max() < 1e-3 * expected.std(), name
                try:
                    calls["openvino", path, name] = openvino_call(file, image, None if form is without else expected)
                except ImportError:
                    continue
                except (RuntimeError, AssertionError) as error:
                    failed[f"openvino, {name}"] = str(error).splitlines()[0]
        times = {key: float(np.median(found)) for key, found in interleaved(calls, args.repeats).items()}
    result: dict[str, Any] = {**plain(machine()), "model": "ds_resnet50", "repeats": args.repeats, "ratios": {}}
    for runtime, path, name in times:
        ratio = times[runtime, path, name] / times[runtime, path, "without norm"]
        result["ratios"].setdefault(f"{runtime}, path {path}", {})[name] = round(ratio, 3)
    result["failed"] = failed
    print(json.dumps(result, indent=1))
    if args.export:
        Path(args.export).write_text(json.dumps(result, indent=1) + "\n")


def openvino_call(file: Path, image: dict[str, np.ndarray], expected: np.ndarray | None) -> Callable[[], Any]:
    import openvino

    options = {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(file), "CPU", options)
    found = compiled(image)["logits"]
    assert expected is None or np.abs(found - expected).max() < 1e-3 * expected.std(), "it computes something else"
    return partial(compiled, image)


if __name__ == "__main__":
    main()
