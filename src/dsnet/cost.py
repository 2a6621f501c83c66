"""Exact costs of every path, and the differentiable cost of a mix of paths.

Counted are the multiply-adds of convolutions and linear layers, plus one for each element that an
average pool reads, which is how the paper's authors counted; norms, activations and element-wise
products are not. Costs follow from the spec alone: the network is built on the meta device and its
graph is walked, so no weights are needed and nothing is left behind in a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, fx

from dsnet.models import ModelSpec, Supernet
from dsnet.nn import probe_head
from dsnet.nn.slicing import Sliceable
from dsnet.nn.tracing import trace


@dataclass(frozen=True)
class Cost:
    """layers: multiply-adds of convolutions and linear layers; pools: elements average pools read; params."""

    layers: int = 0
    pools: int = 0
    params: int = 0

    @property
    def madds(self) -> int:
        return self.layers + self.pools

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.layers + other.layers, self.pools + other.pools, self.params + other.params)


class CostTable:
    """Costs of a network at one input size.

    front: the layers that every path shares. steps[i][j][k]: segment i from width j to width k, its gate's
    attention included. routers[i][j]: the slimming head of segment i at width j, which only the dynamic
    network runs. heads[k]: the classifier behind width k. shared: the front, and what the first segment runs before
    its choice. probe: the slimmest candidate and the head that reads it, where the router runs them first.
    """

    def __init__(self, model: Supernet | ModelSpec, image_size: int | None = None) -> None:
        self.spec = model.spec if isinstance(model, Supernet) else model
        self.image_size = self.spec.image_size if image_size is None else image_size
        self.spec.check_size(self.image_size)
        self.front, self.steps, self.routers, self.heads, self.shared = _tables(self.spec, self.image_size)
        self.probe: Cost | None = None
        if (router := self.spec.router) is not None and router.probes:
            with torch.device("meta"):
                head = probe_head(router, self.spec.num_classes, len(self.spec.candidates))
            assert head is not None
            self.probe = self.cost(self.spec.candidates[0]) + Cost(head.madds(), 0, head.params())

    def cost(self, path: Sequence[int], *, dynamic: bool = False) -> Cost:
        """Cost of one path as a static network, or with what the router ran to choose it.

        A router that probes pays for the slimmest candidate; a wider path goes on from what both share.
        """
        path = self.spec.space.validate(path)
        if dynamic and self.probe is not None:
            if path == self.spec.candidates[0]:
                return self.probe
            wider = self.cost(path)
            return Cost(
                self.probe.layers + wider.layers - self.shared.layers,
                self.probe.pools + wider.pools - self.shared.pools,
                self.probe.params + wider.params - self.cost(self.spec.candidates[0]).params,
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

    @property
    def slimmest(self) -> int:
        return self.madds(self.spec.space.slimmest)

    @property
    def widest(self) -> int:
        """MAdds of the widest path of the full space: the normaliser of the complexity loss."""
        return self.madds(self.spec.space.widest)

    def expected(self, mixes: Sequence[Tensor], *, dynamic: bool = True) -> Tensor:
        """MAdds [B] under one mix [B, K] per choice point: differentiable, exact on one-hot mixes."""
        if len(mixes) != len(self.steps):
            raise ValueError(
                f"got {len(mixes)} mixes but {self.spec.name!r} has {len(self.steps)} choice points; give one for each"
            )
        for point, (mix, widths) in enumerate(zip(mixes, self.spec.widths, strict=True)):
            if mix.shape != (len(mixes[0]), widths):
                raise ValueError(
                    f"mix {point} has shape {tuple(mix.shape)}; expected {(len(mixes[0]), widths)}, "
                    f"one weight per sample and width"
                )
        if not mixes:
            raise ValueError(f"{self.spec.name!r} has no choice points; use madds(())")
        device = mixes[0].device
        if dynamic and self.probe is not None:
            return self._expected_probing(mixes)
        total = torch.full((len(mixes[0]),), float(self.front.madds), dtype=torch.float64, device=device)
        before = total.new_ones(len(total), 1)
        for step, router, mix in zip(self.steps, self.routers, mixes, strict=True):
            table = [[cost.madds + (router[j].madds if dynamic else 0) for cost in row] for j, row in enumerate(step)]
            after = mix.double()
            total = total + torch.einsum("bi,ij,bj->b", before, total.new_tensor(table), after)
            before = after
        return total + before @ total.new_tensor([head.madds for head in self.heads])

    def _expected_probing(self, mixes: Sequence[Tensor]) -> Tensor:
        """The probe for everyone; the rest of the chosen path for those who do not take the slimmest candidate."""
        assert self.probe is not None
        slimmest = self.spec.candidates[0]
        slim = torch.stack([mix[:, width].double() for mix, width in zip(mixes, slimmest, strict=True)]).prod(0)
        rest = self.expected(mixes, dynamic=False) - self.shared.madds
        return self.probe.madds + rest - slim * (self.madds(slimmest) - self.shared.madds)


@dataclass(frozen=True)
class Use:
    """One call of a layer: where it stands, the shape of its input, and its width arguments.

    A width argument is the index of a choice point, or None for the one width of a fixed map.
    """

    name: str
    layer: Sliceable
    shape: torch.Size
    points: tuple[int | None, ...]

    def at(self, chosen: Mapping[int, int]) -> Cost:
        widths = [0 if point is None else chosen[point] for point in self.points]
        layer, shape = self.layer, self.shape
        return Cost(layer.madds(shape, *widths), layer.pools(shape, *widths), layer.params(*widths))


class Uses(fx.Interpreter):
    """Walks a graph whose widths are symbols, on meta tensors at the widest path, and lists the layers it meets."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.uses: list[Use] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module":
            name = str(n.target).removeprefix("root.")
            (x, *_), _ = self.fetch_args_kwargs_from_env(n)
            # A symbolic width is the node `path[point]`, a fixed one the constant 0.
            points = tuple(w.args[1] if isinstance(w, fx.Node) else None for w in n.args[1:])
            self.uses.append(Use(name, self.fetch_attr(str(n.target)), x.shape, points))  # type: ignore[arg-type]
        return super().run_node(n)


Row = tuple[Cost, ...]
Tables = tuple[Cost, tuple[tuple[Row, ...], ...], tuple[Row, ...], Row, Cost]


@lru_cache(maxsize=64)
def _tables(spec: ModelSpec, image_size: int) -> Tables:
    spec = replace(spec, router=None)
    with torch.device("meta"):
        net = Supernet(spec).eval()
        x = torch.empty(1, spec.in_channels, image_size, image_size)
    points = range(len(spec.widths))
    graph = trace(net, lambda x, path: net.run_scored(x, tuple(path[point] for point in points)), inputs=2)
    walk = Uses(graph)
    walk.run(x, spec.space.widest)

    def total(prefix: str, chosen: Mapping[int, int], *, scoring: bool = False) -> Cost:
        uses = (use for use in walk.uses if use.name.startswith(prefix) and (".slimming." in use.name) == scoring)
        return sum((use.at(chosen) for use in uses), Cost())

    steps: list[tuple[Row, ...]] = []
    routers: list[Row] = []
    before = 1
    for point, widths in enumerate(spec.widths):
        prefix = f"segments.{point}."
        ins = [{point - 1: w_in} for w_in in range(before)]
        steps.append(tuple(tuple(total(prefix, {**at, point: w_out}) for w_out in range(widths)) for at in ins))
        routers.append(tuple(total(prefix, at, scoring=True) for at in ins))
        before = widths
    heads = tuple(total("head.", {len(spec.widths) - 1: width}) for width in range(before))
    front = total("front.", {})
    entries = (use for use in walk.uses if use.name.startswith("segments.0.") and 0 not in use.points)
    shared = sum((use.at({}) for use in entries if ".slimming." not in use.name), front)
    return front, tuple(steps), tuple(routers), heads, shared
