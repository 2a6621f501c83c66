"""From a picture to a network's input in ONNX nodes, pixel by pixel as `dsnet.images.prepare` does it with Pillow.

Pillow resizes the columns, then the rows; tall pictures the other way round. Each time, a pixel of the result is a
weighted sum of the pixels within the support of a filter, with weights in units of 2^-22, and is rounded to 8 bits. The
graph computes these weights from the picture's height and width, in double precision as Pillow does. Sums of whole
numbers in single precision are exact below 2^24, so weights are split into two parts of 11 bits, summed separately.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper

from dsnet.card import Preprocessing
from dsnet.export.writer import FLOAT, INT, Graph
from dsnet.manifest import Manifest
from dsnet.runtime.onnx import IMAGE

BYTE, DOUBLE = TensorProto.UINT8, TensorProto.DOUBLE
SUPPORT = {"bilinear": 1, "bicubic": 2}  # half the width of a filter
PART = 2**11  # a weight of 1 is PART * PART units
GREY = (19595, 38470, 7471)  # red, green and blue in Pillow's grey, in units of 2^-16


class Taps(NamedTuple):
    """Where the S pixels of a resized line come from: places [S, K] in the old line, and their weights [S, 2, K], in
    two parts."""

    places: str
    weights: str


def write_image(graph: Graph, manifest: Manifest, batch: int | str) -> tuple[str, onnx.ValueInfoProto]:
    """The network's input in the graph, and the file's input `image` that it is made of."""
    size = manifest.image_size
    if manifest.raw:
        return prepared(graph, manifest), helper.make_tensor_value_info(IMAGE, BYTE, ["height", "width", 3])
    return IMAGE, helper.make_tensor_value_info(IMAGE, FLOAT, [batch, manifest.in_channels, size, size])


def prepared(graph: Graph, manifest: Manifest) -> str:
    """The network's input [1, C, S, S], from the picture `image`: uint8 [H, W, 3]."""
    size, channels, how = manifest.image_size, manifest.in_channels, manifest.preprocessing
    if channels not in (1, 3):
        raise ValueError(
            f"{manifest.model} takes {channels} channels, but pictures have 3, or 1 in grey; leave raw out"
        )
    x = square(graph, how, size)
    if channels == 1:
        shares = graph.constant(np.reshape(GREY, (3, 1, 1)) / 2**16, np.float32)
        grey = graph.op("ReduceSum", graph.op("Mul", x, shares), graph.constant([0]))
        x = graph.op("Floor", graph.op("Add", grey, graph.constant(0.5, np.float32)))
    x = graph.op("Div", x, graph.constant(255, np.float32))
    mean, std = (graph.constant(np.reshape(values, (-1, 1, 1)), np.float32) for values in (how.mean, how.std))
    x = graph.op("Div", graph.op("Sub", x, mean), std)
    return graph.op("Reshape", x, graph.constant([1, channels, size, size]))


def square(graph: Graph, how: Preprocessing, size: int) -> str:
    """The part of the picture that the network sees, resized: [3, S, S] of whole numbers from 0 to 255."""
    lengths = graph.op("Shape", IMAGE, end=2)  # height and width
    tall = is_tall(graph, size, lengths)
    order = graph.op("Gather", graph.constant([[1, 0], [0, 1]]), tall)  # of the axes
    first, second = (
        taps_of(graph, how.interpolation, size, *span)
        for span in spans_of(graph, how, graph.op("Cast", graph.op("Gather", lengths, order), to=DOUBLE))
    )
    image, first, second = cropped(graph, order, first, second)

    def columns_first(branch: Graph) -> list[str]:
        return [resized(branch, swapped(branch, image), first)]  # [S, 1, 3 H]

    def rows_first(branch: Graph) -> list[str]:
        return [resized(branch, image, first)]  # [S, 1, 3 W]

    (x,) = graph.choose(tall, [columns_first, rows_first], [FLOAT])
    sides = graph.op("Gather", graph.constant([[3 * size, -1], [size, -1]]), tall)
    x = graph.op("Transpose", graph.op("Reshape", x, sides), perm=[1, 0])
    x = resized(graph, graph.op("Reshape", x, graph.constant([-1, 3 * size])), second)

    def upright(branch: Graph) -> list[str]:
        return [branch.op("Transpose", branch.op("Reshape", x, branch.constant([size, size, 3])), perm=[2, 0, 1])]

    def turned(branch: Graph) -> list[str]:
        return [branch.op("Transpose", branch.op("Reshape", x, branch.constant([size, 3, size])), perm=[1, 2, 0])]

    return graph.choose(tall, [upright, turned], [FLOAT])[0]


def is_tall(graph: Graph, size: int, lengths: str) -> str:
    """1 if Pillow, version 13 or newer, resizes the rows of the picture first, else 0; a scalar."""
    down, across = graph.ops("Split", graph.op("Sub", lengths, graph.constant([size])), outputs=2, num_outputs=2)
    more = graph.op("Greater", down, graph.op("Mul", across, graph.constant([2])))
    tall = graph.op("And", more, graph.op("Greater", down, graph.constant([0])))
    return graph.op("Squeeze", graph.op("Cast", tall, to=INT))


def swapped(graph: Graph, image: str) -> str:
    """A picture [H, W, 3] as [W, 3, H]. Transposing two axes of bytes is many times faster than moving triples."""
    lines = graph.op("Unsqueeze", graph.op("Flatten", image), graph.constant([0]))
    return graph.op("Reshape", graph.op("Transpose", lines, perm=[0, 2, 1]), graph.constant([-1, 3, 0]))


def spans_of(graph: Graph, how: Preprocessing, lengths: str) -> list[tuple[str, ...]]:
    """For each of two axes: its length, and the start and the extent of the part that is resized."""
    if how.fit == "squeeze":
        start, extent = number(graph, [0, 0]), lengths
    else:
        side = graph.op("Mul", graph.op("ReduceMin", lengths), number(graph, how.crop))
        start = graph.op("Div", graph.op("Sub", lengths, side), number(graph, 2))
        # Pillow takes the ends of a box in single precision.
        low, high = (graph.op("Cast", end, to=FLOAT) for end in (start, graph.op("Add", start, side)))
        start, extent = (graph.op("Cast", part, to=DOUBLE) for part in (low, graph.op("Sub", high, low)))
    return [
        tuple(graph.op("Gather", part, graph.constant([axis])) for part in (lengths, start, extent)) for axis in (0, 1)
    ]


def taps_of(graph: Graph, interpolation: str, size: int, length: str, start: str, extent: str) -> Taps:
    """The taps that resize a part of a line to `size` pixels. length: pixels of the whole line."""
    scale = graph.op("Div", extent, number(graph, size))
    if interpolation == "nearest":
        half = graph.op("Add", start, graph.op("Mul", scale, number(graph, 0.5)))
        steps = graph.op("Mul", scale, number(graph, np.ones(size - 1)))
        # Steps are added up as in Pillow: where one hits the border of two pixels, rounding decides.
        ends = graph.op("CumSum", graph.op("Concat", half, steps, axis=0), graph.constant(0))
        copied = graph.constant(np.tile([[PART], [0]], (size, 1, 1)), np.float32)
        return Taps(graph.op("Unsqueeze", graph.op("Cast", ends, to=INT), graph.constant([1])), copied)
    stretch = graph.op("Max", scale, number(graph, 1))  # a filter that shrinks a picture covers more pixels
    support = graph.op("Mul", stretch, number(graph, SUPPORT[interpolation]))
    middles = number(graph, np.arange(size).reshape(-1, 1) + 0.5)
    centres = graph.op("Add", start, graph.op("Mul", middles, scale))  # [S, 1]
    first = graph.op("Floor", graph.op("Add", graph.op("Sub", centres, support), number(graph, 0.5)))
    count = graph.op("Add", graph.op("Mul", graph.op("Ceil", support), number(graph, 2)), number(graph, 1))
    steps = graph.op("Range", number(graph, 0), graph.op("Squeeze", count), number(graph, 1))
    places = graph.op("Add", graph.op("Max", first, number(graph, 0)), steps)  # [S, K]
    away = graph.op("Add", graph.op("Sub", places, centres), number(graph, 0.5))
    away = graph.op("Abs", graph.op("Mul", away, graph.op("Div", number(graph, 1), stretch)))
    weights = (bilinear if interpolation == "bilinear" else bicubic)(graph, away)
    weights = graph.op("Where", graph.op("Less", places, length), weights, number(graph, 0))
    weights = graph.op("Div", weights, graph.op("ReduceSum", weights, graph.constant([1])))
    places = graph.op("Min", places, graph.op("Sub", length, number(graph, 1)))
    return Taps(graph.op("Cast", places, to=INT), in_parts(graph, weights))


def bilinear(graph: Graph, away: str) -> str:
    return graph.op("Max", graph.op("Sub", number(graph, 1), away), number(graph, 0))


def bicubic(graph: Graph, away: str) -> str:
    """Keys' filter with a = -0.5: one polynomial up to 1, another one up to 2."""
    near = graph.op("Sub", graph.op("Mul", number(graph, 1.5), away), number(graph, 2.5))
    near = graph.op("Add", graph.op("Mul", graph.op("Mul", near, away), away), number(graph, 1))
    far = graph.op("Add", graph.op("Mul", graph.op("Sub", away, number(graph, 5)), away), number(graph, 8))
    far = graph.op("Mul", graph.op("Sub", graph.op("Mul", far, away), number(graph, 4)), number(graph, -0.5))
    far = graph.op("Where", graph.op("Less", away, number(graph, 2)), far, number(graph, 0))
    return graph.op("Where", graph.op("Less", away, number(graph, 1)), near, far)


def in_parts(graph: Graph, weights: str) -> str:
    """Weights rounded to units, halves away from zero, as multiples of PART units: a whole number and a rest."""
    units = graph.op("Abs", graph.op("Mul", weights, number(graph, PART * PART)))
    units = graph.op("Mul", graph.op("Floor", graph.op("Add", units, number(graph, 0.5))), graph.op("Sign", weights))
    multiples = graph.op("Div", units, number(graph, PART))
    whole = graph.op("Floor", graph.op("Add", multiples, number(graph, 0.5)))
    parts = [graph.op("Unsqueeze", part, graph.constant([1])) for part in (whole, graph.op("Sub", multiples, whole))]
    return graph.op("Cast", graph.op("Concat", *parts, axis=1), to=FLOAT)


def cropped(graph: Graph, order: str, *axes: Taps) -> tuple[str, Taps, Taps]:
    """The rows and columns of the picture that are read, and the taps within them. order: that of the axes."""
    firsts, lasts = (
        [graph.op(f"Reduce{end}", graph.op("Reshape", taps.places, graph.constant([-1]))) for taps in axes]
        for end in ("Min", "Max")
    )
    low, high = (graph.op("Gather", graph.op("Concat", *ends, axis=0), order) for ends in (firsts, lasts))
    image = graph.op("Slice", IMAGE, low, graph.op("Add", high, graph.constant([1])), graph.constant([0, 1]))
    one, other = (
        taps._replace(places=graph.op("Sub", taps.places, first)) for taps, first in zip(axes, firsts, strict=True)
    )
    return image, one, other


def resized(graph: Graph, x: str, taps: Taps) -> str:
    """Lines of pixels [N, ...] resized to [S, 1, M], floats that are whole numbers from 0 to 255."""
    read = graph.op("Reshape", graph.op("Gather", x, taps.places), graph.constant([0, 0, -1]))  # [S, K, M]
    read = graph.op("Cast", read, to=FLOAT)
    whole, rest = graph.ops("Split", graph.op("MatMul", taps.weights, read), outputs=2, axis=1, num_outputs=2)
    # Half a pixel is added before both parts are rounded down; rests add up to whole multiples first.
    sums = graph.op("Add", graph.op("Add", whole, graph.op("Floor", rest)), graph.constant(PART / 2, np.float32))
    pixels = graph.op("Floor", graph.op("Div", sums, graph.constant(PART, np.float32)))
    return graph.op("Clip", pixels, graph.constant(0, np.float32), graph.constant(255, np.float32))


def number(graph: Graph, value: object) -> str:
    return graph.constant(value, np.float64)
