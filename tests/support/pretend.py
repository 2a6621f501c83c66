"""A device that pretends: its tensors hold real values on the CPU, but torch believes that they are elsewhere.

`with pretended() as account:` makes the device `DEVICE` usable. As on a GPU, operators refuse tensors of both devices,
except single numbers and indices of the host; copies cross, and reading a value waits for the device. The account
counts these crossings. Autocast lowers the operators that it lowers on the CPU, but keeps no lowered weights from one
operator to the next (`torch.set_autocast_cache_enabled`). Nothing here knows dsnet.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.library import Library, fallthrough_kernel
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten
# Operators whose result depends on values, so that a GPU tells the host how large it is.
WAITING = {"_local_scalar_dense", "nonzero", "masked_select", "bincount", "_unique2", "unique_dim", "equal", "histc"}
CPU_GENERATOR, CPU_TENSOR = torch.Generator, torch.tensor
CROSSING = {"_to_copy", "copy_", "_foreach_copy_"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class _Module(_DummyBackendModule):
    """What torch asks a device about itself. It must not become the accelerator of other tests in this process."""

    def is_available(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend("pretend", _Module())
_device_constructors()  # torch keeps this list from the first call on, which must not be one with the stand-ins below
DEVICE = torch.device("pretend", 0)


def _lowered(op: Any) -> Any:
    """An operator as autocast runs it: with arguments in half precision, except those in double precision."""

    def lower(x: Any) -> Any:
        lowered = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        return x.to(torch.get_autocast_dtype(DEVICE.type)) if lowered else x

    def run(*args: Any, **options: Any) -> Any:
        with torch.autocast(DEVICE.type, enabled=False):
            return op(*map(lower, args), **options)

    return run


# Mixed precision: the operators of networks that run in half precision on the CPU do so here, and no others.
_UNCHANGED, _AUTOCAST = Library("_", "IMPL", "AutocastPrivateUse1"), Library("aten", "IMPL", "AutocastPrivateUse1")
_UNCHANGED.fallback(fallthrough_kernel)
for _name in ("conv2d", "linear", "matmul", "mm", "bmm", "addmm", "baddbmm"):
    _AUTOCAST.impl(_name, _lowered(getattr(aten, _name).default))


class WrongDeviceError(RuntimeError):
    """An operator got tensors of two devices."""


@dataclass
class Account:
    """What crossed between the host and the device, by operator.

    reads: Values that the host read, each of which waits for the device. sends: Tensors that went to the device, with
    their bytes in `sent`. single: Whether the device has no double precision, as those of Apple.
    """

    reads: Counter[str] = field(default_factory=Counter)
    sends: Counter[str] = field(default_factory=Counter)
    sent: int = 0
    generators: dict[int, torch.Generator] = field(default_factory=dict, repr=False)
    single: bool = False

    def clear(self) -> None:
        self.reads.clear()
        self.sends.clear()
        self.sent = 0


_account = threading.local()


class Pretended(torch.Tensor):
    """A tensor of the device. `inner` holds its values."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> Pretended:
        found = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=DEVICE,
        )
        found.inner = inner
        return found

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.inner.__reduce_ex__(protocol)  # what a file holds is read to the CPU

    def __repr__(self, *args: object, **options: object) -> str:
        return f"{self.inner!r} on {DEVICE}"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.tolist:  # torch refuses it for tensors of Python classes
            return args[0].detach().cpu().tolist()
        if func is torch.Tensor.data_ptr:
            return args[0].inner.data_ptr()
        if func in (torch.Tensor.numpy, torch.Tensor.__array__):
            raise TypeError(f"can't convert {DEVICE} tensor to numpy; use .cpu() first")
        if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
            args[0].inner = args[1].inner  # and its layout below
        if func is torch.Tensor.new_tensor:
            return _tensor(args[1], device=DEVICE, **{"dtype": args[0].dtype, **(kwargs or {})})
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class _Everything(TorchDispatchMode):
    """Sees operators without tensors, too, such as those that make new ones on the device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """The result of an operator, on its device."""
    name = func.overloadpacket.__name__
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, Pretended) for tensor in tensors)
    asked = kwargs.get("device")
    away = there if asked is None else torch.device(asked).type == DEVICE.type
    generator = kwargs.get("generator")
    if generator is not None and (generator._cdata in _account.held.generators) != away:
        raise WrongDeviceError(f"{name} on {DEVICE if away else 'cpu'} got the generator of another device")
    if name in CROSSING:
        note_crossing(name, args, away)
    elif there and asked is None:
        check(func, name, args, tensors)
    if there and (name in WAITING or (name in INDEXING and masked(args[1]))):
        _account.held.reads[name] += 1
    if asked is not None:
        kwargs = {**kwargs, "device": torch.device("cpu"), **({"pin_memory": False} if "pin_memory" in kwargs else {})}
    known = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, Pretended)}
    inner_args, inner_kwargs = tree_map(lambda x: x.inner if isinstance(x, Pretended) else x, (args, kwargs))
    found = func(*inner_args, **inner_kwargs)

    def placed(x: Any) -> Any:
        if not isinstance(x, Tensor) or not (away or id(x) in known):
            return x
        if isinstance(x, Pretended):
            return x
        return known.get(id(x)) if id(x) in known and away else Pretended(x)

    result = found if name == "_local_scalar_dense" else tree_map(placed, found)
    if _account.held.single and any(x.dtype == torch.float64 for x in tree_leaves(result) if isinstance(x, Pretended)):
        raise WrongDeviceError(f"{name} makes a tensor of float64, which {DEVICE} does not have")
    return result


def check(func: Any, name: str, args: Any, tensors: list[Tensor]) -> None:
    """Refuse tensors of the host, except those that a GPU's operators take: single numbers, and indices."""
    for tensor in tensors:
        if isinstance(tensor, Pretended):
            continue
        if name in INDEXING and isinstance(args[0], Pretended) and any(tensor is index for index in args[1]):
            _account.held.sends["index"] += 1
            _account.held.sent += tensor.nbytes
        elif tensor.dim() or torch.Tag.pointwise not in func.tags:
            raise WrongDeviceError(f"{name} got tensors on {DEVICE} and one of shape {tuple(tensor.shape)} on cpu")


def masked(indices: Any) -> bool:
    """Whether an index is a mask, whose number of true values the host must know."""
    return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in indices)


def note_crossing(name: str, args: Any, away: bool) -> None:
    """Count the tensors that a copy takes from one device to the other."""
    account: Account = _account.held
    pairs = [(args[0], away)] if name == "_to_copy" else [(args[1], isinstance(args[0], Pretended))]
    if name == "_foreach_copy_":
        pairs = [(source, isinstance(target, Pretended)) for target, source in zip(*args[:2], strict=True)]
    for source, to_device in pairs:
        if to_device and not isinstance(source, Pretended):
            account.sends[name] += 1
            account.sent += source.nbytes
        elif not to_device and isinstance(source, Pretended):
            account.reads[name] += 1


class _Generator(torch.Generator):
    """Stands in for torch.Generator. The numbers of the device's generators are those of the CPU's."""

    def __new__(cls, device: Any = "cpu") -> Any:
        if torch.device(device).type != DEVICE.type:
            return CPU_GENERATOR(device)
        made = super().__new__(cls)
        _account.held.generators[made._cdata] = made  # operators get another object with the same address
        return made


def _tensor(data: Any, *, device: Any = None, **options: Any) -> Tensor:
    """Stands in for torch.tensor, which no Python device can follow. Like it, makes a tensor on the host first."""
    made = CPU_TENSOR(data, **options)
    return made if device is None else made.to(device)


def _without_gradients(self: Any) -> None:
    """Stands in for the inference mode, in which operators that consist of others do not come to a Python device."""
    self._inference_mode_context = torch.no_grad() if self.mode else nullcontext()
    self._inference_mode_context.__enter__()


@contextmanager
def pretended(*, single: bool = False) -> Iterator[Account]:
    """Let `DEVICE` exist, and count what crosses."""
    _account.held = Account(single=single)
    with (
        _Everything(),
        torch.autograd.set_multithreading_enabled(False),  # a device of Python has no thread of its own
        patch("torch.Generator", _Generator),
        patch("torch.tensor", _tensor),
        patch.object(torch.inference_mode, "__enter__", _without_gradients),
    ):
        yield _account.held
