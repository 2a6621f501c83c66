"""Datasets of torch as the data of a run: anything with items of a uint8 image and its class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dsnet.decoding import Upright
from dsnet.errors import DataError, must
from dsnet.images import ImageError

SHAPES = "a PIL image, a uint8 tensor [3, H, W] or [1, H, W], or a uint8 array [H, W, 3] or [H, W]"


@dataclass(frozen=True)
class Datasets:
    """Datasets of torch to train, calibrate and test on, in place of files. An item is an image and its class.

    An image is a PIL image, a uint8 tensor [3, H, W] or [1, H, W], or a uint8 array [H, W, 3] or [H, W]; a class is a
    number from 0. dsnet resizes, augments and normalises the images itself, so the datasets should not. It also turns
    PIL images as their EXIF data say; a dataset that does so uses `ImageOps.exif_transpose`, which deletes the entry.

    Args:
        train: A map-style dataset (`len` and items by number), or an iterable one. A map-style dataset is shuffled,
            split and resumed as files are. An iterable one yields its images in an order of its own, the same in every
            process; it is told the epoch by `set_epoch`, if it has that.
        test: A map-style dataset that only evaluation reads. By default a fifth of a map-style `train`.
        calibration: A map-style dataset to calibrate on. By default a share of a map-style `train`, data.calibration.
        classes: Names of the classes. By default the attribute `classes` of `train`, or else their numbers.
        images: Number of images that an iterable dataset yields in an epoch, if it has no `len`.
    """

    train: Any
    test: Any = None
    calibration: Any = None
    classes: Sequence[str] = ()
    images: int | None = None

    def __post_init__(self) -> None:
        for name in ("test", "calibration"):
            dataset = getattr(self, name)
            if dataset is not None and not is_map(dataset):
                raise ValueError(
                    f"the {name} dataset is a {type(dataset).__name__} without items by number, and evaluation asks "
                    f"for single images; pass list(dataset)"
                )
        if is_map(self.train):
            must("images", self.images, self.images is None, "be left out where the dataset has a length")
            return
        if not hasattr(self.train, "__iter__"):
            raise ValueError(f"the training dataset is a {type(self.train).__name__}; give one of torch's datasets")
        if self.test is None or self.calibration is None:
            raise ValueError("an iterable dataset cannot be split; give test= and calibration= as map-style datasets")


def is_map(dataset: Any) -> bool:
    return hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")


def name_of(dataset: Any) -> str:
    return type(dataset).__name__


def read_item(dataset: Any, number: int, item: Any) -> tuple[Image.Image, int]:
    """The picture and the class of an item."""
    where = f"item {number} of {name_of(dataset)}"
    try:
        image, label = item
        label = int(label)
    except (TypeError, ValueError):
        raise DataError(
            f"{where} is a {type(item).__name__}; it must be an image and the number of its class"
        ) from None
    if label < 0:
        raise DataError(f"{where} has the class {label}; classes count from 0")
    return picture(image, where), label


def picture(image: Any, where: str) -> Image.Image:
    """An image of a dataset in RGB, turned upright as files are."""
    if isinstance(image, Image.Image):
        return Upright(image).rgb()
    kind = f"{image.dtype} {tuple(image.shape)}" if hasattr(image, "dtype") else type(image).__name__
    if isinstance(image, Tensor):
        image = (image.permute(1, 2, 0) if image.dim() == 3 else image).numpy()
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim not in (2, 3):
        raise DataError(f"{where} has an image of {kind}; give {SHAPES}")
    if image.ndim == 3 and image.shape[2] not in (1, 3):
        raise DataError(f"{where} has an image with {image.shape[2]} channels; give {SHAPES}")
    image = image[..., 0] if image.ndim == 3 and image.shape[2] == 1 else image
    return Image.fromarray(np.ascontiguousarray(image)).convert("RGB")


def is_grey(image: Any) -> bool:
    if isinstance(image, Image.Image):
        return image.mode in ("L", "1", "F", "LA") or image.mode.startswith("I")
    shape = tuple(getattr(image, "shape", ()))
    return len(shape) == 2 or (len(shape) == 3 and shape[0 if isinstance(image, Tensor) else 2] == 1)


@dataclass(frozen=True)
class Own:
    """A map-style dataset with labels [N], which are those of its attribute `targets` or `labels`, if it has one."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    @cached_property
    def labels(self) -> Tensor:
        known = getattr(self.dataset, "targets", getattr(self.dataset, "labels", None))
        if known is None or len(known) != len(self):
            known = [read_item(self.dataset, number, self.dataset[number])[1] for number in range(len(self))]
        return torch.as_tensor(known).long().flatten()

    def file(self, number: int) -> None:
        """Items of a dataset have no files that dsnet knows."""

    def identity(self) -> bytes:
        """The labels as bytes, for the fingerprint of the data."""
        return self.labels.numpy().tobytes()

    def image(self, number: int, max_pixels: int) -> Image.Image:
        """The picture of an item. What its dataset raises counts as a damaged image."""
        try:
            item = self.dataset[number]
        except Exception as error:
            raise self.damaged(number, error) from error
        image, label = self.picture_of(number, item)
        if label != int(self.labels[number]):
            raise DataError(
                f"item {number} of {name_of(self.dataset)} has the class {label}, but its list of labels says "
                f"{int(self.labels[number])}; mend one of them"
            )
        return image

    def picture_of(self, number: int, item: Any) -> tuple[Image.Image, int]:
        """The picture and the class of an item. A file that PIL opened is decoded here, and may be damaged."""
        try:
            return read_item(self.dataset, number, item)
        except DataError:
            raise
        except Exception as error:
            raise self.damaged(number, error) from error

    def damaged(self, number: int, error: Exception) -> ImageError:
        place = Path(f"item {number} of {name_of(self.dataset)}")
        return ImageError(place, " ".join(f"{type(error).__name__}: {error}".split()))


@dataclass
class Stream:
    """An iterable dataset. Sample number n is item n modulo `count` of epoch n // count.

    It is read from where it stands; a number that lies behind begins the epoch again and passes over what comes before.
    """

    dataset: Any
    count: int
    epoch: int = -1
    place: int = 0
    items: Iterator[Any] | None = None
    read: dict[int, int] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:  # every process begins its own
        return {"dataset": self.dataset, "count": self.count, "epoch": -1, "place": 0, "items": None, "read": {}}

    def __len__(self) -> int:
        return self.count

    def file(self, number: int) -> None:
        """Items of a dataset have no files that dsnet knows."""

    def identity(self) -> bytes:
        return f"{name_of(self.dataset)} of {self.count}".encode()

    def order(self, epoch: int, columns: int) -> Tensor:
        """The sample numbers [batches, columns] of an epoch, as the dataset yields them."""
        batches = self.count // columns
        return (epoch * self.count + torch.arange(batches * columns)).view(batches, columns)

    def labels_of(self, ids: Tensor) -> Tensor:
        """The classes of images that were read before."""
        return torch.tensor([self.read.pop(number) for number in ids.tolist()], dtype=torch.long)

    def image(self, number: int, max_pixels: int) -> Image.Image:
        epoch, place = divmod(number, self.count)
        if self.items is None or epoch != self.epoch or place < self.place:
            if hasattr(self.dataset, "set_epoch"):
                self.dataset.set_epoch(epoch)
            self.items, self.epoch, self.place = iter(self.dataset), epoch, 0
        for item in self.items:
            self.place += 1
            if self.place > place:
                image, self.read[number] = read_item(self.dataset, place, item)
                return image
        raise DataError(
            f"{name_of(self.dataset)} ended after {self.place:,} images, but an epoch has {self.count:,}; set images="
        )
