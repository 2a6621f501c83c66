"""From a spec to modules: a front of blocks, one segment per choice point, and the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.nn import (
    Block,
    Bottleneck,
    ConvBlock,
    DepthwiseSeparable,
    Gate,
    GlobalPool,
    InvertedResidual,
    MaxPool,
    SliceLinear,
    Width,
)
from dsnet.nn.blocks import last_norm
from dsnet.space import Channels

Features = dict[str, Tensor]


class Stack(nn.Module):
    """A sequence of blocks at one width. The outputs of tapped blocks are returned by name."""

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
    """The blocks that one choice point controls: the first, which has the gate, and the rest at the chosen width.

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
        tapped = {} if self.tap is None else {self.tap: x}
        x, others = self.rest.features(x, w_out)
        return x, tapped | others


class Head(nn.Module):
    """Optional 1x1 convolution, global average pool, classifier."""

    def __init__(self, conv: ConvBlock | None, channels: Channels, num_classes: int) -> None:
        super().__init__()
        self.conv = conv
        self.pool = GlobalPool(channels)
        self.classifier = SliceLinear(channels, Channels.of(num_classes))

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return self.classifier(self.pooled(x, width), width, 0)

    def pooled(self, x: Tensor, width: Width) -> Tensor:
        """What the classifier reads, [B, channels of the width]."""
        if self.conv is not None:
            x = self.conv(x, width, width)
        return self.pool(x, width)

    splits = True  # whether all widths can share one classifier, on features that are filled up with zeros
    ends = True  # whether nothing follows the classifier

    def features(self, x: Tensor, width: int) -> Tensor:
        """What the classifier reads, filled up with zeros to the channels of the widest."""
        channels = self.pool.channels
        return F.pad(self.pooled(x, width), (0, channels.max - channels[width]))

    def classify(self, features: Tensor) -> Tensor:
        """The logits of features of any width."""
        return self.classifier(features, len(self.pool.channels) - 1, 0)


Modules = tuple[Any, list[Segment], Any]
"""A front (a Stack, or what behaves like one), segments, and a head (a Head, or what behaves like one)."""


def build(spec: ModelSpec) -> Modules:
    """The blocks before the first choice point, one segment per choice point, and the classifier."""
    front: list[tuple[Block, str | None]] = []
    segments: list[list[tuple[Block, str | None]]] = []
    cin, choice = Channels.of(spec.in_channels).repeated(spec.rows), None
    for stage in spec.stages:
        widths = 1 if stage.choice is None else spec.widths[stage.choice]
        cout = Channels.of(stage.out, widths).repeated(spec.rows)
        for number in range(stage.repeats):
            starts = stage.choice != choice
            if starts:
                segments.append([])
                choice = stage.choice
            block = build_block(spec, stage, cin, cout, first=number == 0, starts=starts)
            tap = stage.tap if number == stage.repeats - 1 else None
            (front if choice is None else segments[-1]).append((block, tap))
            cin = cout
    conv = None
    if spec.features is not None:
        features = Channels.of(spec.features, len(cin) // spec.rows).repeated(spec.rows)
        conv = ConvBlock(cin, features, norm=spec.norm, activation=spec.activation, kernel=1)
        cin = features
    parts = [Segment(*blocks[0], stack(blocks[1:])) for blocks in segments]
    return stack(front), parts, Head(conv, cin, spec.num_classes)


def stack(blocks: list[tuple[Block, str | None]]) -> Stack:
    return Stack([block for block, _ in blocks], [tap for _, tap in blocks])


def build_block(
    spec: ModelSpec, stage: StageSpec, cin: Channels, cout: Channels, *, first: bool, starts: bool
) -> Block:
    """One block. first: it is the first of its stage and has the stride. starts: it is the first of a segment and has
    the slimming head."""
    stride = stage.stride if first else 1
    same = stride == 1 and cin == cout and not starts
    common = {"norm": spec.norm, "activation": spec.activation}
    block: Block
    match stage.block:
        case "conv":
            return ConvBlock(cin, cout, kernel=stage.kernel, stride=stride, **common)  # type: ignore[arg-type]
        case "max_pool":
            return MaxPool(stride)
        case "depthwise":
            options = {"kernel": stage.kernel, "stride": stride, "skip": spec.skip and same}
            options["active"] = spec.depthwise_activation
            gate = build_gate(spec, stage, cin, cin.max, starts=starts)
            block = DepthwiseSeparable(cin, cout, gate=gate, **options, **common)  # type: ignore[arg-type]
        case "bottleneck":
            options = {"expansion": stage.expansion, "stride": stride, "project": not same}
            gate = build_gate(spec, stage, cin, cin.max, starts=starts)
            block = Bottleneck(cin, cout, gate=gate, **options, **common)  # type: ignore[arg-type]
        case "inverted":
            options = {"expansion": stage.expansion, "kernel": stage.kernel, "stride": stride, "skip": same}
            gate = build_gate(spec, stage, cin * stage.expansion, cin.max, starts=starts)
            block = InvertedResidual(cin, cout, gate=gate, **options, **common)  # type: ignore[arg-type]
    if spec.zero_init and (norm := last_norm(block)) is not None:
        nn.init.zeros_(norm.weight)
    return block


def build_gate(spec: ModelSpec, stage: StageSpec, channels: Channels, inputs: int, *, starts: bool) -> Gate | None:
    """A gate over `channels`; its hidden size depends on the block's widest number of `inputs`."""
    if spec.gate is None or (spec.gate.blocks == "choose" and not starts):
        return None
    hidden = stage.hidden or max(1, inputs // spec.gate.reduction)
    candidates = len(spec.routing[stage.choice]) if starts and stage.choice is not None else None
    return Gate(spec.gate, channels, hidden, candidates)
