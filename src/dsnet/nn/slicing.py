"""Layers whose weights are sliced to a width that is an argument of the call.

A width is an index into the layer's `Channels`, or a `Mix`: one distribution over the widths per
sample, run at the widest candidate. Convolutions and linear layers treat a mix as its widest width;
the norms behind them mask what lies beyond each sample's width (see norm.py), so that everything
downstream sees zeros there.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
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


class _Corner(torch.autograd.Function):
    """The leading rows and columns of a weight. Its gradient is padded once; two slices would pad it twice."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: int, columns: int) -> Tensor:
        ctx.missing = weight.shape[0] - rows, weight.shape[1] - columns
        return weight[:rows, :columns]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        rows, columns = ctx.missing
        return F.pad(grad, (*(0, 0) * (grad.dim() - 2), 0, columns, 0, rows)), None, None


def corner(weight: Tensor, cout: Channels, w_out: int, cin: Channels, w_in: int) -> Tensor:
    """The part of a weight [out, in, ...] that maps one width to another."""
    if cout.parts or cin.parts:
        return leading(leading(weight, cout, w_out), cin, w_in, 1)
    rows, columns = cout[w_out], cin[w_in]
    if (rows, columns) == weight.shape[:2]:
        return weight
    if weight.requires_grad and torch.is_grad_enabled():
        found: Tensor = _Corner.apply(weight, rows, columns)
        return found
    return weight[:rows, :columns]


Pair = tuple[int, int]


def pair(value: int | Pair) -> Pair:
    return (value, value) if isinstance(value, int) else (value[0], value[1])


class SliceConv2d(Sliceable):
    """Convolution, equation (2): the leading filters and input channels. A grouped one loses whole groups, or channels
    inside of all its groups.

    padding: half of the kernel unless given. inside: the channels that each group reads, if all groups are kept.
    """

    def __init__(
        self,
        cin: Channels,
        cout: Channels,
        kernel: int | Pair = 1,
        *,
        stride: int | Pair = 1,
        padding: int | Pair | None = None,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = False,
        inside: Channels | None = None,
    ) -> None:
        super().__init__()
        self.inside = cin if groups == 1 else inside
        self.cin, self.cout, self.kernel, self.stride = cin, cout, pair(kernel), pair(stride)
        half = (self.kernel[0] // 2, self.kernel[1] // 2)
        self.padding, self.dilation, self.groups = half if padding is None else pair(padding), pair(dilation), groups
        conv = nn.Conv2d(cin.max, cout.max, self.kernel, groups=groups, bias=bias)
        self.weight = nn.Parameter(conv.weight.detach())
        self.bias = None if conv.bias is None else nn.Parameter(conv.bias.detach())

    def groups_at(self, w_in: int) -> int:
        return self.groups if self.inside is not None else self.cin[w_in] * self.groups // self.cin.max

    def sliced(self, w_in: Width, w_out: Width) -> Tensor:
        if self.inside is None:
            return leading(self.weight, self.cout, index(w_out))
        return corner(self.weight, self.cout, index(w_out), self.inside, index(w_in))

    def shift(self, w_out: Width) -> Tensor | None:
        """The bias at a width."""
        return None if self.bias is None else leading(self.bias, self.cout, index(w_out))

    def forward(self, x: Tensor, w_in: Width, w_out: Width) -> Tensor:
        groups = self.groups_at(index(w_in))
        weight, bias = self.sliced(w_in, w_out), self.shift(w_out)
        return F.conv2d(x, weight, bias, self.stride, self.padding, self.dilation, groups)

    def materialise(self, *widths: int) -> nn.Module:
        weight, bias = self.sliced(*widths), self.shift(widths[1])
        options = {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "bias": bias is not None}
        counts = self.cin[widths[0]], self.cout[widths[1]]
        groups = self.groups_at(widths[0])
        conv = twin(self, weight, nn.Conv2d, *counts, self.kernel, groups=groups, **options)  # type: ignore[arg-type]
        return fill(conv, weight=weight, bias=bias)

    def madds(self, shape: Shape, *widths: int) -> int:
        height, width = self.out_sides(shape)
        return height * width * self.weights(*widths)

    def weights(self, w_in: int, w_out: int) -> int:
        return self.kernel[0] * self.kernel[1] * self.cin[w_in] // self.groups_at(w_in) * self.cout[w_out]

    def params(self, *widths: int) -> int:
        return self.weights(*widths) + (self.cout[widths[1]] if self.bias is not None else 0)

    def out_sides(self, shape: Shape) -> Pair:
        lengths = zip(shape[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True)
        height, width = (
            (side + 2 * pad - by * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, by in lengths
        )
        return height, width

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape[0], self.cout[widths[1]], *self.out_sides(shape)

    def extra_repr(self) -> str:
        return f"{self.cin.counts} -> {self.cout.counts}, kernel={self.kernel}, stride={self.stride}"


class SliceDepthwise(SliceConv2d):
    """Depthwise convolution: one filter per channel, the leading channels. It has one width."""

    def __init__(self, channels: Channels, kernel: int = 3, *, stride: int = 1) -> None:
        super().__init__(channels, channels, kernel, stride=stride, groups=channels.max)
        self.channels = channels

    def forward(self, x: Tensor, width: Width) -> Tensor:  # type: ignore[override]
        return super().forward(x, width, width)

    def materialise(self, *widths: int) -> nn.Module:
        return super().materialise(*widths, *widths)

    def weights(self, *widths: int) -> int:
        return super().weights(*widths, *widths)

    def params(self, *widths: int) -> int:
        return self.weights(*widths)

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return super().out_shape(shape, *widths, *widths)

    def extra_repr(self) -> str:
        return f"{self.channels.counts}, kernel={self.kernel}, stride={self.stride}"


class SliceLinear(Sliceable):
    """Linear layer on a vector of sliceable length."""

    def __init__(self, cin: Channels, cout: Channels, *, bias: bool = True) -> None:
        super().__init__()
        self.cin, self.cout = cin, cout
        linear = nn.Linear(cin.max, cout.max, bias=bias)
        self.weight = nn.Parameter(linear.weight.detach())
        self.bias = nn.Parameter(linear.bias.detach()) if bias else None

    def sliced(self, w_in: Width, w_out: Width) -> tuple[Tensor, Tensor | None]:
        weight = corner(self.weight, self.cout, index(w_out), self.cin, index(w_in))
        return weight, None if self.bias is None else leading(self.bias, self.cout, index(w_out))

    def forward(self, x: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return F.linear(x, *self.sliced(w_in, w_out))

    def materialise(self, *widths: int) -> nn.Module:
        weight, bias = self.sliced(*widths)
        linear = twin(self, weight, nn.Linear, weight.shape[1], weight.shape[0], bias=bias is not None)
        return fill(linear, weight=weight, bias=bias)

    def madds(self, shape: Shape, *widths: int) -> int:
        w_in, w_out = widths
        return self.cin[w_in] * self.cout[w_out]

    def params(self, *widths: int) -> int:
        w_in, w_out = widths
        return (self.cin[w_in] + (self.bias is not None)) * self.cout[w_out]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return *shape[:-1], self.cout[widths[1]]

    def extra_repr(self) -> str:
        return f"{self.cin.counts} -> {self.cout.counts}, bias={self.bias is not None}"


class StandardLinear(SliceLinear):
    """Linear layer on standardised inputs, (x - mean) / std, folded into its weights wherever they are read."""

    mean: Tensor
    std: Tensor

    def __init__(self, cin: Channels, cout: Channels) -> None:
        super().__init__(cin, cout)
        self.register_buffer("mean", torch.zeros(cin.max))
        self.register_buffer("std", torch.ones(cin.max))

    @torch.no_grad()
    def standardise(self, inputs: Tensor) -> None:
        """Take mean and std from samples [N, C] of the inputs; a constant input is only centred."""
        std, mean = torch.std_mean(inputs.double(), 0, correction=0)
        self.mean.copy_(mean)
        self.std.copy_(torch.where(std > 1e-6, std, 1.0))

    def sliced(self, w_in: Width, w_out: Width) -> tuple[Tensor, Tensor | None]:
        weight, bias = super().sliced(w_in, w_out)
        count = weight.shape[1]
        assert bias is not None
        weight = weight / self.std[:count]
        return weight, bias - weight @ self.mean[:count]

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *args: Any) -> None:
        for name in ("mean", "std"):  # layers of dsnet 0.1 did not standardise
            state_dict.setdefault(prefix + name, getattr(self, name))
        super()._load_from_state_dict(state_dict, prefix, *args)


class GlobalPool(Sliceable):
    """Global average pooling to a vector: the gate's encoder E, and the end of every network.

    keep: Whether the result is a map of one pixel instead.
    """

    def __init__(self, channels: Channels, *, keep: bool = False) -> None:
        super().__init__()
        self.channels, self.keep = channels, keep

    def forward(self, x: Tensor, width: Width) -> Tensor:
        pooled = F.adaptive_avg_pool2d(x, 1)
        return pooled if self.keep else pooled.flatten(1)

    def materialise(self, *widths: int) -> nn.Module:
        pool = nn.AdaptiveAvgPool2d(1)
        return (pool if self.keep else nn.Sequential(pool, nn.Flatten(1))).train(self.training)

    def pools(self, shape: Shape, *widths: int) -> int:
        return shape[2] * shape[3] * self.channels[widths[0]]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return (*shape[:2], 1, 1) if self.keep else tuple(shape[:2])


class GridPool(Sliceable):
    """Average pooling to a grid of fixed side, then to a vector [B, C * side * side]; maps may have any size."""

    def __init__(self, channels: Channels, side: int) -> None:
        super().__init__()
        self.channels, self.side = channels, side

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return F.adaptive_avg_pool2d(x, self.side).flatten(1)

    def materialise(self, *widths: int) -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool2d(self.side), nn.Flatten(1)).train(self.training)

    def bins(self, length: int) -> list[range]:
        """The rows or columns of a map that each row or column of the grid averages; they may overlap."""
        return [range(k * length // self.side, -(-(k + 1) * length // self.side)) for k in range(self.side)]

    def pools(self, shape: Shape, *widths: int) -> int:
        rows, columns = (sum(map(len, self.bins(length))) for length in shape[2:])
        return rows * columns * self.channels[widths[0]]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape[0], shape[1] * self.side**2


def out_side(side: int, stride: int) -> int:
    """Side of a map after an odd kernel with half padding."""
    return (side - 1) // stride + 1


class Fixed(Sliceable):
    """Wraps a plain layer of fixed width, so that it is traced, materialised and counted like a sliceable one."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)

    def materialise(self, *widths: int) -> nn.Module:
        return copy.deepcopy(self.layer).requires_grad_(True)

    def madds(self, shape: Shape, *widths: int) -> int:
        if not isinstance(self.layer, nn.Conv2d):
            return 0
        conv = self.layer
        places = 1
        for axis, side in enumerate(shape[2:]):
            padding = conv.padding[axis]
            assert isinstance(padding, int)
            places *= (side + 2 * padding - conv.kernel_size[axis]) // conv.stride[axis] + 1
        return places * conv.weight.numel()

    def params(self, *widths: int) -> int:
        return sum(parameter.numel() for parameter in self.layer.parameters())
