"""The pieces of a network between its choices, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from dsnet.models import Supernet
from dsnet.nn import ThresholdHead
from dsnet.routing.route import Fork, LiveParts
from dsnet.runtime.onnx.layers import write_call
from dsnet.runtime.onnx.writer import FLOAT, Graph
from dsnet.space import WidthPath

Branch = Callable[[Graph], Sequence[str]]


class PartWriter:
    """Writes parts of a network into graphs.

    choices: the widths of each choice point that a file holds. pinnable: the paths through them.
    root, live: the module that has the layers, and its pieces, where they are more than the network's own.
    """

    def __init__(self, net: Supernet, *, root: nn.Module | None = None, live: LiveParts | None = None) -> None:
        self.net, self.spec, self.root, self.live = net, net.spec, root or net, live or LiveParts(net)
        self.probes = self.spec.router is not None and self.spec.router.probes
        self.choices = net.space.choices if self.spec.router is None else self.spec.routing
        routed = net.routing if self.spec.router is not None else net.space
        self.pinnable: list[WidthPath] = net.candidates if self.probes else list(routed)

    def maps_at(self, point: int) -> list[str]:
        """What the first block behind a choice reads."""
        return ["x"] * self.net.chain[point].first.reads_unscaled + ["scaled"]

    def fork_at(self, point: int) -> list[str]:
        """What a choice point hands on: maps, and scores where gates route."""
        gate = self.net.chain[point].first.gate
        scored = self.spec.router is not None and not self.probes and gate is not None and gate.slimming is not None
        return self.maps_at(point) + ["scores"] * scored

    def given(self, point: int) -> list[str]:
        """What there is at a choice point, or behind the last one."""
        return self.fork_at(point) if point < len(self.net.chain) else ["logits"]

    def front(self, graph: Graph, image: str) -> list[str]:
        return self.fork_names(graph, self.live.front, image)

    def fork_names(self, graph: Graph, call: Callable[..., Fork | torch.Tensor], *inputs: str) -> list[str]:
        """The outputs of a call that ends at a choice: [x] scaled [scores], or logits; what is None is left out."""
        found = write_call(graph, self.root, lambda *xs: _outputs(call(*xs)), *inputs)
        return [name for name in found if name is not None]

    def fork_of(self, names: list[str], point: int) -> tuple[list[str], str | None]:
        """Maps that the first block of a segment reads, and the scores."""
        maps, fork = len(self.maps_at(point)), len(self.fork_at(point))
        return names[:maps], names[maps] if fork > maps else None

    def first(self, graph: Graph, point: int, w_in: int, w_out: int, maps: list[str]) -> str:
        def call(*xs: torch.Tensor) -> torch.Tensor:
            fork = Fork(xs[0], xs[1]) if len(xs) == 2 else Fork(None, xs[0])
            return self.live.first(point, w_in, w_out, fork)

        if len(maps) == 1:
            return write_call(graph, self.root, lambda s: call(s), *maps)
        return write_call(graph, self.root, lambda x, s: call(x, s), *maps)

    def rest(self, graph: Graph, point: int, width: int, x: str) -> list[str]:
        return self.fork_names(graph, lambda y: self.live.rest(point, width, y), x)

    def follow(self, graph: Graph, path: WidthPath, maps: list[str]) -> list[str]:
        """Logits of one path."""
        w_in, found = 0, maps
        for point, w_out in enumerate(path):
            maps, _ = self.fork_of(found, point)
            found = self.rest(graph, point, w_out, self.first(graph, point, w_in, w_out, maps))
            w_in = w_out
        return found

    def whole(self, point: int, width: int, maps: list[str]) -> Branch:
        """The first segment at a width: its input has one width only."""
        return lambda graph: self.rest(graph, point, width, self.first(graph, point, 0, width, maps))

    def segment_branch(self, point: int, before: str, inputs: Sequence[int], w_out: int, maps: list[str]) -> Branch:
        """A later segment at a width: its first block for whichever width comes in, then the rest."""

        def write(graph: Graph) -> list[str]:
            (y,) = graph.choose(before, [self.first_branch(point, w_in, w_out, maps) for w_in in inputs], [FLOAT])
            return self.rest(graph, point, w_out, y)

        return write

    def first_branch(self, point: int, w_in: int, w_out: int, maps: list[str]) -> Branch:
        return lambda graph: [self.first(graph, point, w_in, w_out, maps)]

    def rest_branch(self, point: int, width: int, x: str) -> Branch:
        return lambda graph: self.rest(graph, point, width, x)

    def probe_scores(self, graph: Graph, logits: str) -> str:
        head, router = self.net.probe, self.spec.router
        assert head is not None
        assert router is not None
        if isinstance(head, ThresholdHead):
            top = graph.op("ReduceMax", graph.op("Softmax", logits, axis=1), graph.constant([1]), keepdims=1)
            worth = np.full((1, head.candidates - 1), ThresholdHead.NEVER)
            worth[0, int(head.width) - 1] = 1.0
            column = graph.op("Mul", top, graph.constant(0, np.float32))  # [B, 1]
            others = graph.op("Add", column, graph.constant(worth, np.float32))
            return graph.op("Concat", top, others, axis=1)
        return write_call(graph, self.net, lambda x: router.link(head(x)), logits)


def _outputs(at: Fork | torch.Tensor) -> tuple[Any, ...]:
    return tuple(at) if isinstance(at, tuple) else (at,)
