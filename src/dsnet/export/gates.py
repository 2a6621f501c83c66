"""A network whose gates decide one after another, as nested branches of one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dsnet.export.decision import DecisionWriter
from dsnet.export.parts import Branch
from dsnet.export.writer import FLOAT, INT, Graph
from dsnet.runtime.onnx import PIN


class GateWriter(DecisionWriter):
    """Writes the segments and gates of a network.

    A branch holds a segment at a width behind its first block, the gate at its end with the decision, and the first
    block of the next segment at every width. So the incoming width of a gate and of a first block is known where they
    are written, which saves nodes, and only one map goes from a segment to the next.
    """

    def write_gates(self, x: str) -> dict[str, str]:
        graph = self.graph
        self.pins = self.written_pins()
        names = self.front(graph, x) if self.points == 1 else self.front_apart(x)
        maps, scores = self.fork_of(names, 0)
        position = self.position(graph, 0, 0, scores)
        positions, seen, left = [position], [scores] if scores is not None else [], self.left_of(0, names)
        y = ""
        for point, widths in enumerate(self.choices):
            branches = [self.segment(point, width, self.entered(point, width, maps, y)) for width in widths]
            kinds = [FLOAT] * len(self.live.left_at(point + 1))
            last = point + 1 == self.points
            found = graph.choose(position, branches, kinds if last else [*self.kinds, *kinds])
            left |= self.left_of(point + 1, found)
            if not last:
                y, *decided = found[: len(self.kinds)]
                position, *scored = decided or [self.position(graph, point + 1, 0, None)]
                positions.append(position)
                seen += scored
        outputs = {**self.finish(graph, left, self.choices[-1], position), "path": self.path(positions)}
        outputs["madds"] = self.madds(positions)
        if seen and self.prices is not None:
            outputs["router_scores"] = seen[0] if len(seen) == 1 else graph.op("Concat", *seen, axis=1)
        return outputs

    def front_apart(self, x: str) -> list[str]:
        """The front in a branch of its own, so that the segments get the memory of its maps, which are large: a graph
        keeps its memory until it ends. Both branches are the same, because runtimes remove a branch that always runs.
        """

        def write(branch: Graph) -> list[str]:
            branch.lone = True
            return self.front(branch, x)

        is_pinned, _ = self.pins[0]
        return self.graph.either(is_pinned, write, write, [FLOAT] * len(self.given(0)))

    @property
    def kinds(self) -> list[int]:
        """Types of what a segment gives the next: a map, and the position and scores of a decision."""
        return [FLOAT] if self.prices is None else [FLOAT, INT, FLOAT]

    def entered(self, point: int, width: int, maps: list[str], y: str) -> Callable[[Graph], str]:
        """What the rest of a segment reads. The first block of the first segment is in its branch, too."""
        return lambda graph: y if point else self.first(graph, 0, 0, width, maps)

    def segment(self, point: int, width: int, entered: Callable[[Graph], str]) -> Branch:
        def write(graph: Graph) -> list[str]:
            names = self.rest(graph, point, width, entered(graph))
            if point + 1 == self.points:
                return names
            maps, scores = self.fork_of(names, point + 1)
            position = self.position(graph, point + 1, width, scores)
            firsts = [self.first_branch(point + 1, width, w_out, maps) for w_out in self.choices[point + 1]]
            (y,) = graph.choose(position, firsts, [FLOAT])
            decided = [] if self.prices is None or scores is None else [position, scores]
            return [y, *decided, *self.left_of(point + 1, names).values()]

        return write

    def written_pins(self) -> list[tuple[str, str]]:
        """For each choice point, whether it is pinned [1] and the position of the pinned width [1]."""
        graph, points = self.graph, len(self.choices)
        pins = [PIN] if points == 1 else graph.ops("Split", PIN, outputs=points, axis=0, num_outputs=points)
        zero = graph.constant(0)
        return [
            (graph.op("GreaterOrEqual", pin, zero), self.place(graph, pin, point)) for point, pin in enumerate(pins)
        ]

    def place(self, graph: Graph, pin: str, point: int) -> str:
        """The position of a pinned width among the allowed widths, out of range if it is none of them; without a
        router, -1 is the widest."""
        allowed = self.choices[point]
        places = [len(allowed)] * len(self.table.whole.steps[point][0])
        for position, width in enumerate(allowed):
            places[width] = position
        return graph.op("Gather", graph.constant(places), pin)

    def position(self, graph: Graph, point: int, w_in: int, scores: str | None) -> str:
        """The position of the width [1] that is pinned or chosen behind a segment of width `w_in`."""
        is_pinned, pinned = self.pins[point]
        if self.prices is None:
            return pinned
        assert scores is not None
        prices = graph.constant(self.prices.at(point, w_in), np.float64)
        place = graph.op("Where", is_pinned, pinned, self.decision(graph, scores, prices, point))
        allowed = self.choices[point]
        if len(allowed) < len(self.table.whole.steps[point][0]):  # pinning a width that is not in the file fails here
            place = graph.op("Gather", graph.constant(list(range(len(allowed)))), place)
        return place

    def path(self, positions: Sequence[str]) -> str:
        graph, starts = self.graph, np.cumsum([0, *map(len, self.choices)])
        found = positions[0] if len(positions) == 1 else graph.op("Concat", *positions, axis=0)
        if all(list(widths) == list(range(len(widths))) for widths in self.choices):
            return found
        if len(positions) > 1:
            found = graph.op("Add", found, graph.constant(starts[:-1]))
        return graph.op("Gather", graph.constant(np.concatenate(self.choices)), found)

    def madds(self, positions: Sequence[str]) -> str:
        """MAdds of the path: those of each segment lie in one table, by the positions before and behind it."""
        graph, spent = self.graph, self.table.whole
        tables, inputs = [], [0]
        for point, widths in enumerate(self.choices):
            routed = self.prices is not None and self.live.scores_at(point)
            cost = [
                [spent.steps[point][a][b].madds + spent.routers[point][a].madds * routed for b in widths]
                for a in inputs
            ]
            tables.append(np.array(cost))
            inputs = list(widths)
        tables[0] += spent.front.madds
        tables[-1] += np.array([spent.heads[width].madds for width in inputs])
        place = positions[0]
        if len(positions) > 1:
            before = graph.op("Concat", graph.constant([0]), *positions[:-1], axis=0)
            rows = graph.op("Mul", before, graph.constant([len(widths) for widths in self.choices]))
            starts = np.cumsum([0, *(table.size for table in tables[:-1])])
            place = graph.op(
                "Add", graph.op("Add", rows, graph.constant(starts)), graph.op("Concat", *positions, axis=0)
            )
        each = graph.op("Gather", graph.constant(np.concatenate([table.reshape(-1) for table in tables])), place)
        return graph.op("ReduceSum", each, graph.constant([0]), keepdims=0)
