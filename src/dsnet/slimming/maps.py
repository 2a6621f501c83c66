"""What ATen operators on maps become: sums and products, concatenations, pooling, other shapes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dsnet.slimming.layers import pair
from dsnet.slimming.trace import Reader, refuse, shape_of, translates


@translates("add", "sub", "rsub", "mul", "div")
def binary(reader: Reader, node: fx.Node, a: Any, b: Any, *, alpha: float = 1, rounding_mode: str | None = None) -> str:
    kind = str(node.target).removeprefix("aten.").partition(".")[0].removesuffix("_")
    if kind == "rsub":
        kind, a, b = "sub", b, a
    if rounding_mode is not None or alpha != 1:
        raise refuse(reader, node, f"is a {kind} with alpha or rounding_mode; write it in two steps")
    named = [isinstance(item, fx.Node) and isinstance(reader.names.get(item), str) for item in (a, b)]
    if all(named):
        return reader.add(node, kind, [reader.value(a, node), reader.value(b, node)])
    x, other = (a, b) if named[0] else (b, a)
    held = reader.tensor(other)
    if held is not None and held.numel() == 1:
        other = float(held)
    if isinstance(other, int | float):
        side: dict[str, Any] = {} if named[0] or kind in ("add", "mul") else {"swapped": True}
        return reader.add(node, kind, [reader.value(x, node)], number=float(other), **side)
    if held is None or kind not in ("add", "mul") or (not named[0] and kind == "sub"):
        raise refuse(reader, node, "combines a map with a parameter in a way that dsnet slim does not know")
    return per_channel(reader, node, x, held, kind)


def per_channel(reader: Reader, node: fx.Node, x: fx.Node, held: Tensor, kind: str) -> str:
    """A product or sum with a number for each channel, as a depthwise convolution of one pixel."""
    shape = shape_of(x)
    numbers = held.reshape(held.shape[-3:]) if held.dim() > 3 and len(held) == 1 else held
    if len(shape) != 3 or numbers.dim() != 3 or numbers.shape[1:] != (1, 1) or len(numbers) != shape[0]:
        raise refuse(
            reader,
            node,
            f"combines a map {list(shape)} with a parameter {list(held.shape)}; one number for each channel is known",
        )
    ones, values = torch.ones(shape[0]), numbers.flatten().float()
    weight = (values if kind == "mul" else ones)[:, None, None, None]
    tensors = {"weight": weight, "bias": values if kind == "add" else None}
    options: dict[str, Any] = {
        "kernel": (1, 1),
        "stride": (1, 1),
        "padding": (0, 0),
        "dilation": (1, 1),
        "groups": shape[0],
    }
    return reader.add(
        node, "conv", [reader.value(x, node)], name=str(node.name), tensors=tensors, bias=kind == "add", **options
    )


@translates("maximum", "max", "minimum")
def larger(reader: Reader, node: fx.Node, a: fx.Node, b: Any = None, keepdim: bool = False) -> Any:
    if not isinstance(b, fx.Node):  # along an axis: torch returns places as well
        return [reduced(reader, node, "amax", a, b, keepdim, shape=tuple(node.meta["val"][0].shape[1:])), ""]
    kind = "minimum" if "minimum" in str(node.target) else "maximum"
    return reader.add(node, kind, [reader.value(a, node), reader.value(b, node)])


@translates("cat")
def cat(reader: Reader, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    if dim % (len(shape_of(node)) + 1) != 1:
        raise refuse(reader, node, f"concatenates along axis {dim}; only channels (axis 1) are concatenated")
    return reader.add(node, "cat", [reader.value(part, node) for part in parts])


@translates("stack")
def stack(reader: Reader, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str | None:
    """Maps along a new axis; where this axis is summed or averaged at once, a sum of maps (in `reduced`)."""
    axis = dim % node.meta["val"].dim()
    names = [reader.value(part, node) for part in parts]
    reader.stacks[node.name] = axis, names
    return reader.add(node, "stack", names, axis=axis) if axis else None


@translates("index_select")
def index_select(reader: Reader, node: fx.Node, x: fx.Node, dim: int, places: fx.Node) -> str:
    held = reader.tensor(places)
    if held is None or dim % (len(shape_of(x)) + 1) != 1:
        raise refuse(reader, node, "selects by computed places, or no channels; give constant numbers of channels")
    return reader.add(node, "pick", [reader.value(x, node)], places=tuple(int(place) for place in held))


@translates("max_pool2d")
def max_pool(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil: bool = False,
) -> str:
    options: dict[str, Any] = {"kernel": pair(kernel), "stride": pair(stride or kernel), "padding": pair(padding)}
    return reader.add(node, "max_pool", [reader.value(x, node)], **options, dilation=pair(dilation), ceil=bool(ceil))


@translates("avg_pool2d")
def avg_pool(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil: bool = False,
    include: bool = True,
    divisor: int | None = None,
) -> str:
    name, sides = reader.value(x, node), pair(kernel)
    if shape_of(node)[1:] == (1, 1) and sides == shape_of(x)[1:] and pair(padding) == (0, 0) and divisor is None:
        return reader.add(node, "global_pool", [name], keep=True)  # the same at this size, and known at others
    if divisor is not None:
        raise refuse(reader, node, "is an average pool with divisor_override; use a plain one")
    options: dict[str, Any] = {"kernel": sides, "stride": pair(stride or kernel), "padding": pair(padding)}
    return reader.add(node, "avg_pool", [name], **options, ceil=bool(ceil), include=bool(include))


@translates("adaptive_avg_pool2d", "adaptive_max_pool2d")
def adaptive_pool(reader: Reader, node: fx.Node, x: fx.Node, size: Any) -> Any:
    name, sides, (channels, *before) = reader.value(x, node), pair(size), shape_of(x)
    average, shape = "avg" in str(node.target), (channels, *sides)
    if sides == (1, 1) and average:
        return reader.add(node, "global_pool", [name], keep=True)
    if sides == (1, 1):
        return [reader.add(node, "global_max", [name], shape=shape), ""]  # torch returns places as well
    steps = (before[0] // sides[0], before[1] // sides[1])
    if (steps[0] * sides[0], steps[1] * sides[1]) != tuple(before):
        raise refuse(reader, node, f"pools a map {before} to {sides}, which does not divide it; choose another size")
    options: dict[str, Any] = {"kernel": steps, "stride": steps, "padding": (0, 0), "ceil": False}
    if not average:
        return [reader.add(node, "max_pool", [name], shape=shape, **options, dilation=(1, 1)), ""]
    return name if steps == (1, 1) else reader.add(node, "avg_pool", [name], **options, include=True)


@translates("mean")
def mean(reader: Reader, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    return reduced(reader, node, "mean", x, dims, keepdim)


@translates("sum", "amax")
def total(reader: Reader, node: fx.Node, x: fx.Node, dims: Any = None, keepdim: bool = False, dtype: Any = None) -> str:
    return reduced(reader, node, "amax" if "amax" in str(node.target) else "sum", x, dims, keepdim)


def reduced(reader: Reader, node: fx.Node, kind: str, x: fx.Node, dims: Any, keep: bool, **more: Any) -> str:
    rank = len(shape_of(x)) + 1
    axes = sorted(dim % rank for dim in ([dims] if isinstance(dims, int) else dims or range(rank)))
    axis, stacked = reader.stacks.get(x.name, (None, []))
    if axes == [axis] and kind in ("sum", "mean") and not keep:
        return added(reader, node, stacked, mean=kind == "mean")
    name = reader.value(x, node)
    if kind == "mean" and rank == 4 and axes == [2, 3]:
        return reader.add(node, "global_pool", [name], keep=keep)
    if 0 in axes:
        raise refuse(reader, node, "averages over the images of a batch; every image must have an answer of its own")
    return reader.add(node, kind, [name], dims=tuple(axes), keep=keep, **more)


def added(reader: Reader, node: fx.Node, names: Sequence[str], *, mean: bool) -> str:
    """The sum or mean of maps, one after another."""
    total, *others = names
    for number, other in enumerate(others):
        total = reader.add(node, "add", [total, other], name=f"{node.name}_{number}")
    return reader.add(node, "div", [total], number=float(len(names))) if mean else total


@translates("view", "reshape", "flatten", "squeeze", "unsqueeze", "_unsafe_view", "unflatten")
def reshape(reader: Reader, node: fx.Node, x: fx.Node, *args: Any) -> str:
    name, before, after = reader.value(x, node), shape_of(x), shape_of(node)
    if node.meta["val"].shape[0] != x.meta["val"].shape[0]:
        raise refuse(reader, node, "moves values between the images of a batch; keep the first axis as it is")
    if before == after:
        return name
    if (len(after) == 1 and before[0] == after[0]) or (len(before) == 1 and after == (*before, *after[1:])):
        return reader.add(node, "axes", [name], rank=len(after) + 1)
    if before[:1] == after[:1] and all(side == 1 for side in (*before[1:], *after[1:])):
        return reader.add(node, "axes", [name], rank=len(after) + 1)
    if len(after) == 1:
        return reader.add(node, "flatten", [name])
    made = next(op for op in reader.ops if op.name == name)
    if made.kind in ("mean", "sum", "amax") and made.options["dims"] == (1,) and after == (1, *before):
        return reader.add(node, made.kind, made.inputs, dims=(1,), keep=True)
    if (shuffled := shuffle(reader, name, after)) is not None:
        source, groups = shuffled
        return reader.add(node, "shuffle", [source], groups=groups)
    return reader.add(node, "reshape", [name], sizes=after)


def shuffle(reader: Reader, name: str, after: tuple[int, ...]) -> tuple[str, int] | None:
    """The map that is shuffled if a reshape ends a shuffle of channels, and the number of groups; None if not."""
    ops = {op.name: op for op in reader.ops}
    turned = ops[name]
    if turned.kind != "permute" or turned.options["order"] != (0, 2, 1, 3, 4):
        return None
    opened = ops[turned.inputs[0]]
    if opened.kind != "reshape" or ops[opened.inputs[0]].shape != after or opened.shape[2:] != after[1:]:
        return None
    return opened.inputs[0], opened.shape[0]


@translates("transpose", "permute")
def permute(reader: Reader, node: fx.Node, x: fx.Node, *args: Any) -> str:
    rank = len(shape_of(x)) + 1
    if "permute" in str(node.target):
        order = [axis % rank for axis in args[0]]
    else:
        order = list(range(rank))
        one, other = (axis % rank for axis in args)
        order[one], order[other] = order[other], order[one]
    if order[0] != 0:
        raise refuse(reader, node, "moves the axis of the batch; keep it first")
    return reader.add(node, "permute", [reader.value(x, node)], order=tuple(order))


@translates("chunk", "split", "split_with_sizes", "tensor_split")
def split(reader: Reader, node: fx.Node, x: fx.Node, sizes: Any, dim: int = 0) -> list[str]:
    axis = dim % (len(shape_of(x)) + 1)
    if axis == 0:
        raise refuse(reader, node, "splits a batch; every image must have an answer of its own")
    name, found, start = reader.value(x, node), [], 0
    for number, piece in enumerate(node.meta["val"]):
        stop = start + int(piece.shape[axis])
        options: dict[str, Any] = {"start": start, "stop": stop} | ({} if axis == 1 else {"axis": axis, "step": 1})
        options["shape"] = tuple(int(side) for side in piece.shape[1:])
        kind = "take" if axis == 1 else "crop"
        found.append(reader.add(node, kind, [name], name=f"{node.name}_{number}", **options))
        start = stop
    return found


@translates("slice")
def slicing(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> str:
    axis, name = dim % (len(shape_of(x)) + 1), reader.value(x, node)
    if shape_of(node) == shape_of(x):
        return name
    if axis == 0:
        raise refuse(reader, node, "takes some images of a batch; every image must have an answer of its own")
    length = shape_of(x)[axis - 1]
    begin = min(start + length if start is not None and start < 0 else start or 0, length)
    stop = begin + (shape_of(node)[axis - 1] - 1) * step + 1
    if axis == 1 and step == 1:
        return reader.add(node, "take", [name], start=begin, stop=stop)
    return reader.add(node, "crop", [name], axis=axis, start=begin, stop=stop, step=step)


@translates("pad", "constant_pad_nd")
def pad(
    reader: Reader, node: fx.Node, x: fx.Node, sides: Sequence[int], mode: Any = "constant", value: float | None = None
) -> str:
    if isinstance(mode, int | float):
        mode, value = "constant", float(mode)
    name, given = reader.value(x, node), (*sides, 0, 0, 0, 0)[:6]
    if any(given[:4]):
        channels, height, width = shape_of(x)
        left, right, top, bottom = given[:4]
        shape = (channels, height + top + bottom, width + left + right)
        options: dict[str, Any] = {"sides": (left, right, top, bottom), "mode": str(mode), "value": float(value or 0)}
        name = reader.add(node, "pad", [name], name=f"{node.name}_map", shape=shape, **options)
    if any(given[4:]):
        if mode != "constant" or value:
            raise refuse(reader, node, f"pads channels with mode {mode}; only zeros are known")
        name = reader.add(node, "pad_channels", [name], before=given[4], behind=given[5])
    return name


@translates("upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d")
def resize(reader: Reader, node: fx.Node, x: fx.Node, size: Any, *args: Any) -> str:
    kind = str(node.target).removeprefix("aten.upsample_").partition("2d")[0]
    align, scales = (False, args[0]) if kind == "nearest" else (bool(args[0]), args[1])
    factors = None if scales is None else tuple(float(scale) for scale in scales)
    sides = shape_of(node)[1:]
    before = shape_of(x)[1:]
    if factors is None and all(side % old == 0 for side, old in zip(sides, before, strict=True)):
        factors = tuple(side / old for side, old in zip(sides, before, strict=True))
    options: dict[str, Any] = {"mode": kind, "align": align}
    options |= {"size": sides} if factors is None else {"scale": factors}
    return reader.add(node, "resize", [reader.value(x, node)], **options)
