"""A network whose gates decide one after another, as nested branches of one graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from onnx import TensorProto

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

    def write_gates(self, names: list[str]) -> dict[str, str]:
        graph = self.graph
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

    def position(self, graph: Graph, point: int, w_in: int, scores: str | None) -> str:
        """The position of the width [1] that is pinned or chosen behind a segment of width `w_in`."""
        if scores is None or self.prices is None:
            pin = (
                PIN
                if self.points == 1
                else self.graph.op("Slice", PIN, *map(self.graph.constant, ([point], [point + 1])))
            )
            return self.place(self.graph, pin, point)
        values = graph.op("Sub", graph.op("Cast", scores, to=TensorProto.DOUBLE), self.costs[point, w_in])
        return graph.op("ArgMax", values, axis=1, keepdims=0)

    @cached_property
    def costs(self) -> dict[tuple[int, int], str]:
        """What is subtracted from the scores of a choice point, by the point and the width before it: lambda times
        price, and infinity for widths that must not run.

        The main graph computes all of it at once. A node in a branch finds neither its code nor its values in the cache
        of the processor, so decisions there have as few nodes as possible.
        """
        assert self.prices is not None
        graph, (lam, _), inputs = self.graph, self.asked, [(0,), *self.choices[:-1]]
        keys = [(point, w_in) for point, widths in enumerate(inputs) for w_in in widths]
        cells = [(point, position) for point, _ in keys for position in range(len(self.choices[point]))]
        points, positions = zip(*cells, strict=True)
        pins = graph.op("Gather", PIN, graph.constant([points]))  # [1, cells]
        free = graph.op("Less", pins, graph.constant(0))
        pinned = graph.op("Equal", self.places(points, pins, free), graph.constant(positions))
        masks = [self.allowed(point) for point, _ in keys]
        mask = masks[0] if len(masks) == 1 else graph.op("Concat", *masks, axis=0)
        prices = graph.constant(np.concatenate([self.prices.at(*key) for key in keys]), np.float64)
        spent, never = graph.op("Mul", lam, prices), graph.constant(np.inf, np.float64)
        sides = (graph.op("Where", runs, spent, never) for runs in (mask, pinned))
        costs = graph.op("Where", free, *sides)
        if len(keys) == 1:
            return {keys[0]: costs}
        sizes = graph.constant([len(self.choices[point]) for point, _ in keys])
        return dict(zip(keys, graph.ops("Split", costs, sizes, outputs=len(keys), axis=1), strict=True))

    def places(self, points: Sequence[int], pins: str, free: str) -> str:
        """The position of each pinned width among those of its choice point. It fails if the file does not hold it."""
        graph, most = self.graph, max(map(len, self.choices))
        columns = [self.listed(point, most) for point in points]
        rows = max(map(len, columns))
        table = np.array([column + [most] * (rows - len(column)) for column in columns]).T
        places = graph.op("GatherElements", graph.constant(table), pins, axis=0)
        if (table == most).any():
            places = graph.op("Gather", graph.constant(range(most)), graph.op("Where", free, graph.constant(0), places))
        return places

    def place(self, graph: Graph, pin: str, point: int) -> str:
        """The position of a pinned width among the allowed widths, out of range if it is none of them; without a
        router, -1 is the widest."""
        return graph.op("Gather", graph.constant(self.listed(point, len(self.choices[point]))), pin)

    def listed(self, point: int, missing: int) -> list[int]:
        """The position of every width of the network among the allowed widths of a point."""
        allowed = list(self.choices[point])
        widths = range(len(self.table.whole.steps[point][0]))
        return [allowed.index(width) if width in allowed else missing for width in widths]

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
