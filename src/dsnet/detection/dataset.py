"""Detection data as training sees it: train, calibration and test, whose labels are padded objects."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from dsnet.data.augment import normalise, to_float, to_tensor
from dsnet.data.dataset import IMAGENET_MEAN, IMAGENET_STD, Batch, Split
from dsnet.detection.augment import BoxAugmentConfig, augment, resized
from dsnet.detection.data import Records, inside, read_lists
from dsnet.detection.loss import PADDING
from dsnet.errors import DataError
from dsnet.images import MAX_PIXELS, read_image

FILL = (124, 116, 104)  # ImageNet's mean: zero after normalisation


@dataclass(frozen=True)
class DetectionDataConfig:
    """Which images with objects, and how they are split and read.

    Args:
        root: a VOCdevkit, or one folder with JPEGImages, Annotations and ImageSets/Main.
        train: image lists that are joined, such as 2007/trainval and 2012/trainval, or train below a single folder.
        calibration: lists of held-out images; where there are none, calibration_share of train is set aside.
        test: lists that only evaluation reads.
        classes: names in order; by default VOC's twenty, or those of the training images, sorted.
        image_size: side in pixels; images are squeezed to a square, as SSD does.
        calibration_share: of the training images.
        split_seed: of the choice of calibration images.
        interpolation: how images are resized.
        on_corrupt: stop at a damaged image, or skip it and list it.
        max_skipped: share of damaged images above which skipping stops the run.
        max_pixels: images with more pixels are refused before they are decoded.
        workers: loading processes; 0 loads in the main process.
        augment: of training images.
    """

    root: str = ""
    train: list[str] = field(default_factory=lambda: ["train"])
    calibration: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=lambda: ["test"])
    classes: list[str] | None = None
    image_size: int = 300
    calibration_share: float = 0.1
    split_seed: int = 0
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    on_corrupt: Literal["stop", "skip"] = "stop"
    max_skipped: float = 0.01
    max_pixels: int = MAX_PIXELS
    workers: int = 0
    augment: BoxAugmentConfig = field(default_factory=BoxAugmentConfig)

    def __post_init__(self) -> None:
        if self.image_size < 64:
            raise ValueError(f"data.image_size is {self.image_size}; a detector needs at least 64 pixels")
        if not 0 < self.calibration_share < 0.9 or not 0 <= self.max_skipped <= 1 or self.workers < 0:
            raise ValueError("data.calibration_share lies in (0, 0.9), max_skipped in [0, 1]; workers is not negative")
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise ValueError(f"data.classes {self.classes} names a class twice")
        if shared := set(self.test) & {*self.train, *self.calibration}:
            raise ValueError(f"data.test shares the lists {sorted(shared)} with training; test on other images")


@dataclass(frozen=True)
class DetectionData:
    train: Split
    calibration: Split
    test: Split
    classes: tuple[str, ...]
    image_size: int
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    channels: int = 3

    @property
    def fingerprint(self) -> str:
        """A digest of which image is in which split, with which objects; the place of the files does not count."""
        digest = hashlib.sha256(repr((self.classes, self.image_size)).encode())
        for split in (self.train, self.calibration, self.test):
            digest.update(split.ids.numpy().tobytes())
            digest.update(split.source.digest())  # type: ignore[union-attr]
        return digest.hexdigest()


@dataclass(frozen=True)
class BoxLoader:
    """Decodes, augments, resizes and normalises; depends on its arguments only."""

    config: DetectionDataConfig
    size: int

    def __call__(self, source: Records, ids: Tensor, seed: int | None) -> Batch:
        """Images [B, 3, S, S], and as labels objects [B, G, 6]: corners as shares, class, difficult; padded by -1."""
        images, objects, kept, skipped = [], [], [], []
        for number in ids.tolist():
            record = source.items[number]
            try:
                image = read_image(Path(record.file), max_pixels=self.config.max_pixels)
            except DataError:
                if self.config.on_corrupt == "stop":
                    raise
                skipped.append(record.file)
                continue
            pixels, own = self.prepare(image, record.objects, record.file, seed, number)
            images.append(pixels)
            objects.append(own)
            kept.append(number)
        batch = torch.stack(images) if images else torch.zeros(0, 3, self.size, self.size, dtype=torch.uint8)
        batch = normalise(to_float(batch), IMAGENET_MEAN, IMAGENET_STD)
        return Batch(batch, padded(objects), torch.tensor(kept, dtype=torch.long), tuple(skipped))

    def prepare(
        self, image: Image.Image, objects: Tensor, file: str, seed: int | None, number: int
    ) -> tuple[Tensor, Tensor]:
        objects = inside(objects, image.width, image.height, file)
        how: dict[str, Any] = {"size": self.size, "interpolation": self.config.interpolation}
        if seed is None:
            image, objects = resized(image, objects, **how)
        else:
            rng = random.Random(f"{seed}/{number}")
            image, objects = augment(image, objects, self.config.augment, rng, fill=FILL, **how)
        return to_tensor(image), objects


def padded(objects: list[Tensor]) -> Tensor:
    """Objects of several images as one tensor [B, G, 6], filled up with rows of class -1."""
    longest = max([1, *(len(own) for own in objects)])
    filled = torch.zeros(len(objects), longest, 6)
    filled[:, :, 4] = PADDING
    for row, own in zip(filled, objects, strict=True):
        row[: len(own)] = own
    return filled


def open_detection_data(config: DetectionDataConfig) -> DetectionData:
    """The three splits. Test images are read by evaluation only."""
    if not config.root:
        raise DataError("data.root is missing: say where the images and annotations are with --data.root FOLDER")
    root, loader = Path(config.root), BoxLoader(config, config.image_size)
    train = read_lists(root, config.train, config.classes)
    test = read_lists(root, config.test, train.classes)
    if config.calibration:
        held = read_lists(root, config.calibration, train.classes)
        train_ids, held_ids = torch.arange(len(train)), torch.arange(len(held))
    else:
        generator = torch.Generator().manual_seed(config.split_seed)
        order = torch.randperm(len(train), generator=generator)
        count = max(1, round(len(train) * config.calibration_share))
        if count >= len(train):
            raise DataError(f"{len(train)} training images are too few to set {count} aside for calibration")
        held, held_ids, train_ids = train, order[:count].sort().values, order[count:].sort().values
    return DetectionData(
        split(train, train_ids, loader),
        split(held, held_ids, loader),
        split(test, torch.arange(len(test)), loader),
        train.classes,
        config.image_size,
    )


def split(source: Records, ids: Tensor, loader: BoxLoader) -> Split:
    return Split(source, ids, loader)  # type: ignore[arg-type]
