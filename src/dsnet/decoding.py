"""Decoded images of every mode and orientation as upright RGB, in little more memory than one of them takes.

A decoded image is held once, as Pillow stores it. It is turned and converted a few rows at a time while it is resized.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import PIL
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from dsnet.errors import DataError

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
MAX_PIXELS = 75_000_000
MAX_SIDE = 65_535  # the most that a JPEG or a GIF can have
PIXEL = 4  # bytes that Pillow takes for a pixel in colour
COLUMNS_FIRST = int(PIL.__version__.split(".")[0]) >= 13  # where they shrink much more than the rows
STRIP = 2**18  # pixels that are turned and converted together
Box = tuple[float, float, float, float]
Turn = Image.Transpose
TURNS = {  # EXIF orientations
    2: Turn.FLIP_LEFT_RIGHT,
    3: Turn.ROTATE_180,
    4: Turn.FLIP_TOP_BOTTOM,
    5: Turn.TRANSPOSE,
    6: Turn.ROTATE_270,
    7: Turn.TRANSVERSE,
    8: Turn.ROTATE_90,
}
BITS_PER_SAMPLE, ROWS_PER_STRIP, TILE_WIDTH, TILE_LENGTH = 258, 278, 322, 323  # tags of TIFF
TURNED, MIRRORED_X, MIRRORED_Y = (5, 6, 7, 8), (2, 3, 6, 7), (3, 4, 7, 8)


class ImageError(DataError):
    """A file that cannot be read as an image. `reason` tells why, without the name of the `file`."""

    def __init__(self, file: Path, reason: str, remedy: str = "replace or remove it") -> None:
        self.file, self.reason, self.remedy = str(file), reason, remedy
        self.found = f"{file} cannot be read as an image ({reason})"
        super().__init__(f"{self.found}; {remedy}")


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn whatever Pillow raises for a damaged file into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError as error:
        raise ImageError(file, "its format is unknown or its header damaged") from error
    except Image.DecompressionBombError as error:
        raise ImageError(file, " ".join(str(error).split()), "shrink it") from error
    except Exception as error:  # Pillow raises many kinds of errors
        raise ImageError(file, " ".join(str(error).split()) or type(error).__name__) from error


@contextmanager
def opened(file: Path, max_pixels: int, data: bytes | None = None) -> Iterator[Image.Image]:
    """An image file whose header is read and not too large. It can be decoded inside a `with` block.

    data: The content of the file, if it is known.
    """
    stream: BinaryIO
    with (
        reading(file),
        file.open("rb") if data is None else io.BytesIO(data) as stream,
        Image.open(stream, formats=FORMATS) as image,
    ):
        check_size(file, image, stream, max_pixels)
        yield image


def check_size(file: Path, image: Image.Image, stream: BinaryIO, max_pixels: int) -> None:
    """Refuse what would take too much memory. Where decoding takes more than a pixel's four bytes, pixels are fewer."""
    if max(image.size) > MAX_SIDE:
        raise ImageError(file, f"a side of {max(image.size):,} pixels is above the limit of {MAX_SIDE:,}", "shrink it")
    pixels = image.width * image.height
    most = int(max_pixels * PIXEL * pixels / memory(image, stream))
    if pixels > most:
        kind = "" if most == max_pixels else f" for such a {image.format} file"
        reason = f"it has {image.width} x {image.height} pixels, more than the limit of {most:,}{kind}"
        raise ImageError(file, reason, "shrink it" if not kind else "shrink it, or save it as PNG")


def memory(image: Image.Image, stream: BinaryIO) -> float:
    """Bytes that decoding an image takes at most, besides a few megabytes."""
    pixels, beside = PIXEL * image.width * image.height, 0.0
    if isinstance(image, JpegImageFile):
        beside = image.width * image.height * coefficients(stream)
    elif image.format == "WEBP":  # libwebp has two copies, Pillow another, and the file is held
        beside = 3 * pixels + stream.seek(0, 2)
    elif image.format == "TIFF":
        beside = piece(image) + (pixels if image.getexif().get(ExifTags.Base.Orientation, 1) != 1 else 0)
    return max(1.0, pixels + beside)


def coefficients(stream: BinaryIO) -> float:
    """Bytes for each pixel that libjpeg keeps until the last scan of a JPEG; none where the first scan is the whole."""
    place, layers, progressive = 2, [1, 1, 1, 1], True  # the most, which stands where no frame is found
    while True:
        stream.seek(place)
        marker = stream.read(4)
        if len(marker) < 4 or marker[0] != 0xFF:
            return 2.0 * sum(layers) / max(layers)
        kind, length = marker[1], struct.unpack(">H", marker[2:])[0]
        if kind == 0xFF:  # a filling byte
            place += 1
            continue
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):  # the frame: its layers with their sampling
            progressive = kind not in (0xC0, 0xC1, 0xC9)
            layers = [max(1, (sides >> 4) * (sides & 15)) for sides in stream.read(length - 2)[7::3]] or layers
        if kind == 0xDA:  # the first scan: the number of its layers
            whole = stream.read(1) == bytes([len(layers)]) and not progressive
            return 0.0 if whole else 2.0 * sum(layers) / max(layers)
        place += 2 + length


def piece(image: Image.Image) -> float:
    """Bytes of a strip or tile of a TIFF, which libtiff decodes whole. What is not compressed is read row by row."""
    if image.info.get("compression") == "raw":
        return 0.0
    tags = image.tag_v2  # type: ignore[attr-defined]
    columns, rows = tags.get(TILE_WIDTH, image.width), min(tags.get(ROWS_PER_STRIP, image.height), image.height)
    return columns * tags.get(TILE_LENGTH, rows) * sum(tags.get(BITS_PER_SAMPLE, (8,))) / 8


class Upright:
    """A decoded image of any mode, as upright RGB.

    Like a PIL image it has `width`, `height` and `resize`. What `resize` gives is what the whole image in RGB would
    give, bit for bit.
    """

    def __init__(self, image: Image.Image) -> None:
        image.load()
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
        self.image, self.orientation = image, orientation if orientation in TURNS else 1
        self.width, self.height = image.size[::-1] if self.orientation in TURNED else image.size
        self.factor = self.factor_of_values()

    def resize(self, size: tuple[int, int], resample: int, box: Box | None = None) -> Image.Image:
        """Resize the part in `box` (left, top, right, bottom) as RGB, as PIL's `resize` does."""
        box = box or (0, 0, self.width, self.height)
        if self.plain:
            return self.image.resize(size, resample, box=box)
        if resample == Image.Resampling.NEAREST:
            return self.picked(size, box)
        left, top, right, bottom = box
        if self.tall(size):  # columns first
            half, (first, last) = Image.new("RGB", (self.width, size[1])), reach(left, right, size[0], self.width)
            for column, end in strips(first, last, self.height):
                part = self.part(column, 0, end, self.height)
                half.paste(part.resize((part.width, size[1]), resample, (0, top, part.width, bottom)), (column, 0))
            return half.resize(size, resample, (left, 0, right, size[1]))
        half, (first, last) = Image.new("RGB", (size[0], self.height)), reach(top, bottom, size[1], self.height)
        for row, end in strips(first, last, self.width):
            part = self.part(0, row, self.width, end)
            half.paste(part.resize((size[0], part.height), resample, (left, 0, right, part.height)), (0, row))
        return half.resize(size, resample, (0, top, size[0], bottom))

    def tall(self, size: tuple[int, int]) -> bool:
        """Whether Pillow resizes the columns before the rows. Its result has 8 bits in between, so the order counts."""
        down, across = self.height - size[1], self.width - size[0]
        return COLUMNS_FIRST and down > max(0, 2 * across)

    def picked(self, size: tuple[int, int], box: Box) -> Image.Image:
        """The nearest pixels. Which they are is what PIL picks of their numbers."""
        columns, rows = (
            np.asarray(
                Image.fromarray(np.arange(side, dtype=np.int32)[None]).resize(
                    (count, 1), Image.Resampling.NEAREST, box=(low, 0, high, 1)
                )
            )[0]
            for side, count, low, high in zip((self.width, self.height), size, box[:2], box[2:], strict=True)
        )
        lines = (np.asarray(self.part(0, row, self.width, row + 1))[0, columns] for row in rows.tolist())
        return Image.fromarray(np.stack(list(lines)))

    def rgb(self) -> Image.Image:
        """The whole image."""
        if self.plain:
            return self.image
        whole = Image.new("RGB", (self.width, self.height))
        for row, end in strips(0, self.height, self.width):
            whole.paste(self.part(0, row, self.width, end), (0, row))
        return whole

    @property
    def plain(self) -> bool:
        return self.image.mode == "RGB" and self.orientation == 1 and "transparency" not in self.image.info

    def part(self, left: int, top: int, right: int, bottom: int) -> Image.Image:
        """A part of the upright image as RGB."""
        if self.orientation in MIRRORED_X:
            left, right = self.width - right, self.width - left
        if self.orientation in MIRRORED_Y:
            top, bottom = self.height - bottom, self.height - top
        turned = self.orientation in TURNED
        part = self.image.crop((top, left, bottom, right) if turned else (left, top, right, bottom))
        return to_rgb(part if self.orientation == 1 else part.transpose(TURNS[self.orientation]), self.factor)

    def factor_of_values(self) -> float:
        """What values of more than 8 bits are multiplied by: those of 16 bits to 255, shares of floats by 255."""
        if not deep(self.image):
            return 1.0
        (width, height), most = self.image.size, 0.0
        for row, end in strips(0, height, width):
            values = np.asarray(self.image.crop((0, row, width, end))).astype(np.float64)
            most = max(most, float(np.nan_to_num(values).max()))
        if self.image.mode == "F":
            return 255.0 if most <= 1 else 1.0
        return 1 / 257 if most > 255 else 1.0


def strips(first: int, last: int, length: int) -> Iterator[tuple[int, int]]:
    """Cut rows or columns of some length into strips: the first one of each, and the one behind its last."""
    step = max(1, STRIP // max(1, length))
    for start in range(first, last, step):
        yield start, min(start + step, last)


def reach(low: float, high: float, size: int, most: int) -> tuple[int, int]:
    """The rows or columns that are read to resize those from `low` to `high`. No filter is wider than 3 pixels."""
    margin = 3 * max(1, (high - low) / size) + 2
    return max(0, int(low - margin)), min(most, int(high + margin))


def deep(image: Image.Image) -> bool:
    """Whether an image has one value of more than 8 bits for each pixel."""
    return image.mode.startswith("I") or image.mode == "F"


def to_rgb(image: Image.Image, factor: float) -> Image.Image:
    """Turn pixels of any mode into RGB, on white where they are transparent. factor: of values with more bits."""
    if deep(image):
        values = np.asarray(image).astype(np.float64)
        values = values / 257 if factor < 1 else values * factor
        image = Image.fromarray(np.nan_to_num(values).clip(0, 255).round().astype(np.uint8))
    if image.mode == "P" and "transparency" not in image.info:
        return image.convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "P") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        white = Image.new("RGBA", rgba.size, "white")
        return Image.alpha_composite(white, rgba).convert("RGB")
    return image.convert("RGB")
