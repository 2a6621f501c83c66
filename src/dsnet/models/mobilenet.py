"""The MobileNetV1 family (Howard et al., 2017) and its slimmable and dynamic slimmable forms."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dsnet.models.registry import equispaced, ladder, register, scaled
from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.nn import GateSpec

Out = int | tuple[int, ...]
FAST: dict[str, Any] = {"activation": "relu", "depthwise_activation": False, "gate": GateSpec(blocks="choose")}


def depthwise(
    out: Out, repeats: int = 1, stride: int = 1, *, choice: int | None = None, **options: object
) -> StageSpec:
    return StageSpec("depthwise", out, repeats, stride, choice=choice, **options)  # type: ignore[arg-type]


def thirteen_blocks(
    front: tuple[int, ...], middle: tuple[int, ...], last: tuple[int, ...], hidden: tuple[int | None, ...]
) -> tuple[StageSpec, ...]:
    """Stem and five fixed blocks (`front`), then six blocks of `middle` and two of `last` behind the gate.

    hidden: hidden sizes of the gates of the first six blocks; None derives the size from the input.
    """
    stem, *fixed = front
    strides = (1, 2, 1, 2, 1)
    taps = (None, None, None, None, "block5")
    rows = zip(fixed, strides, hidden[:5], taps, strict=True)
    return (
        StageSpec("conv", stem, stride=2),
        *(depthwise(out, stride=stride, hidden=size, tap=tap) for out, stride, size, tap in rows),
        depthwise(middle, stride=2, choice=0, hidden=hidden[5]),
        depthwise(middle, 5, choice=0, tap="block11"),
        depthwise(last, 2, 2, choice=0, tap="block13"),
    )


@register
def ds_mobilenet_v1() -> ModelSpec:
    """DS-MBNet as released by the paper's authors: 14 widths behind the fifth block, sigmoid attention."""
    return ModelSpec(
        name="ds_mobilenet_v1",
        # In the released weights, the gates of the front have the sizes of an originally wider front.
        stages=thirteen_blocks(
            (16, 32, 48, 48, 96, 96), equispaced(224, 32, 14), equispaced(736, 32, 14), (6, 22, 42, 42, 66, 66)
        ),
        widths=(14,),
        activation="silu",
        gate=GateSpec(attention="sigmoid"),
    )


@register
def ds_mobilenet_v1_18() -> ModelSpec:
    """DS-MBNet as written in the paper: 18 widths behind the fifth block, 1 + tanh attention."""
    return ModelSpec(
        name="ds_mobilenet_v1_18",
        stages=thirteen_blocks(
            (16, 32, 64, 64, 128, 128), equispaced(176, 24, 18), equispaced(352, 48, 18), (None,) * 6
        ),
        widths=(18,),
        gate=GateSpec(),
    )


@register
def ds_mobilenet_v1_fast() -> ModelSpec:
    """DS-MBNet for a clock: ds_mobilenet_v1's channels, ReLU behind pointwise convolutions only, one gate."""
    return ModelSpec(
        name="ds_mobilenet_v1_fast",
        stages=thirteen_blocks((16, 32, 48, 48, 96, 96), equispaced(224, 32, 14), equispaced(736, 32, 14), (None,) * 6),
        widths=(14,),
        **FAST,
    )


@register
def ds_mobilenet_v1_tiny() -> ModelSpec:
    """Small DS-MBNet for 32-pixel images: 6 widths, identity skips, a cheap front."""
    body = equispaced(16, 24, 6)
    return ModelSpec(
        name="ds_mobilenet_v1_tiny",
        stages=(
            StageSpec("conv", 16, stride=2),
            depthwise(24),
            depthwise(32, 2, 2, tap="front"),
            depthwise(body, 3, choice=0, tap="middle"),
            depthwise(body, 3, 2, choice=0, tap="last"),
        ),
        widths=(6,),
        gate=GateSpec(),
        skip=True,
        num_classes=10,
        image_size=32,
    )


@register
def ds_mobilenet_v1_fast_tiny() -> ModelSpec:
    """Small DS-MBNet for 32-pixel images and a clock: ds_mobilenet_v1_tiny in the form of ds_mobilenet_v1_fast."""
    return replace(ds_mobilenet_v1_tiny(), name="ds_mobilenet_v1_fast_tiny", **FAST)


@register
def ds_mobilenet_v1_small() -> ModelSpec:
    """Half-size DS-MBNet with the taps of detection: 6 widths behind the fifth block, identity skips."""
    return ModelSpec(
        name="ds_mobilenet_v1_small",
        stages=thirteen_blocks((16, 24, 32, 32, 64, 64), equispaced(64, 32, 6), equispaced(128, 64, 6), (None,) * 6),
        widths=(6,),
        gate=GateSpec(),
        skip=True,
    )


def plain_stages(ratios: tuple[float, ...], choice: int | None) -> tuple[StageSpec, ...]:
    """The stem and all thirteen blocks, with one width for each of `ratios`."""
    stem, *outs = (ladder(count, ratios) for count in (32, 64, 128, 256, 512, 1024))
    return (
        StageSpec("conv", stem, stride=2, choice=choice),
        depthwise(outs[0], choice=choice),
        depthwise(outs[1], 2, 2, choice=choice),
        depthwise(outs[2], 2, 2, choice=choice, tap="block5"),
        depthwise(outs[3], 6, 2, choice=choice, tap="block11"),
        depthwise(outs[4], 2, 2, choice=choice, tap="block13"),
    )


@register
def us_mobilenet_v1() -> ModelSpec:
    """Universally slimmable MobileNetV1: 31 widths 0.25 to 1.0, all layers together, no gate."""
    ratios = tuple(0.25 + 0.025 * k for k in range(31))
    return ModelSpec(name="us_mobilenet_v1", stages=plain_stages(ratios, 0), widths=(31,))


@register
def mobilenet_v1(width: float = 1.0) -> ModelSpec:
    """Plain static MobileNetV1 at any width multiplier."""
    return ModelSpec(name=scaled("mobilenet_v1", width), stages=plain_stages((width,), None))


def tiny_stages(ratios: tuple[float, ...], choice: int | None) -> tuple[StageSpec, ...]:
    """The widest ds_mobilenet_v1_tiny without gates, with one width for each of `ratios`."""
    stem, first, front, body = (ladder(count, ratios) for count in (16, 24, 32, 136))
    return (
        StageSpec("conv", stem, stride=2, choice=choice),
        depthwise(first, choice=choice),
        depthwise(front, 2, 2, choice=choice, tap="front"),
        depthwise(body, 3, choice=choice, tap="middle"),
        depthwise(body, 3, 2, choice=choice, tap="last"),
    )


@register
def us_mobilenet_v1_tiny() -> ModelSpec:
    """Universally slimmable counterpart of ds_mobilenet_v1_tiny: 7 widths 0.25 to 1.0, all layers together, no gate."""
    stages = tiny_stages(tuple(0.25 + 0.125 * k for k in range(7)), 0)
    name = "us_mobilenet_v1_tiny"
    return ModelSpec(name=name, stages=stages, widths=(7,), skip=True, num_classes=10, image_size=32)


@register
def mobilenet_v1_tiny(width: float = 1.0) -> ModelSpec:
    """Static counterpart of ds_mobilenet_v1_tiny at any width multiplier."""
    name = scaled("mobilenet_v1_tiny", width)
    return ModelSpec(name=name, stages=tiny_stages((width,), None), skip=True, num_classes=10, image_size=32)
