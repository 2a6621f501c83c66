"""The parts of a network between its choice points, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsnet.export.head import write_classifier
from dsnet.export.int8 import Int8
from dsnet.export.layers import write_call
from dsnet.export.ranges import FEATURES, Part, exit_part, first_part, front_part, last_part, rest_part, typed
from dsnet.export.writer import Graph, Model
from dsnet.manifest import Manifest
from dsnet.models import Supernet
from dsnet.models.count import early_shape
from dsnet.models.parts import LiveParts
from dsnet.nn import ThresholdHead, link
from dsnet.runtime.bundle import EXIT_LOGITS
from dsnet.space import WidthPath, WidthSpace

Branch = Callable[[Graph], Sequence[str]]


class PartWriter:
    """Writes parts of a network into graphs.

    held: the widths that the file holds. pinnable: the paths that can be pinned. grids: height and width of the map
    that the early classifier pools, at each image size. int8: how the network is quantised, if it is.
    """

    def __init__(self, live: LiveParts, manifest: Manifest, int8: Int8 | None = None) -> None:
        self.live, self.root, self.net, self.int8 = live, live.owner, live.net, int8
        self.manifest = manifest
        self.router = self.manifest.router
        self.probes = self.router is not None and self.router.probes
        self.held: WidthSpace = self.manifest.space if self.router is None else self.router.routing
        self.choices = self.held.choices
        self.space = self.manifest.table.space  # of the whole network
        self.points = len(self.net.chain)
        once = self.router if self.router is not None and self.router.spec.single else None
        every = self.held.uniform if self.held.sized else list(self.held)
        self.pinnable: list[WidthPath] = every if once is None else once.candidates
        self.grids = [grid_of(self.net, size) for size in self.manifest.sizes]

    def blank(self, *, shared: bool = True, lone: bool = False) -> Graph:
        """An empty graph of a file of its own."""
        return Graph(Model(shared=shared, int8=self.int8), lone=lone)

    def maps_at(self, point: int) -> list[str]:
        """Names of the maps that the first block behind a choice reads."""
        return self.live.maps_at(point)

    def fork_at(self, point: int, size: int | None = None) -> list[str]:
        """Names of the values at a choice point: maps, the scores of a decision, and the logits of the exit. size: That
        of the front, see `LiveParts.scores_at`."""
        scores = ["router_scores"] * self.live.scores_at(point, size)
        return self.maps_at(point) + scores + [EXIT_LOGITS] * self.live.exits_at(point, size)

    def given(self, point: int, size: int | None = None) -> list[str]:
        """Names of all outputs of the part that ends at a choice point, or behind the last one."""
        return (self.fork_at(point, size) if point < self.points else []) + self.live.left_at(point)

    @property
    def left(self) -> list[str]:
        """Names of all arrays that parts leave for `finish`, in order."""
        return [name for point in range(self.points + 1) for name in self.live.left_at(point)]

    def finish(
        self, graph: Graph, left: dict[str, str], widths: Sequence[int] | None = None, position: str | None = None
    ) -> dict[str, str]:
        """The network's outputs, from the arrays that the parts left.

        widths: Those of the last layers that may have run, if they are known, and `position` says which of them did.
        """
        names = list(self.manifest.outputs)
        head = self.net.head
        if widths is not None and FEATURES in left and head.ends:
            reads = [head.classifier.cin[width] for width in widths]
            return {"logits": write_classifier(graph, head.classifier, left[FEATURES], reads, position, self.int8)}
        if all(name in left for name in names):
            return {name: left[name] for name in names}
        found: dict[str, str] = self.write(graph, last_part(self.live, list(left)), list(left.values()))
        return {name: found[name] for name in names}

    def write(self, graph: Graph, part: Part, *inputs: str | list[str]) -> Any:
        return write_call(graph, self.root, part.call, *inputs, part=part)

    def front(self, graph: Graph, image: str, size: int = 0) -> list[str]:
        graph.model.grid = self.grids[size]
        return self.step_names(graph, front_part(self.live, size), image)

    def exit(self, graph: Graph, image: str, path: WidthPath) -> dict[str, str]:
        """The answer of the early classifier alone, from the image on."""
        size = self.space.size_of(path)
        graph.model.grid = self.grids[size]
        (*_, logits) = self.step_names(graph, exit_part(self.live, size), image)
        return {"logits": logits}

    def along(self, graph: Graph, image: str, path: WidthPath) -> dict[str, str]:
        """The arrays that one path leaves for `finish`, from the image on."""
        names = self.front(graph, image, self.space.size_of(path))
        return {**self.left_of(0, names), **self.follow(graph, path, names)}

    def step_names(self, graph: Graph, part: Part, *inputs: str) -> list[str]:
        """The outputs of a part that ends at a choice point, in the order of `given`, without those that are None."""
        step = typed(self.write(graph, part, *inputs))
        return [name for name in (*(step.fork or ()), *step.left.values()) if name is not None]

    def fork_of(self, names: list[str], point: int) -> tuple[list[str], str | None]:
        """Maps that the first block of a segment reads, and the scores."""
        maps = len(self.maps_at(point))
        return names[:maps], names[maps] if self.live.scores_at(point) else None

    def exit_of(self, names: list[str]) -> str | None:
        """The logits of the exit, among the outputs of the front."""
        return names[self.fork_at(0).index(EXIT_LOGITS)] if self.live.exits_at(0) else None

    def left_of(self, point: int, names: list[str]) -> dict[str, str]:
        """The arrays for `finish` among the outputs of the part that ends at a choice point."""
        kept = self.live.left_at(point)
        return dict(zip(kept, names[len(names) - len(kept) :], strict=True))

    def first(self, graph: Graph, point: int, w_in: int, w_out: int, maps: list[str]) -> str:
        name: str = self.write(graph, first_part(self.live, point, w_in, w_out), *maps)
        return name

    def rest(self, graph: Graph, point: int, width: int, x: str) -> list[str]:
        return self.step_names(graph, rest_part(self.live, point, width), x)

    def follow(self, graph: Graph, path: WidthPath, names: list[str]) -> dict[str, str]:
        """The arrays that one path leaves for `finish`, from the outputs of the front."""
        left = dict[str, str]()
        w_in, *rows = self.space.rows(path)
        for point, w_out in enumerate(rows):
            maps = names[: len(self.maps_at(point))]
            names = self.rest(graph, point, w_out, self.first(graph, point, w_in, w_out, maps))
            w_in, left = w_out, {**left, **self.left_of(point + 1, names)}
        return left

    def whole(self, point: int, width: int, maps: list[str], w_in: int = 0) -> Branch:
        """The whole first segment at a width; its input has a single width, that of the image size."""
        return lambda graph: self.rest(graph, point, width, self.first(graph, point, w_in, width, maps))

    def first_branch(self, point: int, w_in: int, w_out: int, maps: list[str]) -> Branch:
        return lambda graph: [self.first(graph, point, w_in, w_out, maps)]

    def rest_branch(self, point: int, width: int, x: str) -> Branch:
        return lambda graph: self.rest(graph, point, width, x)

    def probe_scores(self, graph: Graph, logits: str) -> str:
        head, router = self.net.probe, self.router
        assert head is not None
        assert router is not None
        if isinstance(head, ThresholdHead):
            top = graph.op("ReduceMax", graph.op("Softmax", logits, axis=1), graph.constant([1]), keepdims=1)
            worth = np.full((1, head.candidates - 1), ThresholdHead.NEVER)
            worth[0, int(head.width) - 1] = 1.0
            column = graph.op("Mul", top, graph.constant(0, np.float32))  # [B, 1]
            others = graph.op("Add", column, graph.constant(worth, np.float32))
            return graph.op("Concat", top, others, axis=1)
        return write_call(graph, self.net, lambda x: link(router.spec, head(x)), logits)


def grid_of(net: Supernet, image_size: int) -> tuple[int, int] | None:
    """Height and width of the map that the early classifier pools; None if there is none."""
    if net.early is None:
        return None
    *_, height, width = early_shape(net.spec, image_size)
    return height, width
