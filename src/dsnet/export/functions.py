"""The functions between layers as ONNX nodes. Each takes the graph and what the function takes, names for maps."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from dsnet.export.writer import Graph, array


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


def two(side: Any) -> list[int]:
    return [side] * 2 if isinstance(side, int) else list(side)


def max_pool(
    graph: Graph,
    x: str,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    *,
    ceil_mode: bool,
    return_indices: bool,
) -> str:
    assert not return_indices
    attributes = {"kernel_shape": two(kernel), "strides": two(stride), "pads": two(padding) * 2}
    attributes |= {"dilations": two(dilation)} if two(dilation) != [1, 1] else {}
    return graph.op("MaxPool", x, **attributes, **({"ceil_mode": 1} if ceil_mode else {}))


def avg_pool(
    graph: Graph, x: str, kernel: Any, stride: Any, *, padding: Any, ceil_mode: bool, count_include_pad: bool
) -> str:
    attributes = {"kernel_shape": two(kernel), "strides": two(stride), "pads": two(padding) * 2}
    included = int(count_include_pad)
    return graph.op("AveragePool", x, **attributes, ceil_mode=int(ceil_mode), count_include_pad=included)


def avg_pool3d(
    graph: Graph, x: str, kernel: Any, stride: Any, *, padding: Any, ceil_mode: bool, count_include_pad: bool
) -> str:
    attributes = {"kernel_shape": list(kernel), "strides": list(stride), "pads": [*padding] * 2}
    included = int(count_include_pad)
    return graph.op("AveragePool", x, **attributes, ceil_mode=int(ceil_mode), count_include_pad=included)


def reduce(kind: str) -> Callable[..., str]:
    return lambda graph, x, axes, keep: graph.op(kind, x, graph.constant(list(axes)), keepdims=int(keep))


def get_item(graph: Graph, x: Any, item: Any) -> Any:
    """One of several outputs, new axes at the end of a tensor, a part of one of its axes, or some of its channels."""
    if not isinstance(x, str):
        return x[item]
    if isinstance(item[-1], tuple):
        return graph.op("Gather", x, graph.constant(list(item[-1])), axis=len(item) - 1)
    if isinstance(item[-1], slice) and item[-1] != slice(None) and item[0] is not Ellipsis:
        part, axis = item[-1], len(item) - 1
        return graph.op("Slice", x, *(graph.constant([end]) for end in (part.start, part.stop, axis, part.step or 1)))
    if item[0] is Ellipsis:
        (part,) = item[1:]
        ends = [2**62 if part.stop is None else part.stop]
        return graph.op("Slice", x, *map(graph.constant, ([part.start or 0], ends, [-1])))
    axes = [axis for axis, part in enumerate(item) if part is None]
    assert all(part is None or part == slice(None) for part in item), f"{item} has no ONNX form"
    return graph.op("Unsqueeze", x, graph.constant(axes))


def concat(graph: Graph, parts: list[str], axis: int = 0, *, dim: int | None = None) -> str:
    return graph.op("Concat", *parts, axis=axis if dim is None else dim)


def stack(graph: Graph, parts: list[str], axis: int) -> str:
    return graph.op("Concat", *(graph.op("Unsqueeze", part, graph.constant([axis])) for part in parts), axis=axis)


def total(graph: Graph, x: str, axis: int, *, keepdim: bool) -> str:
    return graph.op("ReduceSum", x, graph.constant([axis]), keepdims=int(keepdim))


def clamp(graph: Graph, x: str, low: float, high: float) -> str:
    return graph.op("Clip", x, graph.constant(low, np.float32), graph.constant(high, np.float32))


MODES = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}


def resize(
    graph: Graph,
    x: str,
    *,
    size: tuple[int, int] | None,
    mode: str,
    scale_factor: tuple[float, float] | None = None,
    align_corners: bool | None = None,
    **options: Any,
) -> str:
    assert not any(options.values()), f"{options} have no ONNX form"
    places = "align_corners" if align_corners else "asymmetric" if mode == "nearest" else "half_pixel"
    attributes: dict[str, Any] = {"mode": MODES[mode], "coordinate_transformation_mode": places}
    attributes |= {"nearest_mode": "floor"} if mode == "nearest" else {}
    if scale_factor is not None:
        return graph.op("Resize", x, "", graph.constant([1, 1, *scale_factor], np.float32), **attributes)
    channels = graph.op("Shape", x, start=0, end=2)
    return graph.op("Resize", x, "", "", graph.op("Concat", channels, graph.constant(size), axis=0), **attributes)


def unflatten(graph: Graph, x: str, axis: int, sizes: tuple[int, ...]) -> str:
    return graph.op("Reshape", x, graph.constant([0] * axis + list(sizes)))


def clamp_min(graph: Graph, x: str, low: float) -> str:
    return graph.op("Max", x, graph.constant(low, np.float32))


class TopK(dict[str, str]):
    """The result of topk. Only its `values` can be read, not the indices."""


def topk(graph: Graph, x: str, count: int, *, dim: int) -> TopK:
    values, _ = graph.ops("TopK", x, graph.constant([count]), outputs=2, axis=dim)
    return TopK(values=values)


def pad(graph: Graph, x: str, sides: tuple[int, ...], *, mode: str, value: float | None = None) -> str:
    """Values before and behind the last axes. Pairs count from the last axis on: one pair is for matrices."""
    if not any(sides):
        return x
    rank = {2: 2, 4: 4, 6: 5}[len(sides)]
    before, behind = ([0] * (rank - len(half)) + list(half)[::-1] for half in (sides[::2], sides[1::2]))
    kinds = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    more = [graph.constant(value, np.float32)] if value else []
    return graph.op("Pad", x, graph.constant(before + behind), *more, mode=kinds[mode])


def flip(graph: Graph, x: str, axes: tuple[int, ...]) -> str:
    count = len(axes)
    ends = ([-1] * count, [-(2**62)] * count, list(axes), [-1] * count)
    return graph.op("Slice", x, *map(graph.constant, ends))


def clip(graph: Graph, x: str, low: float | None, high: float | None) -> str:
    return graph.op("Clip", x, *("" if end is None else graph.constant(end, np.float32) for end in (low, high)))


def gelu(graph: Graph, x: str, *, approximate: str = "none") -> str:
    half = graph.op("Mul", x, graph.constant(0.5, np.float32))
    if approximate == "none":
        inner = graph.op("Erf", graph.op("Mul", x, graph.constant(math.sqrt(0.5), np.float32)))
    else:
        cube = graph.op("Mul", graph.op("Mul", graph.op("Mul", x, x), x), graph.constant(0.044715, np.float32))
        total = graph.op("Add", x, cube)
        inner = graph.op("Tanh", graph.op("Mul", total, graph.constant(math.sqrt(2 / math.pi), np.float32)))
    return graph.op("Mul", half, graph.op("Add", inner, graph.constant(1, np.float32)))


def mish(graph: Graph, x: str) -> str:
    return graph.op("Mul", x, graph.op("Tanh", graph.op("Softplus", x)))


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    F.relu: unary("Relu"),
    F.relu6: relu6,
    F.silu: silu,
    F.softplus: unary("Softplus"),
    F.hardswish: unary("HardSwish"),
    F.hardsigmoid: lambda graph, x: graph.op("HardSigmoid", x, alpha=1 / 6, beta=0.5),
    F.mish: mish,
    F.selu: unary("Selu"),
    F.gelu: gelu,
    F.leaky_relu: lambda graph, x, negative_slope: graph.op("LeakyRelu", x, alpha=negative_slope),
    F.elu: lambda graph, x, alpha: graph.op("Elu", x, alpha=alpha),
    F.avg_pool2d: avg_pool,
    F.adaptive_max_pool2d: lambda graph, x, size, **flags: graph.op("GlobalMaxPool", x),
    torch.abs: unary("Abs"),
    torch.exp: unary("Exp"),
    torch.sqrt: unary("Sqrt"),
    torch.neg: unary("Neg"),
    torch.log: unary("Log"),
    torch.erf: unary("Erf"),
    torch.sign: unary("Sign"),
    torch.sin: unary("Sin"),
    torch.cos: unary("Cos"),
    torch.clamp: clip,
    torch.softmax: lambda graph, x, axis: graph.op("Softmax", x, axis=axis),
    torch.log_softmax: lambda graph, x, axis: graph.op("LogSoftmax", x, axis=axis),
    torch.sum: reduce("ReduceSum"),
    torch.amax: reduce("ReduceMax"),
    torch.amin: reduce("ReduceMin"),
    torch.maximum: binary("Max"),
    torch.minimum: binary("Min"),
    torch.where: lambda graph, condition, a, b: graph.op("Where", condition, a, b),
    torch.flip: flip,
    F.max_pool2d: max_pool,
    F.avg_pool3d: avg_pool3d,
    F.pixel_shuffle: lambda graph, x, factor: graph.op("DepthToSpace", x, blocksize=factor, mode="CRD"),
    F.interpolate: resize,
    F.pad: pad,
    torch.tanh: unary("Tanh"),
    torch.sigmoid: unary("Sigmoid"),
    torch.cat: concat,
    torch.stack: stack,
    operator.add: binary("Add"),
    operator.sub: binary("Sub"),
    operator.mul: binary("Mul"),
    operator.truediv: binary("Div"),
    operator.pow: binary("Pow"),
    operator.neg: unary("Neg"),
    operator.gt: binary("Greater"),
    operator.ge: binary("GreaterOrEqual"),
    operator.lt: binary("Less"),
    operator.le: binary("LessOrEqual"),
    operator.getitem: get_item,
    getattr: lambda graph, item, name: item[name],
    "sigmoid": unary("Sigmoid"),
    "exp": unary("Exp"),
    "log_softmax": lambda graph, x, axis: graph.op("LogSoftmax", x, axis=axis),
    "softmax": lambda graph, x, axis: graph.op("Softmax", x, axis=axis),
    "mean": reduce("ReduceMean"),
    "permute": lambda graph, x, *order: graph.op("Transpose", x, perm=order),
    "flatten": lambda graph, x, axis: graph.op("Flatten", x, axis=axis),
    "unflatten": unflatten,
    "unsqueeze": lambda graph, x, axis: graph.op("Unsqueeze", x, graph.constant([axis])),
    "squeeze": lambda graph, x, axis: graph.op("Squeeze", x, graph.constant([axis])),
    "add": binary("Add"),
    "mul": binary("Mul"),
    "clamp": clamp,
    "sum": total,
    "clamp_min": clamp_min,
    "topk": topk,
}
ELEMENTWISE = {F.relu, F.relu6, F.silu, F.hardswish, torch.tanh, torch.sigmoid, operator.add, operator.mul}
