"""The three parts of a network: stacks of blocks, segments that one choice point controls, and the head."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from dsnet.nn import Block, ConvBlock, GlobalPool, SliceLinear, Width
from dsnet.space import Channels

Features = dict[str, Tensor]


class Stack(nn.Module):
    """Blocks in a row at one width; some are tapped: their output has a name."""

    def __init__(self, blocks: Sequence[Block] = (), taps: Sequence[str | None] = ()) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.taps = tuple(taps)

    def features(self, x: Tensor, width: Width) -> tuple[Tensor, Features]:
        """The last output, and the tapped ones by name."""
        tapped: Features = {}
        for block, tap in zip(self.blocks, self.taps, strict=True):
            x = block(x, width, width)
            if tap is not None:
                tapped[tap] = x
        return x, tapped

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return self.features(x, width)[0]


class Segment(nn.Module):
    """What one choice point controls: its first block, which has the gate, and the rest at the chosen width.

    enter(x, w_in) -> attend -> (scaled, code) -> score(code) | body(x, scaled, w_in, w_out)

    Only the first block depends on w_in.
    """

    def __init__(self, first: Block, tap: str | None, rest: Stack) -> None:
        super().__init__()
        self.first, self.tap, self.rest = first, tap, rest

    def enter(self, x: Tensor, w_in: Width) -> Tensor:
        return self.first.enter(x, w_in)

    def attend(self, x: Tensor, w_in: Width) -> tuple[Tensor, Tensor | None]:
        """The input scaled by the attention head, and the code that the slimming head reads."""
        return self.first.attend(x, w_in)

    def score(self, code: Tensor | None, w_in: Width) -> Tensor | None:
        """Raw scores [B, R] of the slimming head over the routing space; None where there is no such head."""
        gate = self.first.gate
        return None if gate is None or gate.slimming is None or code is None else gate.slimming(code, w_in)

    def body(self, x: Tensor, scaled: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return self.rest(self.first.body(x, scaled, w_in, w_out), w_out)

    def forward(self, x: Tensor, w_in: Width, w_out: Width) -> Tensor:
        return self.rest(self.first(x, w_in, w_out), w_out)

    def features(self, x: Tensor, w_in: Width, w_out: Width) -> tuple[Tensor, Features]:
        x = self.first(x, w_in, w_out)
        mine = {} if self.tap is None else {self.tap: x}
        x, others = self.rest.features(x, w_out)
        return x, mine | others


class Head(nn.Module):
    """Optional 1x1 convolution, global average pool, classifier."""

    def __init__(self, conv: ConvBlock | None, channels: Channels, num_classes: int) -> None:
        super().__init__()
        self.conv = conv
        self.pool = GlobalPool(channels)
        self.classifier = SliceLinear(channels, Channels.of(num_classes))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        if self.conv is not None:
            x = self.conv(x, width, width)
        return self.classifier(self.pool(x, width), width, 0)
