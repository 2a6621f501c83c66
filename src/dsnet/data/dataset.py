"""A dataset as training sees it: train, calibration and test, each a list of sample numbers of a source."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from dsnet.data import sources
from dsnet.data.augment import Augment, AugmentConfig, normalise, to_float, to_tensor
from dsnet.data.sources import Arrays, Files, Raw, Source
from dsnet.errors import DataError, must
from dsnet.images import MAX_PIXELS, centre_crop, random_crop, read_image

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # Debian's package
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class DataConfig:
    """Which images, and how they are split and read.

    Args:
        dataset: digits (embedded), cifar10 (binary version), fashion_mnist or idx (MNIST files), or folder (one folder
            per class, below train/ and val/ or directly below root).
        root: where the files are.
        image_size: side in pixels; by default the dataset's own, or the model's for folders.
        calibration: share of the training images that is set aside, by class.
        split_seed: of the choice of calibration images.
        crop_ratio: share of the short side that the centre crop of evaluation keeps, for folders.
        interpolation: how images of folders are resized.
        on_corrupt: stop at a damaged file, or skip it and list it.
        max_skipped: share of damaged files above which skipping stops the run.
        max_pixels: images with more pixels are refused before they are decoded.
        workers: loading processes; 0 loads in the main process.
        augment: of training images.
    """

    dataset: Literal["digits", "cifar10", "fashion_mnist", "idx", "folder"] = "digits"
    root: str | None = None
    image_size: int | None = None
    calibration: float = 0.1
    split_seed: int = 0
    crop_ratio: float = 0.875
    interpolation: Literal["nearest", "bilinear", "bicubic"] = "bilinear"
    on_corrupt: Literal["stop", "skip"] = "stop"
    max_skipped: float = 0.01
    max_pixels: int = MAX_PIXELS
    workers: int = 0
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        known = ("digits", "cifar10", "fashion_mnist", "idx", "folder")
        if self.dataset not in known:
            raise ValueError(f"data.dataset {self.dataset!r} is unknown; choose from {', '.join(known)}")
        if self.dataset in ("cifar10", "idx", "folder") and not self.root:
            raise ValueError(f"data.root is missing: say where the {self.dataset} files are with --data.root FOLDER")
        if not 0 < self.calibration < 0.9:
            raise ValueError(f"data.calibration is {self.calibration}; give a share between 0 and 0.9")
        must(
            "data.image_size",
            self.image_size,
            self.image_size is None or self.image_size >= 1,
            "be at least 1, or null",
        )
        if self.on_corrupt not in ("stop", "skip"):
            raise ValueError(f"data.on_corrupt {self.on_corrupt!r} is unknown; choose stop or skip")
        must("data.workers", self.workers, self.workers >= 0, "be at least 0")
        must("data.max_skipped", self.max_skipped, 0 <= self.max_skipped <= 1, "be a share in [0, 1]")
        must("data.crop_ratio", self.crop_ratio, 0 < self.crop_ratio <= 1, "be a share in (0, 1]")


@dataclass(frozen=True)
class Batch:
    """Normalised images [B, C, S, S], labels [B], their sample numbers [B], and files that were skipped."""

    images: Tensor
    labels: Tensor
    ids: Tensor
    skipped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Split:
    """Some samples of a source. `loader` turns sample numbers into a batch; it can be sent to another process."""

    source: Source
    ids: Tensor
    loader: Loader

    def __len__(self) -> int:
        return len(self.ids)

    def load(self, ids: Tensor, *, seed: int | None = None) -> Batch:
        """Plain images, or augmented ones where a seed is given."""
        return self.loader(self.source, ids, seed)


@dataclass(frozen=True)
class Dataset:
    train: Split
    calibration: Split
    test: Split
    classes: tuple[str, ...]
    channels: int
    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def fingerprint(self) -> str:
        """A digest of which image is in which split, with which label; the place of the files does not count."""
        digest = hashlib.sha256(repr((self.classes, self.image_size)).encode())
        for split in (self.train, self.calibration, self.test):
            digest.update(split.ids.numpy().tobytes())
            digest.update(split.source.labels.numpy().tobytes())
            if isinstance(split.source, Files):
                root = split.loader.config.root or "."
                digest.update("\n".join(os.path.relpath(file, root) for file in split.source.files).encode())
        return digest.hexdigest()


@dataclass(frozen=True)
class Loader:
    """Decodes, crops, augments and normalises; depends on its arguments only."""

    config: DataConfig
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, source: Source, ids: Tensor, seed: int | None) -> Batch:
        skipped: list[str] = []
        if isinstance(source, Arrays):
            images, labels = to_float(source.images[ids]), source.labels[ids]
        else:
            images, labels, ids, skipped = self.decode(source, ids, seed)
        if seed is not None and len(images):
            # a resized crop of a file was taken when it was decoded, at full resolution
            crop = isinstance(source, Arrays) or self.config.augment.crop == "pad"
            images = self.augment(images, seed, crop=crop)
        return Batch(normalise(images, self.mean, self.std), labels, ids, tuple(skipped))

    def augment(self, images: Tensor, seed: int, *, crop: bool) -> Tensor:
        return Augment(self.config.augment, self.size, crop=crop)(images, seed)

    def decode(self, source: Files, ids: Tensor, seed: int | None) -> tuple[Tensor, Tensor, Tensor, list[str]]:
        """Files are cropped at their full resolution, each by a seed of its own."""
        kept, tensors, skipped = [], [], []
        how = {"interpolation": self.config.interpolation}
        for number in ids.tolist():
            try:
                image = read_image(Path(source.files[number]), max_pixels=self.config.max_pixels)
            except DataError:
                if self.config.on_corrupt == "stop":
                    raise
                skipped.append(source.files[number])
                continue
            if seed is not None and self.config.augment.crop == "resized":
                rng = random.Random(f"{seed}/{number}")
                image = random_crop(image, self.size, scale=self.config.augment.scale, rng=rng, **how)
            else:
                image = centre_crop(image, self.size, crop=self.config.crop_ratio, **how)
            kept.append(number)
            tensors.append(to_tensor(image))
        images = torch.stack(tensors) if tensors else torch.zeros(0, 3, self.size, self.size, dtype=torch.uint8)
        chosen = torch.tensor(kept, dtype=torch.long)
        return to_float(images), source.labels[chosen], chosen, skipped


def open_dataset(config: DataConfig, default_size: int = 224) -> Dataset:
    """The three splits of a dataset. Test images are read by evaluation only."""
    raw = _OPENERS[config.dataset](config)
    size = config.image_size or raw.size or default_size
    train = raw.train.resized(size) if isinstance(raw.train, Arrays) else raw.train
    ids = torch.arange(len(train))
    if raw.test is None:
        ids, test_ids = stratified(train.labels, ids, 0.2, seed=0)
        test: Source = train
    else:
        test = raw.test.resized(size) if isinstance(raw.test, Arrays) else raw.test
        test_ids = torch.arange(len(test))
    train_ids, calibration_ids = stratified(train.labels, ids, config.calibration, seed=config.split_seed)
    mean, std = statistics(train, train_ids)
    loader = Loader(config, size, mean, std)
    return Dataset(
        Split(train, train_ids, loader),
        Split(train, calibration_ids, loader),
        Split(test, test_ids, loader),
        raw.classes,
        raw.channels,
        size,
        mean,
        std,
    )


def _fashion_mnist(config: DataConfig) -> Raw:
    root = Path(config.root) if config.root else FASHION_MNIST
    if not root.is_dir():
        raise DataError(f"{root} does not exist; install Debian's dataset-fashion-mnist, or give --data.root FOLDER")
    names = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    found = sources.idx(root)
    return Raw(found.train, found.test, names, found.channels, found.size)


_OPENERS: dict[str, Callable[[DataConfig], Raw]] = {
    "digits": lambda config: sources.digits(),
    "cifar10": lambda config: sources.cifar10(Path(config.root or "")),
    "fashion_mnist": _fashion_mnist,
    "idx": lambda config: sources.idx(Path(config.root or "")),
    "folder": lambda config: sources.folder(Path(config.root or "")),
}


def stratified(labels: Tensor, ids: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Split `ids` into the rest and a share of every class (at least one sample of each), in rising order."""
    generator = torch.Generator().manual_seed(seed)
    taken = []
    for label in labels[ids].unique().tolist():
        mine = ids[labels[ids] == label]
        count = max(1, round(len(mine) * share))
        if count >= len(mine):
            raise DataError(f"class {label} has only {len(mine)} images to split; at least 3 are needed")
        taken.append(mine[torch.randperm(len(mine), generator=generator)[:count]])
    aside = torch.cat(taken).sort().values
    keep = ids[~torch.isin(ids, aside)]
    return keep, aside


def statistics(source: Source, ids: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation of each channel over the training images; ImageNet's for files."""
    if isinstance(source, Files):
        return IMAGENET_MEAN, IMAGENET_STD
    sums = torch.zeros(2, source.images.shape[1], dtype=torch.float64)
    for part in ids.split(4096):
        pixels = source.images[part].double() / 255
        sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
    count = len(ids) * source.images.shape[2] * source.images.shape[3]
    mean, square = sums / count
    std = (square - mean.square()).clamp_min(1e-6).sqrt()
    return tuple(round(v, 6) for v in mean.tolist()), tuple(round(v, 6) for v in std.tolist())
