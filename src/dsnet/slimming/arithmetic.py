"""What ATen operators of arithmetic become: sums and products, powers, means and extremes along axes, comparisons."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from dsnet.slimming.layers import pointwise
from dsnet.slimming.norms import scaled_norm, written_norm
from dsnet.slimming.trace import Reader, kind_of, refuse, shape_of, translates


@translates("add", "sub", "rsub", "mul", "div")
def binary(reader: Reader, node: fx.Node, a: Any, b: Any, *, alpha: float = 1, rounding_mode: str | None = None) -> str:
    kind = kind_of(node)
    if rounding_mode is not None:
        raise refuse(reader, node, "is a division with rounding_mode; round in a step of its own, or not at all")
    kind, a, b = ("sub", b, a) if kind == "rsub" else (kind, a, b)
    first, second = reader.is_map(a), reader.is_map(b)
    if first and second:
        return combined(reader, node, kind, reader.value(a, node), times(reader, node, reader.value(b, node), alpha))
    name = reader.value(a, node) if first else times(reader, node, reader.value(b, node), alpha)
    other: Any = b if first else a
    if (held := reader.tensor(other)) is not None:
        other = float(held) if held.numel() == 1 else held
    other = other * alpha if first else other
    if isinstance(other, Tensor):
        return with_parameter(reader, node, kind, name, other, swapped=not first)
    side: dict[str, Any] = {} if first or kind in ("add", "mul") else {"swapped": True}
    return reader.add(node, kind, [name], number=float(other), **side)


def times(reader: Reader, node: fx.Node, name: str, factor: float) -> str:
    shape = reader.ops[name].shape
    return name if factor == 1 else reader.add(node, "mul", [name], shape=shape, number=float(factor))


def combined(reader: Reader, node: fx.Node, kind: str, left: str, right: str) -> str:
    """Two maps combined, or a layer norm whose last step this is."""
    source = reader.unturned(left)
    norm = written_norm(reader, kind, source or left, reader.unturned(right) or right)
    if norm is None:
        return reader.add(node, kind, [left, right])
    made = reader.add(node, "layer_norm", **norm)
    return reader.turned(node, made) if source else made


def with_parameter(reader: Reader, node: fx.Node, kind: str, name: str, held: Tensor, *, swapped: bool) -> str:
    """A map combined with a parameter: a product or sum with a number for each channel if it is one, otherwise with a
    constant map."""
    if kind == "sub" and swapped:
        kind, name = "add", times(reader, node, name, -1)
    elif kind == "sub":
        kind, held = "add", -held
    elif kind == "div" and not swapped:
        kind, held = "mul", 1 / held
    if kind in ("add", "mul") and (found := per_channel(reader, node, name, held, kind)) is not None:
        return found
    constant = reader.constant(node, held, like=name)
    return reader.add(node, kind, [constant, name] if swapped else [name, constant])


def per_channel(reader: Reader, node: fx.Node, name: str, held: Tensor, kind: str) -> str | None:
    """A product or sum with a number for each channel, as a depthwise convolution of one pixel, or as a part of the
    layer norm before. None if the parameter is something else."""
    source = reader.unturned(name)
    shape, rank = reader.ops[source or name].shape, len(reader.ops[name].shape)
    aligned = (1,) * (rank + 1 - held.dim()) + tuple(held.shape)
    if held.dim() > rank + 1 or aligned != tuple(
        shape[0] if axis == (rank if source else 1) else 1 for axis in range(rank + 1)
    ):
        return None
    values, ones = held.flatten().float(), torch.ones(shape[0])
    weight, bias = (values, None) if kind == "mul" else (ones, values)
    tensors = {"weight": weight[:, None, None, None], "bias": bias}
    if (norm := scaled_norm(reader, source or name, weight, bias)) is not None:
        made = reader.add(node, "layer_norm", **norm)
    elif len(shape) == 3:
        made = pointwise(reader, node, source or name, shape, tensors, groups=shape[0])
    elif len(shape) == 1:
        as_map = reader.add(node, "axes", [name], name=f"{node.name}_map", shape=(*shape, 1, 1), rank=4)
        found = pointwise(reader, node, as_map, (*shape, 1, 1), tensors, groups=shape[0])
        return reader.add(node, "axes", [found], name=f"{node.name}_vector", shape=shape, rank=2)
    else:
        return None
    return reader.turned(node, made) if source else made


@translates("pow")
def power(reader: Reader, node: fx.Node, x: Any, exponent: Any) -> str:
    if not isinstance(exponent, int | float) or not reader.is_map(x):
        raise refuse(reader, node, "raises to a power that is computed; only fixed exponents are known")
    name = reader.value(x, node)
    if exponent == 2:
        return reader.add(node, "mul", [name, name])
    if abs(exponent) == 0.5:
        name = reader.add(node, "sqrt", [name])
    elif exponent != -1:
        return reader.add(node, "pow", [name], exponent=float(exponent))
    return name if exponent > 0 else reader.add(node, "div", [name], number=1.0, swapped=True)


@translates("square", "rsqrt", "reciprocal", "expm1", "log1p")
def composed(reader: Reader, node: fx.Node, x: fx.Node) -> str:
    name = reader.value(x, node)
    match kind_of(node):
        case "square":
            return reader.add(node, "mul", [name, name])
        case "expm1":
            return reader.add(node, "sub", [reader.add(node, "exp", [name])], number=1.0)
        case "log1p":
            return reader.add(node, "log", [reader.add(node, "add", [name], number=1.0)])
        case "rsqrt":
            name = reader.add(node, "sqrt", [name])
    return reader.add(node, "div", [name], number=1.0, swapped=True)


@translates("gt", "ge", "lt", "le")
def compared(reader: Reader, node: fx.Node, x: fx.Node, other: Any) -> str:
    if not isinstance(other, int | float):
        return reader.add(node, kind_of(node), [reader.value(x, node), reader.value(other, node)])
    return reader.add(node, kind_of(node), [reader.value(x, node)], number=float(other))


@translates("where")
def where(reader: Reader, node: fx.Node, condition: fx.Node, a: Any, b: Any) -> str:
    """A choice for every value. Numbers and parameters become constant maps."""
    name = reader.value(condition, node)
    sides = [reader.value(item, node, like=name) for item in (a, b)]
    return reader.add(node, "where", [name, *sides])


@translates("maximum", "max", "minimum", "min")
def larger(reader: Reader, node: fx.Node, a: fx.Node, b: Any = None, keepdim: bool = False) -> Any:
    if isinstance(b, fx.Node):
        kind = "minimum" if kind_of(node).startswith("min") else "maximum"
        name = reader.value(a, node)
        return reader.add(node, kind, [name, reader.value(b, node, like=name)])
    kind = "amin" if kind_of(node) == "min" else "amax"
    if b is None:
        raise refuse(reader, node, "takes an extreme over the images of a batch; every image must have its own answer")
    shape = tuple(node.meta["val"][0].shape[1:])  # torch returns places as well
    return [reduced(reader, node, kind, a, b, keepdim, shape=shape), ""]


@translates("mean", "sum", "amax", "amin")
def along(reader: Reader, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    return reduced(reader, node, kind_of(node), x, dims, keepdim)


@translates("var")
def variance(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    dims: Any = None,
    unbiased: bool = True,
    keepdim: bool = False,
    *,
    correction: float | None = 1,
) -> str:
    correction = correction if unbiased else 0
    axes, sides = axes_of(reader, node, x, dims), shape_of(x)
    count = prod(sides[axis - 1] for axis in axes)
    if correction and any(axis > 1 for axis in axes):
        raise refuse(
            reader, node, f"divides a variance over pixels by {count} less {correction:g}; compute it with correction=0"
        )
    name, kept = reader.value(x, node), tuple(1 if axis in axes else side for axis, side in enumerate(sides, 1))
    mean = reader.add(node, "mean", [name], shape=kept, dims=axes, keep=True)
    centred = reader.add(node, "sub", [name, mean], shape=sides)
    square = reader.add(node, "mul", [centred, centred], shape=sides)
    found = reader.add(node, "mean", [square], dims=axes, keep=keepdim)
    return reader.add(node, "mul", [found], number=count / (count - correction)) if correction else found


@translates("linalg_vector_norm")
def vector_norm(
    reader: Reader, node: fx.Node, x: fx.Node, order: float = 2, dims: Any = None, keep: bool = False, dtype: Any = None
) -> str:
    if order not in (1, 2):
        raise refuse(reader, node, f"is a norm of order {order}; orders 1 and 2 are known")
    name, axes = reader.value(x, node), axes_of(reader, node, x, dims)
    shape = shape_of(x)
    each = (
        reader.add(node, "abs", [name], shape=shape) if order == 1 else reader.add(node, "mul", [name] * 2, shape=shape)
    )
    found = summed(reader, node, "sum", each, axes, keep)
    return found if order == 1 else reader.add(node, "sqrt", [found])


def axes_of(reader: Reader, node: fx.Node, x: fx.Node, dims: Any) -> tuple[int, ...]:
    """The axes that an operation goes along, in rising order. The images of a batch may not be mixed."""
    rank = len(shape_of(x)) + 1
    axes = sorted(dim % rank for dim in ([dims] if isinstance(dims, int) else dims or range(rank)))
    if axes[0] == 0 and x.name not in reader.stacks:
        raise refuse(reader, node, "averages over the images of a batch; every image must have an answer of its own")
    return tuple(axes)


def reduced(reader: Reader, node: fx.Node, kind: str, x: fx.Node, dims: Any, keep: bool, **more: Any) -> str:
    axis, stacked = reader.stacks.get(x.name, (None, []))
    axes = axes_of(reader, node, x, dims)
    if axes == (axis,) and kind in ("sum", "mean") and not keep:
        return added(reader, node, stacked, mean=kind == "mean")
    return summed(reader, node, kind, reader.value(x, node), axes, keep, **more)


def summed(reader: Reader, node: fx.Node, kind: str, name: str, axes: tuple[int, ...], keep: bool, **more: Any) -> str:
    """A value along axes. Of a map with its channels moved to the end, the axes of the map itself are meant."""
    if (source := reader.unturned(name)) is not None and (keep or axes in ((1, 2), (3,), (1, 2, 3))):
        name, axes = source, tuple(sorted((2, 3, 1)[axis - 1] for axis in axes))
        if keep:
            height, width, channels = shape_of(node)
            made = summed(reader, node, kind, name, axes, keep, shape=(channels, height, width))
            return reader.turned(node, made)
    if kind == "mean" and axes == (2, 3) and len(reader.ops[name].shape) == 3:
        return reader.add(node, "global_pool", [name], keep=keep, **more)
    return reader.add(node, kind, [name], dims=axes, keep=keep, **more)


def added(reader: Reader, node: fx.Node, names: Sequence[str], *, mean: bool) -> str:
    """The sum or mean of maps, one after another."""
    total, *others = names
    for number, other in enumerate(others):
        total = reader.add(node, "add", [total, other], name=f"{node.name}_{number}")
    return reader.add(node, "div", [total], number=float(len(names))) if mean else total
