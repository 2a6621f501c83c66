"""The card of a model: class names, preprocessing and calibrated budgets."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsnet.errors import must
from dsnet.images import Fit, Interpolation
from dsnet.routers import Budget, all_finite
from dsnet.schema import Typed


@dataclass(frozen=True)
class Preprocessing(Typed):
    """How an image becomes a network's input: it is fitted into a square, scaled to [0, 1] and normalised.

    fit: `crop` resizes the short side to size / crop and takes the centre; `squeeze` resizes both sides.
    """

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: float = 0.875
    interpolation: Interpolation = "bilinear"
    fit: Fit = "crop"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        good = 0 < len(self.mean) == len(self.std) and all_finite(*self.mean, *self.std) and min(self.std) > 0
        must("preprocessing", (self.mean, self.std), good, "have one mean and one positive std per channel")
        must("preprocessing crop", self.crop, 0 < self.crop <= 1, "lie in (0, 1]")
        if self.interpolation not in ("nearest", "bilinear", "bicubic"):
            raise ValueError(f"interpolation {self.interpolation!r} is unknown; choose nearest, bilinear or bicubic")
        if self.fit not in ("crop", "squeeze"):
            raise ValueError(f"preprocessing fit {self.fit!r} is unknown; choose crop or squeeze")

    @classmethod
    def for_channels(cls, channels: int) -> Preprocessing:
        """ImageNet's statistics for three channels; a mean and std of 0.5 otherwise."""
        return cls() if channels == 3 else cls(mean=(0.5,) * channels, std=(0.5,) * channels)


@dataclass(frozen=True)
class Card(Typed):
    """What a model remembers besides its weights: class names, preprocessing, calibrated budgets."""

    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    budgets: tuple[Budget, ...] = ()
