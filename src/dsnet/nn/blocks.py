"""Building blocks, each in three parts around its gate.

    h = block.enter(x, w_in)                     the layers before the gate
    scaled, code = block.attend(h, w_in)         the gate's attention head
    y = block.body(h, scaled, w_in, w_out)       the layers behind it

Only a block that starts a segment may have w_in and w_out from different choice points. A width is an
index or a `Mix`; the code is the same for both.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.nn.gate import ACTIVATIONS, Gate
from dsnet.nn.layers import SliceConv2d, SliceDepthwise
from dsnet.nn.norm import NormSpec, SliceNorm
from dsnet.nn.slicing import Width
from dsnet.space import Channels

PARTS = ("enter", "attend", "body")


def unchanged(x: Tensor) -> Tensor:
    return x


class Block(nn.Module):
    """Base class of the blocks that networks are built from. `skip` adds the block's input to its output."""

    reads_unscaled = False  # whether `body` reads x as well as `scaled`

    def __init__(self, activation: str = "relu", gate: Gate | None = None, *, skip: bool = False) -> None:
        super().__init__()
        self.activation, self.gate, self.skip = ACTIVATIONS[activation], gate, skip

    @property
    def entered(self) -> Channels:
        """Channels of the map that `enter` returns."""
        raise TypeError(f"{type(self).__name__} does not start a segment")

    def enter(self, x: Tensor, w_in: Width) -> Tensor:
        return x

    def attend(self, x: Tensor, w_in: Width) -> tuple[Tensor, Tensor | None]:
        return (x, None) if self.gate is None else self.gate(x, w_in)

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        raise TypeError(f"{type(self).__name__} has no body")

    def compile_parts(self, **options: Any) -> None:
        """Compile the three parts separately, for a block that is called in parts because it starts a segment."""
        for name in PARTS:
            if getattr(type(self), name) is not getattr(Block, name) or (name == "attend" and self.gate is not None):
                setattr(self, name, torch.compile(getattr(self, name), **options))

    def __getstate__(self) -> dict[str, Any]:
        """Copies are not compiled: what was compiled for this block would run this block's weights."""
        return {name: held for name, held in super().__getstate__().items() if name not in PARTS}

    def forward(self, x: Tensor, w_in: Width, w_out: Width) -> Tensor:
        h = self.enter(x, w_in)
        scaled, _ = self.attend(h, w_in)
        y = self.body(h, scaled, w_in, w_out)
        return x + y if self.skip else y


class ConvBlock(Block):
    """Convolution, norm, activation: a stem, or the convolution before a classifier."""

    def __init__(
        self, cin: Channels, cout: Channels, *, norm: NormSpec, activation: str, kernel: int = 3, stride: int = 1
    ) -> None:
        super().__init__(activation)
        self.conv = SliceConv2d(cin, cout, kernel, stride=stride)
        self.norm = norm.build(cout)

    @property
    def entered(self) -> Channels:
        return self.conv.cin

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return self.activation(self.norm(self.conv(scaled, w_in, w_out), w_out))


class MaxPool(Block):
    """The 3x3 max pool behind a ResNet stem."""

    def __init__(self, stride: int = 2) -> None:
        super().__init__()
        self.stride = stride

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return F.max_pool2d(scaled, 3, self.stride, padding=1)


class DepthwiseSeparable(Block):
    """MobileNetV1: depthwise | gate | pointwise. active: whether an activation follows the depthwise convolution."""

    def __init__(
        self,
        cin: Channels,
        cout: Channels,
        *,
        norm: NormSpec,
        activation: str,
        gate: Gate | None = None,
        kernel: int = 3,
        stride: int = 1,
        skip: bool = False,
        active: bool = True,
    ) -> None:
        super().__init__(activation, gate, skip=skip)
        self.between = self.activation if active else unchanged
        self.depthwise = SliceDepthwise(cin, kernel, stride=stride)
        self.norm1 = norm.build(cin)
        self.pointwise = SliceConv2d(cin, cout)
        self.norm2 = norm.build(cout)

    @property
    def entered(self) -> Channels:
        return self.depthwise.channels

    def enter(self, x: Tensor, w_in: Width) -> Tensor:
        return self.between(self.norm1(self.depthwise(x, w_in), w_in))

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return self.activation(self.norm2(self.pointwise(scaled, w_in, w_out), w_out))


class Bottleneck(Block):
    """ResNet: gate | 1x1, 3x3, 1x1 beside the shortcut, which takes the unscaled input."""

    reads_unscaled = True

    def __init__(
        self,
        cin: Channels,
        cout: Channels,
        *,
        expansion: int,
        norm: NormSpec,
        activation: str,
        gate: Gate | None = None,
        stride: int = 1,
        project: bool = False,
    ) -> None:
        super().__init__(activation, gate)
        inner = Channels(tuple(count // expansion for count in cout.counts))
        self.conv1, self.norm1 = SliceConv2d(cin, inner), norm.build(inner)
        self.conv2, self.norm2 = SliceConv2d(inner, inner, 3, stride=stride), norm.build(inner)
        self.conv3, self.norm3 = SliceConv2d(inner, cout), norm.build(cout)
        self.shortcut = SliceConv2d(cin, cout, stride=stride) if project else None
        self.shortcut_norm = norm.build(cout) if project else None

    @property
    def entered(self) -> Channels:
        return self.conv1.cin

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        y = self.activation(self.norm1(self.conv1(scaled, w_in, w_out), w_out))
        y = self.activation(self.norm2(self.conv2(y, w_out, w_out), w_out))
        y = self.norm3(self.conv3(y, w_out, w_out), w_out)
        if self.shortcut is not None and self.shortcut_norm is not None:
            x = self.shortcut_norm(self.shortcut(x, w_in, w_out), w_out)
        return self.activation(x + y)


class InvertedResidual(Block):
    """EfficientNet: expand, depthwise | squeeze-excite as the gate | project."""

    def __init__(
        self,
        cin: Channels,
        cout: Channels,
        *,
        expansion: int,
        norm: NormSpec,
        activation: str,
        gate: Gate | None = None,
        kernel: int = 3,
        stride: int = 1,
        skip: bool = False,
    ) -> None:
        super().__init__(activation, gate, skip=skip)
        inner = cin * expansion
        self.expand = SliceConv2d(cin, inner) if expansion > 1 else None
        self.norm0 = norm.build(inner) if expansion > 1 else None
        self.depthwise = SliceDepthwise(inner, kernel, stride=stride)
        self.norm1 = norm.build(inner)
        self.project = SliceConv2d(inner, cout)
        self.norm2 = norm.build(cout)

    @property
    def entered(self) -> Channels:
        return self.depthwise.channels

    def enter(self, x: Tensor, w_in: Width) -> Tensor:
        if self.expand is not None and self.norm0 is not None:
            x = self.activation(self.norm0(self.expand(x, w_in, w_in), w_in))
        return self.activation(self.norm1(self.depthwise(x, w_in), w_in))

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return self.norm2(self.project(scaled, w_in, w_out), w_out)


def last_norm(block: Block) -> SliceNorm | None:
    """The norm at the end of a residual branch, whose weights may start at zero; None if there is no skip."""
    if isinstance(block, Bottleneck):
        return block.norm3
    if isinstance(block, DepthwiseSeparable | InvertedResidual) and block.skip:
        return block.norm2
    return None
