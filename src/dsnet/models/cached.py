"""The PyTorch runner: it caches parts of the network as plain modules with contiguous, folded weights."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from dsnet.manifest import Manifest
from dsnet.models.extract import fold_batch_norm
from dsnet.models.parts import LiveParts, LiveRunner, torch_runtime
from dsnet.nn.tracing import materialise
from dsnet.routing.parts import Fork, Outputs, Routed, Step

GIB = 2**30
T = TypeVar("T")


class DynamicRunner(LiveRunner):
    """Runs a network on PyTorch; several threads may share it.

    Weights are read when a part is first needed. When they change (an optimizer step, load_state_dict, any in-place
    operation) parts are rebuilt. Writes through `.data` are not noticed: call `refresh` after those.

    Args:
        net: The network, in eval mode.
        max_memory: Bytes of weights to cache besides the network's own. The least recently used parts are dropped.
        compile: Whether to run torch.compile on every part, which pays off if the same parts run many times.
    """

    parts: CachedParts

    def __init__(self, net: Any, *, max_memory: int = GIB, compile: bool = False) -> None:
        if net.training:
            raise ValueError("a network runs in eval mode only; call net.eval() first")
        weight = next(net.parameters())
        if weight.dtype != torch.float32:
            raise ValueError(f"the network is in {weight.dtype}; runners take torch.float32: call net.float() first")
        if weight.is_inference():
            raise ValueError("the network was made in inference mode, where changes leave no trace; load it outside")
        if max_memory < 0:
            raise ValueError(f"max_memory is {max_memory}; it is a number of bytes, 0 keeps nothing")
        self.net, self.live = net, net.parts()
        parts = CachedParts(self.live, max_memory=max_memory, compile=compile)
        super().__init__(parts, f"{torch_runtime(self.live.device)}{', compiled' if compile else ''}")

    def refresh(self) -> None:
        """Drop all cached parts."""
        self.parts.clear()

    @torch.inference_mode()
    def _run(self, *args: Any, **options: Any) -> Routed:
        self.parts.check()
        return super()._run(*args, **options)

    @torch.inference_mode()
    def _survey(self, *args: Any, **options: Any) -> tuple[list[Outputs], Any | None]:
        self.parts.check()
        return super()._survey(*args, **options)


class CachedParts:
    """The `Parts` of a network, materialised: the first block of a segment per (in, out), the rest per out."""

    def __init__(self, live: LiveParts, *, max_memory: int, compile: bool) -> None:
        self.live, self.owner = live, live.owner
        self.max_memory, self.compile = max_memory, compile
        self.kept: OrderedDict[tuple[object, ...], tuple[Callable[..., Any], int]] = OrderedDict()
        self.held = 0  # bytes
        self.lock = threading.RLock()
        self.seen = Snapshot(self.owner)

    @property
    def manifest(self) -> Manifest:
        return self.live.manifest

    def take(self, x: Any) -> Tensor:
        return self.live.take(x).contiguous(memory_format=torch.channels_last)

    def front(self, x: Tensor, size: int = 0) -> Step:
        return _step(self._part(("front", size), lambda x: _plain(self.live.front(x, size)))(x))

    def exit(self, x: Tensor, size: int = 0) -> Outputs:
        return {"logits": self._part(("exit", size), lambda x: self.live.exit(x, size)["logits"])(x)}

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Tensor:
        key = ("first", point, w_in, w_out)
        if fork.x is None:
            return self._part(key, lambda s: self.live.first(point, w_in, w_out, Fork(None, s)))(fork.scaled)
        part = self._part(key, lambda x, s: self.live.first(point, w_in, w_out, Fork(x, s)), inputs=2)
        return part(fork.x, fork.scaled)

    def rest(self, point: int, width: int, x: Tensor) -> Step:
        return _step(self._part(("rest", point, width), lambda x: _plain(self.live.rest(point, width, x)))(x))

    def probe(self, outputs: Outputs) -> Tensor:
        return self.live.probe(outputs)  # too small to be worth a copy

    def finish(self, left: Outputs) -> Outputs:
        return self.live.finish(left)  # has a single width: there is nothing to slice

    def cat(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts)

    workers = 1  # torch itself uses several threads

    def each(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        return self.live.each(tasks)

    def check(self) -> None:
        """Drop all cached parts if the weights have changed since they were read."""
        with self.lock:
            if self.seen.outdated():
                self.clear()

    def clear(self) -> None:
        with self.lock:
            self.kept.clear()
            self.held = 0
            self.seen = Snapshot(self.owner)

    def _part(self, key: tuple[object, ...], call: Callable[..., Any], inputs: int = 1) -> Callable[..., Any]:
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
                return self.kept[key][0]
            module, size = self._build(call, inputs)
            if size <= self.max_memory:
                while self.held + size > self.max_memory:
                    self.held -= self.kept.popitem(last=False)[1][1]
                self.kept[key] = module, size
                self.held += size
            return module

    def _build(self, call: Callable[..., Any], inputs: int) -> tuple[Callable[..., Any], int]:
        with torch.inference_mode(False), torch.no_grad():
            part = flattened(fold_batch_norm(materialise(self.owner, call, inputs))).requires_grad_(False)
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        size = sum(tensor.nbytes for tensor in [*part.parameters(), *part.buffers()])
        return (torch.compile(part) if self.compile else part), size


def flattened(part: fx.GraphModule) -> fx.GraphModule:
    """The same graph without nested modules: looking up a layer through its parents costs time at every call."""
    layers = nn.Module()
    for node in part.graph.nodes:
        if node.op == "call_module":
            name = node.target.replace(".", "_")
            layers.add_module(name, part.get_submodule(node.target))
            node.target = name
    return fx.GraphModule(layers, part.graph, class_name="Part").eval()


def _plain(step: Step) -> tuple[Any, Any]:
    """A step as plain tuples and dicts, which a traced module can return."""
    return None if step.fork is None else tuple(step.fork), dict(step.left)


def _step(outputs: tuple[Any, Any]) -> Step:
    fork, left = outputs
    return Step(None if fork is None else Fork(*fork), left)


class Snapshot:
    """Detects cheaply whether any weight of a network was written or replaced since the snapshot."""

    def __init__(self, net: nn.Module) -> None:
        # Every module's tables of parameters, buffers and modules. `held` keeps their values alive, so ids stay unique.
        tables = (t for module in net.modules() for t in (module._parameters, module._buffers, module._modules) if t)
        self.tables: list[dict[str, Any]] = list(tables)
        self.held = [list(table.values()) for table in self.tables]
        everything = (value for values in self.held for value in values if isinstance(value, Tensor))
        self.tensors = [t for t in everything if t.is_floating_point() and not t.is_inference()]
        self.state = self._state()

    def outdated(self) -> bool:
        return self._state() != self.state

    def _state(self) -> tuple[list[Any], list[int], list[int]]:
        """In-place operations raise a tensor's version. `.to` does not, but it changes the address of the memory."""
        held = [tuple(map(id, table.values())) for table in self.tables]
        return held, [*map(attrgetter("_version"), self.tensors)], [*map(Tensor.data_ptr, self.tensors)]
