"""What ATen operators on the shape of maps become: concatenations, pooling, padding, other axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from dsnet.slimming.layers import pair
from dsnet.slimming.trace import Reader, kind_of, refuse, shape_of, translates


@translates("cat")
def cat(reader: Reader, node: fx.Node, parts: Sequence[fx.Node], dim: int = 0) -> str:
    axis, maps = dim % (len(shape_of(node)) + 1), [reader.names[part] for part in parts if reader.is_map(part)]
    if axis == 0:
        raise refuse(reader, node, "makes a larger batch; every image must have an answer of its own")
    names = [reader.value(part, node, like=maps[0]) for part in parts]
    return reader.add(node, "cat", names) if axis == 1 else reader.add(node, "join", names, axis=axis)


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


@translates("index")
def index(reader: Reader, node: fx.Node, x: fx.Node, places: Sequence[fx.Node | None]) -> str:
    chosen = [axis for axis, place in enumerate(places) if place is not None]
    held = reader.tensor(places[1]) if chosen == [1] else None
    if held is None or held.dim() != 1 or held.is_floating_point():
        raise refuse(reader, node, "selects by computed places, or no channels; give constant numbers of channels")
    wanted = held.nonzero().flatten() if held.dtype == torch.bool else held % shape_of(x)[0]
    return reader.add(node, "pick", [reader.value(x, node)], places=tuple(map(int, wanted)))


@translates("flip")
def flip(reader: Reader, node: fx.Node, x: fx.Node, dims: Sequence[int]) -> str:
    axes = tuple(sorted(dim % (len(shape_of(x)) + 1) for dim in dims))
    if axes[0] == 0:
        raise refuse(reader, node, "turns the order of a batch; every image must have an answer of its own")
    return reader.add(node, "flip", [reader.value(x, node)], dims=axes)


@translates("pixel_shuffle")
def pixel_shuffle(reader: Reader, node: fx.Node, x: fx.Node, factor: int) -> str:
    return reader.add(node, "pixel_shuffle", [reader.value(x, node)], factor=factor)


@translates("max_pool2d_with_indices")
def max_pool_with_places(reader: Reader, node: fx.Node, *args: Any) -> list[str]:
    return [max_pool(reader, node, *args, shape=tuple(node.meta["val"][0].shape[1:])), ""]


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
    **more: Any,
) -> str:
    options: dict[str, Any] = {"kernel": pair(kernel), "stride": pair(stride or kernel), "padding": pair(padding)}
    options |= {"dilation": pair(dilation), "ceil": bool(ceil), **more}
    return reader.add(node, "max_pool", [reader.value(x, node)], **options)


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


@translates("avg_pool3d")
def avg_pool3d(
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
    if divisor is not None:
        raise refuse(reader, node, "is an average pool with divisor_override; use a plain one")
    sides = [(each,) * 3 if isinstance(each, int) else tuple(each) for each in (kernel, stride or kernel, padding)]
    options: dict[str, Any] = dict(zip(("kernel", "stride", "padding"), sides, strict=True))
    return reader.add(node, "avg_pool3d", [reader.value(x, node)], **options, ceil=bool(ceil), include=bool(include))


@translates("adaptive_avg_pool2d", "adaptive_max_pool2d")
def adaptive_pool(reader: Reader, node: fx.Node, x: fx.Node, size: Any) -> Any:
    name, sides, (channels, *before) = reader.value(x, node), pair(size), shape_of(x)
    average, shape = "avg" in kind_of(node), (channels, *sides)
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


@translates("view", "view_as", "reshape", "flatten", "squeeze", "unsqueeze", "_unsafe_view", "unflatten")
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
    made = reader.ops[name]
    if made.kind in ("mean", "sum", "amax") and made.options["dims"] == (1,) and after == (1, *before):
        return reader.add(node, made.kind, made.inputs, dims=(1,), keep=True)
    if (shuffled := shuffle(reader, name, after)) is not None:
        source, groups = shuffled
        return reader.add(node, "shuffle", [source], groups=groups) if groups > 1 else source
    if (axis := one_more(before, after)) is not None:
        if made.kind == "squeeze" and made.options["axis"] == axis:  # an axis that was taken out before
            return made.inputs[0]
        return reader.add(node, "unsqueeze", [name], axis=axis)
    if (axis := one_more(after, before)) is not None:
        return reader.add(node, "squeeze", [name], axis=axis)
    return reader.add(node, "reshape", [name], sizes=after)


def one_more(before: tuple[int, ...], after: tuple[int, ...]) -> int | None:
    """The axis of one pixel that a shape has in addition; None if it differs in another way."""
    if len(after) != len(before) + 1:
        return None
    added = (axis for axis, side in enumerate(after, 1) if side == 1 and after[: axis - 1] + after[axis:] == before)
    return next(added, None)


def shuffle(reader: Reader, name: str, after: tuple[int, ...]) -> tuple[str, int] | None:
    """The map that is shuffled if a reshape ends a shuffle of channels, and the number of groups; None if not."""
    ops, turned = reader.ops, reader.ops[name]
    if turned.kind != "permute" or turned.options["order"] != (0, 2, 1, 3, 4):
        return None
    opened = ops[turned.inputs[0]]
    if opened.kind not in ("reshape", "unsqueeze") or opened.shape[2:] != after[1:]:
        return None
    if ops[opened.inputs[0]].shape != after:
        return None
    return opened.inputs[0], opened.shape[0]


@translates("transpose", "permute", "movedim")
def permute(reader: Reader, node: fx.Node, x: fx.Node, *args: Any) -> str:
    rank, name = len(shape_of(x)) + 1, reader.value(x, node)
    order = tuple(getattr(torch.empty(tuple(range(rank)), device="meta"), kind_of(node))(*args).shape)
    if order[0] != 0:
        raise refuse(reader, node, "moves the axis of the batch; keep it first")
    made = reader.ops[name]
    if made.kind == "permute":  # two in a row
        before: Any = made.options["order"]
        name, order = made.inputs[0], tuple(before[axis] for axis in order)
    return name if order == tuple(range(rank)) else reader.add(node, "permute", [name], order=order)


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


@translates("select")
def select(reader: Reader, node: fx.Node, x: fx.Node, dim: int, place: int) -> str:
    axis, sides = dim % (len(shape_of(x)) + 1), shape_of(x)
    if axis == 0:
        raise refuse(reader, node, "takes some images of a batch; every image must have an answer of its own")
    start, shape = place % sides[axis - 1], (*sides[: axis - 1], 1, *sides[axis:])
    options: dict[str, Any] = {"start": start, "stop": start + 1} | ({} if axis == 1 else {"axis": axis, "step": 1})
    kind = "take" if axis == 1 else "crop"
    one = reader.add(node, kind, [reader.value(x, node)], name=f"{node.name}_part", shape=shape, **options)
    return reader.add(node, "squeeze", [one], axis=axis)


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
    options: dict[str, Any] = {"mode": str(mode), "value": float(value or 0)}
    if len(shape_of(x)) == 4:  # it has one more axis between channels and pixels
        return reader.add(node, "pad", [name], sides=given, **options)
    if any(given[:4]):
        channels, height, width = shape_of(x)
        left, right, top, bottom = given[:4]
        shape = (channels, height + top + bottom, width + left + right)
        name = reader.add(node, "pad", [name], name=f"{node.name}_map", shape=shape, sides=given[:4], **options)
    if any(given[4:]):
        if mode != "constant" or value:
            raise refuse(reader, node, f"pads channels with mode {mode}; only zeros are known")
        name = reader.add(node, "pad_channels", [name], before=given[4], behind=given[5])
    return name


@translates("upsample_bilinear2d", "upsample_nearest2d", "upsample_bicubic2d")
def resize(reader: Reader, node: fx.Node, x: fx.Node, size: Any, *args: Any) -> str:
    kind = kind_of(node).removeprefix("upsample_").removesuffix("2d")
    align, scales = (False, args[0]) if kind == "nearest" else (bool(args[0]), args[1])
    factors = None if scales is None else tuple(float(scale) for scale in scales)
    sides = shape_of(node)[1:]
    before = shape_of(x)[1:]
    if factors is None and all(side % old == 0 for side, old in zip(sides, before, strict=True)):
        factors = tuple(side / old for side, old in zip(sides, before, strict=True))
    options: dict[str, Any] = {"mode": kind, "align": align}
    options |= {"size": sides} if factors is None else {"scale": factors}
    return reader.add(node, "resize", [reader.value(x, node)], **options)
