"""Images with boxes: geometry, and SSD's augmentation of an image and its boxes together.

Corners are (left, top, right, bottom), centres are (x, y, width, height). Coordinates are continuous: a box as wide as
one pixel has a width of one. Objects [G, 6] are corners, class and difficult.

Expansion and crop only choose a window, in pixels of the image; it may reach beyond the image. The window is then cut
out and resized in one step, so that large images cost no more than small ones.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from dsnet.errors import DataError
from dsnet.images import FILTERS, ImageFile, squeeze
from dsnet.schema import Typed

Window = tuple[float, float, float, float]
Colour = tuple[int, int, int]
OVERLAPS = (None, 0.1, 0.3, 0.5, 0.7, 0.9, 0.0)  # smallest IoU of crop and object; None is the whole image, 0 any crop
TRIALS = 50
PADDING = -1  # class of the rows that pad the objects of a batch


def to_corners(centres: Tensor) -> Tensor:
    middle, size = centres[..., :2], centres[..., 2:]
    return torch.cat([middle - size / 2, middle + size / 2], -1)


def to_centres(corners: Tensor) -> Tensor:
    low, high = corners[..., :2], corners[..., 2:]
    return torch.cat([(low + high) / 2, high - low], -1)


def area(corners: Tensor) -> Tensor:
    return (corners[..., 2:] - corners[..., :2]).clamp_min(0).prod(-1)


def iou(first: Tensor, second: Tensor) -> Tensor:
    """Intersection over union of every pair of boxes, which is 0 where both are empty.

    Takes corners [..., N, 4] and [..., M, 4], returns [..., N, M].
    """
    low = torch.maximum(first[..., :, None, :2], second[..., None, :, :2])
    high = torch.minimum(first[..., :, None, 2:], second[..., None, :, 2:])
    both = (high - low).clamp_min(0).prod(-1)
    either = area(first)[..., :, None] + area(second)[..., None, :] - both
    return torch.where(either > 0, both / either.clamp_min(torch.finfo(both.dtype).tiny), 0)


@dataclass(frozen=True)
class BoxAugmentConfig(Typed):
    """How training images and their boxes are augmented.

    Args:
        colour: Strength of brightness, contrast, saturation and hue changes, from 0 to 1. SSD uses 0.5.
        expand: Place half of the images on a grey canvas of up to this many times their side. 1 switches it off.
        crop: Crop a part that overlaps some object by a random share, as in SSD.
        least: Smallest side of a crop, as a share of the image.
        flip: Flip half of the images horizontally.
        turn: Also flip vertically and turn by quarters, for images without an upright position.
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
    whole: Image.Image | ImageFile,
    objects: Tensor,
    config: BoxAugmentConfig,
    rng: random.Random,
    *,
    size: int,
    interpolation: str,
    fill: Colour,
) -> tuple[Image.Image, Tensor]:
    """Augment an image and its objects [G, 6]: corners in pixels, class, difficult.

    Returns a square image, and the objects with corners as shares of its side.
    """
    window: Window = (0.0, 0.0, float(whole.width), float(whole.height))
    if config.expand > 1 and rng.random() < 0.5:
        window = expanded(window, rng.uniform(1, config.expand), rng)
    if config.crop:
        window = cropped(window, objects, config.least, rng)
    image, place = cut(whole, window, size, interpolation)
    if config.colour:
        image = recoloured(image, config.colour, rng)
    square = Image.new("RGB", (size, size), fill)
    square.paste(image, place)
    objects = visible(objects, window)
    if config.flip and rng.random() < 0.5:
        square, objects = flipped(square, objects)
    if config.turn:
        for _ in range(rng.randrange(4)):
            square, objects = turned(square, objects)
    return square, objects


def expanded(window: Window, ratio: float, rng: random.Random) -> Window:
    """A window that is larger by `ratio` and holds the image at a random place."""
    width, height = window[2] - window[0], window[3] - window[1]
    left, top = (-rng.uniform(0, side * (ratio - 1)) for side in (width, height))
    return left, top, left + width * ratio, top + height * ratio


def cropped(window: Window, objects: Tensor, least: float, rng: random.Random) -> Window:
    """A random part of the window that has a randomly chosen overlap with some object and holds the centre of one."""
    least_iou = rng.choice(OVERLAPS)
    if least_iou is None or not len(objects):
        return window
    sides = window[2] - window[0], window[3] - window[1]
    for _ in range(TRIALS):
        width, height = (side * rng.uniform(least, 1) for side in sides)
        if not 0.5 <= width / height <= 2:
            continue
        left, top = window[0] + rng.uniform(0, sides[0] - width), window[1] + rng.uniform(0, sides[1] - height)
        part = (left, top, left + width, top + height)
        overlaps = iou(objects.new_tensor([part]), objects[:, :4])
        if float(overlaps.max()) >= least_iou and len(visible(objects, part)):
            return part
    return window


def visible(objects: Tensor, window: Window) -> Tensor:
    """The objects whose centre lies in a window, clipped to it, with corners as shares of its sides."""
    low, high = objects.new_tensor(window[:2]), objects.new_tensor(window[2:])
    middle = (objects[:, :2] + objects[:, 2:4]) / 2
    kept = objects[((middle > low) & (middle < high)).all(1)]
    corners = torch.cat([kept[:, :2] - low, kept[:, 2:4] - low], 1) / (high - low).repeat(2)
    return torch.cat([corners.clamp(0, 1), kept[:, 4:]], 1)


def cut(
    image: Image.Image | ImageFile, window: Window, size: int, interpolation: str
) -> tuple[Image.Image, tuple[int, int]]:
    """The part of the image inside a window that is scaled to `size`, and its place (left, top) in that square."""
    scale_x, scale_y = size / (window[2] - window[0]), size / (window[3] - window[1])
    left, top = max(0.0, window[0]), max(0.0, window[1])
    right, bottom = min(float(image.width), window[2]), min(float(image.height), window[3])
    width, height = max(1, round((right - left) * scale_x)), max(1, round((bottom - top) * scale_y))
    part = image.resize((width, height), FILTERS[interpolation], box=(left, top, right, bottom))
    return part, (round((left - window[0]) * scale_x), round((top - window[1]) * scale_y))


def recoloured(image: Image.Image, strength: float, rng: random.Random) -> Image.Image:
    """Make each change with a probability of one half, with contrast before or after saturation and hue."""
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


def flipped(image: Image.Image, objects: Tensor) -> tuple[Image.Image, Tensor]:
    left, top, right, bottom, *rest = objects.unbind(1)
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT), torch.stack([1 - right, top, 1 - left, bottom, *rest], 1)


def turned(image: Image.Image, objects: Tensor) -> tuple[Image.Image, Tensor]:
    """Rotate by 90 degrees counter-clockwise."""
    left, top, right, bottom, *rest = objects.unbind(1)
    return image.transpose(Image.Transpose.ROTATE_90), torch.stack([top, 1 - right, bottom, 1 - left, *rest], 1)


def resized(
    image: Image.Image | ImageFile, objects: Tensor, size: int, interpolation: str
) -> tuple[Image.Image, Tensor]:
    """Resize the whole image to a square, without keeping the aspect ratio (SSD). Corners become shares of its side."""
    scale = objects.new_tensor([image.width, image.height, image.width, image.height])
    shares = torch.cat([objects[:, :4] / scale, objects[:, 4:]], 1)
    return squeeze(image, size, interpolation), shares


def inside(objects: Tensor, width: int, height: int, file: str) -> Tensor:
    """Clip objects to the image. An object that lies entirely outside is an error."""
    limits = objects.new_tensor([width, height, width, height])
    clipped = torch.cat([objects[:, :4].clamp_min(0).minimum(limits), objects[:, 4:]], 1)
    empty = ((clipped[:, 2:4] - clipped[:, :2]) <= 0).any(1)
    if bool(empty.any()):
        box = [round(edge, 1) for edge in objects[empty][0, :4].tolist()]
        raise DataError(
            f"{file} has {width} x {height} pixels, but its annotation has an object outside of it, at {box}"
        )
    return clipped


def padded(objects: list[Tensor]) -> Tensor:
    """Stack the objects of several images into one tensor [B, G, 6], padded with rows of class -1."""
    longest = max([1, *(len(own) for own in objects)])
    filled = torch.zeros(len(objects), longest, 6)
    filled[:, :, 4] = PADDING
    for row, own in zip(filled, objects, strict=True):
        row[: len(own)] = own
    return filled
