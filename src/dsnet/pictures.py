"""From files, folders, PIL images and arrays of pixels to the input of a network, as its manifest says."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from dsnet.decoding import Upright
from dsnet.errors import DataError
from dsnet.images import SUFFIXES, ImageFile, prepare
from dsnet.manifest import Manifest

Picture = str | os.PathLike[str] | Image.Image | np.ndarray


def image_files(names: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The given files, and all images in the given folders and their subfolders, sorted within each folder."""
    files: list[Path] = []
    for name in names:
        place = Path(name)
        if place.is_dir():
            inside = sorted(file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not inside:
                raise DataError(f"{place} holds no images ({', '.join(SUFFIXES)}); give another folder")
            files += inside
        elif place.is_file():
            files.append(place)
        else:
            raise DataError(f"{place} does not exist; give image files or folders of them")
    return files


def listed(images: Picture | Iterable[Picture]) -> tuple[list[Picture], bool]:
    """The images as a list without folders, and whether a single image was given."""
    if isinstance(images, str | os.PathLike):
        return list(image_files([images])), not Path(images).is_dir()
    if isinstance(images, Image.Image) or (isinstance(images, np.ndarray) and images.ndim < 4):
        return [images], True
    if not isinstance(images, Iterable):
        raise DataError(f"images is {images!r}; give files, folders, PIL images, arrays of pixels, or a list of them")
    return [picture for one in images for picture in listed(one)[0]], False


def opened(picture: Picture) -> Upright | ImageFile:
    """A picture as an upright RGB image. A JPEG file is decoded when it is resized."""
    if isinstance(picture, np.ndarray):
        picture = from_pixels(picture)
    return Upright(picture) if isinstance(picture, Image.Image) else ImageFile(Path(picture))


def from_pixels(pixels: np.ndarray) -> Image.Image:
    """An image from an array of pixels: [H, W] or [H, W, 1] grey, [H, W, 3] RGB, [H, W, 4] RGB and transparency."""
    right = pixels.ndim == 2 or (pixels.ndim == 3 and pixels.shape[2] in (1, 3, 4))
    if pixels.dtype != np.uint8 or not right or not pixels.size:
        raise DataError(
            f"an array of {pixels.dtype} {list(pixels.shape)} is not an image; give uint8 pixels [H, W, 3] in RGB, or "
            f"[H, W] in grey. Runners take normalised float32 batches [B, C, H, W], except those of raw files"
        )
    return Image.fromarray(pixels.squeeze(2) if pixels.shape[2:] == (1,) else pixels)


def name_of(picture: Picture, number: int) -> str:
    """The file of a picture, or its number where it has none."""
    if isinstance(picture, str | os.PathLike):
        return os.fspath(picture)
    return str(getattr(picture, "filename", "")) or f"image {number}"


def as_input(image: Upright | ImageFile, manifest: Manifest) -> np.ndarray:
    """Turn an image into the network's input [C, S, S], or into the pixels [H, W, 3] that a raw file takes."""
    if manifest.raw:
        return np.asarray((image.decoded()[0] if isinstance(image, ImageFile) else image).rgb())
    options = manifest.preprocessing
    return prepare(
        image,
        size=manifest.image_size,
        channels=manifest.in_channels,
        fit=options.fit,
        crop=options.crop,
        interpolation=options.interpolation,
        mean=options.mean,
        std=options.std,
    )


def as_batch(images: Picture | Iterable[Picture], manifest: Manifest) -> np.ndarray | list[np.ndarray]:
    """Turn images into the network's input [B, C, S, S], or into a list of pictures for a raw file."""
    return batch_of([as_input(opened(picture), manifest) for picture in listed(images)[0]], manifest)


def batch_of(inputs: list[np.ndarray], manifest: Manifest) -> np.ndarray | list[np.ndarray]:
    """Inputs together: one array, or the list itself for a raw file, whose pictures have different sizes."""
    if manifest.raw:
        return inputs
    if not inputs:
        return np.zeros((0, manifest.in_channels, manifest.image_size, manifest.image_size), np.float32)
    return np.stack(inputs)


def check_pictures(pictures: Iterable[np.ndarray]) -> None:
    """Refuse what a raw file does not take."""
    for picture in pictures:
        kind, shape = str(picture.dtype).removeprefix("torch."), tuple(picture.shape)
        if kind != "uint8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
            raise ValueError(
                f"input is {kind} {list(shape)} but a raw file takes whole pictures, uint8 [height, width, 3]; give "
                f"pictures, or a file that was exported without --raw"
            )
