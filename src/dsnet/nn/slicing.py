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


class SliceConv2d(Sliceable):
    """Dense or pointwise convolution, equation (2): the leading filters and input channels."""

    def __init__(self, cin: Channels, cout: Channels, kernel: int = 1, *, stride: int = 1) -> None:
        super().__init__()
        self.cin, self.cout, self.kernel, self.stride = cin, cout, kernel, stride
        self.weight = nn.Parameter(nn.Conv2d(cin.max, cout.max, kernel, bias=False).weight.detach())

    def sliced(self, w_in: Width, w_out: Width) -> Tensor:
        return self.weight[: self.cout[index(w_out)], : self.cin[index(w_in)]]

    def forward(self, x: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return F.conv2d(x, self.sliced(w_in, w_out), stride=self.stride, padding=self.kernel // 2)

    def materialise(self, *widths: int) -> nn.Module:
        weight = self.sliced(*widths)
        options = {"stride": self.stride, "padding": self.kernel // 2, "bias": False}
        conv = twin(self, weight, nn.Conv2d, weight.shape[1], weight.shape[0], self.kernel, **options)
        return fill(conv, weight=weight)

    def madds(self, shape: Shape, *widths: int) -> int:
        pixels = out_side(shape[2], self.stride) * out_side(shape[3], self.stride)
        return pixels * self.params(*widths)

    def params(self, *widths: int) -> int:
        w_in, w_out = widths
        return self.kernel**2 * self.cin[w_in] * self.cout[w_out]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape[0], self.cout[widths[1]], out_side(shape[2], self.stride), out_side(shape[3], self.stride)

    def extra_repr(self) -> str:
        return f"{self.cin.counts} -> {self.cout.counts}, kernel={self.kernel}, stride={self.stride}"


class SliceDepthwise(Sliceable):
    """Depthwise convolution: one filter per channel, the leading channels."""

    def __init__(self, channels: Channels, kernel: int = 3, *, stride: int = 1) -> None:
        super().__init__()
        self.channels, self.kernel, self.stride = channels, kernel, stride
        conv = nn.Conv2d(channels.max, channels.max, kernel, groups=channels.max, bias=False)
        self.weight = nn.Parameter(conv.weight.detach())

    def forward(self, x: Tensor, width: Width) -> Tensor:
        count = self.channels[index(width)]
        return F.conv2d(x, self.weight[:count], stride=self.stride, padding=self.kernel // 2, groups=count)

    def materialise(self, *widths: int) -> nn.Module:
        count = self.channels[widths[0]]
        options = {"stride": self.stride, "padding": self.kernel // 2, "groups": count, "bias": False}
        conv = twin(self, self.weight, nn.Conv2d, count, count, self.kernel, **options)
        return fill(conv, weight=self.weight[:count])

    def madds(self, shape: Shape, *widths: int) -> int:
        pixels = out_side(shape[2], self.stride) * out_side(shape[3], self.stride)
        return pixels * self.params(*widths)

    def params(self, *widths: int) -> int:
        return self.kernel**2 * self.channels[widths[0]]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return *shape[:2], out_side(shape[2], self.stride), out_side(shape[3], self.stride)

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
        rows = self.cout[index(w_out)]
        return self.weight[:rows, : self.cin[index(w_in)]], None if self.bias is None else self.bias[:rows]

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
    """Global average pooling to a vector: the gate's encoder E, and the end of every network."""

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        self.channels = channels

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return F.adaptive_avg_pool2d(x, 1).flatten(1)

    def materialise(self, *widths: int) -> nn.Module:
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(1)).train(self.training)

    def pools(self, shape: Shape, *widths: int) -> int:
        return shape[2] * shape[3] * self.channels[widths[0]]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return tuple(shape[:2])


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
