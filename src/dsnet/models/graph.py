"""A network as a graph of layers, with the widths of its channel groups: what `dsnet slim` makes of any CNN.

It builds the same three things as the families of the registry, from the same sliceable layers: a front, a segment
behind the gate, and a head. A small interpreter runs the nodes in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from dsnet.limits import allow
from dsnet.models.build import Modules
from dsnet.models.graph_layers import CLASSES, IMAGE, LAYERS
from dsnet.models.graph_parts import GraphBlock, GraphHead, GraphSegment, Layers
from dsnet.models.network import Network, Tap
from dsnet.models.ops import OPS
from dsnet.models.taps import graph_taps
from dsnet.nn.gate import Gate, GateSpec
from dsnet.routers import RouterSpec
from dsnet.schema import Typed
from dsnet.space import Channels, WidthPath

Value = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | None
Part = tuple[int, int]
"""A run of channels: the number of a group, and the channels that each of its members has there."""
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
        cut: Number of nodes before the first gate: the front, which all widths share.
        cuts: Numbers of nodes before the other gates, each of which chooses the width of what follows.
        head: Number of the node that is the classifier. The last value is the answer.
        widths: Number of widths at each gate, the same at all.
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
    cuts: tuple[int, ...] = ()
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
        choices = len(self.cuts) + 1
        if self.widths != self.widths[:1] * choices or any(len(group) != self.widths[0] for group in self.groups):
            raise ValueError(
                f"{self.name!r} has widths {self.widths} and {choices} gates; all gates and groups must have as many"
            )
        places = [0, *self.places, len(self.nodes)]
        if places != sorted(set(places)):
            raise ValueError(
                f"{self.name!r} is cut at {places[1:-2]} and has its head at {self.head} of {places[-1]} nodes"
            )
        self.check_common()

    @property
    def places(self) -> tuple[int, ...]:
        """Numbers of nodes before each gate and before the classifier."""
        return (self.cut, *self.cuts, self.head)

    @cached_property
    def owners(self) -> dict[int, int]:
        """The segment that writes each channel group first, -1 being the front."""
        found: dict[int, int] = {}
        for segment, (start, stop) in enumerate(pairwise((0, *self.places)), -1):
            for node in self.nodes[start:stop]:
                for group, _ in node.writes:
                    found.setdefault(group, segment)
        return found

    def older(self, parts: Sequence[Part], segment: int | None) -> bool:
        """Whether the width of channels was chosen before a segment."""
        if not segment:
            return False
        slim = [group for group, _ in parts if group >= 0 and len(set(self.groups[group])) > 1]
        return any(self.owners.get(group, segment) < segment for group in slim)

    def crossing(self, segment: int) -> tuple[Part, ...]:
        """The channels of the map that enters a segment."""
        return self.nodes[self.places[segment] - 1].writes

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
        return self.nodes, self.groups, self.cut, self.cuts

    def check_size(self, *sides: int) -> None:
        if not self.flexible and any(side != self.image_size for side in sides):
            raise ValueError(
                f"{self.name!r} takes images of {self.image_size} pixels only, not of {list(sides)}, because it "
                f"flattens maps; convert it with an example of the other size"
            )
        super().check_size(*sides)

    def channels(self, path: WidthPath) -> list[int]:
        found: list[int] = []
        only, (_, *rows) = self.widths[0] == 1, self.space.rows(path)
        for segment, (start, stop) in enumerate(pairwise(self.places)):
            begun = len(found)
            for node in self.nodes[start:stop]:
                slim = only or any(len(set(self.groups[group])) > 1 for group, _ in node.writes)
                if node.op in ("conv", "linear") and slim:
                    count = self.counts(node.writes)[rows[segment - self.older(node.writes, segment)]]
                    if found[begun:][-1:] != [count]:
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
        assert self.gate is not None
        segments = []
        for segment, (start, stop) in enumerate(pairwise(self.places)):
            channels = self.counts(self.crossing(segment), shared=not segment)
            hidden, candidates = max(1, channels.max // self.gate.reduction), len(self.routing[segment])
            gate = Gate(self.gate, channels, hidden, candidates)
            segments.append(GraphSegment(GraphBlock(Layers(self, self.nodes[start:stop], segment), channels, gate)))
        front = Layers(self, self.nodes[: self.cut])
        return front, list(segments), GraphHead(self, self.nodes[self.head :])
