"""The layers of a graph: how each is made from its node, at every width."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from dsnet.nn.layers import Fixed, GlobalPool, SliceConv2d, SliceLinear
from dsnet.nn.maps import Constant, Mask, Shuffle, SlicePReLU, Take
from dsnet.nn.norm import SliceBatchNorm2d, SliceGroupNorm, SliceLayerNorm2d
from dsnet.nn.slicing import Sliceable
from dsnet.space import Channels

if TYPE_CHECKING:
    from dsnet.models.graph import GraphSpec, Node

IMAGE, CLASSES = -1, -2
"""Groups whose sizes are in_channels and num_classes."""
Maker = Callable[["GraphSpec", "Node", bool], Sliceable]


def reading(spec: GraphSpec, node: Node, shared: bool) -> Channels:
    return spec.counts(node.reads, shared=shared)


def writing(spec: GraphSpec, node: Node, shared: bool) -> Channels:
    if [group for group, _ in node.writes] == [CLASSES]:
        return Channels.of(spec.num_classes)
    return spec.counts(node.writes, shared=shared)


def conv(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    options: dict[str, Any] = dict(node.options)
    if options.pop("inside", False):  # all groups read alike
        options["inside"] = spec.counts(node.reads[: len(node.reads) // options["groups"]], shared=shared)
    return SliceConv2d(reading(spec, node, shared), writing(spec, node, shared), **options)


def linear(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    return SliceLinear(reading(spec, node, shared), writing(spec, node, shared), bias=bool(dict(node.options)["bias"]))


def batch_norm(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    options: dict[str, Any] = dict(node.options)
    return SliceBatchNorm2d(reading(spec, node, shared), eps=options["eps"], own=options.get("own", False))


def group_norm(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    options: dict[str, Any] = dict(node.options)
    return SliceGroupNorm(reading(spec, node, shared), options["size"], options["eps"])


def layer_norm(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    return SliceLayerNorm2d(reading(spec, node, shared), eps=dict(node.options)["eps"])  # type: ignore[arg-type]


def constant(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    shape: Any = dict(node.options)["sides"]
    return Constant(shape)


def conv1d(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    options: dict[str, Any] = dict(node.options)
    reads, writes = options.pop("channels")
    return Fixed(nn.Conv1d(reads, writes, options.pop("kernel"), **options))


def take(spec: GraphSpec, node: Node, shared: bool) -> Sliceable:
    options: dict[str, Any] = dict(node.options)
    return Take(spec.runs(node.reads, shared=shared), options["first"], options["last"])


LAYERS: dict[str, Maker] = {
    "conv": conv,
    "linear": linear,
    "batch_norm": batch_norm,
    "group_norm": group_norm,
    "layer_norm": layer_norm,
    "prelu": lambda spec, node, shared: SlicePReLU(
        reading(spec, node, shared), shared=bool(dict(node.options)["shared"])
    ),
    "global_pool": lambda spec, node, shared: GlobalPool(
        reading(spec, node, shared), keep=bool(dict(node.options)["keep"])
    ),
    "mask": lambda spec, node, shared: Mask(reading(spec, node, shared)),
    "constant": constant,
    "conv1d": conv1d,
    "take": take,
    "shuffle": lambda spec, node, shared: Shuffle(reading(spec, node, shared), int(dict(node.options)["groups"])),  # type: ignore[arg-type]
}
"""How the layers of a graph are made. shared: The layer belongs to the front, and has one width."""
