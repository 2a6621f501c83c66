"""Exact costs of every path, as integers.

MAdds are the multiply-adds of convolutions and linear layers, plus one for each element that an average pool reads, as
the paper's authors counted. Norms, activations and element-wise products are not counted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from dsnet.errors import must
from dsnet.limits import allow
from dsnet.schema import Typed
from dsnet.space import WidthPath, WidthSpace, is_exit

MOST = 2**52  # of a cost: sums of costs fit into the 64 bits of an array


@dataclass(frozen=True)
class Cost(Typed):
    """Cost of a part of a network.

    Args:
        layers: Multiply-adds of convolutions and linear layers.
        pools: Elements that average pools read.
        params: Parameters.
    """

    layers: int = 0
    pools: int = 0
    params: int = 0

    def __post_init__(self) -> None:
        for count in (self.layers, self.pools, self.params):
            must("a cost", count, 0 <= count <= MOST, "lie between 0 and 2^52")

    @property
    def madds(self) -> int:
        return self.layers + self.pools

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.layers + other.layers, self.pools + other.pools, self.params + other.params)


Row = tuple[Cost, ...]


class PathCosts(ABC):
    """The costs of all paths of a network."""

    image_size: int
    probe: Cost | None

    @property
    @abstractmethod
    def space(self) -> WidthSpace:
        """All widths of the network, and all of its image sizes if it has several."""

    @property
    @abstractmethod
    def whole(self) -> CostTable:
        """The table of the largest image size."""

    @abstractmethod
    def cost(self, path: Sequence[int], *, dynamic: bool = False) -> Cost:
        """Cost of one path as a static network; with `dynamic`, the cost of the router is included."""

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
        """MAdds of the widest path of the full space, by which the complexity loss is normalised."""
        return self.madds(self.space.widest)


@dataclass(frozen=True)
class CostTable(PathCosts, Typed):
    """Costs of a network at one input size.

    Args:
        front: The layers that every path shares.
        steps: `steps[i][j][k]` is segment i from width j to width k, including its gate's attention.
        routers: `routers[i][j]` is the slimming head of segment i at width j, which only the dynamic network runs.
        heads: `heads[k]` is the classifier behind width k.
        shared: The front, and the part of the first segment that runs before its choice.
        exit: The front, the layers before the first gate, and the early classifier: the exit as a static network. None
            if there is no exit.
        probe: The candidate `probed` and the router's head that reads its logits; None if the router does not probe. An
            exit is probed only where there are several image sizes, and the probe contains the first gate's attention.
    """

    image_size: int
    front: Cost
    steps: tuple[tuple[Row, ...], ...]
    routers: tuple[Row, ...]
    heads: Row
    shared: Cost
    probe: Cost | None = None
    probed: WidthPath = ()
    exit: Cost | None = None

    def __post_init__(self) -> None:
        """Refuse tables that are not of one shape: segment i takes the widths that segment i - 1 gives."""
        widths = [1]
        for step, router in zip(self.steps, self.routers, strict=False):
            must("the widths into a segment", len(step), len(step) == len(router) == widths[-1], f"be {widths[-1]}")
            widths.append(len(step[0]))
            allow("widths", widths[-1], "the number of widths of a choice point is")
            must(
                "the widths out of a segment", widths[-1], {len(row) for row in step} == {widths[-1]} != {0}, "be equal"
            )
        good = len(self.routers) == len(self.steps) and len(self.heads) == widths[-1]
        must("the number of heads and routers", (len(self.heads), len(self.routers)), good, "fit the steps")
        allow("paths", prod(widths), "the number of paths is")
        if self.probe is not None:
            must("the probed path", self.probed, self.probed in self.space, "be one of the network")
        must("MAdds of the widest path", self.widest, self.widest > 0, "be positive")

    @property
    def whole(self) -> CostTable:
        return self

    @cached_property
    def space(self) -> WidthSpace:
        """All widths of the network."""
        return WidthSpace.full((len(step[0]) for step in self.steps), exit=self.exit is not None)

    def cost(self, path: Sequence[int], *, dynamic: bool = False) -> Cost:
        """Cost of one path as a static network; with `dynamic`, the cost of the router is included.

        A router that probes runs the slimmest candidate first. A wider path then reuses the part that both share. An
        image that takes the exit has also run the first gate's attention and the router's head.
        """
        path = self.space.validate(path)
        if dynamic and self.probe is not None:
            if path == self.probed:
                return self.probe
            wider = self.cost(path)
            return Cost(
                self.probe.layers + wider.layers - self.shared.layers,
                self.probe.pools + wider.pools - self.shared.pools,
                self.probe.params + wider.params - self.common(path),
            )
        if is_exit(path):
            assert self.exit is not None
            return self.shared + self.routers[0][0] if dynamic else self.exit
        total, w_in = self.front, 0
        for step, router, w_out in zip(self.steps, self.routers, path, strict=True):
            total = total + step[w_in][w_out] + (router[w_in] if dynamic else Cost())
            w_in = w_out
        return total + self.heads[w_in]

    def common(self, path: WidthPath) -> int:
        """Parameters that the probed path and another have in common, whatever image size they run at."""
        if is_exit(self.probed):
            return self.params(path) if is_exit(path) else self.shared.params
        return min(self.params(path), self.params(self.probed))


@dataclass(frozen=True)
class SizedCosts(PathCosts):
    """Costs of a network that runs at several image sizes: one table for each size, smallest first.

    The front of a table contains the resizing of the image. A router looks at one size first, whose table has the
    probe. An image that goes on at another size pays for both looks.
    """

    tables: tuple[CostTable, ...]

    @property
    def whole(self) -> CostTable:
        return self.tables[-1]

    @property
    def image_size(self) -> int:  # type: ignore[override]
        return self.whole.image_size

    @property
    def probe(self) -> Cost | None:  # type: ignore[override]
        return None if self.looked is None else self.looked.probe

    @cached_property
    def looked(self) -> CostTable | None:
        """The table of the size that a router looks at first."""
        return next((table for table in self.tables if table.probe is not None), None)

    @cached_property
    def space(self) -> WidthSpace:
        whole = self.whole.space
        return WidthSpace.full(map(len, whole.choices), exit=whole.exit, sizes=len(self.tables))

    def cost(self, path: Sequence[int], *, dynamic: bool = False) -> Cost:
        size, *widths = self.space.validate(path)
        table, looked = self.tables[size], self.looked
        if not dynamic or looked is None or table is looked:
            return table.cost(widths, dynamic=dynamic)
        second, probe = table.cost(widths), looked.probe
        assert probe is not None
        params = probe.params + second.params - looked.common(tuple(widths))
        return Cost(probe.layers + second.layers, probe.pools + second.pools, params)
