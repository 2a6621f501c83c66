"""Image files to uint8 tensors: one defined result for every kind of file, one clear error for a bad one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dsnet.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
MAX_PIXELS = 100_000_000
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


def read_image(file: Path, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The first frame in RGB, upright by its EXIF orientation.

    Transparent images are laid on white. 16-bit and float images are scaled to 8 bits: by 257 where values
    exceed 255, from [0, 1] where they are fractions; other float ranges are clipped to [0, 255].
    """
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise DataError(
                    f"{file} has {image.width} x {image.height} pixels, more than the limit of {max_pixels}; "
                    f"shrink it or raise max_pixels"
                )
            image.load()
            return to_rgb(ImageOps.exif_transpose(image))
    except DataError:
        raise
    except Exception as error:  # Pillow reports damaged files by many kinds of errors
        raise DataError(
            f"{file} cannot be read as an image ({error}); replace or remove it; "
            f"training passes over such files with data.on_corrupt skip"
        ) from error


def to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image).astype(np.float64)
        if np.issubdtype(np.asarray(image).dtype, np.floating):
            values = values * 255 if values.size and np.nan_to_num(values).max() <= 1 else values
        elif values.size and values.max() > 255:
            values = values / 257
        image = Image.fromarray(np.nan_to_num(values).clip(0, 255).round().astype(np.uint8))
    if image.mode == "P" and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "P") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")


def to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()  # [3, H, W] uint8


def centre_crop(image: Image.Image, size: int, *, crop: float, interpolation: str) -> Image.Image:
    """The centre square that resizing the short side to size / crop would leave, in one resampling step."""
    side = min(image.size) * crop
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), FILTERS[interpolation], box=(left, top, left + side, top + side))


def random_crop(
    image: Image.Image, size: int, *, scale: tuple[float, float], interpolation: str, rng: random.Random
) -> Image.Image:
    """Random resized crop: an area share from `scale`, an aspect ratio from 3/4 to 4/3."""
    for _ in range(10):
        area = image.width * image.height * rng.uniform(*scale)
        ratio = (3 / 4) ** rng.uniform(-1, 1)
        width, height = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if width <= image.width and height <= image.height:
            left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
            return image.resize((size, size), FILTERS[interpolation], box=(left, top, left + width, top + height))
    return centre_crop(image, size, crop=1.0, interpolation=interpolation)
