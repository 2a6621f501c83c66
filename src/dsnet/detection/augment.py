"""SSD's augmentation of an image and its boxes together: colours, expansion, crops that keep objects, flips."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from dsnet.data.images import FILTERS
from dsnet.detection.boxes import area, iou

OVERLAPS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, 0.0)  # None: the whole image; 0: any crop
TRIALS = 50


@dataclass(frozen=True)
class BoxAugmentConfig:
    """What is done to training images and their boxes, in this order.

    Args:
        colour: strength of brightness, contrast, saturation and hue changes, 0 to 1; SSD's is 0.5.
        expand: lay half of the images on a grey canvas of up to this many times their side; 1 leaves it out.
        crop: cut out a part that overlaps some object by a drawn share (SSD).
        least: smallest side of a crop, as a share of the image.
        flip: horizontally, half of the images.
        turn: also vertically and by quarter turns, for images without an upright position.
    """

    colour: float = 0.5
    expand: float = 4.0
    crop: bool = True
    least: float = 0.3
    flip: bool = True
    turn: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.colour <= 1 or not 0 < self.least <= 1 or self.expand < 1:
            raise ValueError("augment.colour lies in [0, 1], augment.least in (0, 1], augment.expand is at least 1")


def augment(
    image: Image.Image, objects: Tensor, config: BoxAugmentConfig, rng: random.Random, *, fill: tuple[int, int, int]
) -> tuple[Image.Image, Tensor]:
    """An image and its objects [G, 6] (corners in pixels, class, difficult), changed together."""
    if config.colour:
        image = recoloured(image, config.colour, rng)
    if config.expand > 1 and rng.random() < 0.5:
        image, objects = expanded(image, objects, rng.uniform(1, config.expand), rng, fill)
    if config.crop:
        image, objects = cropped(image, objects, config.least, rng)
    if config.flip and rng.random() < 0.5:
        image, objects = flipped(image, objects)
    if config.turn:
        for _ in range(rng.randrange(4)):
            image, objects = turned(image, objects)
    return image, objects


def recoloured(image: Image.Image, strength: float, rng: random.Random) -> Image.Image:
    """Each change with a chance of one half, contrast before or after saturation and hue."""
    steps = ["contrast", "saturation", "hue"] if rng.random() < 0.5 else ["saturation", "hue", "contrast"]
    for step in ["brightness", *steps]:
        factor = 1 + rng.uniform(-strength, strength)
        if rng.random() < 0.5:
            continue
        if step == "brightness":
            image = ImageEnhance.Brightness(image).enhance(1 + (factor - 1) / 2)
        elif step == "contrast":
            image = ImageEnhance.Contrast(image).enhance(factor)
        elif step == "saturation":
            image = ImageEnhance.Color(image).enhance(factor)
        else:
            hue, saturation, value = image.convert("HSV").split()
            shift = round((factor - 1) / 5 * 256)
            image = Image.merge("HSV", (hue.point(lambda h, by=shift: (h + by) % 256), saturation, value)).convert(
                "RGB"
            )
    return image


def expanded(
    image: Image.Image, objects: Tensor, ratio: float, rng: random.Random, fill: tuple[int, int, int]
) -> tuple[Image.Image, Tensor]:
    """The image somewhere on a larger canvas."""
    width, height = round(image.width * ratio), round(image.height * ratio)
    left, top = rng.randint(0, width - image.width), rng.randint(0, height - image.height)
    canvas = Image.new("RGB", (width, height), fill)
    canvas.paste(image, (left, top))
    return canvas, moved(objects, left, top)


def cropped(image: Image.Image, objects: Tensor, least: float, rng: random.Random) -> tuple[Image.Image, Tensor]:
    """A part of the image that overlaps some object by a drawn share; objects whose middle is outside are dropped."""
    wanted = rng.choice(OVERLAPS)
    if wanted is None or not len(objects):
        return image, objects
    for _ in range(TRIALS):
        width, height = (max(1, round(side * rng.uniform(least, 1))) for side in image.size)
        if not 0.5 <= width / height <= 2:
            continue
        left, top = rng.randint(0, image.width - width), rng.randint(0, image.height - height)
        window = torch.tensor([[left, top, left + width, top + height]], dtype=objects.dtype)
        if float(iou(window, objects[:, :4]).max()) < wanted:
            continue
        middle = (objects[:, :2] + objects[:, 2:4]) / 2
        stays = ((middle > window[:, :2]) & (middle < window[:, 2:])).all(1)
        if not bool(stays.any()):
            continue
        low, high = objects[stays, :2].maximum(window[:, :2]), objects[stays, 2:4].minimum(window[:, 2:])
        kept = moved(torch.cat([low, high, objects[stays, 4:]], 1), -left, -top)
        assert bool((area(kept[:, :4]) > 0).all())
        return image.crop((left, top, left + width, top + height)), kept
    return image, objects


def flipped(image: Image.Image, objects: Tensor) -> tuple[Image.Image, Tensor]:
    left, top, right, bottom, *rest = objects.unbind(1)
    mirrored = torch.stack([image.width - right, top, image.width - left, bottom, *rest], 1)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), mirrored


def turned(image: Image.Image, objects: Tensor) -> tuple[Image.Image, Tensor]:
    """A quarter turn against the clock."""
    left, top, right, bottom, *rest = objects.unbind(1)
    turned_objects = torch.stack([top, image.width - right, bottom, image.width - left, *rest], 1)
    return image.transpose(Image.Transpose.ROTATE_90), turned_objects


def moved(objects: Tensor, x: float, y: float) -> Tensor:
    return torch.cat([objects[:, :4] + objects.new_tensor([x, y, x, y]), objects[:, 4:]], 1)


def resized(image: Image.Image, objects: Tensor, size: int, interpolation: str) -> tuple[Image.Image, Tensor]:
    """The whole image as a square of a size, its objects as shares of it; the aspect ratio is not kept (SSD)."""
    scale = objects.new_tensor([image.width, image.height, image.width, image.height])
    shares = torch.cat([objects[:, :4] / scale, objects[:, 4:]], 1)
    return image.resize((size, size), FILTERS[interpolation]), shares
