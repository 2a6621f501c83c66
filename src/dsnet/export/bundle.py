"""A network as a folder of ONNX graphs, one per part, that share one file of weights: for batches."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from dsnet.export.dynamic import check_weights, finish, to_export, write_model
from dsnet.export.int8 import Int8
from dsnet.export.parts import Branch, PartWriter
from dsnet.export.writer import FLOAT, Graph
from dsnet.manifest import Manifest, exported, to_metadata
from dsnet.results import Evaluation
from dsnet.runtime.bundle import BUNDLE, EXIT_LOGITS, NOTHING, WEIGHTS
from dsnet.runtime.onnx import IMAGE
from dsnet.space import WidthPath, is_exit

NEW = ".new"  # folder in which a bundle is written before its files are moved to their places
PAGE = 4096  # weights start at multiples of this, so that they can be mapped into memory


def export_bundle(
    net: Any,
    folder: str | Path,
    *,
    image_size: int | None = None,
    evaluation: Evaluation | None = None,
    int8: Int8 | None = None,
) -> Path:
    """Write the parts between choice points, for a runner that groups a batch by width.

    An older bundle in the folder is kept until the new one is complete. int8: see `export_onnx`.
    """
    check_weights(net)
    manifest = to_export(net, image_size, evaluation, int8)
    if not manifest.points:
        raise ValueError(f"{manifest.model} has no widths to choose from; export it as a file")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a bundle is a folder: choose another name")
    held = {file.name for file in folder.iterdir()} - {NEW} if folder.is_dir() else set()
    if held and not held & {BUNDLE, WEIGHTS}:
        raise ValueError(f"{folder} holds other files; choose an empty or a new folder for the bundle")
    fresh = folder / NEW
    shutil.rmtree(fresh, ignore_errors=True)  # left over from an export that was interrupted
    fresh.mkdir(parents=True)
    try:
        write_bundle(PartWriter(net.parts(), manifest, int8), manifest, fresh)
        (folder / BUNDLE).unlink(missing_ok=True)  # moved last, because a bundle without a manifest is refused
        for old in folder.glob("*.onnx"):
            old.unlink()
        for file in sorted(fresh.iterdir(), key=lambda file: file.name == BUNDLE):
            file.replace(folder / file.name)
    finally:
        shutil.rmtree(fresh)
    return folder


def write_bundle(writer: PartWriter, manifest: Manifest, folder: Path) -> None:
    with WeightFile(folder / WEIGHTS) as weights:
        for name, proto in parts(writer).items():
            weights.move(proto)
            write_model(proto, folder / f"{name}.onnx")
    about = to_metadata(exported(manifest, kind="bundle", space=writer.held))
    about["weights"] = str((folder / WEIGHTS).stat().st_size)
    about["id"] = uuid.uuid4().hex
    (folder / BUNDLE).write_text(json.dumps(about, indent=1))


def parts(writer: PartWriter) -> dict[str, onnx.ModelProto]:
    """Graphs by name: front; first.POINT.IN.OUT and rest.POINT.OUT; probe; finish.

    The first segment has a single incoming width, so its `rest` holds all of it, which saves copying maps.
    """

    def part(inputs: Sequence[str], outputs: Sequence[str], write: Branch) -> onnx.ModelProto:
        return part_model(writer.blank(), inputs, outputs, write)

    graphs = {"front": part([IMAGE], writer.given(0), lambda graph: writer.front(graph, IMAGE))}
    for point, pairs in enumerate(transitions(writer.pinnable)):
        maps = [f"in_{name}" for name in writer.maps_at(point)]
        outputs = writer.given(point + 1)
        for w_in, w_out in pairs if point else ():
            graphs[f"first.{point}.{w_in}.{w_out}"] = part(maps, ["y"], writer.first_branch(point, w_in, w_out, maps))
        for width in sorted({w_out for _, w_out in pairs}):
            rest = writer.rest_branch(point, width, "in_y") if point else writer.whole(0, width, maps)
            graphs[f"rest.{point}.{width}"] = part(["in_y"] if point else maps, outputs, rest)
    if writer.probes:
        graphs["probe"] = part(["logits"], ["router_scores"], lambda graph: [writer.probe_scores(graph, "logits")])
    if (left := writer.left) and not all(name in left for name in writer.manifest.outputs):
        inputs = {name: f"in_{name}" for name in left}
        answers = list(writer.manifest.outputs)
        graphs["finish"] = part(
            list(inputs.values()), answers, lambda graph: list(writer.finish(graph, inputs).values())
        )
    return graphs


def part_model(graph: Graph, inputs: Sequence[str], outputs: Sequence[str], write: Branch) -> onnx.ModelProto:
    """One part as a separate graph, for batches of any size."""
    if not outputs:  # no later part reads this one, but a graph must have an output
        graph.nodes.append(helper.make_node("Shape", [inputs[0]], [NOTHING]))
        nothing = helper.make_tensor_value_info(NOTHING, TensorProto.INT64, [None])
        return finish(graph, "part", [value_info(name) for name in inputs], [nothing])
    for output, name in zip(write(graph), outputs, strict=True):
        graph.nodes.append(helper.make_node("Identity", [graph.real(output)], [name]))
    takes, gives = ([value_info(name) for name in names] for names in (inputs, outputs))
    return finish(graph, "part", takes, gives)


def value_info(name: str) -> onnx.ValueInfoProto:
    rank = {"logits": 2, "router_scores": 2, EXIT_LOGITS: 2, "boxes": 3, "scores": 3}.get(name, 4)
    return helper.make_tensor_value_info(name, FLOAT, ["batch", *[None] * (rank - 1)])


def transitions(paths: Sequence[WidthPath]) -> list[list[tuple[int, int]]]:
    """For each choice point, the (in, out) widths that some path takes there."""
    steps = [list(pairwise((0, *path))) for path in paths if not is_exit(path)]
    return [sorted(set(point)) for point in zip(*steps, strict=True)]


class WeightFile:
    """A file of weights that several graphs share; each weight is written once."""

    def __init__(self, file: Path) -> None:
        self.file, self.places = file, dict[str, tuple[int, int]]()

    def __enter__(self) -> WeightFile:
        self.stream = self.file.open("wb")
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.close()

    def move(self, proto: onnx.ModelProto) -> None:
        """Replace the weights inside a graph by references to this file; constants stay inside."""
        for tensor in proto.graph.initializer:
            if "." not in tensor.name:  # a constant of the graph; weights have dotted names, as in the network
                continue
            if tensor.name not in self.places:
                self.stream.write(b"\0" * (-self.stream.tell() % PAGE))
                self.places[tensor.name] = self.stream.tell(), len(tensor.raw_data)
                self.stream.write(tensor.raw_data)
            offset, length = self.places[tensor.name]
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            for key, entry in (("location", WEIGHTS), ("offset", str(offset)), ("length", str(length))):
                tensor.external_data.add(key=key, value=entry)
