"""Sorting of channels by importance. The widest path still computes the same, and slim widths keep the best channels.

A permutation of the members of a group is applied wherever the group is used: to the rows of the layers that write it,
the columns of those that read it, and the norms between.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import torch
from torch import Tensor

from dsnet.errors import SlimError
from dsnet.models.supernet import Supernet
from dsnet.slimming.convert import Plan, built
from dsnet.slimming.groups import Layout
from dsnet.slimming.trace import Op

Importance = Literal["activation", "scale", "l1", "none"]
IMPORTANCES: tuple[Importance, ...] = ("activation", "scale", "l1", "none")
CHUNK = 16  # images that are observed together
Scores = dict[int, Tensor]
"""The importance of every member, by group."""


@torch.no_grad()
def sort_members(plan: Plan, by: Importance, images: Tensor | None = None) -> None:
    """Sort the members of every group in place, most important first.

    by: `activation` is the standard deviation of a channel over images and pixels, times the norm of the weights that
    read it. `scale` is the L1 norm of those weights times the scale of the norms. `l1` is the L1 norm of the filters
    that write the channel.
    """
    if by not in IMPORTANCES:
        raise SlimError(f"importance {by!r} is unknown; choose from {', '.join(IMPORTANCES)}")
    if by == "none":
        return
    if by == "activation" and images is None:
        raise SlimError("importance by activation needs images; give some, or sort by scale")
    scores = CRITERIA[by](plan, images)
    orders = {
        group: scores[group].argsort(descending=True, stable=True)
        for group, counts in plan.counts.items()
        if group in scores and len(set(counts)) > 1
    }
    for op in plan.ops:
        reorder(plan, op, orders)


def reorder(plan: Plan, op: Op, orders: dict[int, Tensor]) -> None:
    """Apply the orders of groups to the tensors of an operation."""
    if not op.tensors or (op.kind == "prelu" and op.options["shared"]):
        return
    rows = places(plan, plan.layout(op.name), orders)
    for kind, tensor in op.tensors.items():
        op.tensors[kind] = tensor[rows]
    if op.dense:
        block = plan.layout(op.inputs[0]) if op.inside is None else plan.groups.resolve(op.inside)
        op.tensors["weight"] = op.tensors["weight"][:, places(plan, block, orders)]


def places(plan: Plan, layout: Layout, orders: dict[int, Tensor]) -> Tensor:
    """Where the channels of a map come from."""
    found, start = [], 0
    for part in layout:
        group, factor = part
        order = orders.get(group, torch.arange(plan.groups.members[group]))
        found.append(start + (order[:, None] * factor + torch.arange(factor)).flatten())
        start += plan.groups.size(part)
    return torch.cat(found)


def spread(plan: Plan, layout: Layout, values: Tensor, scores: Scores) -> None:
    """Add a number for every channel of a map to the members that they belong to."""
    start = 0
    for part in layout:
        size = plan.groups.size(part)
        sums = values[start : start + size].double().view(-1, part[1]).sum(1)
        scores[part[0]] = scores.get(part[0], 0) + sums
        start += size


def readers(plan: Plan) -> Iterator[tuple[Op, Layout]]:
    """The dense layers, and the layouts of what they read."""
    for op in plan.ops:
        if op.dense:
            yield op, plan.layout(op.inputs[0])


def columns(op: Op, norm: int) -> Tensor:
    """The norm of the weights that read each channel."""
    blocks = op.tensors["weight"].double().unflatten(0, (int(op.options.get("groups", 1)), -1))  # type: ignore[arg-type]
    return blocks.transpose(1, 2).flatten(2).norm(norm, 2).flatten()


def by_scale(plan: Plan, images: Tensor | None) -> Scores:
    read, scales = Scores(), Scores()
    for op, layout in readers(plan):
        spread(plan, layout, columns(op, 1), read)
    for op in plan.ops:
        if op.kind in ("batch_norm", "group_norm"):
            spread(plan, plan.layout(op.name), op.tensors["weight"].abs(), scales)
    return {group: score * scales.get(group, 1) for group, score in read.items()}


def by_l1(plan: Plan, images: Tensor | None) -> Scores:
    scores = Scores()
    for op in plan.ops:
        if op.kind in ("conv", "linear"):
            spread(plan, plan.layout(op.name), op.tensors["weight"].flatten(1).abs().sum(1), scores)
    return scores


def by_activation(plan: Plan, images: Tensor | None) -> Scores:
    assert images is not None
    net, scores = built(plan, "unsorted"), Scores()
    moments = observe(net, [op.name for op, _ in readers(plan)], images)
    for op, layout in readers(plan):
        spread(plan, layout, moments[op.name][1] * columns(op, 2), scores)
    return scores


def observe(net: Supernet, names: Sequence[str], images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and standard deviation of every channel that the layers of these names read, on the widest path."""
    sums: dict[str, list[Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        def note(layer: object, args: tuple[Tensor, ...]) -> None:
            x = args[0].double()
            x = x if x.dim() == 2 else x.transpose(0, 1).flatten(1).T  # [N, C]
            found = [torch.tensor(len(x)), x.sum(0), x.square().sum(0)]
            sums[name] = [a + b for a, b in zip(sums[name], found, strict=True)] if name in sums else found

        return note

    modules = {name.rpartition(".")[2]: module for name, module in net.named_modules()}
    modules[net.head.name] = net.head.classifier
    handles = [modules[name].register_forward_pre_hook(hook(name)) for name in names]
    try:
        for chunk in images.split(CHUNK):
            net(chunk, net.space.widest)
    finally:
        for handle in handles:
            handle.remove()
    found = {}
    for name, (count, total, squares) in sums.items():
        mean = total / count
        found[name] = mean, (squares / count - mean.square()).clamp_min(0).sqrt()
    return found


@torch.no_grad()
def calibrate_identities(plan: Plan, images: Tensor) -> None:
    """Give the norms that were inserted the statistics of what they read, and the affine parameters that undo them.

    They still compute the identity, but normalise when they are trained.
    """
    if not plan.norms:
        return
    moments = observe(built(plan, "identities"), [op.name for op in plan.norms], images)
    for op in plan.norms:
        mean, std = (moment.float() for moment in moments[op.name])
        eps = float(op.options["eps"])  # type: ignore[arg-type]
        var = std.square()
        op.tensors = {"weight": (var + eps).sqrt(), "bias": mean, "running_mean": mean, "running_var": var}


CRITERIA = {"scale": by_scale, "l1": by_l1, "activation": by_activation}
