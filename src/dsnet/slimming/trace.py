"""From a recorded program to a list of operations, each of a kind that dsnet knows."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx

from dsnet.errors import SlimError
from dsnet.models.graph import LAYERS, Value
from dsnet.nn.norm import LAST

Shape = tuple[int, ...]
POINTWISE = {
    "relu", "relu6", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "mish", "selu", "softplus", "gelu",
    "leaky_relu", "elu", "clamp", "abs", "exp", "log", "erf", "sign", "sin", "cos", "sqrt", "neg", "pow", "add", "sub",
    "mul", "div", "maximum", "minimum", "gt", "ge", "lt", "le", "where",
}  # fmt: skip
"""Operations that compute the same wherever the channels are."""
MATRICES = ("matmul", "bmm", "baddbmm", "einsum", "scaled_dot_product_attention")  # products of two maps
ENTIRE = (*MATRICES, "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "lstm", "gru")
"""Operators that are refused under their own names, and not taken apart."""
UNKNOWN = "dsnet slim does not know"
KNOWN = "convolutions, linear layers, norms, activations, pooling, sums, products or concatenations"


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
        self.ops: dict[str, Op] = {}  # by name, in order
        self.names: dict[fx.Node, Any] = {}  # the values that nodes stand for: names, or lists of names
        self.stacks: dict[str, tuple[int, list[str]]] = {}  # maps along a new axis: its number, their names
        self.several: dict[str, Sequence[Tensor]] = {}  # what is computed from parameters by operators of many values
        self.notes: list[str] = []

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
        for op in reversed(self.ops.values()):
            if op.name in wanted:
                wanted.update(op.inputs)
        ops = [op for op in self.ops.values() if op.name in wanted]
        if ops[0].kind != "image" or ops[-1].name != self.answer:
            raise SlimError("the answer of the network does not depend on the image")
        return ops

    def add(
        self, node: fx.Node, kind: str, inputs: list[str], *, name: str = "", shape: Shape | None = None, **more: Any
    ) -> str:
        shape = shape_of(node) if shape is None else shape
        if kind in POINTWISE and all(sources := [self.unturned(read) for read in inputs]):
            height, width, channels = shape
            made = self.add(node, kind, sources, name=name, shape=(channels, height, width), **more)  # type: ignore[arg-type]
            return self.turned(node, made)
        place = place_of(node)
        tensors = {key: tensor for key, tensor in (more.pop("tensors", None) or {}).items() if tensor is not None}
        base = name or (place.replace(".", "_") if kind in LAYERS and place else str(node.name))
        name, number = base, 2
        while name in self.ops:
            name, number = f"{base}_{number}", number + 1
        self.ops[name] = Op(name, kind, inputs, shape, more, tensors, place)
        return name

    def turned(self, node: fx.Node, name: str) -> str:
        """A map with its channels moved to the end."""
        channels, *sides = self.ops[name].shape
        return self.add(node, "permute", [name], name=f"{name}_last", shape=(*sides, channels), order=LAST)

    def unturned(self, name: str) -> str | None:
        """The map that a value is, with its channels moved to the end. What follows reads it instead, as far as its
        kind is known, so that the moves are left over and vanish."""
        op = self.ops[name]
        return op.inputs[0] if op.kind == "permute" and op.options["order"] == LAST else None

    def translate(self, node: fx.Node) -> Any:
        if node.target is operator.getitem:
            values: Any
            values, number = node.args
            if values.name not in self.several:
                return self.names[values][number]
            self.tensors[node.name] = self.several[values.name][number]  # type: ignore[index]
            return None
        if all(each.name in self.tensors for each in node.all_input_nodes):
            return self.computed(node)
        if (kind := kind_of(node)) not in TRANSLATIONS:
            why = "multiplies maps as matrices, whose MAdds are not counted" if kind in MATRICES else UNKNOWN
            raise refuse(self, node, f"is {node.target}, which {why}; replace it by {KNOWN}")
        try:
            return TRANSLATIONS[kind](self, node, *node.args, **node.kwargs)
        except TypeError as error:  # a form of the operator that its translation does not have
            raise refuse(
                self,
                node,
                f"is {node.target} in a form that dsnet slim does not know ({error}); write it in simpler steps",
            ) from error

    def computed(self, node: fx.Node) -> None:
        """Compute what depends on parameters alone, such as weights that are made from others."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: self.tensors[each.name])
        with torch.no_grad():
            found = node.target(*args, **kwargs)  # type: ignore[operator]
        if isinstance(found, Tensor):
            self.tensors[node.name] = found
        elif isinstance(found, tuple | list):
            self.several[node.name] = found

    def describe(self, node: fx.Node) -> str:
        place = place_of(node)
        return f"operation {node.name!r} of " + (f"module {place!r}" if place else "the network itself")

    def is_map(self, item: Any) -> bool:
        """Whether an argument of an operation is a value that depends on the image."""
        return isinstance(item, fx.Node) and isinstance(self.names.get(item), str)

    def value(self, item: Any, node: fx.Node, *, like: str | None = None) -> str:
        """The name of a value that an operation reads. like: Another that it reads; then this one may be constant."""
        if self.is_map(item):
            name: str = self.names[item]
            return name
        held = torch.tensor(float(item)) if isinstance(item, int | float) else self.tensor(item)
        if like is None or held is None:
            raise refuse(self, node, "reads a parameter where dsnet slim expects a map; it is not a layer")
        return self.constant(node, held, like=like)

    def constant(self, node: fx.Node, held: Tensor, *, like: str) -> str:
        """A parameter that is the same for all images, beside a value that it is combined with."""
        rank = len(self.ops[like].shape)
        if held.dim() > rank + 1 or (held.dim() == rank + 1 and len(held) > 1):
            raise refuse(
                self,
                node,
                f"combines a value {list(self.ops[like].shape)} with a parameter {list(held.shape)}, which does "
                f"not fit every image alone",
            )
        tensor = held.float().reshape((1,) * (rank + 1 - held.dim()) + held.shape)[0]
        name = f"{node.name}_constant"
        sides = tuple(tensor.shape)
        options: dict[str, Any] = {"sides": sides}
        return self.add(node, "constant", [like], name=name, shape=sides, tensors={"value": tensor}, **options)

    def tensor(self, item: Any) -> Tensor | None:
        return self.tensors.get(item.name) if isinstance(item, fx.Node) else None


def shape_of(node: Any) -> Shape:
    value = node.meta.get("val") if isinstance(node, fx.Node) else None
    return tuple(int(side) for side in value.shape[1:]) if isinstance(value, Tensor) else ()


def is_known(operation: Any) -> bool:
    return operation is operator.getitem or name_of(operation) in TRANSLATIONS


def kind_of(node: fx.Node) -> str:
    return name_of(node.target)


def name_of(operation: Any) -> str:
    """The name of an operator, without its overload, and without the sign of operators that work in place."""
    kind = str(operation).removeprefix("aten.").partition(".")[0]
    return kind if kind.startswith("_") else kind.removesuffix("_")


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
