"""A model repository for NVIDIA Triton: a folder for each ONNX file, with the config that Triton reads.

Triton batches requests only for models whose tensors all begin with a free axis. A dynamic file routes one image at a
time, so its config says that there are no batches; the paths as files of their own take them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import onnx

from dsnet.files import write_whole
from dsnet.manifest import Manifest
from dsnet.space import WidthPath

CONFIG, FILE = "config.pbtxt", "model.onnx"
VERSION = "1"
BATCH = 64  # images that Triton may run together
TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
}


def model_file(repository: str | Path, name: str) -> Path:
    """Where Triton looks for a model of this name."""
    return Path(repository) / re.sub(r"[^A-Za-z0-9._-]", "-", name) / VERSION / FILE


def for_batches(manifest: Manifest) -> list[WidthPath]:
    """The paths that stand beside a dynamic file: every width that it holds, and the exit if there is one. Beside a raw
    file there are none, because raw files take one picture at a time, whatever they hold."""
    if manifest.kind != "dynamic" or manifest.raw:
        return []
    return [*manifest.space.uniform, *(path for path in manifest.space.exits if path in manifest.pinnable)]


def write_config(file: Path) -> Path:
    """Write the config of a file that lies where `model_file` says."""
    folder = file.parents[1]
    config = folder / CONFIG
    write_whole(config, config_of(folder.name, onnx.load(file).graph).encode())
    return config


def config_of(name: str, graph: onnx.GraphProto) -> str:
    """The config of a model, as text of the protocol buffer `ModelConfig`."""
    batches = all(shape[:1] == [-1] for shape in map(shape_of, graph.output))
    lines = [f'name: "{name}"', 'backend: "onnxruntime"', f"max_batch_size: {BATCH if batches else 0}"]
    for kind, found in (("input", graph.input), ("output", graph.output)):
        lines += [line for slot in found for line in tensor_of(kind, slot, batches)]
    if batches:
        lines.append("dynamic_batching { }")
    return "\n".join(lines) + "\n"


def tensor_of(kind: str, slot: onnx.ValueInfoProto, batches: bool) -> list[str]:
    """An input or an output. Triton has no scalars: it wants them as one number."""
    shape: Sequence[int] = shape_of(slot)[batches:] or [1]
    dims = ", ".join(map(str, shape))
    data_type = TYPES[slot.type.tensor_type.elem_type]
    return [f"{kind} {{", f'  name: "{slot.name}"', f"  data_type: {data_type}", f"  dims: [ {dims} ]", "}"]


def shape_of(slot: onnx.ValueInfoProto) -> list[int]:
    """The shape of an input or an output; -1 stands for any number."""
    return [side.dim_value if side.HasField("dim_value") else -1 for side in slot.type.tensor_type.shape.dim]
