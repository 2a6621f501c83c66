"""From sliceable layers to ONNX nodes: a call of the network at fixed widths is traced and written node by node."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import fx, nn

from dsnet.export.writer import Count, Graph, array, counted
from dsnet.nn import Fixed, Gate, SliceBatchNorm2d, SliceConv2d, SliceGroupNorm, SliceLinear
from dsnet.nn.slicing import GlobalPool, GridPool, StandardLinear, leading
from dsnet.nn.tracing import trace

if TYPE_CHECKING:
    from dsnet.export.ranges import Part


class Pooled(str):
    """The name of a map [B, C, 1, 1] that the network treats as a vector [B, C].

    The linear layers of a gate are written as 1x1 convolutions on such maps. They are as fast as matrix products, and
    ONNX Runtime keeps no packed copy of their weights for each width.
    """


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
    """Runs a trace on names instead of tensors."""

    def __init__(self, traced: fx.GraphModule, graph: Graph, gates: set[str]) -> None:
        super().__init__(traced)
        self.out, self.gates = graph, gates
        self.folded: dict[fx.Node, str] = {}  # norms that were merged into the convolution before them

    def run_node(self, n: fx.Node) -> Any:
        return self.folded[n] if n in self.folded else self._run(n)

    def _run(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if n.op == "call_module":
            return self.layer(n, args[0], *args[1:])
        if n.op == "call_function" or n.op == "call_method":
            options = {key: option for key, option in kwargs.items() if key != "inplace"}
            return self.function(n, *args, **options)
        return fx.map_arg(super().run_node(n), self.vector) if n.op == "output" else super().run_node(n)

    def function(self, n: fx.Node, *args: Any, **options: Any) -> Any:
        if not any(isinstance(item, Pooled) for item in args):
            return FUNCTIONS[n.target](self.out, *args, **options)
        if n.target in ELEMENTWISE:
            return Pooled(FUNCTIONS[n.target](self.out, *args, **options))
        if n.target is operator.getitem and args[1] == (slice(None), slice(None), None, None):
            return str(args[0])
        return FUNCTIONS[n.target](self.out, *map(self.vector, args), **options)

    def vector(self, item: Any) -> Any:
        """A pooled map as the vector that the network means; everything else as it is."""
        return self.out.op("Flatten", item, axis=1) if isinstance(item, Pooled) else item

    def layer(self, n: fx.Node, x: str, *widths: int) -> str:
        layer = self.fetch_attr(str(n.target))
        name = str(n.target).removeprefix("root.")
        in_gate = name.rpartition(".")[0] in self.gates
        if in_gate and isinstance(layer, GlobalPool):
            return Pooled(self.out.op("GlobalAveragePool", x))
        if in_gate and isinstance(layer, SliceLinear) and isinstance(x, Pooled):
            return self.pointwise(layer, name, x, *widths)
        x = self.vector(x)
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
                return group_norm(self.out, layer, name, x, widths[0])
            case Fixed():
                return self.plain(layer.layer, f"{name}.layer", x)
            case GlobalPool():
                return self.out.op("Flatten", self.out.op("GlobalAveragePool", x), axis=1)
            case GridPool():
                return self.out.op("Flatten", grid_pool(self.out, layer, x), axis=1)
        raise TypeError(f"{type(layer).__name__} has no ONNX form")

    def pointwise(self, layer: SliceLinear, name: str, x: str, w_in: int, w_out: int) -> Pooled:
        """A linear layer of a gate as a 1x1 convolution."""
        rows, columns = layer.cout[w_out], layer.cin[w_in]
        inputs = [self.out.weight(f"{name}.weight", layer.weight[:, :, None, None], [rows, columns])]
        if layer.bias is not None:
            inputs.append(self.out.weight(f"{name}.bias", layer.bias, [rows]))
        return Pooled(self.out.op("Conv", x, *inputs, kernel_shape=[1, 1]))

    def plain(self, layer: nn.Module, name: str, x: str) -> str:
        """A layer that has one width."""
        match layer:
            case nn.Conv2d(groups=1, dilation=(1, 1), padding=(int(), int())):
                tensors = {"weight": layer.weight, "bias": layer.bias}
                inputs = [
                    self.out.weight(f"{name}.{part}", tensor, [layer.out_channels])
                    for part, tensor in tensors.items()
                    if tensor is not None
                ]
                sides, strides = list(layer.kernel_size), list(layer.stride)
                return self.out.op("Conv", x, *inputs, kernel_shape=sides, strides=strides, pads=[*layer.padding] * 2)
            case nn.GroupNorm():
                return group_norm(self.out, layer, name, x)
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
    """The filters of a convolution at a width, and what they read. Filters of a grouped one stay whole."""
    rows = counted(layer.cout, w_out)
    return [rows] if layer.groups > 1 else [rows, counted(layer.cin, w_in)]


def conv_attributes(layer: SliceConv2d, w_in: int) -> dict[str, Any]:
    return {
        "kernel_shape": list(layer.kernel),
        "strides": list(layer.stride),
        "pads": [*layer.padding] * 2,
        "dilations": list(layer.dilation),
        "group": layer.groups_at(w_in),
    }


def group_norm(graph: Graph, layer: SliceGroupNorm | nn.GroupNorm, name: str, x: str, width: int = 0) -> str:
    """Normalise every group as one row, then scale and shift the channels with a batch norm of mean 0 and variance 1.

    benchmarks/group_norm.py compares the forms; this is the fastest in ONNX Runtime, and OpenVINO reads it.
    """
    chosen: Count
    if isinstance(layer, nn.GroupNorm):
        count = chosen = layer.num_channels
        groups = layer.num_groups
    else:
        count, chosen = layer.channels[width], counted(layer.channels, width)
        groups = count // layer.group_size
    rows = graph.op("Reshape", x, graph.constant([0, groups, -1]))
    ones, zeros = (np.full(max(groups, count), value) for value in (1.0, 0.0))
    one, zero = (graph.constant(values[:groups], np.float32) for values in (ones, zeros))
    rows = graph.op("InstanceNormalization", rows, one, zero, epsilon=layer.eps)
    y = graph.op("Reshape", rows, graph.op("Shape", x))
    scale, shift = (
        graph.weight(f"{name}.{part}", tensor, [chosen])
        for part, tensor in (("weight", layer.weight), ("bias", layer.bias))
    )
    mean, variance = (graph.constant(values, np.float32) for values in (zeros, ones))
    return graph.op("BatchNormalization", y, scale, shift, mean, variance, epsilon=0.0)


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


def value(graph: Graph, item: Any) -> str:
    """The name of a value: names are returned as they are, numbers and tensors become constants."""
    if isinstance(item, str):
        return item
    return graph.constant(array(item) if isinstance(item, torch.Tensor) else item, np.float32)


def binary(kind: str) -> Callable[..., str]:
    return lambda graph, a, b: graph.op(kind, value(graph, a), value(graph, b))


def unary(kind: str) -> Callable[..., str]:
    return lambda graph, x: graph.op(kind, x)


def silu(graph: Graph, x: str) -> str:
    return graph.op("Mul", x, graph.op("Sigmoid", x))


def relu6(graph: Graph, x: str) -> str:
    return graph.op("Clip", x, graph.constant(0, np.float32), graph.constant(6, np.float32))


def max_pool(graph: Graph, x: str, kernel: int, *, stride: int, padding: int, dilation: int, **flags: bool) -> str:
    assert dilation == 1
    assert not any(flags.values()), f"{flags} have no ONNX form"
    return graph.op("MaxPool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[padding] * 4)


def get_item(graph: Graph, x: Any, item: Any) -> Any:
    """One of several outputs, new axes at the end of a tensor, or a part of its last axis."""
    if not isinstance(x, str):
        return x[item]
    if item[0] is Ellipsis:
        (part,) = item[1:]
        ends = [2**62 if part.stop is None else part.stop]
        return graph.op("Slice", x, *map(graph.constant, ([part.start or 0], ends, [-1])))
    axes = [axis for axis, part in enumerate(item) if part is None]
    assert all(part is None or part == slice(None) for part in item), f"{item} has no ONNX form"
    return graph.op("Unsqueeze", x, graph.constant(axes))


def concat(graph: Graph, parts: list[str], axis: int = 0, *, dim: int | None = None) -> str:
    return graph.op("Concat", *parts, axis=axis if dim is None else dim)


def total(graph: Graph, x: str, axis: int, *, keepdim: bool) -> str:
    return graph.op("ReduceSum", x, graph.constant([axis]), keepdims=int(keepdim))


def clamp(graph: Graph, x: str, low: float, high: float) -> str:
    return graph.op("Clip", x, graph.constant(low, np.float32), graph.constant(high, np.float32))


def resize(graph: Graph, x: str, *, size: tuple[int, int], mode: str, **options: Any) -> str:
    assert mode == "bilinear"
    assert not any(options.values()), f"{options} have no ONNX form"
    channels = graph.op("Shape", x, start=0, end=2)
    sizes = graph.op("Concat", channels, graph.constant(size), axis=0)
    attributes = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return graph.op("Resize", x, "", "", sizes, **attributes)


def unflatten(graph: Graph, x: str, axis: int, sizes: tuple[int, ...]) -> str:
    return graph.op("Reshape", x, graph.constant([0] * axis + list(sizes)))


def clamp_min(graph: Graph, x: str, low: float) -> str:
    return graph.op("Max", x, graph.constant(low, np.float32))


class TopK(dict[str, str]):
    """The result of topk. Only its `values` can be read, not the indices."""


def topk(graph: Graph, x: str, count: int, *, dim: int) -> TopK:
    values, _ = graph.ops("TopK", x, graph.constant([count]), outputs=2, axis=dim)
    return TopK(values=values)


def pad(graph: Graph, x: str, sides: tuple[int, int], *, mode: str, value: float | None) -> str:
    """Zeros before and behind the last axis of a matrix."""
    assert mode == "constant"
    assert not value
    before, behind = sides
    return graph.op("Pad", x, graph.constant([0, before, 0, behind])) if before or behind else x


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.relu: unary("Relu"),
    F.relu6: relu6,
    F.silu: silu,
    F.softplus: unary("Softplus"),
    F.max_pool2d: max_pool,
    F.interpolate: resize,
    F.pad: pad,
    torch.tanh: unary("Tanh"),
    torch.sigmoid: unary("Sigmoid"),
    torch.cat: concat,
    operator.add: binary("Add"),
    operator.sub: binary("Sub"),
    operator.mul: binary("Mul"),
    operator.truediv: binary("Div"),
    operator.pow: binary("Pow"),
    operator.neg: unary("Neg"),
    operator.getitem: get_item,
    getattr: lambda graph, item, name: item[name],
    "sigmoid": unary("Sigmoid"),
    "exp": unary("Exp"),
    "log_softmax": lambda graph, x, axis: graph.op("LogSoftmax", x, axis=axis),
    "softmax": lambda graph, x, axis: graph.op("Softmax", x, axis=axis),
    "permute": lambda graph, x, *order: graph.op("Transpose", x, perm=order),
    "flatten": lambda graph, x, axis: graph.op("Flatten", x, axis=axis),
    "unflatten": unflatten,
    "add": binary("Add"),
    "mul": binary("Mul"),
    "clamp": clamp,
    "sum": total,
    "clamp_min": clamp_min,
    "topk": topk,
}
ELEMENTWISE = {F.relu, F.relu6, F.silu, torch.tanh, torch.sigmoid, operator.add, operator.mul}
