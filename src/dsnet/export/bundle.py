"""A network as a folder of ONNX graphs, one per part, that share one file of weights: for batches."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper

from dsnet.errors import CheckpointError
from dsnet.export.int8 import Int8
from dsnet.export.onnx import check_weights, to_export, write_model
from dsnet.export.parts import Branch, PartWriter
from dsnet.export.whole import finish
from dsnet.export.writer import FLOAT, Graph
from dsnet.files import contents, file_digest, locked, sync_folder, with_digest, write_whole
from dsnet.manifest import Manifest, exported, to_metadata
from dsnet.results import Evaluation
from dsnet.runtime.bundle import BUNDLE, EXIT_LOGITS, NOTHING, PARTS, WEIGHTS, described
from dsnet.runtime.onnx import IMAGE
from dsnet.space import WidthPath, WidthSpace, is_exit

OLDER = ".new"  # folder in which older versions wrote a bundle
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

    An older bundle in the folder is kept until the new one is complete, whenever that is interrupted. int8: see
    `export_onnx`.
    """
    check_weights(net)
    manifest = to_export(net, image_size, evaluation, int8)
    if not manifest.points:
        raise ValueError(f"{manifest.model} has no widths to choose from; export it as a file")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a bundle is a folder: choose another name")
    held = contents(folder)
    if held and not any(map(is_ours, held)):
        raise ValueError(f"{folder} holds other files; choose an empty or a new folder for the bundle")
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder))
        except BlockingIOError as error:
            raise ValueError(f"{folder} is being written by {error}; wait until that ends") from None
        with suppress(CheckpointError):  # whoever exports over a damaged bundle loses it at the end only
            tidy(folder, parts_of(folder))
        fresh = folder / f"{PARTS}{uuid.uuid4().hex[:12]}"
        fresh.mkdir()
        try:
            about = write_bundle(PartWriter(net.parts(), manifest, int8), manifest, fresh)
            sync_folder(fresh)
            write_whole(folder / BUNDLE, about)  # from here on the new bundle is opened
        finally:
            with suppress(CheckpointError):
                tidy(folder, parts_of(folder))
    return folder


def write_bundle(writer: PartWriter, manifest: Manifest, folder: Path) -> bytes:
    """Fill the folder with the parts of a bundle. Returns the head that names them."""
    with WeightFile(folder / WEIGHTS) as weights:
        for name, proto in parts(writer).items():
            weights.move(proto)
            write_model(proto, folder / f"{name}.onnx")
    about: dict[str, Any] = {**to_metadata(exported(manifest, kind="bundle", space=writer.held)), "parts": folder.name}
    about["files"] = {file.name: file_digest(file) for file in sorted(folder.iterdir())}
    return json.dumps(with_digest(about), indent=1).encode()


def parts_of(folder: Path) -> str:
    """The name of the folder with the parts of a bundle; empty if there is no bundle."""
    head = folder / BUNDLE
    return described(folder, head.read_bytes())[0].name if head.is_file() else ""


def is_ours(file: Path) -> bool:
    """Whether an export of a bundle wrote this file or folder. In older formats the parts lay beside the head."""
    return file.name in (BUNDLE, WEIGHTS, OLDER) or file.name.startswith(PARTS)


def tidy(folder: Path, current: str) -> None:
    """Remove what exports left in the folder, except for the parts of the current bundle."""
    older = [folder / OLDER, *folder.glob("*.onnx"), folder / WEIGHTS] if (folder / WEIGHTS).is_file() else []
    unused = (file for file in contents(folder) if file.name.startswith(PARTS) and file.name != current)
    for file in (*older, *unused):
        shutil.rmtree(file) if file.is_dir() else file.unlink(missing_ok=True)


def parts(writer: PartWriter) -> dict[str, onnx.ModelProto]:
    """Graphs by name: front, or front.SIZE of several; exit.SIZE; first.POINT.IN.OUT and rest.POINT.OUT; probe; finish.

    The first segment has a single incoming width, so its `rest` holds all of it, which saves copying maps.
    """

    def part(inputs: Sequence[str], outputs: Sequence[str], write: Branch) -> onnx.ModelProto:
        return part_model(writer.blank(), inputs, outputs, write)

    def front(size: int) -> onnx.ModelProto:
        return part([IMAGE], writer.given(0, size), lambda graph: writer.front(graph, IMAGE, size))

    def exit(path: WidthPath) -> onnx.ModelProto:
        return part([IMAGE], ["logits"], lambda graph: list(writer.exit(graph, IMAGE, path).values()))

    # The first candidate is behind a front even if it is an exit.
    alone = [path for path in writer.pinnable[1:] if is_exit(path)]
    graphs = {
        f"front.{size}" if writer.space.sized else "front": front(size)
        for size in sorted({writer.space.size_of(path) for path in writer.pinnable if path not in alone})
    }
    graphs |= {f"exit.{writer.space.size_of(path)}": exit(path) for path in alone}
    for point, pairs in enumerate(transitions(writer.space, writer.pinnable)):
        maps = [f"in_{name}" for name in writer.maps_at(point)]
        outputs = writer.given(point + 1)
        for w_in, w_out in pairs if point else ():
            graphs[f"first.{point}.{w_in}.{w_out}"] = part(maps, ["y"], writer.first_branch(point, w_in, w_out, maps))
        for width, w_in in sorted({w_out: w_in for w_in, w_out in pairs}.items()):
            rest = writer.rest_branch(point, width, "in_y") if point else writer.whole(0, width, maps, w_in)
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


def transitions(space: WidthSpace, paths: Sequence[WidthPath]) -> list[list[tuple[int, int]]]:
    """For each choice point, the (in, out) widths of its layers that some path takes there. space: All paths."""
    steps = [list(pairwise(space.rows(path))) for path in paths if not is_exit(path)]
    return [sorted(set(point)) for point in zip(*steps, strict=True)]


class WeightFile:
    """A file of weights that several graphs share; each weight is written once."""

    def __init__(self, file: Path) -> None:
        self.file, self.places = file, dict[str, tuple[int, int]]()

    def __enter__(self) -> WeightFile:
        self.stream = self.file.open("wb")
        return self

    def __exit__(self, *error: object) -> None:
        self.stream.flush()
        os.fsync(self.stream.fileno())
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
