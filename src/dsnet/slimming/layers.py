"""What ATen operators of layers become: convolutions, linear layers, activations."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from dsnet.slimming.trace import Reader, Shape, kind_of, refuse, shape_of, translates

UNARY = (
    "relu", "relu6", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "mish", "selu", "abs", "exp", "log", "erf",
    "sign", "sin", "cos", "sqrt", "neg",
)  # fmt: skip


def pair(values: Any) -> tuple[int, int]:
    sides = [values] if isinstance(values, int) else list(values)
    return (sides[0], sides[-1])


@translates(*UNARY)
def unary(reader: Reader, node: fx.Node, x: fx.Node) -> str:
    return reader.add(node, kind_of(node), [reader.value(x, node)])


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


@translates("softplus")
def softplus(reader: Reader, node: fx.Node, x: fx.Node, beta: float = 1.0, threshold: float = 20.0) -> str:
    name = reader.value(x, node)
    if beta == 1:
        return reader.add(node, "softplus", [name])
    name = reader.add(node, "softplus", [reader.add(node, "mul", [name], number=float(beta))])
    return reader.add(node, "div", [name], number=float(beta))


@translates("hardtanh", "clamp", "clamp_min", "clamp_max")
def clamp(reader: Reader, node: fx.Node, x: fx.Node, low: float | None = -1.0, high: float | None = None) -> str:
    if kind_of(node) == "clamp_max":
        low, high = None, low
    if high is None and kind_of(node) == "hardtanh":
        high = 1.0
    if low == 0 and high in (6, None):
        return reader.add(node, "relu6" if high else "relu", [reader.value(x, node)])
    ends: dict[str, Any] = {"low": None if low is None else float(low), "high": None if high is None else float(high)}
    return reader.add(node, "clamp", [reader.value(x, node)], **ends)


@translates("softmax", "log_softmax", "_softmax", "_log_softmax")
def softmax(reader: Reader, node: fx.Node, x: fx.Node, dim: int, dtype: Any = None) -> str:
    kind = kind_of(node).removeprefix("_")
    return reader.add(node, kind, [reader.value(x, node)], dim=dim % (len(shape_of(x)) + 1))


@translates("dropout", "feature_dropout", "alpha_dropout", "contiguous", "clone", "alias", "detach", "lift_fresh_copy")
def nothing(reader: Reader, node: fx.Node, x: fx.Node, *args: Any, **options: Any) -> str:
    return reader.value(x, node)


@translates("expand", "expand_as")
def expand(reader: Reader, node: fx.Node, x: fx.Node, *args: Any, **options: Any) -> str:
    """Sums and products repeat the axes of one pixel themselves."""
    kinds = {kind_of(user) for user in node.users}
    if not kinds <= {"add", "sub", "mul", "div"} and shape_of(node) != shape_of(x):
        raise refuse(reader, node, f"repeats a map for {', '.join(sorted(kinds))}; only sums and products repeat maps")
    return reader.value(x, node)


@translates("zeros_like", "ones_like")
def constant(reader: Reader, node: fx.Node, x: fx.Node, **options: Any) -> str:
    zeros = reader.add(node, "mul", [reader.value(x, node)], number=0.0)
    return zeros if kind_of(node) == "zeros_like" else reader.add(node, "add", [zeros], number=1.0)


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


@translates("conv1d")
def conv1d(
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
    """A convolution along one axis, such as that of channels. It keeps all of its own channels."""
    held = reader.tensor(weight)
    if held is None or isinstance(padding, str):
        raise refuse(reader, node, "computes the weights of a convolution, or names its padding; give fixed ones")
    sides = (pair(each)[0] for each in (stride, padding, dilation))
    options: dict[str, Any] = dict(zip(("stride", "padding", "dilation"), sides, strict=True))
    options |= {"kernel": held.shape[2], "channels": (shape_of(x)[0], len(held)), "groups": groups}
    tensors = {"layer.weight": held, "layer.bias": reader.tensor(bias)}
    return reader.add(node, "conv1d", [reader.value(x, node)], tensors=tensors, bias=bias is not None, **options)


@translates("linear")
def linear(reader: Reader, node: fx.Node, x: fx.Node, weight: fx.Node, bias: fx.Node | None = None) -> str:
    held, name = reader.tensor(weight), reader.value(x, node)
    if held is None:
        raise refuse(reader, node, "computes the weights of a linear layer; they must be parameters")
    tensors = {"weight": held, "bias": reader.tensor(bias)}
    if len(shape_of(x)) == 1:
        return reader.add(node, "linear", [name], tensors=tensors, bias=bias is not None)
    if (source := reader.unturned(name)) is None:
        raise refuse(
            reader,
            node,
            "is a linear layer on neither vectors nor the channels of maps; use a 1x1 convolution",
        )
    shape = (len(held), *reader.ops[source].shape[1:])
    tensors["weight"] = held[:, :, None, None]
    return reader.turned(node, pointwise(reader, node, source, shape, tensors))


def pointwise(
    reader: Reader, node: fx.Node, x: str, shape: Shape, tensors: dict[str, Tensor | None], groups: int = 1
) -> str:
    """A convolution of one pixel, named after a node. shape: That of its result."""
    options: dict[str, Any] = {"kernel": (1, 1), "stride": (1, 1), "padding": (0, 0), "dilation": (1, 1)}
    biased = tensors["bias"] is not None
    named = str(node.name) if groups > 1 else ""
    return reader.add(
        node, "conv", [x], name=named, shape=shape, tensors=tensors, bias=biased, groups=groups, **options
    )


@translates("prelu")
def prelu(reader: Reader, node: fx.Node, x: fx.Node, weight: fx.Node) -> str:
    slopes = reader.tensor(weight)
    if slopes is None:
        raise refuse(reader, node, "computes the slopes of a PReLU; they must be parameters")
    return reader.add(node, "prelu", [reader.value(x, node)], tensors={"weight": slopes}, shared=slopes.numel() == 1)
