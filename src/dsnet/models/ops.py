"""The operations of a graph that have no weights and no width: functions of maps."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def binary(function: Callable[[Any, Any], Tensor]) -> Callable[..., Tensor]:
    """A function of two maps, or of a map and a number."""

    def apply(a: Tensor, b: Any = None, *, number: float = 0.0, swapped: bool = False) -> Tensor:
        if b is not None:
            return function(a, b)
        return function(number, a) if swapped else function(a, number)

    return apply


def max_pool(x: Tensor, *, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Tensor:
    return F.max_pool2d(x, kernel, stride, padding=padding, dilation=dilation, ceil_mode=ceil)


def avg_pool(x: Tensor, *, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool) -> Tensor:
    return F.avg_pool2d(x, kernel, stride, padding=padding, ceil_mode=ceil, count_include_pad=include)


def avg_pool3d(x: Tensor, *, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool) -> Tensor:
    return F.avg_pool3d(x, kernel, stride, padding=padding, ceil_mode=ceil, count_include_pad=include)


def axes(x: Tensor, *, rank: int) -> Tensor:
    """Another number of axes of one pixel behind the channels."""
    vector = x.flatten(1)
    return vector if rank == 2 else vector[(slice(None), slice(None), *[None] * (rank - 2))]


def resize(x: Tensor, *, mode: str, align: bool, size: Any = None, scale: Any = None) -> Tensor:
    options: dict[str, Any] = {} if mode == "nearest" else {"align_corners": align}
    return F.interpolate(x, size=size, scale_factor=scale, mode=mode, **options)


def crop(x: Tensor, *, axis: int, start: int, stop: int, step: int) -> Tensor:
    return x[(*[slice(None)] * axis, slice(start, stop, step))]


def pad(x: Tensor, *, sides: Any, mode: str, value: float) -> Tensor:
    return F.pad(x, sides, mode=mode, value=value) if mode == "constant" else F.pad(x, sides, mode=mode)


OPS: dict[str, Callable[..., Tensor]] = {
    "relu": F.relu,
    "relu6": F.relu6,
    "silu": F.silu,
    "hardswish": F.hardswish,
    "hardsigmoid": F.hardsigmoid,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "mish": F.mish,
    "selu": F.selu,
    "softplus": F.softplus,
    "gelu": F.gelu,
    "abs": torch.abs,
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "neg": torch.neg,
    "log": torch.log,
    "erf": torch.erf,
    "sign": torch.sign,
    "sin": torch.sin,
    "cos": torch.cos,
    "pow": lambda x, exponent: x**exponent,
    "leaky_relu": lambda x, slope: F.leaky_relu(x, slope),
    "elu": lambda x, alpha: F.elu(x, alpha),
    "clamp": lambda x, low, high: torch.clamp(x, low, high),
    "softmax": lambda x, dim: torch.softmax(x, dim),
    "log_softmax": lambda x, dim: torch.log_softmax(x, dim),
    "add": binary(operator.add),
    "sub": binary(operator.sub),
    "mul": binary(operator.mul),
    "div": binary(operator.truediv),
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "gt": binary(operator.gt),
    "ge": binary(operator.ge),
    "lt": binary(operator.lt),
    "le": binary(operator.le),
    "where": torch.where,
    "cat": lambda *parts: torch.cat(parts, 1),
    "join": lambda *parts, axis: torch.cat(parts, axis),
    "stack": lambda *parts, axis: torch.stack(parts, axis),
    "pick": lambda x, places: x[:, places],
    "max_pool": max_pool,
    "avg_pool": avg_pool,
    "global_max": lambda x: F.adaptive_max_pool2d(x, 1),
    "avg_pool3d": avg_pool3d,
    "pixel_shuffle": lambda x, factor: F.pixel_shuffle(x, factor),
    "flip": lambda x, dims: torch.flip(x, dims),
    "unsqueeze": lambda x, axis: x.unsqueeze(axis),
    "squeeze": lambda x, axis: x.squeeze(axis),
    "flatten": lambda x: x.flatten(1),
    "axes": axes,
    "reshape": lambda x, sizes: x.flatten(1).unflatten(1, sizes),
    "permute": lambda x, order: x.permute(*order),
    "mean": lambda x, dims, keep: x.mean(dims, keep),
    "sum": lambda x, dims, keep: torch.sum(x, dims, keep),
    "amax": lambda x, dims, keep: torch.amax(x, dims, keep),
    "amin": lambda x, dims, keep: torch.amin(x, dims, keep),
    "pad": pad,
    "pad_channels": lambda x, before, behind: F.pad(x, (0, 0, 0, 0, before, behind)),
    "resize": resize,
    "crop": crop,
}
"""How each operation is computed, from maps and options."""
