"""Networks as ONNX files: the dynamic network in one file, or one path as a plain file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper
from torch import nn

from dsnet.export.gates import GateWriter
from dsnet.export.int8 import Int8
from dsnet.export.parts import Branch, PartWriter
from dsnet.export.raw import write_image
from dsnet.export.writer import FLOAT, INT, IR_VERSION, OPSET, Graph
from dsnet.files import write_whole
from dsnet.manifest import Manifest, Policy, exported, to_metadata
from dsnet.models.parts import weights_digest
from dsnet.results import Evaluation
from dsnet.routing.budgets import policy_for
from dsnet.runtime.onnx import BUDGET, FREE, IMAGE, PIN
from dsnet.runtime.runner import EXTREME
from dsnet.runtime.seal import sealed
from dsnet.space import EXIT, WidthPath, WidthSpace, is_exit
from dsnet.version import __version__


def export_onnx(
    net: Any,
    file: str | Path,
    *,
    path: Sequence[int] | None = None,
    image_size: int | None = None,
    budget: str | float | None = None,
    max_width: int | None = None,
    window: str | Sequence[int] | None = None,
    max_size: int | None = None,
    simple: bool = False,
    raw: bool = False,
    evaluation: Evaluation | None = None,
    int8: Int8 | None = None,
) -> Path:
    """Write a network as one ONNX file: the dynamic network for one image at a time, or a single path for batches.

    Inputs of a dynamic file: image; budget (float, a share of the widest path's MAdds), max_width (int64), max_size
    (int64, pixels; of networks with several image sizes only) and pin (int64 per choice point). A budget or cap of -1
    takes the file's default. A pin of -1 lets the router choose, and one of -2 takes the exit of an exit_first router.
    Its outputs: those of the network (logits, or boxes and scores), path, madds, and router_scores of all decisions one
    after another. A file without calibrated budgets has no input `budget`. A network that has not learned to route
    becomes a file of all widths: `pin` selects the path, and -1 is the widest.

    Args:
        path: The path to export; None exports the dynamic network.
        budget: Default budget of the file.
        max_width: Default max_width of the file.
        max_size: Default max_size of the file, of a network with several image sizes.
        window: Default window of the file, within which it chooses as trained if it is given no budget.
        simple: Whether the inputs are image and budget only.
        raw: Whether the image is a picture of any size, uint8 [height, width, 3] in RGB, which the file resizes, crops
            and normalises itself. A file of one path then takes one image at a time, too.
        evaluation: The network's evaluation, which is stored in the file.
        int8: How the network is quantised, from `quantisation(net, images)`; None writes floats.
    """
    check_weights(net)
    manifest = replace(to_export(net, image_size, evaluation, int8), raw=raw)
    given = any(value is not None for value in (budget, max_width, max_size, window))
    if path is not None or not manifest.points:
        if given:
            raise ValueError("a path pins the widths; leave budget, max_width, max_size and window out")
        if simple:
            raise ValueError("a file of one path has no input but the image; leave simple out")
        wanted = manifest.space.validate(path or ())
        proto = static_model(PartWriter(net.parts(routed=False), manifest, int8), wanted)
        held = WidthSpace.only(wanted, sized=manifest.space.sized)
        return write_checked(proto, exported(manifest, kind="static", space=held, inputs=(IMAGE,)), Path(file))
    if manifest.router is None and given:
        raise ValueError(f"this {manifest.model} has not learned to route, so it has no budgets and no windows")
    if simple and (manifest.router is None or not manifest.router.budgets):
        raise ValueError(
            f"this {manifest.model} has no calibrated budgets at {manifest.image_size} px, so a simple file would have "
            f"nothing to choose; leave simple out, or export one path"
        )
    policy = policy_for(net.manifest(image_size), budget, max_width=max_width, window=window, max_size=max_size)
    writer = DynamicWriter(net.parts(headless=True), manifest, policy, simple=simple, int8=int8)
    if writer.prices is not None:
        writer.prices.check_cap(Policy(max_width=max_width, max_size=max_size))
    proto = writer.model()
    inputs = tuple(slot.name for slot in proto.graph.input)
    about = exported(manifest, kind="dynamic", space=writer.held, defaults=policy, inputs=inputs)
    return write_checked(proto, about, Path(file))


def to_export(net: Any, image_size: int | None, evaluation: Evaluation | None, int8: Int8 | None = None) -> Manifest:
    """A network's manifest with its evaluation, without the budgets that were calibrated at other image sizes."""
    manifest = net.manifest(image_size)
    size = manifest.image_size
    if evaluation is not None:  # a file does not carry details about single images and classes
        dynamic = evaluation.dynamic and replace(evaluation.dynamic, classes=())
        evaluation = replace(evaluation, examples=(), training={}, skipped=(), answers=(), dynamic=dynamic)
    routers = tuple(
        replace(router, budgets=tuple(row for row in router.budgets if row.image_size == size))
        for router in manifest.routers
    )
    digest = weights_digest(net)
    known = {"digest": digest} if int8 is None else {"digest": int8.digest(digest), "precision": "int8"}
    return replace(manifest, routers=routers, evaluation=evaluation, **known)


def check_weights(net: nn.Module) -> None:
    if net.training:
        raise ValueError("a network is exported in eval mode only; call net.eval() first")
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds NaN or infinite values; export a network that was trained without them")


def write_checked(proto: onnx.ModelProto, manifest: Manifest, file: Path) -> Path:
    helper.set_model_props(proto, to_metadata(manifest))
    onnx.checker.check_model(proto)
    return write_model(proto, file)


def write_model(proto: onnx.ModelProto, file: Path) -> Path:
    """Write a graph with the digest of its file."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, sealed(proto.SerializeToString()))
    except OSError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else error
        raise ValueError(f"{file} cannot be written ({reason.strerror}); choose another file") from error
    return file


def finish(graph: Graph, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.ModelProto:
    initializers = [*graph.model.weights.values(), *graph.initializers]
    whole = helper.make_graph(graph.nodes, name, list(inputs), list(outputs), initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        whole, producer_name="dsnet", producer_version=__version__, ir_version=IR_VERSION, opset_imports=[opset]
    )


def sound(graph: Graph, manifest: Manifest, knobs: Sequence[str] = ()) -> str | None:
    """Whether each image of the batch can be answered, bool [B]: its pixels and the budget are finite and not extreme.
    None if nothing can be wrong."""
    found = []
    if not manifest.raw:  # pixels in bytes are always sound
        squares = graph.op("ReduceSumSquare", IMAGE, graph.constant([1, 2, 3]), keepdims=0)
        most = EXTREME**2 * manifest.in_channels * manifest.image_size**2
        found.append(graph.op("Less", squares, graph.constant(most, np.float32)))
    if BUDGET in knobs:
        found.append(graph.op("Less", BUDGET, graph.constant(EXTREME, np.float32)))
    return None if not found else found[0] if len(found) == 1 else graph.op("And", *found)


def signed(graph: Graph, manifest: Manifest, outputs: Mapping[str, str], sound: str | None) -> None:
    """Write the outputs of a file. The answers of an image that is not sound are NaN, which callers can tell: a router
    would choose something for it, and rounding to codes would hide what is wrong."""
    for name, output in outputs.items():
        held = graph.real(output)
        if sound is None or name not in manifest.outputs:
            graph.nodes.append(helper.make_node("Identity", [held], [name]))
            continue
        sides = graph.constant([-1, *(1 for _ in manifest.outputs[name])])
        each = graph.op("Reshape", sound, sides)
        graph.nodes.append(helper.make_node("Where", [each, held, graph.constant(np.nan, np.float32)], [name]))


def static_model(writer: PartWriter, path: WidthPath) -> onnx.ModelProto:
    """One sub-network for batches of any size, or for one picture, with sliced and folded weights."""
    graph, manifest = writer.blank(shared=False), writer.manifest
    batch = 1 if manifest.raw else "batch"
    x, image = write_image(graph, manifest, batch)
    answers = writer.exit(graph, x, path) if is_exit(path) else writer.finish(graph, writer.along(graph, x, path))
    signed(graph, manifest, answers, sound(graph, manifest))
    outputs = [helper.make_tensor_value_info(name, FLOAT, [batch, *shape]) for name, shape in manifest.outputs.items()]
    return finish(graph, manifest.model, [image], outputs)


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
