"""From a spec to modules: front, segments, head."""

from __future__ import annotations

from torch import nn

from dsnet.models.segment import Head, Segment, Stack
from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.nn import Block, Bottleneck, ConvBlock, DepthwiseSeparable, Gate, InvertedResidual, MaxPool
from dsnet.nn.blocks import last_norm
from dsnet.space import Channels


def build(spec: ModelSpec) -> tuple[Stack, list[Segment], Head]:
    """The blocks before the first choice point, one segment per choice point, and the classifier."""
    front: list[tuple[Block, str | None]] = []
    segments: list[list[tuple[Block, str | None]]] = []
    cin, choice = Channels.of(spec.in_channels), None
    for stage in spec.stages:
        widths = 1 if stage.choice is None else spec.widths[stage.choice]
        cout = Channels.of(stage.out, widths)
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
        features = Channels.of(spec.features, len(cin))
        conv = ConvBlock(cin, features, norm=spec.norm, activation=spec.activation, kernel=1)
        cin = features
    parts = [Segment(*blocks[0], stack(blocks[1:])) for blocks in segments]
    return stack(front), parts, Head(conv, cin, spec.num_classes)


def stack(blocks: list[tuple[Block, str | None]]) -> Stack:
    return Stack([block for block, _ in blocks], [tap for _, tap in blocks])


def build_block(
    spec: ModelSpec, stage: StageSpec, cin: Channels, cout: Channels, *, first: bool, starts: bool
) -> Block:
    """One block; `first` of its stage (it has the stride), `starts` a segment (it has the slimming head)."""
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
    """A gate over `channels`, its hidden size taken from the block's widest `inputs`."""
    if spec.gate is None:
        return None
    hidden = stage.hidden or max(1, inputs // spec.gate.reduction)
    candidates = len(spec.routing[stage.choice]) if starts and stage.choice is not None else None
    return Gate(spec.gate, channels, hidden, candidates)
