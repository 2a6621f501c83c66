"""Widths, slices of weights, and what every sliceable layer can do. The width is an argument of the call.

A width is an index into the layer's `Channels`, or a `Mix`: one distribution over the widths per
sample, run at the widest candidate. Convolutions and linear layers (layers.py) treat a mix as its widest
width; the norms behind them mask what lies beyond each sample's width (norm.py), so that everything
downstream sees zeros there.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init

from dsnet.space import Channels

Shape = torch.Size | tuple[int, ...]


@dataclass(frozen=True)
class Mix:
    """Weights [B, K] over a choice point's widths; `widest` is the widest index that can occur."""

    weights: Tensor
    widest: int


Width = int | Mix


def index(width: Width) -> int:
    """The width index at which the weights are sliced."""
    return width.widest if isinstance(width, Mix) else width


class Sliceable(nn.Module):
    """A layer that runs at a width, and knows its plain torch twin and its cost at that width."""

    def materialise(self, *widths: int) -> nn.Module:
        """The plain torch.nn layer with this layer's weights at these widths, contiguous, copied."""
        raise TypeError(f"{type(self).__name__} has no plain twin")

    def madds(self, shape: Shape, *widths: int) -> int:
        """Multiply-adds per image, convolutions and linear layers only.

        `shape` is that of the input at any width: only its height and width are read.
        """
        return 0

    def pools(self, shape: Shape, *widths: int) -> int:
        """Elements per image that average pooling reads."""
        return 0

    def params(self, *widths: int) -> int:
        """Parameters in use."""
        return 0

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        """Shape of the output for an input of this shape. Layers that can tell it without running override this."""
        with torch.device("meta"):
            return self(torch.empty(shape), *widths).shape  # the layer is on the meta device when it is counted


def twin(of: nn.Module, like: Tensor, factory: type[nn.Module], *args: int, **options: object) -> nn.Module:
    """An uninitialised plain module with the dtype, device and mode of its origin; draws no random numbers."""
    plain = skip_init(factory, *args, **options, device=like.device, dtype=like.dtype)
    return plain.train(of.training)


def fill(plain: nn.Module, **tensors: Tensor | None) -> nn.Module:
    """Copy tensors into a plain module's parameters and buffers of the same names."""
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor is not None:
                getattr(plain, name).copy_(tensor)
    return plain


def leading(tensor: Tensor, channels: Channels, width: int, dim: int = 0) -> Tensor:
    """The channels of a width along one axis of a tensor that has those of the widest: the leading ones, or those of
    every part of a concatenation."""
    ranges = channels.ranges(width) if channels.parts else [(0, channels[width])]
    if ranges == [(0, tensor.shape[dim])]:
        return tensor
    if len(ranges) == 1:
        return tensor.narrow(dim, 0, ranges[0][1])
    return torch.cat([tensor.narrow(dim, start, stop - start) for start, stop in ranges], dim)


def corner(weight: Tensor, cout: Channels, w_out: int, cin: Channels, w_in: int) -> Tensor:
    """The part of a weight [out, in, ...] that maps one width to another."""
    if cout.parts or cin.parts:
        return leading(leading(weight, cout, w_out), cin, w_in, 1)
    rows, columns = cout[w_out], cin[w_in]
    if (rows, columns) == weight.shape[:2]:
        return weight
    if weight.requires_grad and torch.is_grad_enabled():  # in one view, whose gradient is padded once; slices pad twice
        return weight.as_strided((rows, columns, *weight.shape[2:]), weight.stride())
    return weight[:rows, :columns]
