"""Datasets with three splits: train, calibration and test. Each split is a list of sample numbers of a source.

Images with labels and images with boxes share these types. This file opens the former, `voc` the latter.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dsnet.data.augment import Augment, AugmentConfig, normalise, to_float, to_tensor
from dsnet.data.sources import Arrays, Files, open_source, statistics
from dsnet.errors import DataError, must
from dsnet.images import MAX_PIXELS, Fit, Interpolation, centre_crop, random_crop, read_image
from dsnet.schema import Typed


@dataclass(frozen=True)
class Batch:
    """Normalised images [B, C, S, S] with their labels and sample numbers [B], and the files that were skipped.

    labels: Classes [B], or objects [B, G, 6] as `boxes` describes them.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor
    skipped: tuple[str, ...] = ()


class Source(Protocol):
    """Numbered samples."""

    def __len__(self) -> int: ...

    def identity(self) -> bytes:
        """Bytes that change with the samples or their labels, but not with the folder that they are in."""
        ...


class BatchLoader(Protocol):
    """Loads samples of a source as a batch. With a seed the images are augmented, with None they are not."""

    @property
    def source(self) -> Source: ...

    def __call__(self, ids: Tensor, seed: int | None) -> Batch: ...


@dataclass(frozen=True)
class Split:
    """Some samples of a source. `loader` turns sample numbers into a batch; it can be pickled for other processes."""

    loader: BatchLoader
    ids: Tensor

    @property
    def source(self) -> Source:
        return self.loader.source

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, ids: Tensor, *, seed: int | None = None) -> Batch:
        """Load samples as a batch. With a seed the images are augmented."""
        return self.loader(ids, seed)


@dataclass(frozen=True)
class Data:
    """Three splits, and the preprocessing that turns an image file into a network input (see `images.prepare`)."""

    train: Split
    calibration: Split
    test: Split
    classes: tuple[str, ...]
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    fit: Fit
    crop: float
    interpolation: Interpolation

    def split(self, name: str) -> Split:
        splits = {"test": self.test, "calibration": self.calibration, "train": self.train}
        if name not in splits:
            raise ValueError(f"split {name!r} is unknown; choose test, calibration or train")
        return splits[name]

    @property
    def fingerprint(self) -> str:
        """A digest of the images and labels in each split. It does not depend on where the files are stored."""
        digest = hashlib.sha256(repr((self.classes, self.image_size)).encode())
        for split in (self.train, self.calibration, self.test):
            digest.update(split.ids.numpy().tobytes())
            digest.update(split.source.identity())
        return digest.hexdigest()


class Reading(Typed):
    """The config keys for reading files that all kinds of data share."""

    on_corrupt: Literal["stop", "skip"]
    max_skipped: float
    max_pixels: int
    workers: int

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("stop", "skip"):
            raise ValueError(f"data.on_corrupt {self.on_corrupt!r} is unknown; choose stop or skip")
        must("data.workers", self.workers, self.workers >= 0, "be at least 0")
        must("data.max_skipped", self.max_skipped, 0 <= self.max_skipped <= 1, "be a share in [0, 1]")


@dataclass(frozen=True)
class DataConfig(Reading):
    """Which images to train on, and how they are split and read.

    Args:
        dataset: Images to train on. A folder holds one folder per class.
        root: Folder of the image files.
        image_size: Height and width of the images in pixels. By default those of the dataset, or of the model for
            folders.
        calibration: Share of the training images that is set aside to check progress and to calibrate budgets.
        split_seed: Seed of the choice of calibration images.
        crop_ratio: Share of the short side that the centre crop keeps at evaluation, for folders.
        interpolation: How images of folders are resized.
        on_corrupt: Stop at a damaged file, or skip it and list it in skipped.txt.
        max_skipped: Largest share of damaged files to skip. Above it the run stops.
        max_pixels: Images with more pixels than this are refused before they are decoded.
        workers: Number of processes that load images. 0 loads them in the main process.
        augment: How training images are augmented.
    """

    dataset: Literal["digits", "cluttered_digits", "cifar10", "fashion_mnist", "idx", "folder"] = "digits"
    root: str | None = None
    image_size: int | None = None
    calibration: float = 0.1
    split_seed: int = 0
    crop_ratio: float = 0.875
    interpolation: Interpolation = "bilinear"
    on_corrupt: Literal["stop", "skip"] = "stop"
    max_skipped: float = 0.01
    max_pixels: int = MAX_PIXELS
    workers: int = 0
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        datasets = ("digits", "cluttered_digits", "cifar10", "fashion_mnist", "idx", "folder")
        if self.dataset not in datasets:
            raise ValueError(f"data.dataset {self.dataset!r} is unknown; choose from {', '.join(datasets)}")
        if self.dataset in ("cifar10", "idx", "folder") and not self.root:
            raise ValueError(f"data.root is missing: say where the {self.dataset} files are with --data.root FOLDER")
        if not 0 < self.calibration < 0.9:
            raise ValueError(f"data.calibration is {self.calibration}; give a share between 0 and 0.9")
        size = self.image_size
        must("data.image_size", size, size is None or size >= 1, "be at least 1, or null")
        must("data.crop_ratio", self.crop_ratio, 0 < self.crop_ratio <= 1, "be a share in (0, 1]")


def read_files(
    ids: Tensor,
    file_of: Callable[[int], str],
    fit: Callable[[int, Image.Image], Image.Image],
    options: Reading,
    size: int,
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read samples as images [B, 3, S, S] in 0..1. A damaged file is an error or is skipped, as `options` say.

    fit: Turns the image of a sample number into a square of `size`.
    Returns the images, the numbers of the samples that could be read, and the files that could not.
    """
    images, read, skipped = [], [], []
    for number in ids.tolist():
        file = file_of(number)
        try:
            image = read_image(Path(file), max_pixels=options.max_pixels)
        except DataError:
            if options.on_corrupt == "stop":
                raise
            skipped.append(file)
            continue
        images.append(to_tensor(fit(number, image)))
        read.append(number)
    pixels = torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8)
    return to_float(pixels), torch.tensor(read, dtype=torch.long), tuple(skipped)


@dataclass(frozen=True)
class Loader:
    """Decodes, crops, augments and normalises images with labels. A batch depends only on sample numbers and seed."""

    source: Arrays | Files
    config: DataConfig
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, ids: Tensor, seed: int | None) -> Batch:
        source, augment = self.source, self.config.augment
        skipped: tuple[str, ...] = ()
        if isinstance(source, Arrays):
            images = to_float(source.images[ids])
        else:
            fit = partial(self.cropped, seed)
            images, ids, skipped = read_files(ids, source.file, fit, self.config, self.size)
        if seed is not None and len(images):
            # A resized crop of a file was already taken at full resolution, in `cropped`.
            crop = isinstance(source, Arrays) or augment.crop == "pad"
            images = Augment(augment, self.size, crop=crop)(images, seed)
        return Batch(normalise(images, self.mean, self.std), source.labels[ids], ids, skipped)

    def cropped(self, seed: int | None, number: int, image: Image.Image) -> Image.Image:
        """Crop a file at its full resolution. The seed of a random crop depends on the sample number."""
        config, interpolation = self.config, self.config.interpolation
        if seed is None or config.augment.crop != "resized":
            return centre_crop(image, self.size, crop=config.crop_ratio, interpolation=interpolation)
        rng = random.Random(f"{seed}/{number}")
        return random_crop(image, self.size, scale=config.augment.scale, rng=rng, interpolation=interpolation)


def open_dataset(config: DataConfig, default_size: int = 224) -> Data:
    """Open images with labels as three splits. Only evaluation reads the test images."""
    raw = open_source(config.dataset, Path(config.root) if config.root else None)
    size = config.image_size or raw.size or default_size
    train = raw.train.resized(size) if isinstance(raw.train, Arrays) else raw.train
    ids = torch.arange(len(train))
    if raw.test is None:
        ids, test_ids = stratified(train.labels, ids, 0.2, seed=0)
        test = train
    else:
        test = raw.test.resized(size) if isinstance(raw.test, Arrays) else raw.test
        test_ids = torch.arange(len(test))
    if raw.groups is None:
        train_ids, calibration_ids = stratified(train.labels, ids, config.calibration, seed=config.split_seed)
    else:
        train_ids, calibration_ids = by_group(train.labels, raw.groups, config.calibration, seed=config.split_seed)
    mean, std = statistics(train, train_ids)
    return Data(
        Split(Loader(train, config, size, mean, std), train_ids),
        Split(Loader(train, config, size, mean, std), calibration_ids),
        Split(Loader(test, config, size, mean, std), test_ids),
        classes=raw.classes,
        channels=raw.channels,
        image_size=size,
        mean=mean,
        std=std,
        fit="crop",
        crop=config.crop_ratio if isinstance(train, Files) else 1.0,
        interpolation=config.interpolation,
    )


def stratified(labels: Tensor | None, ids: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Set aside a share of every class, with at least one sample of each.

    labels: Classes of all samples, or None where images have no single class.
    Returns the remaining ids and those set aside, both in rising order.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = {"the training split": ids}
    if labels is not None:
        classes = labels[ids]
        groups = {f"class {label}": ids[classes == label] for label in classes.unique().tolist()}
    taken = []
    for name, group in groups.items():
        count = max(1, round(len(group) * share))
        if count >= len(group):
            raise DataError(f"{name} has only {len(group)} images to split; at least 3 are needed")
        taken.append(group[torch.randperm(len(group), generator=generator)[:count]])
    aside = torch.cat(taken).sort().values
    return ids[~torch.isin(ids, aside)], aside


def by_group(labels: Tensor, groups: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """`stratified` for images that come in groups, each of one class. The images of a group stay together."""
    first = torch.from_numpy(np.unique(groups.numpy(), return_index=True)[1])
    _, taken = stratified(labels, first, share, seed=seed)
    aside = torch.isin(groups, groups[taken])
    return (~aside).nonzero().flatten(), aside.nonzero().flatten()
