"""Networks as ONNX files: the dynamic network in one file, one path as a plain file, parts for batches as a bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import nn

from dsnet.checkpoint import Spec
from dsnet.cost import CostTable
from dsnet.models import Card, Supernet
from dsnet.routing import Policy, Prices, policy_for
from dsnet.routing.decision import widest_indices
from dsnet.runtime.onnx.layers import write_call
from dsnet.runtime.onnx.parts import Branch, PartWriter
from dsnet.runtime.onnx.writer import FLOAT, INT, IR_VERSION, OPSET, Graph, Model
from dsnet.space import WidthPath
from dsnet.version import __version__

FORMAT = "1"
IMAGE = "image"


def export_onnx(
    net: Supernet,
    file: str | Path,
    *,
    path: Sequence[int] | None = None,
    image_size: int | None = None,
    budget: str | float | None = None,
    max_width: int | None = None,
    defaults: bool = True,
) -> Path:
    """Write a network as one ONNX file; without a path it is the dynamic network, for one image at a time.

    inputs: image; and with defaults lam (float), max_width (int64) and pin (int64 per choice, -1 lets the router
    choose). outputs: logits, path, madds, scores of the first decision. A single path takes batches of any size.
    A network that has not learned to route becomes one file of all widths, whose `pin` input chooses.
    budget and max_width set the defaults. Some runtimes (OpenVINO) make constants of inputs that have defaults: with
    defaults=False there are none, and all inputs must be given.
    """
    check_weights(net)
    size = net.spec.image_size if image_size is None else image_size
    table = CostTable(net, size)
    if path is not None or not net.chain:
        if budget is not None or max_width is not None:
            raise ValueError("a path pins the widths; leave budget and max_width out")
        path = net.space.validate(path or ())
        proto = static_model(net, path, size)
        about = describe(net, table, kind="static", paths=[path], policy=policy_for(net))
    else:
        if net.spec.router is None and (budget is not None or max_width is not None):
            raise ValueError(f"this {net.spec.name} has not learned to route, so it has no budgets")
        policy = policy_for(net, budget, max_width=max_width, image_size=size)
        if net.spec.router is not None:
            Prices(table).check_cap(max_width)
        writer = DynamicWriter(net, table, policy, defaults=defaults)
        proto = writer.model()
        about = describe(net, table, kind="dynamic", paths=writer.pinnable, policy=policy)
    return write_checked(proto, about, Path(file))


def check_weights(net: nn.Module) -> None:
    if net.training:
        raise ValueError("a network is exported in eval mode only; call net.eval() first")
    for name, tensor in net.state_dict().items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} holds NaN or infinite values; export a network that was trained without them")


class Carded(Protocol):
    """A network of any task, with its card."""

    @property
    def spec(self) -> Spec: ...

    @property
    def card(self) -> Card: ...


def describe(net: Carded, table: CostTable, *, kind: str, paths: Sequence[WidthPath], policy: Policy) -> dict[str, str]:
    """The model's card as ONNX metadata: short strings as they are, the rest as JSON."""
    card, size = net.card.to_dict(), table.image_size
    return {
        "dsnet.format": FORMAT,
        "dsnet.version": __version__,
        "dsnet.kind": kind,
        "model": net.spec.name,
        "image_size": str(size),
        "classes": json.dumps(card["classes"]),
        "preprocessing": json.dumps(card["preprocessing"]),
        "widths": json.dumps([{"path": path, "madds": table.madds(path)} for path in paths]),
        "budgets": json.dumps([row for row in card["budgets"] if row["image_size"] == size]),
        "defaults": json.dumps({"lam": policy.lam, "max_width": policy.max_width}),
        "dsnet.spec": json.dumps(net.spec.to_dict()),
    }


def write_checked(proto: onnx.ModelProto, about: dict[str, str], file: Path) -> Path:
    helper.set_model_props(proto, about)
    onnx.checker.check_model(proto)
    return write_model(proto, file)


def write_model(proto: onnx.ModelProto, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    try:
        part.write_bytes(proto.SerializeToString())
        part.replace(file)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"{file} cannot be written ({error.strerror}); choose another file") from error
    return file


def finish(graph: Graph, name: str, inputs: Sequence[Any], outputs: Sequence[Any]) -> onnx.ModelProto:
    initializers = [*graph.model.weights.values(), *graph.initializers]
    whole = helper.make_graph(graph.nodes, name, list(inputs), list(outputs), initializers)
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(
        whole, producer_name="dsnet", producer_version=__version__, ir_version=IR_VERSION, opset_imports=[opset]
    )


def static_model(net: Supernet, path: WidthPath, size: int) -> onnx.ModelProto:
    """One sub-network for batches of any size, its weights cut out and folded."""
    graph = Graph(Model(shared=False))
    found = write_call(graph, net, lambda x: net.run(x, path), IMAGE)
    graph.nodes.append(helper.make_node("Identity", [found], ["logits"]))
    return finish(
        graph,
        net.spec.name,
        [helper.make_tensor_value_info(IMAGE, FLOAT, ["batch", net.spec.in_channels, size, size])],
        [helper.make_tensor_value_info("logits", FLOAT, ["batch", net.spec.num_classes])],
    )


class DynamicWriter(PartWriter):
    """The whole dynamic network as one graph. Every branch slices weights of the main graph, which it shares.

    scores_name: of the output that tells the scores of the first decision.
    """

    scores_name = "scores"

    def __init__(self, net: Supernet, table: CostTable, policy: Policy, *, defaults: bool = True, **parts: Any) -> None:
        super().__init__(net, **parts)
        self.policy, self.defaults = policy, defaults
        self.size, self.prices = table.image_size, Prices(table)
        self.graph = Graph(Model(shared=True))

    def model(self) -> onnx.ModelProto:
        names = self.front(self.graph, IMAGE)
        outputs = (self.write_probing if self.probes else self.write_gates)(names)
        shapes = {"path": [len(self.spec.widths)], "madds": [], self.scores_name: [1, len(self.choices[0])]}
        shapes |= self.answer_shapes()
        infos = []
        for name, found in outputs.items():
            self.graph.nodes.append(helper.make_node("Identity", [found], [name]))
            kind = INT if name in ("path", "madds") else FLOAT
            infos.append(helper.make_tensor_value_info(name, kind, shapes[name]))
        image = helper.make_tensor_value_info(IMAGE, FLOAT, [1, self.spec.in_channels, self.size, self.size])
        return finish(self.graph, self.spec.name, [image, *self.knobs()], infos)

    def answer(self, found: dict[str, str]) -> dict[str, str]:
        """The outputs of the network itself, from all that was found on the way."""
        return {"logits": found["logits"]}

    def answer_shapes(self) -> dict[str, list[int]]:
        return {"logits": [1, self.spec.num_classes]}

    def knobs(self) -> list[onnx.ValueInfoProto]:
        """Inputs that have defaults: the budget's lambda, the cap, a pinned path."""
        pinned = self.net.space.widest if self.spec.router is None else (-1,) * len(self.choices)
        defaults: dict[str, np.ndarray] = {"pin": np.array(pinned, np.int64)}
        if self.spec.router is not None:
            widest, cap = max(map(max, self.choices)), self.policy.max_width
            defaults["lam"] = np.array([self.policy.lam], np.float32)
            defaults["max_width"] = np.array([widest if cap is None else cap], np.int64)
        infos = []
        for name, default in defaults.items():
            kind = FLOAT if name == "lam" else INT
            infos.append(helper.make_tensor_value_info(name, kind, default.shape))
            if self.defaults:
                self.graph.initializers.append(onnx.numpy_helper.from_array(default, name))
        return infos

    def decision(self, graph: Graph, scores: str, prices: str, point: int) -> str:
        """Position of the width that `decide` takes: scores less lambda times prices, capped, equals to the slimmer."""
        double = {"to": TensorProto.DOUBLE}
        cost = graph.op("Mul", graph.op("Cast", "lam", **double), prices)
        values = graph.op("Sub", graph.op("Cast", scores, **double), cost)
        allowed = graph.op("LessOrEqual", graph.constant(widest_indices(self.spec, point)), "max_width")
        values = graph.op("Where", allowed, values, graph.constant(-np.inf, np.float64))
        return graph.op("Squeeze", graph.op("ArgMax", values, axis=1, keepdims=0))

    def pinned(self, graph: Graph, point: int) -> tuple[str, str]:
        """Whether a width is pinned at a choice point, and its position among those that can be chosen."""
        width = graph.op("Gather", "pin", graph.constant(point))
        positions = [len(self.choices[point])] * self.spec.widths[point]  # out of range: what the file lacks fails
        for position, allowed in enumerate(self.choices[point]):
            positions[allowed] = position
        found = graph.op("Gather", graph.constant(positions), graph.op("Max", width, graph.constant(0)))
        return graph.op("GreaterOrEqual", width, graph.constant(0)), found

    def write_gates(self, names: list[str]) -> dict[str, str]:
        graph, spent = self.graph, self.prices.table
        before: str | None = None
        inputs: Sequence[int] = (0,)
        madds = graph.constant(spent.front.madds)
        path, first_scores, found = [], None, dict(zip(self.given(0), names, strict=True))
        for point, widths in enumerate(self.choices):
            maps, scores = self.fork_of(names, point)
            is_pinned, position = self.pinned(graph, point)
            if self.spec.router is not None:
                assert scores is not None
                first_scores = first_scores or scores
                table = np.stack([self.prices.at(point, w_in).numpy() for w_in in inputs])
                prices = graph.constant(table, np.float64)
                prices = graph.op("Gather", prices, before or graph.constant(0))
                position = graph.op("Where", is_pinned, position, self.decision(graph, scores, prices, point))
            given = self.given(point + 1)
            kinds = [FLOAT] * len(given)
            if before is None:
                names = graph.choose(position, [self.whole(point, width, maps) for width in widths], kinds)
            else:
                branches = [self.segment_branch(point, before, inputs, width, maps) for width in widths]
                names = graph.choose(position, branches, kinds)
            found |= zip(given, names, strict=True)
            cost = [
                [spent.steps[point][a][b].madds + spent.routers[point][a].madds * (scores is not None) for b in widths]
                for a in inputs
            ]
            row = graph.op("Gather", graph.constant(cost), before or graph.constant(0))
            madds = graph.op("Add", madds, graph.op("Gather", row, position))
            width = graph.op("Gather", graph.constant(widths), position)
            path.append(graph.op("Unsqueeze", width, graph.constant([0])))
            before, inputs = position, widths
        assert before is not None
        heads = graph.constant([spent.heads[width].madds for width in inputs])
        outputs = {**self.answer(found), "path": graph.op("Concat", *path, axis=0)}
        outputs["madds"] = graph.op("Add", madds, graph.op("Gather", heads, before))
        return outputs if first_scores is None else {**outputs, self.scores_name: first_scores}

    def write_probing(self, names: list[str]) -> dict[str, str]:
        """The slimmest candidate answers first; its answer stays, or the chosen candidate runs behind the front."""
        graph, candidates, table = self.graph, self.net.candidates, self.prices.table
        is_pinned, position = self.pinned(graph, 0)

        def probe(branch: Graph) -> list[str]:
            (logits,) = self.follow(branch, candidates[0], names)
            scores = self.probe_scores(branch, logits)
            prices = branch.constant(self.prices.at(0, 0).numpy(), np.float64)
            return [self.decision(branch, scores, prices, 0), logits, scores]

        def pinned(branch: Graph) -> list[str]:
            nothing = [np.zeros((1, count)) for count in (self.spec.num_classes, len(candidates))]
            return [position, *(branch.constant(zeros, np.float32) for zeros in nothing)]

        position, answer, scores = self.graph.choose(
            graph.op("Cast", is_pinned, to=TensorProto.INT64), [probe, pinned], [INT, FLOAT, FLOAT]
        )
        goes_on = graph.op("Or", is_pinned, graph.op("Greater", position, graph.constant(0)))
        tree: list[Branch] = [lambda branch, path=path: self.follow(branch, path, names) for path in candidates]  # type: ignore[misc]
        (logits,) = graph.choose(
            graph.op("Cast", goes_on, to=TensorProto.INT64),
            [lambda branch: [answer], lambda branch: branch.choose(position, tree, [FLOAT])],
            [FLOAT],
        )
        spent = [[table.madds(path, dynamic=dynamic) for path in candidates] for dynamic in (True, False)]
        row = graph.op("Gather", graph.constant(spent), graph.op("Cast", is_pinned, to=TensorProto.INT64))
        path = graph.op("Gather", graph.constant(candidates), position)
        outputs = {"logits": logits, "path": path, "madds": graph.op("Gather", row, position)}
        return {**outputs, self.scores_name: scores}
