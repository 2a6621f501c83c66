"""From sliceable layers to ONNX nodes: a call of the network at fixed widths is traced and written node by node."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import fx, nn

from dsnet.export.functions import ELEMENTWISE, FUNCTIONS
from dsnet.export.writer import Count, Graph, array, counted
from dsnet.nn import Fixed, Gate, SliceBatchNorm2d, SliceConv2d, SliceGroupNorm, SliceLayerNorm2d, SliceLinear
from dsnet.nn.layers import GlobalPool, GridPool, StandardLinear
from dsnet.nn.maps import Constant, Mask, Shuffle, SlicePReLU, Take
from dsnet.nn.norm import FIRST, LAST
from dsnet.nn.resize import Dense, InBlocks, Resize
from dsnet.nn.slicing import leading
from dsnet.nn.tracing import trace

if TYPE_CHECKING:
    from dsnet.export.ranges import Part


def write_call(
    graph: Graph, root: nn.Module, call: Callable[..., Any], *inputs: str | list[str], part: Part | None = None
) -> Any:
    """Write the nodes of `call(*inputs)`, which uses layers of `root`, and return the names of its outputs.

    part: What is known about the call if it is a part of the network, whose layers may be quantised.
    """
    traced, int8 = trace(root, call, len(inputs)), graph.model.int8
    gates = {name for name, module in root.named_modules() if isinstance(module, Gate)}
    if int8 is None or part is None:
        return LayerWriter(traced, graph, gates).run(*inputs)
    return int8.writer(traced, graph, gates, part).run(*inputs)


class LayerWriter(fx.Interpreter):
    """Runs a trace on names instead of tensors.

    The pooled vectors [B, C] of gates are written as maps [B, C, 1, 1], and their linear layers as 1x1 convolutions.
    They are as fast as matrix products, and ONNX Runtime keeps no packed copy of their weights for each width.
    """

    def __init__(self, traced: fx.GraphModule, graph: Graph, gates: set[str]) -> None:
        super().__init__(traced)
        self.out, self.gates = graph, gates
        self.folded: dict[fx.Node, str] = {}  # norms that were merged into the convolution before them
        self.pooled: set[fx.Node] = set()  # vectors that are written as maps

    def run_node(self, n: fx.Node) -> Any:
        return self.folded[n] if n in self.folded else self._run(n)

    def _run(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.op == "call_module":
            return self.layer(n, args[0], *args[1:])
        if n.op == "call_function" or n.op == "call_method":
            options = {key: option for key, option in kwargs.items() if key != "inplace"}
            return self.function(n, *args, **options)
        return fx.map_arg(n.args[0], self.vector) if n.op == "output" else super().run_node(n)

    def function(self, n: fx.Node, *args: Any, **options: Any) -> Any:
        if self.pooled.intersection(n.all_input_nodes):
            if n.target is operator.getitem and args[1] == (slice(None), slice(None), None, None):
                return self.same(n, args[0])  # it has these axes already
            if n.target in ELEMENTWISE:
                self.pooled.add(n)
            else:
                args = fx.map_arg(n.args, self.vector)
        return self.apply(n, *args, **options)

    def apply(self, n: fx.Node, *args: Any, **options: Any) -> Any:
        return FUNCTIONS[n.target](self.out, *args, **options)

    def same(self, n: fx.Node, x: str) -> str:
        """The value of a node that computes nothing from x."""
        return x

    def vector(self, node: fx.Node) -> Any:
        """The value of a node, in the shape that the network means."""
        return self.out.op("Flatten", self.out.real(self.env[node]), axis=1) if node in self.pooled else self.env[node]

    def layer(self, n: fx.Node, x: str, *widths: int) -> str:
        layer = self.fetch_attr(str(n.target))
        name = str(n.target).removeprefix("root.")
        in_gate, pooled = name.rpartition(".")[0] in self.gates, n.args[0] in self.pooled
        if in_gate and isinstance(layer, GlobalPool):
            self.pooled.add(n)
            return self.out.op("GlobalAveragePool", x)
        if in_gate and isinstance(layer, SliceLinear) and pooled:
            self.pooled.add(n)
            return self.pointwise(layer, name, x, *widths)
        if pooled:
            x = self.out.op("Flatten", x, axis=1)
        match layer:
            case SliceConv2d():
                return self.convolution(n, layer, name, x, widths[0], widths[-1])
            case StandardLinear():
                folded, bias = layer.sliced(*widths)
                assert bias is not None
                whole = (layer.weight / layer.std).detach()
                inputs = [
                    self.out.weight(f"{name}.weight", whole, list(folded.shape)),
                    self.out.constant(array(bias), np.float32),
                ]
                return self.out.op("Gemm", x, *inputs, transB=1)
            case SliceLinear():
                rows, columns = counted(layer.cout, widths[1]), counted(layer.cin, widths[0])
                inputs = [self.out.weight(f"{name}.weight", layer.weight, [rows, columns])]
                if layer.bias is not None:
                    inputs.append(self.out.weight(f"{name}.bias", layer.bias, [rows]))
                return self.out.op("Gemm", x, *inputs, transB=1)
            case SliceGroupNorm():
                return group_norm(self.out, layer, name, x, counted(layer.channels, widths[0]))
            case SliceLayerNorm2d():
                return layer_norm(self.out, layer, name, x, counted(layer.channels, widths[0]))
            case Fixed():
                return self.plain(layer.layer, f"{name}.layer", x)
            case SliceBatchNorm2d():
                return batch_norm(self.out, layer, x, widths[0])
            case GlobalPool(keep=True):
                return self.out.op("GlobalAveragePool", x)
            case GlobalPool():
                return self.out.op("Flatten", self.out.op("GlobalAveragePool", x), axis=1)
            case Mask():
                return x
            case Constant():
                return constant(self.out, layer, x)
            case Take():
                start, count = layer.place(widths[0])
                return self.out.op("Slice", x, *map(self.out.constant, ([start], [start + count], [1])))
            case Shuffle():
                return shuffle(self.out, x, layer.groups, layer.channels[widths[0]])
            case SlicePReLU():
                slopes = layer.weight[:, None, None]
                kept = 1 if layer.shared else counted(layer.channels, widths[0])
                return self.out.op("PRelu", x, self.out.weight(f"{name}.weight", slopes, [kept]))
            case Resize():
                return resized(self.out, layer, x, widths[0])
            case GridPool():
                return self.out.op("Flatten", grid_pool(self.out, layer, x), axis=1)
        raise TypeError(f"{type(layer).__name__} has no ONNX form")

    def pointwise(self, layer: SliceLinear, name: str, x: str, w_in: int, w_out: int) -> str:
        """A linear layer of a gate as a 1x1 convolution."""
        rows, columns = layer.cout[w_out], layer.cin[w_in]
        inputs = [self.out.weight(f"{name}.weight", layer.weight[:, :, None, None], [rows, columns])]
        if layer.bias is not None:
            inputs.append(self.out.weight(f"{name}.bias", layer.bias, [rows]))
        return self.out.op("Conv", x, *inputs, kernel_shape=[1, 1])

    def plain(self, layer: nn.Module, name: str, x: str) -> str:
        """A layer that has one width."""
        match layer:
            case nn.Conv1d() | nn.Conv2d() if not isinstance(layer.padding, str):
                tensors = {"weight": layer.weight, "bias": layer.bias}
                inputs = [
                    self.out.weight(f"{name}.{part}", tensor, [layer.out_channels])
                    for part, tensor in tensors.items()
                    if tensor is not None
                ]
                more: dict[str, Any] = {"group": layer.groups} if layer.groups > 1 else {}
                more |= {"dilations": list(layer.dilation)} if max(layer.dilation) > 1 else {}
                sides, strides = list(layer.kernel_size), list(layer.stride)
                pads = [*layer.padding] * 2
                return self.out.op("Conv", x, *inputs, kernel_shape=sides, strides=strides, pads=pads, **more)
            case nn.GroupNorm():
                return group_norm(self.out, layer, name, x, layer.num_channels)
        raise TypeError(f"{type(layer).__name__} has no ONNX form")

    def convolution(self, n: fx.Node, layer: SliceConv2d, name: str, x: str, w_in: int, w_out: int) -> str:
        """A convolution, with the batch norm behind it folded into its weights."""
        scale, bias = None, []
        counts = rows_and_columns(layer, w_in, w_out)
        norm_node = next(iter(n.users))
        if (found := self.norm_behind(n)) is not None:
            norm, width = found
            scale, shift = (leading(rows[width], norm.channels, width) for rows in norm.folded())
            own = layer.shift(w_out)
            bias = [self.out.constant(array(shift if own is None else shift + own * scale), np.float32)]
        elif layer.bias is not None:
            bias = [self.out.weight(f"{name}.bias", layer.bias, counts[:1])]
        weight = self.out.weight(f"{name}.weight", layer.weight, counts, scale)
        y = self.out.op("Conv", x, weight, *bias, **conv_attributes(layer, w_in))
        if scale is not None:
            self.folded[norm_node] = y
        return y

    def norm_behind(self, n: fx.Node) -> tuple[SliceBatchNorm2d, int] | None:
        """The batch norm that alone reads a convolution, and its width; None if there is no such norm."""
        behind = next(iter(n.users))
        norm = self.fetch_attr(str(behind.target)) if behind.op == "call_module" else None
        if not isinstance(norm, SliceBatchNorm2d) or len(n.users) > 1:
            return None
        width = behind.args[1]
        assert isinstance(width, int)
        return norm, width


def rows_and_columns(layer: SliceConv2d, w_in: int, w_out: int) -> list[Count]:
    """The filters of a convolution at a width, and what they read. Filters may stay whole in a grouped one."""
    rows = counted(layer.cout, w_out)
    return [rows] if layer.inside is None else [rows, counted(layer.inside, w_in)]


def conv_attributes(layer: SliceConv2d, w_in: int) -> dict[str, Any]:
    return {
        "kernel_shape": list(layer.kernel),
        "strides": list(layer.stride),
        "pads": [*layer.padding] * 2,
        "dilations": list(layer.dilation),
        "group": layer.groups_at(w_in),
    }


def group_norm(graph: Graph, layer: SliceGroupNorm | nn.GroupNorm, name: str, x: str, kept: Count) -> str:
    """Normalise every group as one row, then scale and shift the channels with a batch norm of mean 0 and variance 1.

    benchmarks/group_norm.py compares the forms; this is the fastest in ONNX Runtime, and OpenVINO reads it.
    """
    count = kept if isinstance(kept, int) else len(kept)
    groups = layer.num_groups if isinstance(layer, nn.GroupNorm) else count // layer.group_size
    rows = graph.op("Reshape", x, graph.constant([0, groups, -1]))
    ones, zeros = (np.full(max(groups, count), value) for value in (1.0, 0.0))
    one, zero = (graph.constant(values[:groups], np.float32) for values in (ones, zeros))
    rows = graph.op("InstanceNormalization", rows, one, zero, epsilon=layer.eps)
    y = graph.op("Reshape", rows, graph.op("Shape", x))
    scale, shift = (
        graph.weight(f"{name}.{part}", tensor, [kept])
        for part, tensor in (("weight", layer.weight), ("bias", layer.bias))
    )
    mean, variance = (graph.constant(values, np.float32) for values in (zeros, ones))
    return graph.op("BatchNormalization", y, scale, shift, mean, variance, epsilon=0.0)


def layer_norm(graph: Graph, layer: SliceLayerNorm2d, name: str, x: str, kept: Count) -> str:
    tensors = {"weight": layer.weight, "bias": layer.bias}
    scale, shift = (graph.weight(f"{name}.{part}", tensor, [kept]) for part, tensor in tensors.items())
    turned = graph.op("Transpose", x, perm=LAST)
    return graph.op("Transpose", graph.op("LayerNormalization", turned, scale, shift, epsilon=layer.eps), perm=FIRST)


def batch_norm(graph: Graph, layer: SliceBatchNorm2d, x: str, width: int) -> str:
    """A batch norm that is not behind a convolution."""
    held = layer.at(width)
    names = ("weight", "bias", "running_mean", "running_var")
    tensors = [graph.constant(array(held[name]), np.float32) for name in names]
    return graph.op("BatchNormalization", x, *tensors, epsilon=layer.eps)


def constant(graph: Graph, layer: Constant, x: str) -> str:
    value = graph.constant(array(layer.value)[None], np.float32)
    count = graph.op("Shape", x, start=0, end=1)
    sides = graph.op("Concat", count, graph.constant(list(layer.value.shape)), axis=0)
    return graph.op("Expand", value, sides)


def shuffle(graph: Graph, x: str, groups: int, channels: int) -> str:
    rows = graph.op("Reshape", x, graph.constant([0, groups, channels // groups, -1]))
    turned = graph.op("Transpose", rows, perm=[0, 2, 1, 3])
    return graph.op("Reshape", turned, graph.op("Shape", x))


def resized(graph: Graph, layer: Resize, x: str, size: int) -> str:
    """The same operations as in the network itself."""
    match layer.ways[size]:
        case InBlocks() as way:
            rows, columns, factors = (
                graph.constant(array(each), np.float32) for each in (way.rows, way.columns, way.factors)
            )
            step, reach = way.step, way.reach
            x = graph.op("Conv", x, rows, strides=[step, 1], pads=[reach, 0] * 2, group=way.groups[0])
            x = graph.op("Conv", x, columns, strides=[1, step], pads=[0, reach] * 2, group=way.groups[1])
            x = x if way.block == 1 else graph.op("DepthToSpace", x, blocksize=way.block, mode="CRD")
            return graph.op("Mul", x, factors)
        case Dense() as way:
            x = graph.op("MatMul", graph.constant(array(way.matrix), np.float32), x)
            return graph.op("MatMul", x, graph.constant(array(way.matrix.t()), np.float32))
    return x


def grid_pool(graph: Graph, layer: GridPool, x: str) -> str:
    """One average pool if the grid divides the map, otherwise two products with the matrices of its bins."""
    assert graph.model.grid is not None, "the size of the map is not known"
    height, width = graph.model.grid
    if height % layer.side == 0 and width % layer.side == 0:
        steps = [height // layer.side, width // layer.side]
        return x if steps == [1, 1] else graph.op("AveragePool", x, kernel_shape=steps, strides=steps)
    rows, columns = (np.zeros((layer.side, length)) for length in (height, width))
    for matrix in (rows, columns):
        for number, held in enumerate(layer.bins(matrix.shape[1])):
            matrix[number, held.start : held.stop] = 1 / len(held)
    x = graph.op("MatMul", graph.constant(rows, np.float32), x)
    return graph.op("MatMul", x, graph.constant(columns.T, np.float32))
