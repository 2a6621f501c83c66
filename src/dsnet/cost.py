"""Exact costs of every path, as integers.

Counted are the multiply-adds of convolutions and linear layers, plus one for each element that an average pool reads,
which is how the paper's authors counted; norms, activations and element-wise products are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from dsnet.schema import Typed
from dsnet.space import WidthPath, WidthSpace


@dataclass(frozen=True)
class Cost(Typed):
    """layers: multiply-adds of convolutions and linear layers; pools: elements average pools read; params."""

    layers: int = 0
    pools: int = 0
    params: int = 0

    @property
    def madds(self) -> int:
        return self.layers + self.pools

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.layers + other.layers, self.pools + other.pools, self.params + other.params)


Row = tuple[Cost, ...]


@dataclass(frozen=True)
class CostTable(Typed):
    """Costs of a network at one input size.

    front: the layers that every path shares. steps[i][j][k]: segment i from width j to width k, its gate's
    attention included. routers[i][j]: the slimming head of segment i at width j, which only the dynamic
    network runs. heads[k]: the classifier behind width k. shared: the front, and what the first segment runs before
    its choice. probe: the candidate `probed` and the head that reads it, where the router runs them first.
    """

    image_size: int
    front: Cost
    steps: tuple[tuple[Row, ...], ...]
    routers: tuple[Row, ...]
    heads: Row
    shared: Cost
    probe: Cost | None = None
    probed: WidthPath = ()

    @cached_property
    def space(self) -> WidthSpace:
        """All widths of the network."""
        return WidthSpace.full(len(step[0]) for step in self.steps)

    def cost(self, path: Sequence[int], *, dynamic: bool = False) -> Cost:
        """Cost of one path as a static network, or with what the router ran to choose it.

        A router that probes pays for the slimmest candidate; a wider path goes on from what both share.
        """
        path = self.space.validate(path)
        if dynamic and self.probe is not None:
            if path == self.probed:
                return self.probe
            wider = self.cost(path)
            return Cost(
                self.probe.layers + wider.layers - self.shared.layers,
                self.probe.pools + wider.pools - self.shared.pools,
                self.probe.params + wider.params - self.cost(self.probed).params,
            )
        total, w_in = self.front, 0
        for step, router, w_out in zip(self.steps, self.routers, path, strict=True):
            total = total + step[w_in][w_out] + (router[w_in] if dynamic else Cost())
            w_in = w_out
        return total + self.heads[w_in]

    def madds(self, path: Sequence[int], *, dynamic: bool = False) -> int:
        return self.cost(path, dynamic=dynamic).madds

    def params(self, path: Sequence[int], *, dynamic: bool = False) -> int:
        """Parameters that the path uses."""
        return self.cost(path, dynamic=dynamic).params

    @cached_property
    def slimmest(self) -> int:
        return self.madds(self.space.slimmest)

    @cached_property
    def widest(self) -> int:
        """MAdds of the widest path of the full space: the normaliser of the complexity loss."""
        return self.madds(self.space.widest)
