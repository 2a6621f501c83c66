"""RandAugment on Pillow images, with the table of operations and strengths that the field's training recipes share.

`rand-m9-mstd0.5` in their notation is RandAugment(layers=2, magnitude=9, spread=0.5): every layer takes one of the
operations at random and applies it in half of the cases, with a strength drawn from a normal distribution and kept
within 0..10. "Increasing" tables (`inc1`) make every operation stronger as the magnitude grows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image, ImageEnhance, ImageOps

Colour = tuple[int, int, int]
Operation = Callable[[Image.Image, float, Colour], Image.Image]
STRONGEST = 10.0
SHARE = 0.5  # of the images to which a chosen operation is applied


def sheared_x(image: Image.Image, by: float, fill: Colour) -> Image.Image:
    return moved(image, (1, by, 0, 0, 1, 0), fill)


def sheared_y(image: Image.Image, by: float, fill: Colour) -> Image.Image:
    return moved(image, (1, 0, 0, by, 1, 0), fill)


def shifted_x(image: Image.Image, by: float, fill: Colour) -> Image.Image:
    return moved(image, (1, 0, by * image.width, 0, 1, 0), fill)


def shifted_y(image: Image.Image, by: float, fill: Colour) -> Image.Image:
    return moved(image, (1, 0, 0, 0, 1, by * image.height), fill)


def moved(image: Image.Image, matrix: tuple[float, ...], fill: Colour) -> Image.Image:
    return image.transform(image.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR, fillcolor=fill)


def rotated(image: Image.Image, degrees: float, fill: Colour) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.BILINEAR, fillcolor=fill)


def posterised(image: Image.Image, bits: float, fill: Colour) -> Image.Image:
    return ImageOps.posterize(image, int(bits)) if int(bits) >= 1 else Image.new("RGB", image.size)


def solarised(image: Image.Image, threshold: float, fill: Colour) -> Image.Image:
    return ImageOps.solarize(image, int(threshold))


def brightened_below(image: Image.Image, by: float, fill: Colour) -> Image.Image:
    """Add to the dark half of the values."""
    table = [min(255, value + int(by)) if value < 128 else value for value in range(256)]
    return image.point(table * 3)


@dataclass(frozen=True)
class Strength:
    """How the argument of an operation follows from a level in 0..1: `start + slope * level`.

    signed: Whether its deviation from `start` gets a random sign. least: Smallest argument.
    """

    start: float = 0.0
    slope: float = 0.0
    signed: bool = False
    least: float = float("-inf")

    def at(self, level: float, rng: random.Random) -> float:
        change = self.slope * level
        if self.signed and rng.random() < 0.5:
            change = -change
        return max(self.least, self.start + change)


# The first strength is that of the plain table, the second that of the increasing one.
ENHANCED = Strength(0.1, 1.8), Strength(1.0, 0.9, signed=True, least=0.1)
SHEAR = (Strength(slope=0.3, signed=True),) * 2
SHIFT = (Strength(slope=0.45, signed=True),) * 2  # as a share of the side
TABLE: dict[str, tuple[Operation, tuple[Strength, Strength]]] = {
    "auto_contrast": (lambda image, by, fill: ImageOps.autocontrast(image), (Strength(), Strength())),
    "equalise": (lambda image, by, fill: ImageOps.equalize(image), (Strength(), Strength())),
    "invert": (lambda image, by, fill: ImageOps.invert(image), (Strength(), Strength())),
    "rotate": (rotated, (Strength(slope=30.0, signed=True),) * 2),
    "posterise": (posterised, (Strength(slope=4.0), Strength(4.0, -4.0))),
    "solarise": (solarised, (Strength(slope=256.0), Strength(256.0, -256.0))),
    "solarise_add": (brightened_below, (Strength(slope=110.0),) * 2),
    "colour": (lambda image, by, fill: ImageEnhance.Color(image).enhance(by), ENHANCED),
    "contrast": (lambda image, by, fill: ImageEnhance.Contrast(image).enhance(by), ENHANCED),
    "brightness": (lambda image, by, fill: ImageEnhance.Brightness(image).enhance(by), ENHANCED),
    "sharpness": (lambda image, by, fill: ImageEnhance.Sharpness(image).enhance(by), ENHANCED),
    "shear_x": (sheared_x, SHEAR),
    "shear_y": (sheared_y, SHEAR),
    "shift_x": (shifted_x, SHIFT),
    "shift_y": (shifted_y, SHIFT),
}
NAMES = tuple(TABLE)


@dataclass(frozen=True)
class RandAugment:
    """Changes an RGB image by some random operations.

    fill: Colour of what comes into view where an image is moved.
    """

    layers: int
    magnitude: float
    spread: float = 0.0
    increasing: bool = False
    fill: Colour = (124, 116, 104)

    def __call__(self, image: Image.Image, rng: random.Random) -> Image.Image:
        for name in rng.choices(NAMES, k=self.layers):
            if rng.random() >= SHARE:
                continue
            operation, strengths = TABLE[name]
            image = operation(image, strengths[self.increasing].at(self.level(rng), rng), self.fill)
        return image

    def level(self, rng: random.Random) -> float:
        """The strength of one operation, as a share of the strongest."""
        drawn = rng.gauss(self.magnitude, self.spread) if self.spread else self.magnitude
        return min(STRONGEST, max(0.0, drawn)) / STRONGEST
