"""Whole graphs: their initializers and versions, and outputs that are NaN for images that cannot be answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from dsnet.export.writer import IR_VERSION, OPSET, Graph
from dsnet.manifest import Manifest
from dsnet.runtime.onnx import BUDGET, IMAGE
from dsnet.runtime.runner import EXTREME
from dsnet.version import __version__


def finish(graph: Graph, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.ModelProto:
    initializers = [*graph.model.weights.values(), *graph.initializers]
    whole = helper.make_graph(graph.nodes, name, list(inputs), list(outputs), initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        whole, producer_name="dsnet", producer_version=__version__, ir_version=IR_VERSION, opset_imports=[opset]
    )


def sound(graph: Graph, manifest: Manifest, knobs: Sequence[str] = ()) -> str | None:
    """Whether each image of the batch can be answered, bool [B]: its pixels and the budget are finite and not extreme.
    None if nothing can be wrong."""
    found = []
    if not manifest.raw:  # pixels in bytes are always sound
        squares = graph.op("ReduceSumSquare", IMAGE, graph.constant([1, 2, 3]), keepdims=0)
        most = EXTREME**2 * manifest.in_channels * manifest.image_size**2
        found.append(graph.op("Less", squares, graph.constant(most, np.float32)))
    if BUDGET in knobs:
        found.append(graph.op("Less", BUDGET, graph.constant(EXTREME, np.float32)))
    return None if not found else found[0] if len(found) == 1 else graph.op("And", *found)


def signed(graph: Graph, manifest: Manifest, outputs: Mapping[str, str], sound: str | None) -> None:
    """Write the outputs of a file. The answers of an image that is not sound are NaN, which callers can tell: a router
    would choose something for it, and rounding to codes would hide what is wrong."""
    for name, output in outputs.items():
        held = graph.real(output)
        if sound is None or name not in manifest.outputs:
            graph.nodes.append(helper.make_node("Identity", [held], [name]))
            continue
        sides = graph.constant([-1, *(1 for _ in manifest.outputs[name])])
        each = graph.op("Reshape", sound, sides)
        graph.nodes.append(helper.make_node("Where", [each, held, graph.constant(np.nan, np.float32)], [name]))
