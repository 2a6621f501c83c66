"""A small interpreter of a graph's nodes, and the front, segments and head that it runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.models.build import Features, Segment
from dsnet.models.graph_layers import LAYERS
from dsnet.models.ops import OPS
from dsnet.models.taps import graph_taps
from dsnet.nn.blocks import Block
from dsnet.nn.gate import Gate
from dsnet.nn.slicing import Width
from dsnet.space import Channels

if TYPE_CHECKING:
    from dsnet.models.graph import GraphSpec, Node


class Layers(nn.Module):
    """Runs some nodes in order, from the one value that they read to the last that they write.

    segment: Number of the choice point whose width the nodes have; None for the front, which has one width. Layers on
    channels of an earlier segment have the width that came in.
    """

    def __init__(self, spec: GraphSpec, nodes: Sequence[Node], segment: int | None = None) -> None:
        super().__init__()
        self.spec, self.nodes, self.segment = spec, nodes, segment
        made = {node.name: LAYERS[node.op](spec, node, segment is None) for node in nodes if node.op in LAYERS}
        self.layers = nn.ModuleDict(made)
        own = {node.name for node in nodes}
        outer = {name for node in nodes for name in node.inputs if name not in own}
        assert len(outer) <= 1, f"nodes read {sorted(outer)}"
        self.reads = outer
        last = {name: number for number, node in enumerate(nodes) for name in node.inputs}
        self.spent = [[name for name in dict.fromkeys(node.inputs) if last[name] == k] for k, node in enumerate(nodes)]
        self.entry = entry(spec, nodes, segment) if segment else 0

    def forward(self, x: Tensor, width: Width) -> Tensor:
        """All nodes, at one width."""
        return self.run(x, width, width)

    def run(self, x: Tensor, w_in: Width, w_out: Width, start: int = 0, stop: int | None = None) -> Tensor:
        """The value of the last of some nodes, which a single value enters."""
        nodes = self.nodes[start:stop]
        return self.values(x, w_in, w_out, start=start, stop=stop, keep=())[nodes[-1].name] if nodes else x

    def features(self, x: Tensor, width: Width) -> tuple[Tensor, Features]:
        """The last map behind the entry, and those that detectors can read, by name. What follows the last of these
        in the last segment is not run."""
        own = {node.name: number for number, node in enumerate(self.nodes)}
        tapped = {tap: name for tap, (name, _) in graph_taps(self.spec).items() if name in own}
        start, stop = self.entry, len(self.nodes)
        if self.segment == len(self.spec.widths) - 1:
            stop = 1 + max((own[name] for name in tapped.values()), default=-1)
        values = self.values(x, width, width, start=start, stop=stop, keep=tapped.values())
        last = values[self.nodes[stop - 1].name] if stop > start else x
        return last, {tap: values[name] for tap, name in tapped.items()}

    def values(
        self,
        x: Tensor,
        w_in: Width,
        w_out: Width,
        *,
        start: int = 0,
        stop: int | None = None,
        keep: Collection[str] | None = None,
    ) -> dict[str, Tensor]:
        """The values of some nodes by name, or of all.

        keep: Names of values to keep when no other node reads them, to save memory; the last one is kept anyway. By
        default all are kept.
        """
        values = dict.fromkeys(self.reads if not start else {self.nodes[start - 1].name}, x)
        for node, spent in zip(self.nodes[start:stop], self.spent[start:stop], strict=True):
            inputs = [values[name] for name in node.inputs]
            if node.op not in LAYERS:
                x = OPS[node.op](*inputs, **dict(node.options))
            else:
                sides = (node.reads, node.writes) if node.op in ("conv", "linear") else (node.reads,)
                widths = (w_in if self.spec.older(parts, self.segment) else w_out for parts in sides)
                x = self.layers[node.name](*inputs, *widths)
            values[node.name] = x
            if keep is not None:
                for name in set(spent).difference(keep):
                    del values[name]
        return values


def entry(spec: GraphSpec, nodes: Sequence[Node], segment: int) -> int:
    """The number of nodes of a segment behind which a single map goes on whose channels do not depend on the width that
    came in."""
    made = {node.name for node in nodes}
    last = {name: number for number, node in enumerate(nodes) for name in node.inputs}
    (outer,) = {name for node in nodes for name in node.inputs if name not in made}
    older = {outer} if spec.older(spec.crossing(segment), segment) else set[str]()
    live = {outer}
    if not older:
        return 0
    for number, node in enumerate(nodes):
        old = spec.older(node.writes, segment) if node.op in LAYERS else not older.isdisjoint(node.inputs)
        older |= {node.name} if old else set()
        live = {name for name in live | {node.name} if last.get(name, len(nodes)) > number}
        if live == {node.name} and not old:
            return number + 1
    raise ValueError(
        f"{spec.name!r} cannot be cut before {nodes[0].name!r}: channels from before it go on to the next cut"
    )


class GraphBlock(Block):
    """The gate, and the layers behind it, which the segment runs. The body is those that depend on the width that came
    in."""

    def __init__(self, graph: Layers, channels: Channels, gate: Gate) -> None:
        super().__init__(gate=gate)
        self.graph, self.channels = graph, channels

    @property
    def entered(self) -> Channels:
        return self.channels

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return self.graph.run(scaled, w_in, w_out, stop=self.graph.entry)


class GraphSegment(Segment):
    """Everything from one gate to the next, or to the classifier."""

    first: GraphBlock

    def __init__(self, first: GraphBlock) -> None:
        nn.Module.__init__(self)
        self.first, self.tap = first, None

    @property
    def rest(self) -> Behind:  # type: ignore[override]
        return Behind(self.first.graph)


class Behind:
    """The nodes of a segment behind its entry, which run at one width."""

    def __init__(self, graph: Layers) -> None:
        self.graph = graph
        self.features = graph.features

    def __call__(self, x: Tensor, width: Width) -> Tensor:
        return self.graph.run(x, width, width, start=self.graph.entry)


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
