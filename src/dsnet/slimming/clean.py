"""Layers that a converted network can do without, and layers that it needs so that every sample of a batch can run at
its own width.

In mixed mode all samples run at the widest width, and norms set the channels beyond a sample's width to zero. A
convolution without a norm behind it gets a norm that computes the identity, which also gives it statistics for every
width; a linear layer, and a function that is not zero at zero, gets a mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import torch

from dsnet.slimming.trace import Op, Traced

EPS = 1e-5
STARTS_AT_ZERO = {
    "relu", "relu6", "silu", "hardswish", "tanh", "mish", "selu", "gelu", "abs", "sqrt", "neg", "leaky_relu", "elu",
    "erf", "sign", "sin", "max_pool", "avg_pool", "global_max", "global_pool", "flatten", "axes", "mean", "sum", "amax",
    "amin", "pad", "pad_channels", "resize", "crop", "flip", "take", "prelu", "shuffle", "cat", "join", "maximum",
    "minimum",
}  # fmt: skip


def fold_pads(traced: Traced) -> None:
    """Let convolutions pad by themselves where the same number of zeros is added on opposite sides."""
    readers: dict[str, list[Op]] = {}
    for op in traced.ops:
        for name in op.inputs:
            readers.setdefault(name, []).append(op)
    for op in [op for op in traced.ops[:-1] if op.kind == "pad" and len(op.options["sides"]) == 4]:  # type: ignore[arg-type]
        options: dict[str, Any] = op.options
        left, right, top, bottom = options["sides"]
        zeros = (options["mode"], options["value"]) == ("constant", 0) and (left, top) == (right, bottom)
        mine = readers.get(op.name, [])
        if not zeros or min(left, top) < 0 or not mine or any(reader.kind != "conv" for reader in mine):
            continue
        for reader in mine:
            height, width = cast("tuple[int, int]", reader.options["padding"])
            reader.options["padding"] = (height + top, width + left)
            reader.inputs = list(op.inputs)
        traced.ops.remove(op)


def fold_scales(traced: Traced) -> None:
    """Let convolutions multiply and shift their channels themselves where nothing else reads their maps."""
    makers = {op.name: op for op in traced.ops}
    reads = Counter(name for op in traced.ops for name in op.inputs)
    renamed: dict[str, str] = {}
    for op in traced.ops[1:-1]:
        op.inputs = [renamed.get(name, name) for name in op.inputs]
        conv = makers[op.inputs[0]]
        if not scales(op) or conv.kind != "conv" or reads[conv.name] > 1:
            continue
        scale = op.tensors["weight"].flatten()
        tensors = {"weight": conv.tensors["weight"] * scale[:, None, None, None]}
        if "bias" in conv.tensors or "bias" in op.tensors:
            tensors["bias"] = conv.tensors.get("bias", torch.zeros_like(scale)) * scale + op.tensors.get("bias", 0)
        conv.tensors, conv.options["bias"] = tensors, len(tensors) > 1
        renamed[op.name], reads[conv.name] = conv.name, reads[op.name]
    traced.ops = [op for op in traced.ops if op.name not in renamed]
    for op in traced.ops:
        op.inputs = [renamed.get(name, name) for name in op.inputs]


def scales(op: Op) -> bool:
    """Whether an operation multiplies every channel by a number, and may add another."""
    alone = (
        op.kind == "conv" and op.options["groups"] == len(op.tensors["weight"]) and op.tensors["weight"][0].numel() == 1
    )
    return alone and (op.options["stride"], op.options["padding"]) == ((1, 1), (0, 0))


def add_masks(traced: Traced, cuts: Sequence[int], sliced: Callable[[str], bool]) -> tuple[list[Op], list[str]]:
    """Insert what is missing behind the front. What enters a further gate must be clean, too.

    cuts: The numbers of the last operations before the gates. sliced: Whether a value has channels that slim widths
    lack. Returns the norms that were inserted, and the names of the last operations now. The operations are changed in
    place. Norms would have statistics for each width, so with several gates there are masks alone.
    """
    first, *others = cuts
    sources: dict[str, set[str]] = {op.name: set() for op in traced.ops[: first + 1]}
    needed: set[str] = set()
    for number, op in enumerate(traced.ops[first + 1 :], first + 1):
        if op.dense:
            needed |= sources[op.inputs[0]]
        sources[op.name] = set() if not sliced(op.name) else unclean(op, sources)
        if number in others:
            needed |= sources[op.name]
    names = [traced.ops[number].name for number in cuts]
    norms, renamed = insert(traced, needed, masks=bool(others))
    return norms, [renamed.get(name, name) for name in names]


def unclean(op: Op, sources: dict[str, set[str]]) -> set[str]:
    """The operations whose values may leave numbers beyond a sample's width in the value of another."""
    inputs = [sources[name] for name in op.inputs]
    if op.kind in ("batch_norm", "group_norm", "layer_norm"):
        return set()
    if op.kind in ("conv", "linear"):
        return {op.name}
    if op.kind == "mul" and len(inputs) == 2:
        return set() if not all(inputs) else inputs[0] | inputs[1]
    if op.kind in ("add", "sub") and len(inputs) == 2:
        return inputs[0] | inputs[1]
    if op.kind in ("mul", "div") and len(inputs) == 1 and not op.options.get("swapped"):
        return inputs[0]
    if op.kind == "pad" and op.options["mode"] == "constant" and op.options["value"] != 0:
        return {op.name}
    if op.kind in STARTS_AT_ZERO:
        return set().union(*inputs)
    if op.kind == "clamp" and (op.options["low"] or 0) <= 0 and (op.options["high"] or 0) >= 0:  # type: ignore[operator]
        return inputs[0]
    return {op.name}


def insert(traced: Traced, needed: set[str], *, masks: bool) -> tuple[list[Op], dict[str, str]]:
    ops, renamed, norms = list[Op](), dict[str, str](), list[Op]()
    for op in traced.ops:
        op.inputs = [renamed.get(name, name) for name in op.inputs]
        ops.append(op)
        if op.name not in needed:
            continue
        on_map = op.kind == "conv" and prod(op.shape[1:]) > 1 and not masks
        follower = identity_norm(op) if on_map else Op(f"{op.name}_mask", "mask", [op.name], op.shape, place=op.place)
        renamed[op.name] = follower.name
        ops.append(follower)
        if on_map:
            norms.append(follower)
    traced.ops = ops
    return norms, renamed


def identity_norm(op: Op) -> Op:
    count = op.shape[0]
    tensors = {
        "weight": torch.ones(count),
        "bias": torch.zeros(count),
        "running_mean": torch.zeros(count),
        "running_var": torch.full((count,), 1 - EPS),
    }
    return Op(f"{op.name}_norm", "batch_norm", [op.name], op.shape, {"eps": EPS}, tensors, op.place)
