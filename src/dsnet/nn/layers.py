"""Convolutions, linear layers and pooling that run at a width."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.nn.slicing import Shape, Sliceable, Width, corner, fill, index, leading, twin
from dsnet.space import Channels

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

    def forward(self, x: Tensor, *widths: Width) -> Tensor:
        return self.layer(x)

    def materialise(self, *widths: int) -> nn.Module:
        return copy.deepcopy(self.layer).requires_grad_(True)

    def madds(self, shape: Shape, *widths: int) -> int:
        if not isinstance(self.layer, nn.Conv1d | nn.Conv2d):
            return 0
        conv = self.layer
        places = 1
        for axis, side in enumerate(shape[2:]):
            padding, reach = conv.padding[axis], conv.dilation[axis] * (conv.kernel_size[axis] - 1) + 1
            assert isinstance(padding, int)
            places *= (side + 2 * padding - reach) // conv.stride[axis] + 1
        return places * conv.weight.numel()

    def params(self, *widths: int) -> int:
        return sum(parameter.numel() for parameter in self.layer.parameters())
