"""Sorting of channels by importance. The widest path still computes the same, and slim widths keep the best channels.

A permutation of the members of a group is applied wherever the group is used: to the rows of the layers that write it,
the columns of those that read it, and the norms between.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from dsnet.errors import SlimError
from dsnet.slimming.convert import Plan, built
from dsnet.slimming.groups import Layout
from dsnet.slimming.observe import moments
from dsnet.slimming.rotate import rotate_members
from dsnet.slimming.trace import Op

Importance = Literal["components", "activation", "scale", "l1", "none"]
IMPORTANCES: tuple[Importance, ...] = ("components", "activation", "scale", "l1", "none")
OBSERVED = ("components", "activation")  # need images
WHOLE = ("constant", "conv1d")  # operations whose channels are never sorted
Scores = dict[int, Tensor]
"""The importance of every member, by group."""


@torch.no_grad()
def sort_members(plan: Plan, by: Importance, images: Tensor | None = None) -> None:
    """Sort the members of every group in place, most important first.

    by: `activation` is the standard deviation of a channel over images and pixels, times the norm of the weights that
    read it. `components` first mixes the channels between linear layers into principal components, and takes
    `activation` for all others. `scale` is the L1 norm of the weights that read a channel times the scale of the norms.
    `l1` is the L1 norm of the filters that write it.
    """
    if by not in IMPORTANCES:
        raise SlimError(f"importance {by!r} is unknown; choose from {', '.join(IMPORTANCES)}")
    if by == "none":
        return
    if by in OBSERVED and images is None:
        raise SlimError(f"importance by {by} needs images; give some, or sort by scale")
    mixed = rotate_members(plan, images) if by == "components" and images is not None else set()
    scores = CRITERIA[by](plan, images)
    orders = {
        group: scores[group].argsort(descending=True, stable=True)
        for group, counts in plan.counts.items()
        if group in scores and group not in mixed and len(set(counts)) > 1
    }
    for op in plan.ops:
        reorder(plan, op, orders)


def reorder(plan: Plan, op: Op, orders: dict[int, Tensor]) -> None:
    """Apply the orders of groups to the tensors of an operation."""
    if not op.tensors or op.kind in WHOLE or (op.kind == "prelu" and op.options["shared"]):
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
        if op.kind in ("batch_norm", "group_norm", "layer_norm"):
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
    found = moments(net, [op.name for op, _ in readers(plan)], images)
    for op, layout in readers(plan):
        spread(plan, layout, found[op.name][1].sqrt() * columns(op, 2), scores)
    return scores


CRITERIA = {"scale": by_scale, "l1": by_l1, "activation": by_activation, "components": by_activation}
