"""Sorting of channels by importance, so that a leading slice keeps the most important ones.

A sliced network keeps the leading channels of every layer. In a network that was trained at one width they are no
better than the others. Permuting the channels does not change what the whole network computes, and can put the
important ones first.

Layers that share channels must be permuted together. They form a space: the layers that write a map, normalise or gate
it, and read it. Maps that skip connections add together belong to one space.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from dsnet.models import ModelSpec, Supernet
from dsnet.nn import (
    Block,
    Bottleneck,
    ConvBlock,
    DepthwiseSeparable,
    Gate,
    InvertedResidual,
    MaxPool,
    SliceBatchNorm2d,
    SliceConv2d,
    SliceDepthwise,
    SliceGroupNorm,
    SliceLinear,
    SliceNorm,
)

Importance = Literal["l1", "scale"]
IMPORTANCES: tuple[Importance, ...] = ("l1", "scale")


@dataclass
class Space:
    """The layers that use the channels of one map. The channels are rows of the writers' weights and columns of the
    readers'. Gates are permuted with them, but do not count for the importance."""

    writers: list[SliceConv2d | SliceLinear] = field(default_factory=list)
    readers: list[SliceConv2d | SliceLinear] = field(default_factory=list)
    gate_rows: list[SliceLinear] = field(default_factory=list)
    gate_columns: list[SliceLinear] = field(default_factory=list)
    depthwise: list[SliceDepthwise] = field(default_factory=list)
    norms: list[SliceNorm] = field(default_factory=list)

    @property
    def group(self) -> int:
        """Number of channels that must stay together."""
        return max((norm.group_size for norm in self.norms if isinstance(norm, SliceGroupNorm)), default=1)

    def importance(self, kind: Importance) -> Tensor:
        """The importance of every channel."""
        written = torch.stack([layer.weight.double().abs().flatten(1).sum(1) for layer in self.writers]).sum(0)
        if kind == "l1" or not self.norms:  # a gate's hidden units have no norm
            return written
        read = torch.stack(
            [layer.weight.double().abs().transpose(0, 1).flatten(1).sum(1) for layer in self.readers]
        ).sum(0)
        return read * torch.stack([norm.weight.double().abs() for norm in self.norms]).sum(0)

    def permute(self, order: Tensor) -> None:
        for writer in [*self.writers, *self.gate_rows]:
            reorder(writer.weight, order, 0)
            if isinstance(writer, SliceLinear) and writer.bias is not None:
                reorder(writer.bias, order, 0)
        for reader in [*self.readers, *self.gate_columns]:
            reorder(reader.weight, order, 1)
        for layer in self.depthwise:
            reorder(layer.weight, order, 0)
        for norm in self.norms:
            reorder(norm.weight, order, 0)
            reorder(norm.bias, order, 0)
            if isinstance(norm, SliceBatchNorm2d):
                reorder(norm.running_mean, order, 1)
                reorder(norm.running_var, order, 1)
                norm.num_batches_tracked[:-1] = 0  # the slimmer widths now hold other channels


def reorder(tensor: Tensor, order: Tensor, dim: int) -> None:
    tensor.copy_(tensor.index_select(dim, order))


@torch.no_grad()
def sort_channels(net: Supernet, by: Importance = "scale") -> Supernet:
    """Sort the channels of every map in place, most important first. The widest path still computes the same.

    by: `l1` is the L1 norm of the filters that write a channel. `scale` is the L1 norm of the filters that read it,
    times the scale of its norms.

    Group norm keeps the channels of a group together. The statistics of slimmer widths belong to the channels that were
    there before, so they are marked as not calibrated: recalibrate or train before using them. The budgets of a router
    are removed.
    """
    if by not in IMPORTANCES:
        raise ValueError(f"importance {by!r} is unknown; choose from {', '.join(IMPORTANCES)}")
    for space in spaces(net):
        space.permute(order_of(space.importance(by), space.group))
    net.card = replace(net.card, budgets=())
    return net


def order_of(importance: Tensor, group: int) -> Tensor:
    """Channel indices, most important first. Groups are sorted by their sums, and channels within their group."""
    grouped = importance.view(-1, group)
    inside = grouped.argsort(dim=1, descending=True, stable=True)
    groups = grouped.sum(1).argsort(descending=True, stable=True)
    return (inside + group * torch.arange(len(grouped), device=importance.device)[:, None])[groups].flatten()


def spaces(net: Supernet) -> list[Space]:
    """Every space of a network except its inputs and its classes."""
    inputs = Space()
    found: list[Space] = []
    x = inputs
    for block in blocks_of(net):
        x = wire(block, x, found)
    if net.head.conv is not None:
        x = wire(net.head.conv, x, found)
    x.readers.append(net.head.classifier)
    return found


def blocks_of(net: Supernet) -> list[Block]:
    """All blocks in the order in which they run."""
    if not isinstance(net.spec, ModelSpec):
        raise ValueError(f"{net.spec.name} was made by `dsnet slim`, which sorts its channels; convert it again")
    blocks = list(net.front.blocks)
    for segment in net.chain:
        blocks += [segment.first, *segment.rest.blocks]
    return blocks


def wire(block: Block, x: Space, found: list[Space]) -> Space:
    """Add a block's layers to the spaces they use, and new spaces to `found`. Returns the space of its output."""

    def new() -> Space:
        found.append(Space())
        return found[-1]

    def dense(conv: SliceConv2d, norm: SliceNorm, cin: Space, cout: Space) -> Space:
        cin.readers.append(conv)
        cout.writers.append(conv)
        cout.norms.append(norm)
        return cout

    match block:
        case MaxPool():
            return x
        case ConvBlock():
            return dense(block.conv, block.norm, x, new())
        case DepthwiseSeparable():
            x.depthwise.append(block.depthwise)
            x.norms.append(block.norm1)
            wire_gate(block.gate, x, found)
            return dense(block.pointwise, block.norm2, x, x if block.skip else new())
        case Bottleneck():
            wire_gate(block.gate, x, found)
            first = dense(block.conv1, block.norm1, x, new())
            second = dense(block.conv2, block.norm2, first, new())
            out = x
            if block.shortcut is not None and block.shortcut_norm is not None:
                out = dense(block.shortcut, block.shortcut_norm, x, new())
            return dense(block.conv3, block.norm3, second, out)
        case InvertedResidual():
            inner = x
            if block.expand is not None and block.norm0 is not None:
                inner = dense(block.expand, block.norm0, x, new())
            inner.depthwise.append(block.depthwise)
            inner.norms.append(block.norm1)
            wire_gate(block.gate, inner, found)
            return dense(block.project, block.norm2, inner, x if block.skip else new())
    raise TypeError(f"{type(block).__name__} is a block whose channels dsnet cannot sort")


def wire_gate(gate: Gate | None, x: Space, found: list[Space]) -> None:
    """Add a gate's layers to the space that it scales. Its hidden units are a space of their own."""
    if gate is None:
        return
    hidden = Space(writers=[gate.reduce], readers=[gate.expand])
    found.append(hidden)
    x.gate_columns.append(gate.reduce)
    x.gate_rows.append(gate.expand)
    if gate.slimming is not None and gate.slimming.reduce is None:
        hidden.gate_columns.append(gate.slimming.score)
    elif gate.slimming is not None and gate.slimming.reduce is not None:
        x.gate_columns.append(gate.slimming.reduce)
        found.append(Space(writers=[gate.slimming.reduce], readers=[gate.slimming.score]))
