"""Turn batches of uint8 images into normalised network inputs, with or without augmentation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
import torch.nn.functional as F
from PIL import Image, ImageEnhance
from torch import Tensor

from dsnet.data.randaugment import STRONGEST, RandAugment
from dsnet.errors import must
from dsnet.images import to_array
from dsnet.schema import Typed

ERASED = 0.02, 1 / 3  # smallest and largest share of the area that is erased
CACHED = 2**17  # numbers that a processor's cache holds
RATIO = 0.3, 1 / 0.3  # of the height of an erased rectangle to its width


@dataclass(frozen=True)
class AugmentConfig(Typed):
    """How training images are augmented.

    Args:
        crop: How images are cropped: pad (add some pixels and crop at random), resized (crop a random share of the
            area), or none.
        pad: Number of pixels that crop pad adds on each side.
        scale: Smallest and largest share of the area for crop resized.
        flip: Flip half of the images horizontally.
        colour: Strength of brightness, contrast and saturation jitter, from 0 to 1.
        randaugment: Number of RandAugment operations per image.
        magnitude: Strength of RandAugment, from 0 to 10.
        magnitude_std: Standard deviation of that strength from operation to operation.
        erasing: Share of the images in which a random rectangle is erased.
    """

    crop: Literal["none", "pad", "resized"] = "none"
    pad: int = 4
    scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = False
    colour: float = 0.0
    randaugment: int = 0
    magnitude: int = 9
    magnitude_std: float = 0.5
    erasing: float = 0.0

    def __post_init__(self) -> None:
        if self.crop not in ("none", "pad", "resized"):
            raise ValueError(f"augment.crop {self.crop!r} is unknown; choose none, pad or resized")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"augment.scale is {self.scale}; give rising shares of the area in (0, 1]")
        must("augment.erasing", self.erasing, 0 <= self.erasing <= 1, "lie in [0, 1]")
        must("augment.colour", self.colour, 0 <= self.colour <= 1, "lie in [0, 1]")
        must("augment.magnitude", self.magnitude, 0 <= self.magnitude <= STRONGEST, f"lie in [0, {STRONGEST:g}]")
        must("augment.magnitude_std", self.magnitude_std, self.magnitude_std >= 0, "be at least 0")
        must("augment.pad", self.pad, self.pad >= 0, "be at least 0")
        must("augment.randaugment", self.randaugment, self.randaugment >= 0, "be at least 0")


class Augment:
    """Augments uint8 images: some steps image by image, the others on whole batches. Both depend on their seed only.

    mean, std: Statistics of the pixels as shares of 255, with which erased rectangles are filled.
    """

    def __init__(
        self, config: AugmentConfig, size: int, mean: Sequence[float] = (0.5,), std: Sequence[float] = (0.25,)
    ) -> None:
        self.config, self.size, self.mean, self.std = config, size, mean, std
        self.random = RandAugment(config.randaugment, config.magnitude, config.magnitude_std, fill=fill_of(mean))

    def picture(self, image: Image.Image, rng: random.Random) -> Image.Image:
        """RandAugment and colour jitter of one RGB image."""
        if self.config.randaugment:
            image = self.random(image, rng)
        if self.config.colour:
            image = jittered(image, self.config.colour, rng)
        return image

    @property
    def by_picture(self) -> bool:
        """Whether images have to be changed one by one."""
        return bool(self.config.randaugment or self.config.colour)

    def batch(self, images: Tensor, seed: int) -> Tensor:
        """Padded crop, flip and erasing of images [B, C, S, S]."""
        config, generator = self.config, torch.Generator().manual_seed(seed)
        if config.crop == "pad" and config.pad:
            images = moved(images, config.pad, generator)
        if config.flip:
            chosen = torch.rand(len(images), generator=generator) < 0.5
            images = torch.where(chosen[:, None, None, None], images.flip(3), images)
        if config.erasing:
            images = self.erased(images, generator)
        return images

    def erased(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Fill a random rectangle of some images with noise: a share of ERASED of the area, a ratio of RATIO."""
        images, side = images.clone(), self.size
        for image, chance in zip(images, torch.rand(len(images), generator=generator).tolist(), strict=True):
            if chance >= self.config.erasing:
                continue
            share, ratio, top, left = torch.rand(4, generator=generator).tolist()
            area = side**2 * (ERASED[0] + share * (ERASED[1] - ERASED[0]))
            ratio = RATIO[0] * (RATIO[1] / RATIO[0]) ** ratio
            height, width = (min(side, round((area * r) ** 0.5)) for r in (ratio, 1 / ratio))
            y, x = int(top * (side - height + 1)), int(left * (side - width + 1))
            mean, std = (255 * torch.tensor(values).view(-1, 1, 1) for values in (self.mean, self.std))
            noise = torch.randn(len(image), height, width, generator=generator) * std + mean
            image[:, y : y + height, x : x + width] = noise.round().clamp(0, 255).byte()
        return images


def fill_of(mean: Sequence[float]) -> tuple[int, int, int]:
    """The mean colour of the pixels."""
    red, green, blue = (round(255 * value) for value in (tuple(mean) * 3)[:3])
    return red, green, blue


def moved(images: Tensor, pad: int, generator: torch.Generator) -> Tensor:
    """A random crop of each image behind a black border of `pad` pixels."""
    side = images.shape[2]
    padded = F.pad(images, (pad, pad, pad, pad))
    left, top = ((torch.rand(len(images), generator=generator) * (2 * pad + 1)).long() for _ in range(2))
    windows = padded.unfold(2, side, 1).unfold(3, side, 1)  # a view [B, C, 2 * pad + 1, 2 * pad + 1, S, S]
    return windows[torch.arange(len(images)), :, top, left]


def jittered(image: Image.Image, strength: float, rng: random.Random) -> Image.Image:
    """Change brightness, contrast and saturation by random factors, in random order."""
    changes = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    rng.shuffle(changes)
    for change in changes:
        image = change(image).enhance(1 + rng.uniform(-strength, strength))
    return image


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(to_array(image, 3))  # uint8 [3, H, W]


def to_float(images: Tensor) -> Tensor:
    return images.float().div_(255)


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Images less their mean, in units of their standard deviation."""
    shape = (1, -1, 1, 1)
    return images.sub(images.new_tensor(mean).view(shape)).div_(images.new_tensor(std).view(shape))


def network_input(pixels: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """`normalise` and `to_float` of uint8 images, on their device. A CPU takes as many at a time as its cache holds."""
    mean_there, std_there = constants(mean, std, pixels.device)
    images = torch.empty_like(pixels, dtype=torch.float32)
    some = max(1, CACHED // max(1, pixels[:1].numel())) if pixels.device.type == "cpu" else max(1, len(pixels))
    for part, raw in zip(images.split(some), pixels.split(some), strict=True):
        part.copy_(raw).div_(255).sub_(mean_there).div_(std_there)
    return images


@lru_cache(maxsize=32)
def constants(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation [C, 1, 1], kept on a device because every copy would wait for it."""
    with torch.inference_mode(False):
        return torch.tensor(mean).view(-1, 1, 1).to(device), torch.tensor(std).view(-1, 1, 1).to(device)


def to_pixels(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Undo `normalise` and `to_float`: uint8 images."""
    shape = (1, -1, 1, 1)
    shares = images * images.new_tensor(std).view(shape) + images.new_tensor(mean).view(shape)
    return (255 * shares.clamp(0, 1)).round().byte()
