"""What ATen operators of layers become: convolutions, linear layers, norms, activations."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from dsnet.slimming.trace import Reader, refuse, shape_of, translates

UNARY = {
    "relu": "relu",
    "relu6": "relu6",
    "silu": "silu",
    "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid",
    "sigmoid": "sigmoid",
    "tanh": "tanh",
    "mish": "mish",
    "selu": "selu",
    "softplus": "softplus",
    "abs": "abs",
    "exp": "exp",
    "sqrt": "sqrt",
    "neg": "neg",
}


def pair(values: Any) -> tuple[int, int]:
    sides = [values] if isinstance(values, int) else list(values)
    return (sides[0], sides[-1])


@translates(*UNARY)
def unary(reader: Reader, node: fx.Node, x: fx.Node) -> str:
    kind = str(node.target).removeprefix("aten.").partition(".")[0].removesuffix("_")
    return reader.add(node, UNARY[kind], [reader.value(x, node)])


@translates("leaky_relu")
def leaky_relu(reader: Reader, node: fx.Node, x: fx.Node, slope: float = 0.01) -> str:
    return reader.add(node, "leaky_relu", [reader.value(x, node)], slope=float(slope))


@translates("elu")
def elu(reader: Reader, node: fx.Node, x: fx.Node, alpha: float = 1.0, scale: float = 1.0, inner: float = 1.0) -> str:
    if scale != 1 or inner != 1:
        raise refuse(reader, node, "scales an elu; use torch.nn.ELU")
    return reader.add(node, "elu", [reader.value(x, node)], alpha=float(alpha))


@translates("gelu")
def gelu(reader: Reader, node: fx.Node, x: fx.Node, *, approximate: str = "none") -> str:
    return reader.add(node, "gelu", [reader.value(x, node)], approximate=approximate)


@translates("hardtanh", "clamp", "clamp_min")
def clamp(reader: Reader, node: fx.Node, x: fx.Node, low: float | None = -1.0, high: float | None = None) -> str:
    if high is None and "hardtanh" in str(node.target):
        high = 1.0
    if low == 0 and high in (6, None):
        return reader.add(node, "relu6" if high else "relu", [reader.value(x, node)])
    ends: dict[str, Any] = {"low": None if low is None else float(low), "high": None if high is None else float(high)}
    return reader.add(node, "clamp", [reader.value(x, node)], **ends)


@translates("softmax", "log_softmax")
def softmax(reader: Reader, node: fx.Node, x: fx.Node, dim: int, dtype: Any = None) -> str:
    kind = "log_softmax" if "log_softmax" in str(node.target) else "softmax"
    return reader.add(node, kind, [reader.value(x, node)], dim=dim % (len(shape_of(x)) + 1))


@translates("dropout", "feature_dropout", "alpha_dropout", "contiguous", "clone", "alias", "detach", "lift_fresh_copy")
def nothing(reader: Reader, node: fx.Node, x: fx.Node, *args: Any, **options: Any) -> str:
    return reader.value(x, node)


@translates("expand", "expand_as")
def expand(reader: Reader, node: fx.Node, x: fx.Node, *args: Any, **options: Any) -> str:
    """Sums and products repeat the axes of one pixel themselves."""
    kinds = {str(user.target).removeprefix("aten.").partition(".")[0].removesuffix("_") for user in node.users}
    if not kinds <= {"add", "sub", "mul", "div"} and shape_of(node) != shape_of(x):
        raise refuse(reader, node, f"repeats a map for {', '.join(sorted(kinds))}; only sums and products repeat maps")
    return reader.value(x, node)


@translates("zeros_like", "ones_like")
def constant(reader: Reader, node: fx.Node, x: fx.Node, **options: Any) -> str:
    zeros = reader.add(node, "mul", [reader.value(x, node)], number=0.0)
    return zeros if "zeros" in str(node.target) else reader.add(node, "add", [zeros], number=1.0)


@translates("to", "_to_copy")
def cast(reader: Reader, node: fx.Node, x: fx.Node, *args: Any, **options: Any) -> str:
    if node.meta["val"].dtype != x.meta["val"].dtype:
        raise refuse(reader, node, "changes the type of a map; compute in one type")
    return reader.value(x, node)


@translates("conv2d")
def conv2d(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node,
    bias: fx.Node | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> str:
    held, name = reader.tensor(weight), reader.value(x, node)
    if held is None:
        raise refuse(reader, node, "computes the weights of a convolution; they must be parameters")
    stride, dilation, kernel = pair(stride), pair(dilation), (held.shape[2], held.shape[3])
    if isinstance(padding, str):
        total = [by * (side - 1) for side, by in zip(kernel, dilation, strict=True)] if padding == "same" else [0, 0]
        (top, bottom), (left, right) = ((t // 2, t - t // 2) for t in total)
        padding = (top, left)
        if (top, left) != (bottom, right):
            sides, (channels, height, width) = (left, right, top, bottom), shape_of(x)
            shape = (channels, height + top + bottom, width + left + right)
            name, padding = (
                reader.add(
                    node, "pad", [name], name=f"{node.name}_pad", shape=shape, sides=sides, mode="constant", value=0.0
                ),
                (0, 0),
            )
    tensors = {"weight": held, "bias": reader.tensor(bias)}
    options: dict[str, Any] = {
        "kernel": kernel,
        "stride": stride,
        "padding": pair(padding),
        "dilation": dilation,
        "groups": groups,
    }
    return reader.add(node, "conv", [name], tensors=tensors, bias=bias is not None, **options)


@translates("linear")
def linear(reader: Reader, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None) -> str:
    held = reader.tensor(weight)
    if held is None or len(shape_of(x)) != 1:
        raise refuse(reader, node, "is a linear layer on something other than vectors; use a 1x1 convolution")
    tensors = {"weight": held, "bias": reader.tensor(bias)}
    return reader.add(node, "linear", [reader.value(x, node)], tensors=tensors, bias=bias is not None)


@translates("batch_norm")
def batch_norm(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    weight: fx.Node | None,
    bias: fx.Node | None,
    mean: fx.Node | None,
    var: fx.Node | None,
    training: bool,
    momentum: float,
    eps: float,
    cudnn: bool = True,
) -> str:
    means, variances = reader.tensor(mean), reader.tensor(var)
    if training or means is None or variances is None:
        raise refuse(reader, node, "is a batch norm without running statistics; set track_running_stats=True")
    scale, shift = reader.tensor(weight), reader.tensor(bias)
    tensors = {
        "weight": torch.ones_like(means) if scale is None else scale,
        "bias": torch.zeros_like(means) if shift is None else shift,
        "running_mean": means,
        "running_var": variances,
    }
    if len(shape_of(x)) == 1:  # as a map of one pixel
        return vector_norm(reader, node, x, tensors, float(eps))
    return reader.add(node, "batch_norm", [reader.value(x, node)], tensors=tensors, eps=float(eps))


def vector_norm(reader: Reader, node: fx.Node, x: fx.Node, tensors: dict[str, Tensor], eps: float) -> str:
    (count,) = shape_of(x)
    as_map = reader.add(node, "axes", [reader.value(x, node)], name=f"{node.name}_map", shape=(count, 1, 1), rank=4)
    normed = reader.add(node, "batch_norm", [as_map], shape=(count, 1, 1), tensors=tensors, eps=eps)
    return reader.add(node, "axes", [normed], name=f"{node.name}_vector", shape=(count,), rank=2)


@translates("group_norm", "instance_norm")
def group_norm(reader: Reader, node: fx.Node, x: fx.Node, *args: Any) -> str:
    channels = shape_of(x)[0]
    if "instance_norm" in str(node.target):
        weight, bias, mean, _, training, _, eps, _ = args
        if mean is not None and not training:
            raise refuse(reader, node, "is an instance norm with running statistics; set track_running_stats=False")
        groups = channels
    else:
        groups, weight, bias, eps = (*args, None, None, 1e-5)[:4] if len(args) < 4 else args[:4]
    scale, shift = reader.tensor(weight), reader.tensor(bias)
    tensors = {
        "weight": torch.ones(channels) if scale is None else scale,
        "bias": torch.zeros(channels) if shift is None else shift,
    }
    return reader.add(
        node, "group_norm", [reader.value(x, node)], tensors=tensors, size=channels // groups, eps=float(eps)
    )


@translates("prelu")
def prelu(reader: Reader, node: fx.Node, x: fx.Node, weight: fx.Node) -> str:
    slopes = reader.tensor(weight)
    if slopes is None:
        raise refuse(reader, node, "computes the slopes of a PReLU; they must be parameters")
    return reader.add(node, "prelu", [reader.value(x, node)], tensors={"weight": slopes}, shared=slopes.numel() == 1)
