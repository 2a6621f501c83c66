"""The EfficientNet-B0 family (Tan and Le, 2019) and its dynamic slimmable form.

A block's squeeze-excite is the gate's attention head: sigmoid, with its hidden size taken from the
block's input.
"""

from __future__ import annotations

from dsnet.models.registry import equispaced, ladder, register, scaled
from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.nn import GateSpec

SQUEEZE_EXCITE = GateSpec(attention="sigmoid", activation="silu", reduction=4)


def inverted(out: int | tuple[int, ...], repeats: int, stride: int, **options: object) -> StageSpec:
    return StageSpec("inverted", out, repeats, stride, **options)  # type: ignore[arg-type]


@register
def ds_efficientnet_b0() -> ModelSpec:
    """DS-EffNet-B0: 20 widths behind the eighth block; its first eight blocks are at half width."""
    return ModelSpec(
        name="ds_efficientnet_b0",
        stages=(
            StageSpec("conv", 16, stride=2),
            inverted(8, 1, 1),
            inverted(16, 2, 2, expansion=6),
            inverted(24, 2, 2, expansion=6, kernel=5, tap="stride8"),
            inverted(40, 3, 2, expansion=6),
            inverted(equispaced(64, 8, 20), 3, 1, expansion=6, kernel=5, choice=0, tap="stride16"),
            inverted(equispaced(152, 8, 20), 4, 2, expansion=6, kernel=5, choice=0),
            inverted(equispaced(240, 16, 20), 1, 1, expansion=6, choice=0, tap="stride32"),
        ),
        widths=(20,),
        activation="silu",
        gate=SQUEEZE_EXCITE,
        zero_init=True,
        features=1280,
    )


@register
def ds_efficientnet_tiny() -> ModelSpec:
    """Small DS-EffNet for 32-pixel images: 6 widths."""
    return ModelSpec(
        name="ds_efficientnet_tiny",
        stages=(
            StageSpec("conv", 16, stride=2),
            inverted(8, 1, 1),
            inverted(16, 2, 2, expansion=4, tap="front"),
            inverted(equispaced(16, 8, 6), 2, 1, expansion=4, kernel=5, choice=0, tap="middle"),
            inverted(equispaced(24, 16, 6), 2, 2, expansion=4, choice=0, tap="last"),
        ),
        widths=(6,),
        activation="silu",
        gate=SQUEEZE_EXCITE,
        features=128,
        num_classes=10,
        image_size=32,
    )


@register
def efficientnet_tiny(width: float = 1.0) -> ModelSpec:
    """Static counterpart of ds_efficientnet_tiny at any width multiplier."""
    stem, *outs, features = (ladder(n, (width,)) for n in (16, 8, 16, 56, 104, 128))
    return ModelSpec(
        name=scaled("efficientnet_tiny", width),
        stages=(
            StageSpec("conv", stem, stride=2),
            inverted(outs[0], 1, 1),
            inverted(outs[1], 2, 2, expansion=4, tap="front"),
            inverted(outs[2], 2, 1, expansion=4, kernel=5, tap="middle"),
            inverted(outs[3], 2, 2, expansion=4, tap="last"),
        ),
        activation="silu",
        gate=SQUEEZE_EXCITE,
        features=features,
        num_classes=10,
        image_size=32,
    )


@register
def efficientnet_b0(width: float = 1.0) -> ModelSpec:
    """Plain static EfficientNet-B0 at any width multiplier."""
    stem, *outs, features = (ladder(n, (width,)) for n in (32, 16, 24, 40, 80, 112, 192, 320, 1280))
    return ModelSpec(
        name=scaled("efficientnet_b0", width),
        stages=(
            StageSpec("conv", stem, stride=2),
            inverted(outs[0], 1, 1),
            inverted(outs[1], 2, 2, expansion=6),
            inverted(outs[2], 2, 2, expansion=6, kernel=5, tap="stride8"),
            inverted(outs[3], 3, 2, expansion=6),
            inverted(outs[4], 3, 1, expansion=6, kernel=5, tap="stride16"),
            inverted(outs[5], 4, 2, expansion=6, kernel=5),
            inverted(outs[6], 1, 1, expansion=6, tap="stride32"),
        ),
        activation="silu",
        gate=SQUEEZE_EXCITE,
        zero_init=True,
        features=features,
    )
