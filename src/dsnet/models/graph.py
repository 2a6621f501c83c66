"""A network as a graph of layers, with the widths of its channel groups: what `dsnet slim` makes of any CNN.

It builds the same three things as the families of the registry, from the same sliceable layers: a front, a segment
behind the gate, and a head. A small interpreter runs the nodes in order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.limits import allow
from dsnet.models.build import Features, Modules, Segment
from dsnet.models.network import Network, Tap
from dsnet.models.ops import OPS
from dsnet.models.taps import graph_taps
from dsnet.nn.blocks import Block
from dsnet.nn.gate import Gate, GateSpec
from dsnet.nn.layers import Fixed, GlobalPool, SliceConv2d, SliceLinear
from dsnet.nn.maps import Constant, Mask, Shuffle, SlicePReLU, Take
from dsnet.nn.norm import SliceBatchNorm2d, SliceGroupNorm, SliceLayerNorm2d
from dsnet.nn.slicing import Sliceable, Width
from dsnet.routers import RouterSpec
from dsnet.schema import Typed
from dsnet.space import Channels, WidthPath

Value = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | None
Part = tuple[int, int]
"""A run of channels: the number of a group, and the channels that each of its members has there."""
IMAGE, CLASSES = -1, -2
"""Groups whose sizes are in_channels and num_classes."""
GATE = GateSpec(blocks="choose")
"""The gate behind the front. It is the identity before training."""


@dataclass(frozen=True)
class Node(Typed):
    """One operation. Its value has its name.

    Args:
        op: A key of `OPS` or `LAYERS`.
        inputs: Names of the values that it reads.
        reads: The channels that a layer reads, in parts.
        writes: The channels that a layer writes, in parts.
        options: Numbers that belong to the operation.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    reads: tuple[Part, ...] = ()
    writes: tuple[Part, ...] = ()
    options: tuple[tuple[str, Value], ...] = ()


@dataclass(frozen=True)
class GraphSpec(Network):
    """Everything that is needed to rebuild a converted network.

    Args:
        nodes: The operations in order. The first reads `image`.
        groups: Members of every channel group at each width. A member is a channel, or several that stay together.
        cut: Number of nodes before the gate: the front, which all widths share.
        head: Number of the node that is the classifier. The last value is the answer.
        widths: Number of widths.
        divides: Input pixels per pixel of the last map; 0 if only images of this size fit.
        sizes: Image sizes that the network runs at, smallest first, the last being `image_size`; empty for one size.
    """

    name: str
    nodes: tuple[Node, ...]
    groups: tuple[tuple[int, ...], ...]
    cut: int
    head: int
    widths: tuple[int, ...]
    divides: int = 1
    gate: GateSpec | None = GATE
    num_classes: int = 1000
    in_channels: int = 3
    image_size: int = 224
    routing: tuple[tuple[int, ...], ...] = ()
    router: RouterSpec | None = None
    sizes: tuple[int, ...] = ()
    kind: Literal["graph"] = "graph"

    def __post_init__(self) -> None:
        self.check_limits()
        allow("nodes", len(self.nodes), "the number of nodes is")
        for sizes in self.groups:
            allow("channels", max(sizes, default=0), "the size of a channel group is")
        known = {"image"}
        for node in self.nodes:
            if node.op not in OPS and node.op not in LAYERS:
                raise ValueError(f"node {node.name!r} has operation {node.op!r}, which this version does not know")
            if missing := [name for name in node.inputs if name not in known]:
                raise ValueError(f"node {node.name!r} reads {missing[0]!r}, which no node before it writes")
            known.add(node.name)
        if len(known) != len(self.nodes) + 1:
            raise ValueError(f"{self.name!r} names nodes twice; every node needs a name of its own")
        if len(self.widths) != 1 or any(len(group) != self.widths[0] for group in self.groups):
            raise ValueError(f"{self.name!r} has widths {self.widths}; groups must list as many sizes")
        if not 0 < self.cut < self.head < len(self.nodes):
            raise ValueError(f"{self.name!r} is cut at {self.cut} and has its head at {self.head} of {len(self.nodes)}")
        self.check_common()

    @property
    def stride(self) -> int:
        return self.divides or self.image_size

    @property
    def flexible(self) -> bool:
        return self.divides > 0

    @property
    def taps(self) -> dict[str, Tap]:
        return {name: tap for name, (_, tap) in graph_taps(self).items()}

    @property
    def layers(self) -> tuple[Any, ...]:
        return self.nodes, self.groups, self.cut

    def check_size(self, *sides: int) -> None:
        if not self.flexible and any(side != self.image_size for side in sides):
            raise ValueError(
                f"{self.name!r} takes images of {self.image_size} pixels only, not of {list(sides)}, because it "
                f"flattens maps; convert it with an example of the other size"
            )
        super().check_size(*sides)

    def channels(self, path: WidthPath) -> list[int]:
        found: list[int] = []
        only = self.widths[0] == 1
        for node in self.nodes[self.cut : self.head]:
            slim = only or any(len(set(self.groups[group])) > 1 for group, _ in node.writes)
            if node.op in ("conv", "linear") and slim:
                count = self.counts(node.writes)[self.space.rows(path)[1]]
                if not found or found[-1] != count:
                    found.append(count)
        return found

    def counts(self, parts: Sequence[Part], *, shared: bool = False) -> Channels:
        """The channels of a map. shared: It belongs to the front, and has one width."""
        return Channels.joined(self.runs(parts, shared=shared))

    def runs(self, parts: Sequence[Part], *, shared: bool = False) -> list[Channels]:
        """The channels of each part of a map."""
        fixed = {IMAGE: self.in_channels, CLASSES: self.num_classes}
        members = [(fixed[group],) * self.widths[0] if group < 0 else self.groups[group] for group, _ in parts]
        runs = [Channels(group) * factor for group, (_, factor) in zip(members, parts, strict=True)]
        return [(Channels.of(run.max) if shared else run).repeated(self.rows) for run in runs]

    def modules(self) -> Modules:
        front = Layers(self, self.nodes[: self.cut], shared=True)
        behind = Layers(self, self.nodes[self.cut : self.head])
        cut = self.counts(self.nodes[self.cut - 1].writes, shared=True)
        assert self.gate is not None
        gate = Gate(self.gate, cut, max(1, cut.max // self.gate.reduction), len(self.routing[0]))
        return front, [GraphSegment(GraphBlock(behind, cut, gate))], GraphHead(self, self.nodes[self.head :])


class Layers(nn.Module):
    """Runs some nodes in order, from the one value that they read to the last that they write."""

    def __init__(self, spec: GraphSpec, nodes: Sequence[Node], *, shared: bool = False) -> None:
        super().__init__()
        self.spec, self.nodes = spec, nodes
        self.layers = nn.ModuleDict({n.name: LAYERS[n.op](spec, n, shared) for n in nodes if n.op in LAYERS})
        own = {node.name for node in nodes}
        outer = {name for node in nodes for name in node.inputs if name not in own}
        assert len(outer) <= 1, f"nodes read {sorted(outer)}"
        self.reads = outer
        last = {name: number for number, node in enumerate(nodes) for name in node.inputs}
        self.spent = [[name for name in dict.fromkeys(node.inputs) if last[name] == k] for k, node in enumerate(nodes)]

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return self.values(x, width, keep=())[self.nodes[-1].name]

    def features(self, x: Tensor, width: Width) -> tuple[Tensor, Features]:
        """The last map, and those that detectors can read by their names. What follows the last of these is not run."""
        own = {node.name: number for number, node in enumerate(self.nodes)}
        tapped = {tap: name for tap, (name, _) in graph_taps(self.spec).items() if name in own}
        front = self.nodes[0] is self.spec.nodes[0]
        count = len(self.nodes) if front else 1 + max((own[name] for name in tapped.values()), default=-1)
        values = self.values(x, width, count=count, keep=tapped.values())
        last = values[self.nodes[count - 1].name] if count else x
        return last, {tap: values[name] for tap, name in tapped.items()}

    def values(
        self, x: Tensor, width: Width, *, count: int | None = None, keep: Collection[str] | None = None
    ) -> dict[str, Tensor]:
        """The values of the first `count` nodes by name, or of all.

        keep: Names of values to keep when no other node reads them, to save memory; the last one is kept anyway. By
        default all are kept.
        """
        values = dict.fromkeys(self.reads, x)
        for node, spent in zip(self.nodes[:count], self.spent, strict=False):
            inputs = [values[name] for name in node.inputs]
            if node.op not in LAYERS:
                x = OPS[node.op](*inputs, **dict(node.options))
            elif node.op in ("conv", "linear"):
                x = self.layers[node.name](*inputs, width, width)
            else:
                x = self.layers[node.name](*inputs, width)
            values[node.name] = x
            if keep is not None:
                for name in set(spent).difference(keep):
                    del values[name]
        return values


class GraphBlock(Block):
    """The gate, and the layers behind it, which the segment runs."""

    def __init__(self, graph: Layers, channels: Channels, gate: Gate) -> None:
        super().__init__(gate=gate)
        self.graph, self.channels = graph, channels

    @property
    def entered(self) -> Channels:
        return self.channels

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return scaled


class GraphSegment(Segment):
    """Everything between the front and the classifier. Its first block is the gate alone."""

    def __init__(self, first: GraphBlock) -> None:
        nn.Module.__init__(self)
        self.first, self.tap = first, None

    @property
    def rest(self) -> Layers:  # type: ignore[override]
        return self.first.graph  # type: ignore[return-value]


class GraphHead(nn.Module):
    """The classifier, a linear layer or a convolution, and what follows it."""

    def __init__(self, spec: GraphSpec, nodes: Sequence[Node]) -> None:
        super().__init__()
        node, *self.after = nodes
        self.name = node.name
        self.classifier: Any = LAYERS[node.op](spec, node, False)
        self.pools = nn.ModuleDict({n.name: LAYERS[n.op](spec, n, False) for n in self.after if n.op in LAYERS})
        self.splits = node.op == "linear" and not spec.counts(node.reads).parts
        self.ends = not self.after

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return self.behind(self.classifier(x, width, 0), width)

    def behind(self, x: Tensor, width: Width) -> Tensor:
        values = {self.name: x}
        for node in self.after:
            inputs = [values[name] for name in node.inputs]
            x = (
                self.pools[node.name](*inputs, width)
                if node.op in LAYERS
                else OPS[node.op](*inputs, **dict(node.options))
            )
            values[node.name] = x
        return x

    def features(self, x: Tensor, width: int) -> Tensor:
        """What the classifier reads, filled up with zeros to the channels of the widest."""
        channels = self.classifier.cin
        return F.pad(x, (0, channels.max - channels[width]))

    def classify(self, features: Tensor) -> Tensor:
        """The logits of features of any width."""
        width = len(self.classifier.cin) - 1
        return self.behind(self.classifier(features, width, 0), width)


Maker = Callable[[GraphSpec, Node, bool], Sliceable]


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
