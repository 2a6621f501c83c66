"""A slimmable network of plain convolutions, for the demo."""

from __future__ import annotations

from dsnet.models.registry import register
from dsnet.models.spec import ModelSpec, StageSpec


@register
def s_convnet() -> ModelSpec:
    """Plain 3 x 3 convolutions for 32-pixel images: 3 widths, no gates. Its milliseconds follow its MAdds."""
    return ModelSpec(
        name="s_convnet",
        stages=(
            StageSpec("conv", 16, stride=2),
            StageSpec("conv", (8, 24, 72), choice=0),
            StageSpec("conv", (16, 48, 144), 2, 2, choice=0),
            StageSpec("conv", (32, 96, 288), stride=2, choice=0, tap="last"),
        ),
        widths=(3,),
        num_classes=10,
        image_size=32,
    )
