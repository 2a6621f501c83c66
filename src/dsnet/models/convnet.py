"""A slimmable network of plain convolutions, for the demo."""

from __future__ import annotations

from dsnet.models.registry import equispaced, register
from dsnet.models.spec import ModelSpec, StageSpec


@register
def s_convnet() -> ModelSpec:
    """Plain 3 x 3 convolutions for 32-pixel images: 4 widths, no gates. Its milliseconds follow its MAdds."""
    return ModelSpec(
        name="s_convnet",
        stages=(
            StageSpec("conv", 16, stride=2),
            StageSpec("conv", equispaced(8, 16, 4), choice=0),
            StageSpec("conv", equispaced(16, 32, 4), 2, 2, choice=0),
            StageSpec("conv", equispaced(32, 64, 4), stride=2, choice=0, tap="last"),
        ),
        widths=(4,),
        num_classes=10,
        image_size=32,
    )
