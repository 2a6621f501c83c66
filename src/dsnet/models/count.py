"""Counts the costs of any network in one walk over its graph.

Costs depend on the spec alone. The network is built on the meta device and traced there, so no weights are needed and
no model is changed. Its layers do not run: they tell the shapes of their outputs. What lies between them runs on an
empty batch, which takes no time, whereas running on the meta device begins with a second of imports.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor, fx

from dsnet.cost import Cost, CostTable, PathCosts, Row, SizedCosts
from dsnet.nn.resize import Resize
from dsnet.nn.router import EarlyClassifier, ProbeHead, ScoringHead, probe_head
from dsnet.nn.slicing import Sliceable
from dsnet.nn.tracing import trace
from dsnet.space import WidthPath, WidthSpace, is_exit

FRONT, HEAD = -1, -2  # places of the layers that belong to no choice point


class Countable(Protocol):
    """A network whose layers can be counted; built on the meta device."""

    def run_scored(self, x: Tensor, path: WidthPath) -> tuple[Any, Sequence[Tensor | None]]:
        """The outputs of a path, and the scores of the slimming heads along it."""
        ...

    def place_of(self, layer: str) -> int:
        """The choice point that a layer belongs to, by its name; FRONT or HEAD for the others."""
        ...


def count(model: Any, image_size: int | None = None) -> PathCosts:
    """The costs of a network, or of the network that a spec describes, at an image size."""
    spec: Any = getattr(model, "spec", model)
    if getattr(spec, "sizes", ()):
        if image_size not in (None, spec.image_size):
            raise ValueError(
                f"image size is {image_size}, but {spec.name!r} takes images of {spec.image_size} pixels, which it "
                f"makes smaller itself"
            )
        return SizedCosts(sized_tables(spec))
    size = spec.image_size if image_size is None else image_size
    spec.check_size(size)
    if spec.router is None or not spec.router.probes:
        bound = spec.router is not None and spec.router.bound  # then some slimming heads do not run
        return _table(spec if bound else spec.without_router(), size)
    return probing(_table(spec.without_router(), size), spec, WidthSpace(spec.routing).uniform[0])


def sized_tables(spec: Any) -> tuple[CostTable, ...]:
    """The table of each image size. Its front contains the resizing."""
    one, resize, tables = spec.at_one_size(), Resize(spec.sizes, spec.in_channels), list[CostTable]()
    image = (1, spec.in_channels, spec.image_size, spec.image_size)
    exits = spec.router is not None and spec.router.exits
    for number, size in enumerate(spec.sizes):
        table, more = _table(one, size), Cost(resize.madds(image, number))
        exit = more + before_gate(_uses(one, size)) + early_classifier(spec, size) if exits else None
        tables.append(replace(table, front=table.front + more, shared=table.shared + more, exit=exit))
    if spec.router is not None:
        first, *widths = spec.candidates[0]
        tables[first] = probing(tables[first], spec, tuple(widths))
    return tuple(tables)


def probing(table: CostTable, spec: Any, path: WidthPath) -> CostTable:
    """A table with the cost of the path that a router runs first, and of the head that reads its answer. Behind an
    exit, the first gate's attention has run as well, for the images that go on."""
    router, first = spec.router, table.cost(path)
    with torch.device("meta"):
        if is_exit(path):
            first = table.shared + early_classifier(spec, table.image_size)
            head: ProbeHead | None = ScoringHead(spec.num_classes, len(spec.candidates), router.hidden)
        else:
            head = probe_head(router, spec.num_classes, len(spec.candidates))
    assert head is not None
    params = sum(parameter.numel() for parameter in head.parameters())
    return replace(table, probe=first + Cost(head.madds(), 0, params), probed=path)


def early_classifier(spec: Any, image_size: int) -> Cost:
    """The cost of the early classifier behind the map that it reads."""
    shape = early_shape(spec, image_size)
    with torch.device("meta"):
        classifier = EarlyClassifier(shape[1], spec.num_classes, spec.router.early)
    layers = [layer for layer in (classifier.reduce, classifier.classifier) if layer is not None]
    linear = Cost(sum(layer.madds((), 0, 0) for layer in layers), 0, sum(layer.params(0, 0) for layer in layers))
    return linear + Cost(0, classifier.pool.pools(shape, 0))


def count_parts(model: Any, path: WidthPath, names: Iterable[str]) -> dict[str, Cost]:
    """The cost of each named part of a path as a static network."""
    spec: Any = getattr(model, "spec", model)
    chosen = dict(enumerate(path))
    plain = [use for use in _uses(spec.without_router(), spec.image_size) if not use.scores]
    return {name: total((use for use in plain if use.name.startswith(f"{name}.")), chosen) for name in names}


@dataclass(frozen=True)
class Use:
    """One call of a layer: its place in the network, the shape of its input, and its width arguments.

    A width argument is the index of a choice point, or None for a map of fixed width.
    """

    name: str
    place: int
    layer: Sliceable
    shape: torch.Size
    points: tuple[int | None, ...]

    @property
    def scores(self) -> bool:
        """Whether the layer belongs to a router, which only the dynamic network runs."""
        return ".slimming." in self.name or self.name.startswith("early.")

    def at(self, chosen: Mapping[int, int]) -> Cost:
        widths = [0 if point is None else chosen[point] for point in self.points]
        layer, shape = self.layer, self.shape
        return Cost(layer.madds(shape, *widths), layer.pools(shape, *widths), layer.params(*widths))


class Walk(fx.Interpreter):
    """Runs a graph with symbolic widths on an empty batch at the widest path, and lists the layers that it calls."""

    def __init__(self, graph: fx.GraphModule, net: Countable) -> None:
        super().__init__(graph)
        self.net = net
        self.uses: list[Use] = []

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "call_module":
            name = str(n.target).removeprefix("root.")
            (x, *widths), _ = self.fetch_args_kwargs_from_env(n)
            # A symbolic width is the node `path[point]`, a fixed one the constant 0.
            points = tuple(w.args[1] if isinstance(w, fx.Node) else None for w in n.args[1:])
            layer: Any = self.fetch_attr(str(n.target))
            self.uses.append(Use(name, self.net.place_of(name), layer, x.shape, points))  # type: ignore[arg-type]
            return torch.empty(layer.out_shape(x.shape, *widths))
        return super().run_node(n)


@lru_cache(maxsize=64)
def _uses(spec: Any, image_size: int) -> list[Use]:
    with torch.device("meta"):
        net = spec.build().eval()
    points = range(len(spec.widths))
    graph = trace(net, lambda x, path: net.run_scored(x, tuple(path[point] for point in points)), inputs=2)
    walk = Walk(graph, net)
    walk.run(torch.empty(0, spec.in_channels, image_size, image_size), spec.space.widest)
    return walk.uses


@lru_cache(maxsize=64)
def _table(spec: Any, image_size: int) -> CostTable:
    uses = _uses(spec, image_size)

    def at(place: int, chosen: Mapping[int, int], *, scores: bool = False) -> Cost:
        return total((use for use in uses if use.place == place and use.scores == scores), chosen)

    steps: list[tuple[Row, ...]] = []
    routers: list[Row] = []
    before = 1
    for point, widths in enumerate(spec.widths):
        ins = [{point - 1: w_in} for w_in in range(before)]
        steps.append(tuple(tuple(at(point, {**given, point: w_out}) for w_out in range(widths)) for given in ins))
        routers.append(tuple(at(point, given, scores=True) for given in ins))
        before = widths
    heads = tuple(at(HEAD, {len(spec.widths) - 1: width}) for width in range(before))
    front = at(FRONT, {})
    early = [use for use in uses if use.name.startswith("early.classifier.")]
    exit = before_gate(uses) + total(early, {}) if spec.router is not None and spec.router.exits else None
    shared = front + total(entry(uses), {})
    return CostTable(image_size, front, tuple(steps), tuple(routers), heads, shared, exit=exit)


def entry(uses: Iterable[Use]) -> list[Use]:
    """The layers of the first segment that run before its choice."""
    return [use for use in uses if use.place == 0 and 0 not in use.points and not use.scores]


def before_gate(uses: Sequence[Use]) -> Cost:
    """The cost of the map that the first gate pools."""
    front = [use for use in uses if use.place == FRONT and not use.scores]
    return total([*front, *(use for use in entry(uses) if ".gate." not in use.name)], {})


def total(uses: Iterable[Use], chosen: Mapping[int, int]) -> Cost:
    return sum((use.at(chosen) for use in uses), Cost())


def early_shape(spec: Any, image_size: int) -> tuple[int, ...]:
    """Shape [0, C, H, W] of the map that the early classifier pools, for an empty batch."""
    return _entered(spec.at_one_size(), image_size)


@lru_cache(maxsize=64)
def _entered(spec: Any, image_size: int) -> tuple[int, ...]:
    with torch.device("meta"):
        net = spec.build().eval()
    walk = Walk(trace(net, lambda x: net.enter(x).x, inputs=1), net)
    return tuple(walk.run(torch.empty(0, spec.in_channels, image_size, image_size)).shape)


def clear_counts() -> None:
    """Clear the cached counts; needed only if the cost functions of layers change."""
    _uses.cache_clear()
    _table.cache_clear()
    _entered.cache_clear()
