"""Turn batches of uint8 images into normalised network inputs, with or without augmentation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from PIL import Image
from torch import Tensor, nn

from dsnet.errors import must
from dsnet.images import to_array
from dsnet.schema import Typed


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
        magnitude: Strength of RandAugment, from 1 to 29.
        erasing: Share of the images in which a random rectangle is erased.
    """

    crop: Literal["none", "pad", "resized"] = "none"
    pad: int = 4
    scale: tuple[float, float] = (0.08, 1.0)
    flip: bool = False
    colour: float = 0.0
    randaugment: int = 0
    magnitude: int = 9
    erasing: float = 0.0

    def __post_init__(self) -> None:
        if self.crop not in ("none", "pad", "resized"):
            raise ValueError(f"augment.crop {self.crop!r} is unknown; choose none, pad or resized")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"augment.scale is {self.scale}; give rising shares of the area in (0, 1]")
        must("augment.erasing", self.erasing, 0 <= self.erasing <= 1, "lie in [0, 1]")
        must("augment.colour", self.colour, 0 <= self.colour <= 1, "lie in [0, 1]")
        must("augment.magnitude", self.magnitude, 1 <= self.magnitude <= 29, "lie in [1, 29]")
        must("augment.pad", self.pad, self.pad >= 0, "be at least 0")
        must("augment.randaugment", self.randaugment, self.randaugment >= 0, "be at least 0")


class Augment:
    """Applies kornia's transforms to float images [B, C, S, S] in 0..1. The result depends only on images and seed."""

    def __init__(self, config: AugmentConfig, size: int, *, crop: bool = True) -> None:
        from kornia import augmentation as K

        steps: list[nn.Module] = []
        if crop and config.crop == "pad" and config.pad:
            steps.append(K.RandomCrop((size, size), padding=config.pad, cropping_mode="slice"))
        if crop and config.crop == "resized":
            steps.append(K.RandomResizedCrop((size, size), scale=config.scale, cropping_mode="resample"))
        if config.flip:
            steps.append(K.RandomHorizontalFlip())
        if config.randaugment:
            steps.append(EachImage(K.auto.RandAugment(n=config.randaugment, m=config.magnitude)))
        if config.colour:
            steps.append(K.ColorJitter(config.colour, config.colour, config.colour))
        if config.erasing:
            steps.append(K.RandomErasing(p=config.erasing))
        self.steps = nn.Sequential(*steps)

    def __call__(self, images: Tensor, seed: int) -> Tensor:
        if not self.steps:
            return images
        with torch.random.fork_rng(devices=[]), torch.no_grad():  # kornia draws from the global generator
            torch.manual_seed(seed)
            return self.steps(images)


class EachImage(nn.Module):
    """Draws a kornia policy for every image of a batch. Without this, kornia draws it once per call.

    The policies expect three channels, so grey images are expanded for them.
    """

    def __init__(self, policy: nn.Module) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, images: Tensor) -> Tensor:
        grey = images.shape[1] == 1
        coloured = images.expand(-1, 3, -1, -1) if grey else images
        changed = torch.cat([self.policy(image[None]) for image in coloured])
        return changed[:, :1] if grey else changed


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(to_array(image, 3))  # uint8 [3, H, W]


def to_float(images: Tensor) -> Tensor:
    return images.float() / 255


def normalise(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    shape = (1, -1, 1, 1)
    return (images - images.new_tensor(mean).view(shape)) / images.new_tensor(std).view(shape)


def to_pixels(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Undo `normalise` and `to_float`: uint8 images."""
    shape = (1, -1, 1, 1)
    shares = images * images.new_tensor(std).view(shape) + images.new_tensor(mean).view(shape)
    return (255 * shares.clamp(0, 1)).round().byte()
