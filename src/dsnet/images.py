"""From image files to network inputs, without torch. Evaluation and prediction share this preprocessing.

Every image format has one defined result, and a damaged file raises an error that names it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image
from PIL.JpegImagePlugin import JpegImageFile

from dsnet.decoding import (
    MAX_PIXELS,
    MIRRORED_X,
    MIRRORED_Y,
    TURNED,
    Box,
    Upright,
    opened,
    reading,
)
from dsnet.decoding import ImageError as ImageError  # readers catch it
from dsnet.errors import DataError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
Interpolation = Literal["nearest", "bilinear", "bicubic"]
Fit = Literal["crop", "squeeze"]
GAP = 1.75  # pixels that a reduced JPEG has at least, in each direction, for a pixel of the result
FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
}


class ImageFile:
    """An image file that is decoded when it is resized. It knows the width and height of the upright image.

    Like a PIL image it has `width`, `height` and `resize`, so a crop is chosen in pixels of the whole image. A JPEG
    is then decoded at 1/2, 1/4 or 1/8 of its size, if the crop still has enough pixels. That takes a fraction of the
    time and memory. Other formats are decoded whole, and at once.
    """

    def __init__(self, file: Path, *, max_pixels: int = MAX_PIXELS, data: bytes | None = None) -> None:
        """data: the content of the file, which is then not read; `file` is its name in errors."""
        self.file, self.max_pixels, self.data, self.scale = file, max_pixels, data, 1
        self.upright: Upright | None = None
        with opened(file, max_pixels, data) as image:
            if isinstance(image, JpegImageFile):
                self.width, self.height = image.size
                if image.getexif().get(ExifTags.Base.Orientation, 1) in TURNED:
                    self.width, self.height = self.height, self.width
            else:
                self.upright = Upright(image)
                self.width, self.height = self.upright.width, self.upright.height

    def resize(self, size: tuple[int, int], resample: int, box: Box | None = None) -> Image.Image:
        """Resize the part of the upright image in `box` (left, top, right, bottom) as RGB, as PIL's `resize` does."""
        left, top, right, bottom = box or (0, 0, self.width, self.height)
        most = min((right - left) / size[0], (bottom - top) / size[1]) / GAP
        if resample == Image.Resampling.NEAREST:  # takes single pixels, which a smaller image does not have
            most = 1
        image, scale = self.decoded(most)
        # The last column and row of a reduced image stand for fewer pixels. They come first if the image was mirrored.
        across = image.width - self.width / scale if image.orientation in MIRRORED_X else 0
        down = image.height - self.height / scale if image.orientation in MIRRORED_Y else 0
        with reading(self.file):
            return image.resize(
                size,
                resample,
                box=(
                    left / scale + across,
                    top / scale + down,
                    min(right / scale + across, image.width),
                    min(bottom / scale + down, image.height),
                ),
            )

    def decoded(self, most: float = 1) -> tuple[Upright, int]:
        """The decoded image, and by how much it is smaller than the file's: by at most `most`, on the first call.

        Later calls return the image of the first.
        """
        if self.upright is None:
            self.scale = next(step for step in (8, 4, 2, 1) if step <= max(most, 1))
            with opened(self.file, self.max_pixels, self.data) as image:
                if self.scale > 1:
                    image.draft(None, (image.width // self.scale, image.height // self.scale))
                self.upright = Upright(image)
        return self.upright, self.scale


Readable = Image.Image | Upright | ImageFile  # what has a width, a height and a `resize`


def read_image(file: Path, *, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Read the first frame at its full size as RGB, turned upright by its EXIF orientation.

    Transparent images are laid on white. 16-bit images with values above 255 are divided by 257. Float images
    with values up to 1 are multiplied by 255; other float values are clipped to [0, 255].
    """
    image, _ = ImageFile(file, max_pixels=max_pixels).decoded()
    with reading(file):
        return image.rgb()


def check_image(file: Path, *, max_pixels: int = MAX_PIXELS, whole: bool = True) -> None:
    """Raise an ImageError for a file that `read_image` refuses, in less time than it takes to read it.

    JPEGs are decoded at an eighth of their size, which reads all of their data. The checksums of PNGs are compared.
    Files of other formats are decoded. With whole=False only the header is read.
    """
    with opened(file, max_pixels) as image:
        if not whole:
            return
        if image.format == "PNG":
            with suppress(Exception):  # a wrong checksum may lie in a part that holds no pixels
                image.verify()
                return
            ImageFile(file, max_pixels=max_pixels)
            return
        image.draft(None, (max(1, image.width // 8), max(1, image.height // 8)))  # of effect for JPEGs only
        Upright(image).part(0, 0, 1, 1)


def centre_crop(image: Readable, size: int, *, crop: float, interpolation: str) -> Image.Image:
    """The centre square that resizing the short side to size / crop would leave, in one resampling step."""
    side = min(image.width, image.height) * crop
    left, top = (image.width - side) / 2, (image.height - side) / 2
    return image.resize((size, size), FILTERS[interpolation], box=(left, top, left + side, top + side))


def random_crop(
    image: Readable, size: int, *, scale: tuple[float, float], interpolation: str, rng: random.Random
) -> Image.Image:
    """Random resized crop: a share of the area drawn from `scale`, an aspect ratio from 3/4 to 4/3."""
    for _ in range(10):
        area = image.width * image.height * rng.uniform(*scale)
        ratio = (3 / 4) ** rng.uniform(-1, 1)
        width, height = (area * ratio) ** 0.5, (area / ratio) ** 0.5
        if width <= image.width and height <= image.height:
            left, top = rng.uniform(0, image.width - width), rng.uniform(0, image.height - height)
            return image.resize((size, size), FILTERS[interpolation], box=(left, top, left + width, top + height))
    return centre_crop(image, size, crop=1.0, interpolation=interpolation)


def squeeze(image: Readable, size: int, interpolation: str) -> Image.Image:
    """Resize the whole image to a square without keeping its aspect ratio, as SSD does."""
    return image.resize((size, size), FILTERS[interpolation])


def to_array(image: Image.Image, channels: int) -> np.ndarray:
    """The pixels of a grey (1 channel) or colour (3 channels) image, uint8 [C, H, W]."""
    if channels not in (1, 3):
        raise DataError(f"the network takes {channels} channels; only grey and colour images can be read")
    pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))  # [H, W] or [H, W, 3]
    return np.ascontiguousarray(pixels.reshape(image.height, image.width, channels).transpose(2, 0, 1))


def normalise(pixels: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """Normalise uint8 pixels [..., C, H, W] to float32, bit for bit as training does in torch."""
    shares = pixels.astype(np.float32) / np.float32(255)
    return (shares - np.array(mean, np.float32).reshape(-1, 1, 1)) / np.array(std, np.float32).reshape(-1, 1, 1)


def prepare(
    image: Readable,
    *,
    size: int,
    channels: int,
    fit: Fit,
    crop: float,
    interpolation: str,
    mean: Sequence[float],
    std: Sequence[float],
) -> np.ndarray:
    """Turn an image into a network's input, float32 [C, S, S].

    fit: `crop` takes a centre square whose side is the share `crop` of the short side, as classifiers do; `squeeze`
    takes the whole image, as detectors do.
    """
    if fit == "crop":
        image = centre_crop(image, size, crop=crop, interpolation=interpolation)
    elif fit == "squeeze":
        image = squeeze(image, size, interpolation)
    else:
        raise ValueError(f"fit {fit!r} is unknown; choose crop or squeeze")
    return normalise(to_array(image, channels), mean, std)
