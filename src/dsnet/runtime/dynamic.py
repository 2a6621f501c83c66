"""The PyTorch runner: parts of the network as plain modules, contiguous and folded, kept for as long as they fit."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from dsnet.extraction import fold_batch_norm
from dsnet.models import Card, Supernet
from dsnet.nn.tracing import materialise
from dsnet.routing import Policy, Prices, Routed
from dsnet.routing.route import Fork, LiveParts, run_grouped, run_path
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath

GIB = 2**30


class DynamicRunner(Runner):
    """Runs a network on PyTorch; several threads may share it.

    max_memory: bytes of weights that are kept ready beside the network's own; the least recently used go first.
    compile: torch.compile every part, which pays off where the same parts run for long.

    Weights are read when a part is first needed. When they change (an optimizer step, load_state_dict, any in-place
    operation) parts are built anew; only writes through `.data` go unseen: call `refresh` after those.
    """

    def __init__(self, net: Supernet, *, max_memory: int = GIB, compile: bool = False) -> None:
        super().__init__()
        if net.training:
            raise ValueError("a network runs in eval mode only; call net.eval() first")
        weight = net.head.classifier.weight
        if weight.dtype != torch.float32:
            raise ValueError(f"the network is in {weight.dtype}; runners take torch.float32: call net.float() first")
        if weight.is_inference():
            raise ValueError("the network was made in inference mode, where changes leave no trace; load it outside")
        if max_memory < 0:
            raise ValueError(f"max_memory is {max_memory}; it is a number of bytes, 0 keeps nothing")
        self.net, self.spec = net, net.spec
        self.parts = CachedParts(net, max_memory=max_memory, compile=compile)
        self.runtime = f"torch {torch.__version__}{', compiled' if compile else ''}"

    @property
    def card(self) -> Card:  # type: ignore[override]
        return self.net.card

    def refresh(self) -> None:
        """Forget all parts."""
        self.parts.clear()

    @torch.inference_mode()
    def _run(self, x: Tensor, policy: Policy, prices: Prices) -> Routed:
        self.parts.check()
        return run_grouped(self.parts, x.contiguous(memory_format=torch.channels_last), policy, prices)

    @torch.inference_mode()
    def _run_path(self, x: Tensor, path: WidthPath) -> Tensor:
        self.parts.check()
        return run_path(self.parts, x.contiguous(memory_format=torch.channels_last), path)


class CachedParts:
    """The `Parts` of a network, materialised: the first block of a segment per (in, out), the rest per out."""

    def __init__(self, net: Supernet, *, max_memory: int, compile: bool) -> None:
        self.net, self.spec, self.live = net, net.spec, LiveParts(net)
        self.max_memory, self.compile = max_memory, compile
        self.kept: OrderedDict[tuple[object, ...], tuple[Callable[..., Any], int]] = OrderedDict()
        self.held = 0  # bytes
        self.lock = threading.RLock()
        self.seen = Snapshot(net)

    def front(self, x: Tensor) -> Fork | Tensor:
        return self._at(self._part(("front",), lambda x: _plain(self.live.front(x)))(x))

    def first(self, point: int, w_in: int, w_out: int, fork: Fork) -> Tensor:
        if fork.x is None:
            part = self._part(
                ("first", point, w_in, w_out), lambda s: self.live.first(point, w_in, w_out, Fork(None, s))
            )
            return part(fork.scaled)
        part = self._part(
            ("first", point, w_in, w_out), lambda x, s: self.live.first(point, w_in, w_out, Fork(x, s)), inputs=2
        )
        return part(fork.x, fork.scaled)

    def rest(self, point: int, width: int, x: Tensor) -> Fork | Tensor:
        return self._at(self._part(("rest", point, width), lambda x: _plain(self.live.rest(point, width, x)))(x))

    def probe(self, logits: Tensor) -> Tensor:
        return self.live.probe(logits)  # too small to be worth a copy

    def check(self) -> None:
        """Forget everything if the weights are no longer those that were read."""
        with self.lock:
            if self.seen.outdated():
                self.clear()

    def clear(self) -> None:
        with self.lock:
            self.kept.clear()
            self.held = 0
            self.seen = Snapshot(self.net)

    def _at(self, outputs: Tensor | tuple[Tensor | None, ...]) -> Fork | Tensor:
        return Fork(*outputs) if isinstance(outputs, tuple) else outputs  # type: ignore[arg-type]

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
            part = flattened(fold_batch_norm(materialise(self.net, call, inputs))).requires_grad_(False)
            part.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        size = sum(tensor.nbytes for tensor in [*part.parameters(), *part.buffers()])
        return (torch.compile(part) if self.compile else part), size


def flattened(part: fx.GraphModule) -> fx.GraphModule:
    """The same graph with its layers side by side: looking a layer up through its parents takes time at every call."""
    layers = nn.Module()
    for node in part.graph.nodes:
        if node.op == "call_module":
            name = node.target.replace(".", "_")
            layers.add_module(name, part.get_submodule(node.target))
            node.target = name
    return fx.GraphModule(layers, part.graph, class_name="Part").eval()


def _plain(at: Fork | Tensor) -> Tensor | tuple[Tensor | None, ...]:
    """A fork as an ordinary tuple, which a traced module may return."""
    return tuple(at) if isinstance(at, Fork) else at


class Snapshot:
    """Tells cheaply whether any weight of a network was written or replaced since."""

    def __init__(self, net: nn.Module) -> None:
        self.net, self.registered = net, registrations.count
        self.tensors = self._tensors()  # held, so that they stay what they are
        self.state = self._state()

    def outdated(self) -> bool:
        if self.registered != registrations.count:  # somewhere a module got another part: was it here?
            count, now = registrations.count, self._tensors()
            if len(now) != len(self.tensors) or any(a is not b for a, b in zip(now, self.tensors, strict=True)):
                return True
            self.registered = count
        return self._state() != self.state

    def _tensors(self) -> list[Tensor]:
        found = chain(self.net.parameters(), self.net.buffers())
        return [tensor for tensor in found if tensor.is_floating_point() and not tensor.is_inference()]

    def _state(self) -> list[int]:
        """`.to` moves a tensor's memory without a new version; in-place operations count versions up."""
        return [*map(attrgetter("_version"), self.tensors), *map(Tensor.data_ptr, self.tensors)]


class Registrations:
    """Counts how often any module of the process was given a parameter, a buffer or a module."""

    def __init__(self) -> None:
        self.count = 0
        for register in (
            register_module_parameter_registration_hook,
            register_module_buffer_registration_hook,
            register_module_module_registration_hook,
        ):
            register(self._counted)

    def _counted(self, *_: Any) -> None:
        self.count += 1


registrations = Registrations()
