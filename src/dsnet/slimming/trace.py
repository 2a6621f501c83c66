"""From a torch module to a list of operations, each of a kind that dsnet knows.

torch.export runs the module once on an example and records what it computes: calls, methods and operators of every kind
become a few hundred ATen operators, and everything that depends on shapes alone becomes constants.
"""

from __future__ import annotations

import logging
import operator
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn

from dsnet.errors import SlimError
from dsnet.models.graph import LAYERS, Value

Shape = tuple[int, ...]


@dataclass
class Op:
    """One operation of a network.

    Args:
        kind: What it computes: a key of `models.graph.OPS` or `LAYERS`.
        inputs: Names of the values that it reads; its own value has its own name.
        shape: Shape of its value on the example, without the batch.
        options: Numbers that belong to the operation.
        tensors: Its weights and statistics, by their names in the layer.
        place: Name of the module that called it.
        inside: Layout of what each group of a convolution reads, if all its groups are kept.
    """

    name: str
    kind: str
    inputs: list[str]
    shape: Shape
    options: dict[str, Value] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    place: str = ""
    inside: list[tuple[int, int]] | None = None

    @property
    def dense(self) -> bool:
        """Whether it is a layer whose outputs each read several channels, which may not all be kept."""
        return self.kind == "linear" or (
            self.kind == "conv" and (self.options["groups"] == 1 or self.inside is not None)
        )


@dataclass
class Traced:
    """The operations of a network in the order in which they run; the first is the image, the last gives the answer."""

    ops: list[Op]
    notes: list[str]

    @property
    def shapes(self) -> dict[str, Shape]:
        return {op.name: op.shape for op in self.ops}


def trace_module(model: nn.Module, example: Tensor) -> Traced:
    """Record what a module computes on an example [B, C, S, S], in eval mode."""
    if not isinstance(model, nn.Module):
        raise SlimError(f"the model is a {type(model).__name__}; give an nn.Module, or a function that returns one")
    if example.dim() != 4 or example.shape[2] != example.shape[3]:
        raise SlimError(f"the example has shape {tuple(example.shape)}; give a square image [1, channels, size, size]")
    mode = model.training
    try:
        with silence(), torch.no_grad():
            program = torch.export.export(model.eval(), (torch.cat([example[:1]] * 2),), strict=False)
    except Exception as error:  # torch raises many kinds of errors for code that cannot be recorded
        raise SlimError(untraceable(error)) from error
    finally:
        model.train(mode)
    held = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    return Reader(program, held).read()


@contextmanager
def silence() -> Iterator[None]:
    """Keep what torch prints about code that it cannot record from the user; the error says what matters."""
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def untraceable(error: Exception) -> str:
    """Why a module could not be recorded, in one line."""
    text = str(error)
    reason = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    user = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', text)
    places = [place for place in user if "/torch/" not in place[0]]
    where = f" (in {places[-1][2]}, {places[-1][0].rpartition('/')[2]} line {places[-1][1]})" if places else ""
    data = ("data-dependent", "data dependent", "_local_scalar_dense", "Could not guard")
    if any(word in text for word in data):
        return (
            f"the network decides by the values of a tensor{where}, which cannot be recorded; compute both sides "
            f"and choose with torch.where, or give the part without the decision"
        )
    return f"the network cannot be recorded{where}: {reason}; it must run on the example in eval mode, with one input"


class Reader:
    """Translates a recorded program, operator by operator."""

    def __init__(self, program: Any, held: dict[str, Tensor]) -> None:
        self.program = program
        signature = program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        self.tensors: dict[str, Tensor] = {key: held[name].detach() for key, name in names.items() if name in held}
        self.tensors |= {key: program.constants[name] for key, name in names.items() if name not in held}
        lifted = signature.inputs_to_lifted_tensor_constants
        self.tensors |= {key: program.constants[name] for key, name in lifted.items()}
        (self.image,) = signature.user_inputs
        self.ops: list[Op] = []
        self.names: dict[fx.Node, Any] = {}  # the values that nodes stand for: names, or lists of names
        self.stacks: dict[str, tuple[int, list[str]]] = {}  # maps along a new axis: its number, their names
        self.notes: list[str] = []
        self.used: set[str] = set()

    def read(self) -> Traced:
        for node in self.program.graph.nodes:
            match node.op:
                case "placeholder" if node.name == self.image:
                    self.names[node] = self.add(node, "image", [], name="image")
                case "call_function":
                    self.names[node] = self.translate(node)
                case "output":
                    self.finish(node.args[0])
        return Traced(self.live(), self.notes)

    def finish(self, outputs: Sequence[fx.Node]) -> None:
        if len(outputs) != 1 or len(shape_of(outputs[0])) != 1:
            shapes = [list(shape_of(output)) for output in outputs]
            raise SlimError(
                f"the network returns {len(outputs)} values of shapes {shapes} for an image; it must return one vector "
                f"of class scores"
            )
        self.answer = self.names[outputs[0]]

    def live(self) -> list[Op]:
        """The operations that the answer depends on, the answer last."""
        wanted = {self.answer}
        for op in reversed(self.ops):
            if op.name in wanted:
                wanted.update(op.inputs)
        ops = [op for op in self.ops if op.name in wanted]
        if ops[0].kind != "image" or ops[-1].name != self.answer:
            raise SlimError("the answer of the network does not depend on the image")
        return ops

    def add(
        self, node: fx.Node, kind: str, inputs: list[str], *, name: str = "", shape: Shape | None = None, **more: Any
    ) -> str:
        place = place_of(node)
        tensors = {key: tensor for key, tensor in (more.pop("tensors", None) or {}).items() if tensor is not None}
        base = name or (place.replace(".", "_") if kind in LAYERS and place else str(node.name))
        name, number = base, 2
        while name in self.used:
            name, number = f"{base}_{number}", number + 1
        self.used.add(name)
        shape = shape_of(node) if shape is None else shape
        self.ops.append(Op(name, kind, inputs, shape, more, tensors, place))
        return name

    def translate(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            values, number = node.args
            return self.names[values][number]  # type: ignore[index]
        if node.all_input_nodes and all(each.name in self.tensors for each in node.all_input_nodes):
            return self.computed(node)
        kind = str(node.target).removeprefix("aten.").partition(".")[0]
        kind = kind if kind.startswith("_") else kind.removesuffix("_")  # in-place operators
        if kind not in TRANSLATIONS:
            raise SlimError(
                f"{self.describe(node)} is {node.target}, which dsnet slim does not know; replace it by convolutions, "
                f"linear layers, norms, activations, pooling, sums, products or concatenations"
            )
        return TRANSLATIONS[kind](self, node, *node.args, **node.kwargs)

    def computed(self, node: fx.Node) -> None:
        """Compute what depends on parameters alone, such as weights that are made from others."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: self.tensors[each.name])
        with torch.no_grad():
            found = node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(found, Tensor):
            self.tensors[node.name] = found

    def describe(self, node: fx.Node) -> str:
        place = place_of(node)
        return f"operation {node.name!r} of " + (f"module {place!r}" if place else "the network itself")

    def value(self, item: Any, node: fx.Node) -> str:
        """The name of a value that an operation reads."""
        if isinstance(item, fx.Node) and isinstance(self.names.get(item), str):
            name: str = self.names[item]
            return name
        raise SlimError(f"{self.describe(node)} reads a parameter where dsnet slim expects a map; it is not a layer")

    def tensor(self, item: Any) -> Tensor | None:
        return self.tensors.get(item.name) if isinstance(item, fx.Node) else None


def shape_of(node: Any) -> Shape:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(int(side) for side in value.shape[1:]) if isinstance(value, Tensor) else ()


def place_of(node: fx.Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""


Translation = Callable[..., Any]
TRANSLATIONS: dict[str, Translation] = {}


def translates(*kinds: str) -> Callable[[Translation], Translation]:
    def enter(function: Translation) -> Translation:
        TRANSLATIONS.update(dict.fromkeys(kinds, function))
        return function

    return enter


def refuse(reader: Reader, node: fx.Node, why: str) -> SlimError:
    return SlimError(f"{reader.describe(node)} {why}")
