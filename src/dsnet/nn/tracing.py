"""From sliceable code to graphs, for extraction, export and costs.

A call such as `net(x, path)` is recorded with torch.fx, every sliceable layer staying one node that
holds its width arguments. Replacing each of those nodes by the layer's plain twin gives a module made
of torch.nn only; running the graph on meta tensors gives the map sizes that the costs need.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch import fx, nn

from dsnet.nn.slicing import Sliceable

_patching = threading.Lock()  # torch.fx patches nn.Module.__call__ while it traces


class _Call(nn.Module):
    """Makes a call of one argument on `root` a forward that fx can trace."""

    def __init__(self, root: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.root, self.call = root, call

    def forward(self, x: Any) -> Any:
        return self.call(x)


class _PairCall(_Call):
    """The same for a call of two arguments."""

    def forward(self, x: Any, y: Any) -> Any:  # type: ignore[override]
        return self.call(x, y)


class _Tracer(fx.Tracer):
    def __init__(self) -> None:
        super().__init__()
        self.thread = threading.get_ident()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, Sliceable) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if threading.get_ident() != self.thread:  # another thread runs its own network while this one traces
            return forward(*args, **kwargs)
        return super().call_module(m, forward, args, kwargs)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        return attr_val  # weights are only read inside sliceable layers, which are not traced into


def trace(root: nn.Module, call: Callable[..., Any], inputs: int = 1) -> fx.GraphModule:
    """Record `call(x)` (or `call(x, y)`), which uses modules of `root`; their names begin with `root.`."""
    wrapper = (_Call if inputs == 1 else _PairCall)(root, call)
    with _patching:
        graph = _Tracer().trace(wrapper)
    return fx.GraphModule(wrapper, graph, class_name=type(root).__name__)


def as_graph(module: nn.Module, name: str) -> fx.GraphModule:
    """A module of ours, without sliceable layers, as a graph of torch functions that a pickle holds without dsnet."""
    with _patching:
        graph = _Tracer().trace(module)
    for node in graph.nodes:
        node.type = None
    graph._tracer_cls = None
    return fx.GraphModule(module, graph, class_name=name)


def materialise(root: nn.Module, call: Callable[..., Any], inputs: int = 1) -> fx.GraphModule:
    """The same computation as a module that contains torch.nn layers only, with weights of its own."""
    graph = trace(root, call, inputs)
    twins = nn.Module()
    for node in graph.graph.nodes:
        node.type = None  # drop the annotations of our wrapper, which cannot be pickled
        if node.op == "call_module":
            layer = graph.get_submodule(node.target)
            assert isinstance(layer, Sliceable), f"{node.target} is not sliceable"
            tensor, *widths = node.args
            node.args = (tensor,)
            node.target = node.target.removeprefix("root.")
            _attach(twins, node.target, layer.materialise(*widths))
    graph.graph._tracer_cls = None  # a pickle of the result must not refer to dsnet
    plain = fx.GraphModule(twins, graph.graph, class_name="SubNetwork")
    return plain.train(root.training)


def _attach(root: nn.Module, name: str, module: nn.Module) -> None:
    *parents, leaf = name.split(".")
    for parent in parents:
        if not hasattr(root, parent):
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(leaf, module)
