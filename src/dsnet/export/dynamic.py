"""The dynamic network as one graph, whose branches are its settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx
from onnx import helper

from dsnet.export.gates import GateWriter
from dsnet.export.parts import Branch
from dsnet.export.raw import write_image
from dsnet.export.whole import finish, signed, sound
from dsnet.export.writer import FLOAT, INT, Graph
from dsnet.runtime.onnx import FREE, PIN
from dsnet.space import EXIT, WidthPath, is_exit


class DynamicWriter(GateWriter):
    """Writes the whole dynamic network as one graph, whose branches slice the weights of the main graph."""

    def model(self) -> onnx.ModelProto:
        knobs = self.knobs()
        x, image = write_image(self.graph, self.manifest, 1)
        single = self.router is not None and self.router.spec.single
        if self.probes:
            outputs = self.write_probing(x)
        elif self.space.sized:
            outputs = self.write_settings(x) if self.router is None else self.write_exits(x)
        else:
            outputs = self.write_once(self.front(self.graph, x)) if single else self.write_gates(x)
        scores = len(self.router.candidates) if self.router is not None and single else sum(map(len, self.choices))
        shapes = {"path": [self.manifest.points], "madds": [], "router_scores": [1, scores]}
        shapes |= {name: [1, *shape] for name, shape in self.manifest.outputs.items()}
        infos = []
        for name in outputs:
            kind = INT if name in ("path", "madds") else FLOAT
            infos.append(helper.make_tensor_value_info(name, kind, shapes[name]))
        signed(self.graph, self.manifest, outputs, sound(self.graph, self.manifest, [knob.name for knob in knobs]))
        return finish(self.graph, self.manifest.model, [image, *knobs], infos)

    def write_once(self, names: list[str]) -> dict[str, str]:
        """One decision at the first choice, then the whole of the chosen candidate."""
        graph, table, exit = self.graph, self.table, self.exit_of(names)
        assert self.router is not None
        assert self.prices is not None
        candidates = self.router.candidates
        _, scores = self.fork_of(names, 0)
        assert scores is not None
        pinned = graph.op("Gather", PIN, graph.constant(0))
        is_free = graph.op("Equal", pinned, graph.constant(FREE))
        # Widths that are not in the file get a position out of range, so that pinning them fails.
        positions = {path[0]: position for position, path in enumerate(candidates)}
        listed = [positions.get(width, len(candidates)) for width in range(EXIT, len(table.whole.steps[0][0]))]
        listed[FREE - EXIT] = 0  # not read
        place = graph.op("Gather", graph.constant(listed), graph.op("Sub", pinned, graph.constant(EXIT)))
        prices = graph.constant(self.prices.at(0, 0), np.float64)
        chosen = graph.op("Squeeze", self.decision(graph, scores, prices, 0))
        position = graph.op("Where", is_free, chosen, place)

        answers = self.answered(names, exit, position, is_free)
        spent = [[table.madds(path, dynamic=dynamic) for path in candidates] for dynamic in (False, True)]
        row = graph.op("Gather", graph.constant(spent), graph.op("Cast", is_free, to=INT))
        path = graph.op("Gather", graph.constant(candidates), position)
        outputs = {**answers, "path": path, "madds": graph.op("Gather", row, position)}
        return {**outputs, "router_scores": scores}

    def answered(self, names: list[str], exit: str | None, position: str, is_free: str) -> dict[str, str]:
        """The answers of the candidate at a position. Behind the exit, those that the router chose are combined."""
        graph, router = self.graph, self.router
        assert router is not None
        if exit is None:
            left = self.left_of(0, names) | self.behind(graph, names, router.candidates, position)
            return self.finish(graph, left, self.last_widths(router.candidates), position)

        def go_on(branch: Graph) -> list[str]:
            place = branch.op("Sub", position, branch.constant(1))
            candidates = router.candidates[1:]
            left = self.behind(branch, names, candidates, place)
            alone = self.finish(branch, left, self.last_widths(candidates), place)["logits"]
            weights = (branch.constant(column, np.float32) for column in zip(*router.combine, strict=True))
            u, v = (branch.op("Gather", column, place) for column in weights)
            both = branch.op("Add", branch.op("Mul", u, exit), branch.op("Mul", v, alone))
            return [branch.op("Where", is_free, both, alone)]

        goes_on = graph.op("Min", position, graph.constant(1))
        (logits,) = graph.choose(goes_on, [lambda branch: [exit], go_on], [FLOAT])
        return {"logits": logits}

    def behind(self, graph: Graph, names: list[str], paths: Sequence[WidthPath], position: str) -> dict[str, str]:
        """What the path at a position leaves for `finish`, from the outputs of the front."""
        later = [name for point in range(len(self.choices)) for name in self.live.left_at(point + 1)]
        tree: list[Branch] = [
            lambda inner, path=path: list(self.follow(inner, path, names).values())  # type: ignore[misc]
            for path in paths
        ]
        return dict(zip(later, graph.choose(position, tree, [FLOAT] * len(later)), strict=True))

    def from_image(
        self,
        graph: Graph,
        paths: Sequence[WidthPath],
        position: str,
        left: Callable[[Graph, WidthPath], dict[str, str]],
    ) -> dict[str, str]:
        """What the path at a position leaves for `finish`, where paths may differ in the image size. left: Writes one
        of them."""
        tree: list[Branch] = [
            lambda inner, path=path: list(left(inner, path).values())  # type: ignore[misc]
            for path in paths
        ]
        return dict(zip(self.left, graph.choose(position, tree, [FLOAT] * len(self.left)), strict=True))

    def write_settings(self, x: str) -> dict[str, str]:
        """All settings of a network with several image sizes, which has not learned to route. Without a pin, the widest
        at the largest size runs."""
        graph, paths, table = self.graph, self.pinnable, self.table
        last = graph.constant(len(paths) - 1)
        position = graph.op("Where", self.is_pinned(graph, 0), self.pinned_path(graph, paths), last)
        left = self.from_image(graph, paths, position, lambda inner, path: self.along(inner, x, path))
        outputs = self.finish(graph, left, self.last_widths(paths), position)
        madds = graph.constant([table.madds(path) for path in paths])
        path = graph.op("Gather", graph.constant(paths), position)
        return {**outputs, "path": path, "madds": graph.op("Gather", madds, position)}

    def write_probing(self, x: str) -> dict[str, str]:
        """Run the first candidate. Keep its logits, or run the chosen other candidate: from the front on if both have
        the image size in common, otherwise from the image on."""
        graph, candidates, table = self.graph, self.pinnable, self.table
        assert self.prices is not None
        free, looked = self.prices.at(0, 0), self.space.size_of(candidates[0])
        alike = sum(self.space.size_of(path) == looked for path in candidates)
        names = self.front(graph, x, looked) if alike > 1 else None
        is_pinned = self.is_pinned(graph, 0)

        def written(branch: Graph, path: WidthPath) -> dict[str, str]:
            if names is None or self.space.size_of(path) != looked:
                return self.along(branch, x, path)
            return self.follow(branch, path, names)

        def probe(branch: Graph) -> list[str]:
            self.deciding = branch
            left = written(branch, candidates[0])
            logits = self.finish(branch, left, self.last_widths(candidates[:1]))["logits"]
            scores = self.probe_scores(branch, logits)
            prices = branch.constant(free, np.float64)
            chosen = branch.op("Squeeze", self.decision(branch, scores, prices, 0))
            return [chosen, logits, scores, branch.op("Gather", branch.constant(spent[0]), chosen)]

        def pinned(branch: Graph) -> list[str]:
            nothing = [np.zeros((1, count)) for count in (self.manifest.num_classes, len(candidates))]
            answer = (branch.constant(zeros, np.float32) for zeros in nothing)
            position = (
                self.pinned_path(branch, candidates)
                if self.space.sized
                else self.place(branch, branch.op("Gather", PIN, branch.constant(0)), 0)
            )
            return [position, *answer, branch.op("Gather", branch.constant(spent[1]), position)]

        spent = [[table.madds(path, dynamic=dynamic) for path in candidates] for dynamic in (True, False)]
        position, answer, scores, madds = graph.either(is_pinned, pinned, probe, [INT, FLOAT, FLOAT, INT])
        goes_on = graph.op("Or", is_pinned, graph.op("Greater", position, graph.constant(0)))

        def go_on(branch: Graph) -> list[str]:
            left = self.from_image(branch, candidates, position, written)
            return [self.finish(branch, left, self.last_widths(candidates), position)["logits"]]

        (logits,) = graph.either(goes_on, go_on, lambda branch: [answer], [FLOAT])
        path = graph.op("Gather", graph.constant(candidates), position)
        return {"logits": logits, "path": path, "madds": madds, "router_scores": scores}

    def write_exits(self, x: str) -> dict[str, str]:
        """Run an exit of a network with several image sizes. Keep its answer, or run the chosen other candidate: a full
        setting of the same size goes on from the same map, others begin with the image."""
        graph, candidates, table = self.graph, self.pinnable, self.table
        assert self.prices is not None
        looked = self.space.size_of(candidates[0])
        names = self.front(graph, x, looked)
        (_, scores), exit = self.fork_of(names, 0), self.exit_of(names)
        assert scores is not None
        assert exit is not None
        chosen = self.decision(graph, scores, graph.constant(self.prices.at(0, 0), np.float64), 0)
        is_pinned = self.is_pinned(graph, 0)
        position = graph.op("Where", is_pinned, self.pinned_path(graph, candidates), graph.op("Squeeze", chosen))

        def answer(branch: Graph, path: WidthPath) -> list[str]:
            if is_exit(path):
                return [self.exit(branch, x, path)["logits"]]
            same = self.space.size_of(path) == looked
            left = self.follow(branch, path, names) if same else self.along(branch, x, path)
            return [self.finish(branch, left, self.last_widths([path]))["logits"]]

        tree: list[Branch] = [lambda branch: [exit]]
        tree += [lambda branch, path=path: answer(branch, path) for path in candidates[1:]]  # type: ignore[misc]
        (logits,) = graph.choose(position, tree, [FLOAT])
        spent = [[table.madds(path, dynamic=dynamic) for path in candidates] for dynamic in (True, False)]
        row = graph.op("Gather", graph.constant(spent), graph.op("Cast", is_pinned, to=INT))
        path = graph.op("Gather", graph.constant(candidates), position)
        outputs = {"logits": logits, "path": path, "madds": graph.op("Gather", row, position)}
        return {**outputs, "router_scores": scores}

    def last_widths(self, paths: Sequence[WidthPath]) -> list[int]:
        """The widths of the last layers of each path."""
        return [self.space.rows(path)[-1] for path in paths]
