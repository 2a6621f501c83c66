"""The ranges of a network's maps on some images, part by part and width by width."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, fx

from dsnet.manifest import Manifest
from dsnet.models.parts import LiveParts
from dsnet.nn.tracing import trace
from dsnet.routing.route import Fork, Outputs, Step, run_sizes
from dsnet.space import WidthPath, is_exit

CHUNK = 16  # images that are observed together

CLASSIFIER = "head.classifier"  # name of the layer
FEATURES = "features"  # what it reads

Range = tuple[float, float]


@dataclass(frozen=True)
class Part:
    """A part of a network as a call that can be traced.

    takes: keys of the maps that the call reads. gives: keys of the maps behind its end, which a later part takes. Both
    sides of a cut have one key, so that they have one range.
    """

    name: str
    call: Callable[..., Any]
    takes: tuple[str, ...]
    gives: tuple[str, ...] = ()

    def keys(self, traced: fx.GraphModule) -> dict[fx.Node, str]:
        """The key of the range of every value in the trace of this part."""
        nodes = list(traced.graph.nodes)
        keys = {node: f"{self.name}/{node.name}" for node in nodes}
        (ends,) = nodes[-1].args
        maps = (ends,) if isinstance(ends, fx.Node) else ends[0] or () if isinstance(ends, tuple) else ()
        keys |= {node: key for node, key in zip(maps, self.gives, strict=False) if node is not None}
        keys |= dict(zip((node for node in nodes if node.op == "placeholder"), self.takes, strict=False))
        # All widths may share one classifier, and so the range of what it reads.
        return keys | {node.args[0]: FEATURES for node in nodes if node.target == f"root.{CLASSIFIER}"}


def front_part(live: LiveParts, size: int = 0) -> Part:
    name = f"front.{size}" if size else "front"
    return Part(name, lambda x: untyped(live.front(x, size)), ("image",), fork_keys(0, size))


def exit_part(live: LiveParts, size: int) -> Part:
    """The early classifier alone at an image size. Its layers are those of the front, and so are their ranges."""
    front = front_part(live, size)
    return Part(front.name, lambda x: untyped(Step(live.exit_fork(x, size), {})), front.takes, front.gives)


def first_part(live: LiveParts, point: int, w_in: int, w_out: int) -> Part:
    def call(x: Any, scaled: Any) -> Any:
        return live.first(point, w_in, w_out, Fork(x, scaled))

    keys, gives = fork_keys(point, w_in), (f"within.{point}.{w_out}",)
    name, alone = f"first.{point}.{w_in}.{w_out}", len(live.maps_at(point)) == 1
    if alone:
        return Part(name, lambda scaled: call(None, scaled), keys[1:], gives)
    return Part(name, call, keys, gives)


def rest_part(live: LiveParts, point: int, width: int) -> Part:
    takes, gives = (f"within.{point}.{width}",), fork_keys(point + 1, width)
    return Part(f"rest.{point}.{width}", lambda x: untyped(live.rest(point, width, x)), takes, gives)


def last_part(live: LiveParts, names: Sequence[str]) -> Part:
    """What `finish` computes from the arrays of these names, which are given as a list."""

    def call(maps: Sequence[Any]) -> Outputs:
        return live.finish({name: maps[place] for place, name in enumerate(names)})

    return Part("finish", call, ())


def untyped(step: Step) -> tuple[Any, ...]:
    """A step of plain tuples: in a trace, every class is a function that must be called."""
    return None if step.fork is None else tuple(step.fork), dict(step.left)


def typed(found: tuple[Any, ...]) -> Step:
    return Step(None if found[0] is None else Fork(*found[0]), dict(found[1]))


def fork_keys(point: int, width: int) -> tuple[str, str]:
    """The keys of the maps x and scaled at a choice point, by the width that comes in."""
    return f"at.{point}.{width}.x", f"at.{point}.{width}.scaled"


class _Observer(fx.Interpreter):
    """Runs a trace, and notes the least and the greatest number of every value."""

    def __init__(self, traced: fx.GraphModule, keys: Mapping[fx.Node, str], seen: dict[str, list[Tensor]]) -> None:
        super().__init__(traced)
        self.keys, self.seen = keys, seen

    def run_node(self, n: fx.Node) -> Any:
        found = super().run_node(n)
        if isinstance(found, Tensor) and found.is_floating_point():
            rows = found.flatten(1)
            self.seen.setdefault(self.keys[n], []).append(torch.stack([rows.amin(1), rows.amax(1)], 1))
        return found


class ObservedParts:
    """Live parts that note the ranges of their maps."""

    def __init__(self, live: LiveParts) -> None:
        self.live = live
        self.observers: dict[str, _Observer] = {}
        self.seen: dict[str, list[Tensor]] = {}

    @property
    def manifest(self) -> Manifest:
        return self.live.manifest

    def front(self, x: Tensor, size: int = 0) -> Step:
        return typed(self._run(front_part(self.live, size), x))

    def exit(self, x: Tensor, size: int = 0) -> Outputs:
        return self.live.exit(x, size)

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Tensor:
        maps = (fork.scaled,) if fork.x is None else (fork.x, fork.scaled)
        found: Tensor = self._run(first_part(self.live, point, w_in, w_out), *maps)
        return found

    def rest(self, point: int, width: int, x: Tensor) -> Step:
        return typed(self._run(rest_part(self.live, point, width), x))

    def finish(self, left: Outputs) -> Outputs:
        found: Outputs = self._run(last_part(self.live, list(left)), list(left.values()))
        return found

    def _run(self, part: Part, *inputs: Any) -> Any:
        if part.name not in self.observers:
            traced = trace(self.live.owner, part.call, len(inputs))
            self.observers[part.name] = _Observer(traced, part.keys(traced), self.seen)
        return self.observers[part.name].run(*inputs)


def observe(live: LiveParts, paths: Sequence[WidthPath], images: Tensor) -> dict[str, Range]:
    """The range of every map by its key, over some images [N, C, S, S] and some paths."""
    parts = ObservedParts(live)
    with torch.no_grad():
        for chunk in images.split(CHUNK):
            run_sizes(parts, chunk, paths)  # type: ignore[arg-type]
    return {key: range_of(torch.cat(rows)) for key, rows in parts.seen.items()}


def range_of(ends: Tensor) -> Range:
    """The range that a map is quantised in, from its least and greatest number in every image [N, 2]."""
    return float(ends[:, 0].min()), float(ends[:, 1].max())


def covering(paths: Sequence[WidthPath]) -> list[WidthPath]:
    """Some of the paths that take every step from one width to the next that any of them takes. The exit takes none."""
    wide = [path for path in paths if not is_exit(path)]
    shuffled = random.Random(0).sample(wide, len(wide))
    seen: set[tuple[int, int, int]] = set()
    chosen = []
    for path in sorted(shuffled, key=lambda path: len(set(path)) > 1):  # uniform paths first
        steps = set(steps_of(path))
        if not path or not steps <= seen:
            chosen.append(path)
            seen |= steps
    return chosen


def steps_of(path: WidthPath) -> Iterator[tuple[int, int, int]]:
    return ((point, *step) for point, step in enumerate(pairwise((0, *path))))
