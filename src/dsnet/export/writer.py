"""ONNX graphs, written node by node."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from dsnet.space import Channels

if TYPE_CHECKING:
    from dsnet.export.int8 import Int8

OPSET = 18
IR_VERSION = 8


class Quantised(str):
    """The name of a map of uint8 codes, which stand for scale * (code - zero)."""

    scale: float
    zero: int

    def __new__(cls, name: str, scale: float, zero: int) -> Quantised:
        new = super().__new__(cls, name)
        new.scale, new.zero = scale, zero
        return new


Count = int | list[int]
"""What is read of an axis of a weight: its leading entries, or the entries of a list."""


def counted(channels: Channels, width: int) -> Count:
    """The channels of a width among those of the widest."""
    ranges = channels.ranges(width)
    return ranges[0][1] if len(ranges) == 1 else [place for ends in ranges for place in range(*ends)]


def taken(whole: Any, counts: Sequence[Count]) -> Any:
    """The entries of an array or a tensor along its first axes."""
    for axis, count in enumerate(counts):
        whole = whole[(slice(None),) * axis + (slice(count) if isinstance(count, int) else count,)]
    return whole


class Model:
    """The names and weights that all graphs of a file share.

    shared: whether graphs slice whole weights. int8: how the network is quantised; None for a file of floats. grid:
    height and width of the map that an early classifier pools, in the part that is being written.
    """

    def __init__(self, *, shared: bool, int8: Int8 | None = None) -> None:
        self.shared, self.int8 = shared, int8
        self.grid: tuple[int, int] | None = None
        self.weights: dict[str, onnx.TensorProto] = {}
        self.numbers = itertools.count()

    def name(self, kind: str) -> str:
        return f"{kind}_{next(self.numbers)}"


class Graph:
    """The nodes of a graph, or of a branch of one, in order.

    lone: whether it runs its layers at one width and no other graph has them, so that it need not slice their weights.
    """

    def __init__(self, model: Model, *, lone: bool = False) -> None:
        self.model, self.lone = model, lone or not model.shared
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[tuple[object, ...], str] = {}
        self.initializers: list[onnx.TensorProto] = []
        self.reals: dict[str, str] = {}  # maps of floats by the name of their codes

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output."""
        return self.ops(kind, *inputs, outputs=1, **attributes)[0]

    def ops(self, kind: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        names = [self.model.name(kind.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, name=names[0], **attributes))
        return names

    def constant(self, value: object, dtype: type = np.int64) -> str:
        held: np.ndarray = np.asarray(value, dtype)
        key = (held.dtype.str, held.shape, held.tobytes())
        if key not in self.constants:
            self.constants[key] = self.model.name("const")
            self.initializers.append(numpy_helper.from_array(held, self.constants[key]))
        return self.constants[key]

    def weight(self, name: str, whole: Tensor, counts: Sequence[Count], scale: Tensor | None = None) -> str:
        """The `counts` of a weight's first axes, times a scale per filter.

        In a file of many widths it is sliced out of the whole weight, which all widths share. Runtimes fold the slices
        when they load a file. Branches that read a weight of an outer graph directly would not get a packed copy of it.
        Vectors are not sliced: those of a branch then lie side by side in memory, which is faster to read.
        """
        scale = None if scale is None else scale.reshape(-1, *([1] * (whole.dim() - 1)))
        if self.lone:
            return self.constant(array(taken(whole, counts) * (1 if scale is None else scale)), np.float32)
        if scale is None:
            return self.sliced(name, array(whole), counts)
        return self.op("Mul", self.sliced(name, array(whole), counts), self.constant(array(scale), np.float32))

    def sliced(self, name: str, whole: np.ndarray, counts: Sequence[Count]) -> str:
        """The `counts` of the first axes of an array, which all graphs of the file share."""
        if not self.model.shared or whole.ndim == 1:
            return self.constant(taken(whole, counts), whole.dtype.type)
        if name not in self.model.weights:
            self.model.weights[name] = numpy_helper.from_array(whole, name)
        leading = {axis: count for axis, count in enumerate(counts) if isinstance(count, int)}
        if leading:
            name = self.op("Slice", name, *map(self.constant, ([0] * len(leading), [*leading.values()], [*leading])))
        for axis, count in enumerate(counts):
            if axis not in leading:
                name = self.op("Gather", name, self.constant(count), axis=axis)
        return name

    def quantised(self, name: str, scale: float, zero: int) -> Quantised:
        """The codes of a map of floats."""
        scales, zeros = self.constant(scale, np.float32), self.constant(zero, np.uint8)
        return Quantised(self.op("QuantizeLinear", name, scales, zeros), scale, zero)

    def decoded(self, name: str, scales: np.ndarray, zeros: type | None = None) -> str:
        """The floats of codes around zero, with a scale for each entry of the first axis.

        zeros: Type of the codes, if their zero points are to be written. ONNX Runtime fuses a Gemm only if they are.
        """
        points = [] if zeros is None else [self.constant(np.zeros(len(scales)), zeros)]
        return self.op("DequantizeLinear", name, self.constant(scales, np.float32), *points, axis=0)

    def real(self, name: str) -> str:
        """The name of a map of floats, which is made from its codes if it is quantised."""
        if not isinstance(name, Quantised):
            return name
        if name not in self.reals:
            self.reals[name] = self.decode(name)
        return self.reals[name]

    def decode(self, codes: Quantised) -> str:
        """A new map of the floats that codes stand for."""
        scale, zero = self.constant(codes.scale, np.float32), self.constant(codes.zero, np.uint8)
        return self.op("DequantizeLinear", codes, scale, zero)

    def choose(
        self,
        position: str,
        branches: Sequence[Callable[[Graph], Sequence[str]]],
        kinds: Sequence[int],
        *,
        start: int = 0,
    ) -> list[str]:
        """The outputs of the branch at `position`, one number, selected by a binary tree of If nodes.

        start: The position of the first branch.
        """
        if not kinds:
            return []
        if len(branches) == 1:
            return list(branches[0](self))
        half = len(branches) // 2
        below = self.op("Less", position, self.constant(start + half))

        def side(part: Sequence[Callable[[Graph], Sequence[str]]], first: int) -> Callable[[Graph], Sequence[str]]:
            return lambda graph: graph.choose(position, part, kinds, start=first)

        return self.either(below, side(branches[:half], start), side(branches[half:], start + half), kinds)

    def either(
        self,
        condition: str,
        then: Callable[[Graph], Sequence[str]],
        otherwise: Callable[[Graph], Sequence[str]],
        kinds: Sequence[int],
    ) -> list[str]:
        """The outputs of one of two branches. condition: A single bool."""
        sides = []
        for write in (then, otherwise):
            side = Graph(self.model)
            sides.append(side.proto(write(side), kinds))
        return self.ops("If", condition, outputs=len(kinds), then_branch=sides[0], else_branch=sides[1])

    def proto(self, outputs: Sequence[str], kinds: Sequence[int]) -> onnx.GraphProto:
        """This graph as a branch. It has no inputs, because it can read the values of the outer graphs."""
        outputs = [self.real(name) for name in outputs]
        # An output must be made by a node of the branch itself.
        made = {name for node in self.nodes for name in node.output}
        names = [name if name in made else self.op("Identity", name) for name in outputs]
        infos = [helper.make_tensor_value_info(name, kind, None) for name, kind in zip(names, kinds, strict=True)]
        return helper.make_graph(self.nodes, self.model.name("branch"), [], infos, self.initializers)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().float().cpu().contiguous().numpy()


FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
