"""The inputs of a dynamic file besides the image, and the nodes that decide."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from dsnet.cost import PathCosts
from dsnet.export.int8 import Int8
from dsnet.export.parts import PartWriter
from dsnet.export.writer import FLOAT, INT, Graph
from dsnet.manifest import Manifest, Policy
from dsnet.models.parts import LiveParts
from dsnet.routers import Budget
from dsnet.routing.budgets import lambdas
from dsnet.routing.policy import Prices
from dsnet.runtime.onnx import BUDGET, MAX_SIZE, MAX_WIDTH, PIN
from dsnet.space import EXIT, WidthPath, Window


class DecisionWriter(PartWriter):
    """Writes decisions by the rule of `routing.policy`, from the scores of a router and the inputs of a file.

    deciding: The graph that makes lambda and the caps of the inputs. It need not run if the path is pinned.
    """

    def __init__(
        self,
        live: LiveParts,
        manifest: Manifest,
        policy: Policy,
        *,
        simple: bool = False,
        int8: Int8 | None = None,
    ) -> None:
        super().__init__(live, manifest, int8)
        self.policy, self.simple = policy, simple
        self.table: PathCosts = manifest.table
        self.prices = None if self.router is None else Prices(self.table, self.router)
        self.graph = self.deciding = self.blank(lone=True)
        self.masks: dict[tuple[int, ...], str] = {}

    def knobs(self) -> list[onnx.ValueInfoProto]:
        """The inputs besides the image."""
        shapes: dict[str, tuple[int, int]] = {}
        if self.router is not None:
            if self.router.budgets:
                shapes[BUDGET] = FLOAT, 1
            shapes[MAX_WIDTH] = INT, 1
            if self.held.sized:
                shapes[MAX_SIZE] = INT, 1
        shapes[PIN] = INT, len(self.choices)
        given = [BUDGET] if self.simple else list(shapes)
        for name in shapes.keys() - given:  # a constant, which runtimes fold
            self.graph.initializers.append(numpy_helper.from_array(np.full(shapes[name][1], -1, np.int64), name))
        return [helper.make_tensor_value_info(name, shapes[name][0], [shapes[name][1]]) for name in given]

    @cached_property
    def asked(self) -> tuple[str, list[str]]:
        """Lambda, and the ends of the window; none if no window restricts a decision."""
        assert self.router is not None
        if self.router.budgets:
            return self.interpolated(self.router.budgets)
        return self.deciding.constant([self.policy.lam], np.float64), self.columns([self.policy.window])

    @cached_property
    def cap(self) -> str:
        widest, cap = max(self.held.widths_of(self.held.widest), default=0), self.policy.max_width
        return self.fallback(MAX_WIDTH, widest if cap is None else cap)

    @cached_property
    def size_cap(self) -> str:
        return self.fallback(MAX_SIZE, self.policy.max_size or self.manifest.image_size)

    def fallback(self, name: str, default: int) -> str:
        """An input, or its default if it is negative."""
        graph = self.deciding
        return graph.op("Where", graph.op("Less", name, graph.constant([0])), graph.constant([default]), name)

    def interpolated(self, budgets: Sequence[Budget]) -> tuple[str, list[str]]:
        """Lambda and window at the budget, by the operations of `Lambdas.at`; below zero they are the default."""
        graph, (starts, lams, slopes, windows) = self.deciding, lambdas(budgets, self.table)
        columns = [0, 0, *starts], [self.policy.lam, lams[0], *lams], [0, 0, *slopes]
        start, lam, slope = (graph.constant(column, np.float64) for column in columns)
        beyond = graph.op("Sub", graph.op("Cast", BUDGET, to=TensorProto.DOUBLE), start)
        pieces = graph.op("Add", lam, graph.op("Mul", beyond, slope))
        ends = graph.constant([0, *starts], np.float32)
        passed = graph.op("Cast", graph.op("LessOrEqual", ends, BUDGET), to=INT)
        place = graph.op("ReduceSum", passed, graph.constant([0]))  # [1]
        window = [graph.op("Gather", ends, place) for ends in self.columns([self.policy.window, windows[0], *windows])]
        return graph.op("Gather", pieces, place), window

    def columns(self, windows: Sequence[Window | None]) -> list[str]:
        """The first and the last positions of windows, as two columns; none if there is none."""
        if self.router is None or all(window is None for window in windows):
            return []
        whole = 0, self.router.windows[-1][1]
        ends = zip(*(window or whole for window in windows), strict=True)
        return [self.deciding.constant(list(column)) for column in ends]

    def widths_at(self, point: int) -> list[int]:
        assert self.prices is not None
        return self.prices.widths(point)

    def decision(self, graph: Graph, scores: str, prices: str, point: int) -> str:
        """The position [1] that `decide` takes: the highest score minus lambda times price within the caps and
        the window; ties go to the slimmer width."""
        lam, _ = self.asked
        cost = graph.op("Mul", lam, prices)
        values = graph.op("Sub", graph.op("Cast", scores, to=TensorProto.DOUBLE), cost)
        values = graph.op("Where", self.allowed(point), values, graph.constant(-np.inf, np.float64))
        return graph.op("ArgMax", values, axis=1, keepdims=0)

    def allowed(self, point: int) -> str:
        """Which widths of a choice point are within the caps and the window, bool [widths]. Points may share it."""
        graph, widths, (_, window) = self.deciding, tuple(self.widths_at(point)), self.asked
        if widths not in self.masks:
            allowed = graph.op("LessOrEqual", graph.constant(widths), self.cap)
            if self.held.sized:  # then one decision chooses among settings
                assert self.prices is not None
                small = graph.op("LessOrEqual", graph.constant(self.prices.sizes()), self.size_cap)
                allowed = graph.op("And", allowed, small)
            if window:
                low, high = window
                last = graph.op("ReduceSum", graph.op("Cast", allowed, to=INT), graph.constant([0]))
                low = graph.op("Min", low, graph.op("Sub", last, graph.constant([1])))
                positions = graph.constant(list(range(len(widths))))
                allowed = graph.op("And", allowed, graph.op("GreaterOrEqual", positions, low))
                allowed = graph.op("And", allowed, graph.op("LessOrEqual", positions, high))
            self.masks[widths] = allowed
        return self.masks[widths]

    def pinned_path(self, graph: Graph, paths: Sequence[WidthPath]) -> str:
        """The position of the pinned path among some paths of a network with several image sizes; out of range if it is
        none of them, so that pinning it fails. Widths are counted from that of the exit on, if there is one."""
        lowest = EXIT if self.space.exit else 0
        least = [0, *[lowest] * (len(self.space) - 1)]
        counts = [len(allowed) - low for allowed, low in zip(self.space.choices, least, strict=True)]
        places = np.full(counts, len(paths), np.int64)
        for position, path in enumerate(paths):
            places[tuple(np.subtract(path, least))] = position
        strides = [int(np.prod(counts[point + 1 :])) for point in range(len(counts))]
        pin = graph.op("Sub", PIN, graph.constant(least)) if lowest else PIN
        place = graph.op("ReduceSum", graph.op("Mul", pin, graph.constant(strides)), graph.constant([0]), keepdims=0)
        return graph.op("Gather", graph.constant(places.reshape(-1)), graph.op("Max", place, graph.constant(0)))

    def is_pinned(self, graph: Graph, point: int) -> str:
        return graph.op("GreaterOrEqual", graph.op("Gather", PIN, graph.constant(point)), graph.constant(0))
