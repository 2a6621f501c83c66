"""Corrupted copies of a split: gaussian noise, blur and JPEG compression, as cameras and networks cause them.

They show what a trained network does on images that are unlike those that it was calibrated on.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image, ImageFilter
from torch import Tensor

from dsnet.data.dataset import Batch, BatchLoader, Data, Source, Split


@dataclass(frozen=True)
class Corruption:
    """What is done to an image.

    Args:
        strength: For noise its standard deviation as a share of the pixels' range, for blur its radius as a share of
            the image's side, for jpeg the quality.
    """

    kind: Literal["noise", "blur", "jpeg"]
    strength: float

    @property
    def name(self) -> str:
        return f"JPEG {self.strength:g}" if self.kind == "jpeg" else f"{self.kind} {100 * self.strength:g}%"

    def __call__(self, pixels: np.ndarray, seed: tuple[int, int]) -> np.ndarray:
        """A corrupted copy of uint8 pixels [C, S, S]."""
        if self.kind == "noise":
            noise = np.random.default_rng(seed).normal(0, 255 * self.strength, pixels.shape)
            return (pixels + noise).clip(0, 255).round().astype(np.uint8)
        image = Image.fromarray(pixels[0] if len(pixels) == 1 else np.ascontiguousarray(pixels.transpose(1, 2, 0)))
        if self.kind == "blur":
            image = image.filter(ImageFilter.GaussianBlur(self.strength * pixels.shape[-1]))
        else:
            file = io.BytesIO()
            image.save(file, "JPEG", quality=round(self.strength))
            image = Image.open(file)
        changed = np.asarray(image)
        return changed[None] if changed.ndim == 2 else changed.transpose(2, 0, 1)


CORRUPTIONS = (
    *(Corruption("noise", deviation) for deviation in (0.05, 0.15)),
    *(Corruption("blur", radius) for radius in (0.015, 0.03)),
    *(Corruption("jpeg", quality) for quality in (25, 10)),
)


@dataclass(frozen=True)
class CorruptLoader:
    """Corrupts the images of another loader. What is done to an image depends on its sample number and on `seed`."""

    loader: BatchLoader
    corruption: Corruption
    seed: int

    @property
    def source(self) -> Source:
        return self.loader.source

    @property
    def mean(self) -> tuple[float, ...]:
        return self.loader.mean

    @property
    def std(self) -> tuple[float, ...]:
        return self.loader.std

    def __call__(self, ids: Tensor, seed: int | None) -> Batch:
        batch = self.loader(ids, seed)
        numbers = batch.ids.tolist()
        changed = [
            self.corruption(own, (self.seed, number)) for own, number in zip(batch.images.numpy(), numbers, strict=True)
        ]
        return replace(batch, images=torch.from_numpy(np.stack(changed))) if changed else batch


def corrupted(data: Data, split: str, corruption: Corruption, seed: int = 0) -> Data:
    """The same data with the images of one split corrupted."""
    clean = data.split(split)
    loader = CorruptLoader(clean.loader, corruption, seed)
    changed: dict[str, Any] = {split: Split(loader, clean.ids)}
    return replace(data, **changed)
