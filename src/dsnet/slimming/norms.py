"""What ATen operators of norms become, and norms that are written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from dsnet.slimming.trace import Op, Reader, kind_of, refuse, shape_of, translates


@translates("_native_batch_norm_legit_no_training")
def native_batch_norm(reader: Reader, node: fx.Node, *args: Any) -> list[str]:
    """A batch norm in a program that was decomposed. torch returns its statistics as well."""
    *tensors, momentum, eps = args
    shape = tuple(node.meta["val"][0].shape[1:])
    return [batch_norm(reader, node, *tensors, False, momentum, eps, shape=shape), "", ""]


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
    **more: Any,
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
    if len(shape_of(x)) == 1:
        return vector_norm(reader, node, "batch_norm", x, tensors, float(eps))
    return reader.add(node, "batch_norm", [reader.value(x, node)], tensors=tensors, eps=float(eps), **more)


def vector_norm(reader: Reader, node: fx.Node, kind: str, x: fx.Node, tensors: dict[str, Tensor], eps: float) -> str:
    """A norm of vectors, as maps of one pixel."""
    (count,) = shape_of(x)
    as_map = reader.add(node, "axes", [reader.value(x, node)], name=f"{node.name}_map", shape=(count, 1, 1), rank=4)
    normed = reader.add(node, kind, [as_map], shape=(count, 1, 1), tensors=tensors, eps=eps)
    return reader.add(node, "axes", [normed], name=f"{node.name}_vector", shape=(count,), rank=2)


@translates("group_norm", "instance_norm")
def group_norm(reader: Reader, node: fx.Node, x: fx.Node, *args: Any) -> str:
    channels = shape_of(x)[0]
    if kind_of(node) == "instance_norm":
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


@translates("layer_norm")
def layer_norm(
    reader: Reader,
    node: fx.Node,
    x: fx.Node,
    sides: Sequence[int],
    weight: fx.Node | None = None,
    bias: fx.Node | None = None,
    eps: float = 1e-5,
    cudnn: bool = True,
) -> str:
    """A layer norm over the channels of vectors or of maps whose channels were moved to the end, or over whole maps."""
    name, shape = reader.value(x, node), shape_of(x)
    scale, shift = reader.tensor(weight), reader.tensor(bias)
    tensors = {
        "weight": torch.ones(tuple(sides)) if scale is None else scale,
        "bias": torch.zeros(tuple(sides)) if shift is None else shift,
    }
    if len(shape) == 1:
        return vector_norm(reader, node, "layer_norm", x, tensors, float(eps))
    if (source := reader.unturned(name)) is not None and len(sides) == 1:
        inner = reader.ops[source].shape
        return reader.turned(
            node, reader.add(node, "layer_norm", [source], shape=inner, tensors=tensors, eps=float(eps))
        )
    if len(sides) == len(shape) == 3:
        alike = {kind: tensor[:, :1, :1] for kind, tensor in tensors.items()}
        if all(bool((tensor == alike[kind]).all()) for kind, tensor in tensors.items()):
            tensors = {kind: tensor.flatten() for kind, tensor in alike.items()}
            return reader.add(node, "group_norm", [name], tensors=tensors, size=shape[0], eps=float(eps))
    raise refuse(
        reader,
        node,
        f"is a layer norm over the last {len(sides)} axes of {list(shape)}; normalise over the channels of maps "
        f"(permute to [B, H, W, C] before it and back behind it), or over whole maps with one weight for each channel",
    )


Norm = dict[str, Any]
"""A layer norm that is to be added: its inputs, shape, tensors and epsilon."""


def written_norm(reader: Reader, kind: str, left: str, right: str) -> Norm | None:
    """The layer norm over channels whose last step is left / right or left * right: (x - mean) / sqrt(variance + eps).

    None if it is something else.
    """
    ops = reader.ops
    for centred, spread in ((left, right), (right, left))[: 1 + (kind == "mul")]:
        if kind == "mul" and ops[spread].options == {"number": 1.0, "swapped": True}:
            (spread,) = ops[spread].inputs
        elif kind != "div":
            continue
        x, epsilon = centred_on_channels(ops, centred), shifted(ops, spread)
        if x is not None and epsilon is not None and variance_of(ops, *ops[spread].inputs) == x:
            count = ops[x].shape[0]
            tensors = {"weight": torch.ones(count), "bias": torch.zeros(count)}
            return {"inputs": [x], "shape": ops[x].shape, "tensors": tensors, "eps": epsilon}
    return None


def shifted(ops: Mapping[str, Op], name: str) -> float | None:
    """The number that is added below a square root; None if there is no such root."""
    if ops[name].kind != "sqrt":
        return None
    inner = ops[ops[name].inputs[0]]
    return float(inner.options["number"]) if inner.kind == "add" and "number" in inner.options else None  # type: ignore[arg-type]


def over_channels(op: Op) -> bool:
    return op.kind == "mean" and (op.options["dims"], op.options["keep"]) == ((1,), True)


def centred_on_channels(ops: Mapping[str, Op], name: str) -> str | None:
    """The map x of x - mean of its channels."""
    op = ops[name]
    if op.kind != "sub" or len(op.inputs) != 2 or not over_channels(ops[op.inputs[1]]):
        return None
    return op.inputs[0] if ops[op.inputs[1]].inputs == op.inputs[:1] else None


def variance_of(ops: Mapping[str, Op], name: str) -> str | None:
    """The map x of a variance of its channels plus a number."""
    mean = ops[ops[name].inputs[0]]
    square = ops[mean.inputs[0]] if over_channels(mean) else mean
    if square.kind != "mul" or len(square.inputs) != 2:
        return None
    one, other = (centred_on_channels(ops, each) for each in square.inputs)
    return one if one == other else None


def scaled_norm(reader: Reader, name: str, weight: Tensor, bias: Tensor | None) -> Norm | None:
    """A layer norm whose answer is multiplied by a number for each channel, and then shifted, as one layer norm.

    None if the map is something else.
    """
    op = reader.ops[name]
    if op.kind != "layer_norm":
        return None
    tensors = {
        "weight": op.tensors["weight"] * weight,
        "bias": op.tensors["bias"] * weight + (0 if bias is None else bias),
    }
    return {"inputs": op.inputs, "shape": op.shape, "tensors": tensors, "eps": op.options["eps"]}
