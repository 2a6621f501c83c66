"""The ResNet family (He et al., 2016) and its slimmable and dynamic slimmable forms."""

from __future__ import annotations

from dsnet.models.registry import equispaced, ladder, register, scaled
from dsnet.models.spec import ModelSpec, StageSpec
from dsnet.nn import GateSpec, NormSpec

REPEATS = (3, 4, 6, 3)


@register
def ds_resnet50() -> ModelSpec:
    """DS-ResNet: 4 gates of 4 widths, group norm, attention in every block."""
    return ModelSpec(
        name="ds_resnet50",
        stages=(
            StageSpec("conv", 32, stride=2, kernel=7),
            StageSpec("max_pool", 32, stride=2),
            *(
                StageSpec(
                    "bottleneck",
                    equispaced(64 * 2**k, 64 * 2**k, 4),
                    repeats,
                    stride=1 if k == 0 else 2,
                    expansion=4,
                    choice=k,
                    hidden=16 if k == 0 else None,  # 32 inputs / 16 would be only 2 hidden units
                    tap=f"stage{k + 1}",
                )
                for k, repeats in enumerate(REPEATS)
            ),
        ),
        widths=(4, 4, 4, 4),
        norm=NormSpec("group", 16),
        gate=GateSpec(reduction=16),
        zero_init=True,
    )


@register
def ds_resnet_tiny() -> ModelSpec:
    """Small DS-ResNet for 32-pixel images: 4 gates of 4 widths, group norm."""
    return ModelSpec(
        name="ds_resnet_tiny",
        stages=(
            StageSpec("conv", 16, stride=2),
            *(
                StageSpec(
                    "bottleneck",
                    equispaced(8 * 2**k, 8 * 2**k, 4),
                    2,
                    stride=1 if k == 0 else 2,
                    expansion=2,
                    choice=k,
                    tap=f"stage{k + 1}",
                )
                for k in range(4)
            ),
        ),
        widths=(4, 4, 4, 4),
        norm=NormSpec("group", 4),
        gate=GateSpec(),
        zero_init=True,
        num_classes=10,
        image_size=32,
    )


def plain_stages(ratios: tuple[float, ...], choice: int | None) -> tuple[StageSpec, ...]:
    """Stem and four stages, with one width for each of `ratios`; a block's inner width is rounded, then expanded."""

    def expanded(count: int) -> int | tuple[int, ...]:
        inner = ladder(count, ratios)
        return 4 * inner if isinstance(inner, int) else tuple(4 * n for n in inner)

    stem = ladder(64, ratios)
    return (
        StageSpec("conv", stem, stride=2, kernel=7, choice=choice),
        StageSpec("max_pool", stem, stride=2, choice=choice),
        *(
            StageSpec(
                "bottleneck",
                expanded(64 * 2**k),
                repeats,
                stride=1 if k == 0 else 2,
                expansion=4,
                choice=choice,
                tap=f"stage{k + 1}",
            )
            for k, repeats in enumerate(REPEATS)
        ),
    )


@register
def s_resnet50() -> ModelSpec:
    """Slimmable ResNet-50: 4 widths 0.25 to 1.0, all layers together, batch norm per width, no gate."""
    stages = plain_stages((0.25, 0.5, 0.75, 1.0), 0)
    return ModelSpec(name="s_resnet50", stages=stages, widths=(4,), zero_init=True)


@register
def resnet50(width: float = 1.0) -> ModelSpec:
    """Plain static ResNet-50 with batch norm, at any width multiplier."""
    return ModelSpec(name=scaled("resnet50", width), stages=plain_stages((width,), None), zero_init=True)


@register
def resnet_tiny(width: float = 1.0) -> ModelSpec:
    """Static counterpart of ds_resnet_tiny with batch norm and without gates, at any width multiplier."""
    inner = [ladder(16 * 2**k, (width,)) for k in range(4)]
    return ModelSpec(
        name=scaled("resnet_tiny", width),
        stages=(
            StageSpec("conv", ladder(16, (width,)), stride=2),
            *(
                StageSpec("bottleneck", 2 * n, 2, stride=1 if k == 0 else 2, expansion=2, tap=f"stage{k + 1}")
                for k, n in enumerate(inner)
            ),
        ),
        zero_init=True,
        num_classes=10,
        image_size=32,
    )
