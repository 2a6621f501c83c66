"""What a model remembers besides its weights: class names, preprocessing, calibrated budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dsnet.errors import must


@dataclass(frozen=True)
class Preprocessing:
    """How an image becomes an input: resize the short side to size / crop, centre crop, scale to 0..1, normalise."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: float = 0.875
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(map(float, self.mean)))
        object.__setattr__(self, "std", tuple(map(float, self.std)))
        if len(self.mean) != len(self.std) or min(self.std) <= 0:
            raise ValueError(
                f"preprocessing needs one mean and one positive std per channel, not {self.mean}, {self.std}"
            )
        must("preprocessing crop", self.crop, 0 < self.crop <= 1, "lie in (0, 1]")
        if self.interpolation not in ("nearest", "bilinear", "bicubic"):
            raise ValueError(f"interpolation {self.interpolation!r} is unknown; choose nearest, bilinear or bicubic")

    @classmethod
    def for_channels(cls, channels: int) -> Preprocessing:
        """ImageNet's statistics for three channels, one half otherwise."""
        return cls() if channels == 3 else cls(mean=(0.5,) * channels, std=(0.5,) * channels)


@dataclass(frozen=True)
class Budget:
    """One calibrated operating point: the lambda that meets an average number of MAdds."""

    madds: float
    lam: float
    accuracy: float
    image_size: int

    def __post_init__(self) -> None:
        for name, kind in (("madds", float), ("lam", float), ("accuracy", float), ("image_size", int)):
            object.__setattr__(self, name, kind(getattr(self, name)))  # plain numbers, also from numpy


@dataclass(frozen=True)
class Card:
    classes: tuple[str, ...] = ()
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    budgets: tuple[Budget, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Card:
        try:
            how = dict(data["preprocessing"])
            return cls(
                classes=tuple(str(name) for name in data["classes"]),
                preprocessing=Preprocessing(**how),
                budgets=tuple(Budget(**row) for row in data["budgets"]),
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"model card is incomplete or of another version: {error}") from error
