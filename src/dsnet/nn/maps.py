"""Small layers between convolutions whose form depends on the width: masks, parts of maps, shuffles, slopes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dsnet.nn.slicing import Mix, Shape, Sliceable, Width, fill, index, leading, twin
from dsnet.space import Channels


class Mask(Sliceable):
    """The identity; under a mix, channels beyond a sample's width become zero, as behind a norm."""

    prefix: Tensor

    def __init__(self, channels: Channels) -> None:
        super().__init__()
        self.channels = channels
        prefix = torch.zeros(len(channels), channels.max, dtype=torch.bool)
        for width, row in enumerate(prefix):
            for start, stop in channels.ranges(width):
                row[start:stop] = True
        self.register_buffer("prefix", prefix, persistent=False)

    def forward(self, x: Tensor, width: Width) -> Tensor:
        if not isinstance(width, Mix):
            return x
        prefix = leading(self.prefix, self.channels, width.widest, 1).to(x.dtype)
        mask = width.weights @ prefix  # [B, C]
        return x * mask.reshape(*mask.shape, *[1] * (x.dim() - 2))

    def materialise(self, *widths: int) -> nn.Module:
        return nn.Identity()

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape


class Constant(Sliceable):
    """A map that is the same for all images, and is not trained. It reads a map for the number of images alone."""

    value: Tensor

    def __init__(self, shape: Sequence[int]) -> None:
        super().__init__()
        self.register_buffer("value", torch.zeros(*shape))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return self.value.expand(len(x), *self.value.shape)

    def materialise(self, *widths: int) -> nn.Module:
        graph = fx.Graph()
        count = graph.call_method("size", (graph.placeholder("x"), 0))
        graph.output(graph.call_method("expand", (graph.get_attr("value"), count, *self.value.shape)))
        return fx.GraphModule({"value": self.value.detach().clone()}, graph, class_name="Constant")

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape[0], *self.value.shape


class Take(Sliceable):
    """Some of the parts that a map is made of, one after another: first to before last."""

    def __init__(self, parts: list[Channels], first: int, last: int) -> None:
        super().__init__()
        self.before = parts[:first]
        self.channels = Channels.joined(parts[first:last])

    def place(self, width: int) -> tuple[int, int]:
        """Where the parts begin in the map of a width, and their number of channels."""
        return sum(part[width] for part in self.before), self.channels[width]

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return x.narrow(1, *self.place(index(width)))

    def materialise(self, *widths: int) -> nn.Module:
        start, count = self.place(widths[0])
        graph = fx.Graph()
        graph.output(graph.call_method("narrow", (graph.placeholder("x"), 1, start, count)))
        return fx.GraphModule(nn.Module(), graph, class_name="Take")

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape[0], self.channels[widths[0]], *shape[2:]


class Shuffle(Sliceable):
    """Channels in turn from each of some equal groups."""

    def __init__(self, channels: Channels, groups: int) -> None:
        super().__init__()
        self.channels, self.groups = channels, groups

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return F.channel_shuffle(x, self.groups) if len(x) else x

    def materialise(self, *widths: int) -> nn.Module:
        return nn.ChannelShuffle(self.groups)

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape


class SlicePReLU(Sliceable):
    """PReLU with a slope for each channel, or one for all."""

    def __init__(self, channels: Channels, *, shared: bool = False) -> None:
        super().__init__()
        self.channels, self.shared = channels, shared
        self.weight = nn.Parameter(torch.full((1 if shared else channels.max,), 0.25))

    def slopes(self, width: Width) -> Tensor:
        return self.weight if self.shared else leading(self.weight, self.channels, index(width))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return F.prelu(x, self.slopes(width))

    def materialise(self, *widths: int) -> nn.Module:
        slopes = self.slopes(widths[0])
        return fill(twin(self, slopes, nn.PReLU, len(slopes)), weight=slopes)

    def params(self, *widths: int) -> int:
        return 1 if self.shared else self.channels[widths[0]]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape
