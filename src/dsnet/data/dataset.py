"""Datasets with three splits: train, calibration and test. Each split is a list of sample numbers of a source.

Images with labels and images with boxes share these types. This file opens the former, `voc` the latter.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dsnet.data.augment import Augment, network_input, to_tensor
from dsnet.data.config import DataConfig, Reading
from dsnet.data.opening import open_raw
from dsnet.data.own import Datasets, Own, Stream
from dsnet.data.shards import Shards, drawn
from dsnet.data.sources import Arrays, Images, statistics
from dsnet.errors import DamagedError, DataError
from dsnet.images import Fit, ImageError, ImageFile, Interpolation, centre_crop, random_crop, to_array

TRUSTED = 100  # calibration images; fewer leave an uncertainty of more than 6 points at an accuracy of 90 %
SKIPPING = "--data.on_corrupt skip passes over files that are damaged or have more than data.max_pixels pixels"


@dataclass(frozen=True)
class Batch:
    """Images [B, C, S, S] with their labels and sample numbers [B], and the files that were skipped.

    A loader gives pixels in uint8; `Split.finished` normalises them.
    labels: Classes [B], or objects [B, G, 6] as `boxes` describes them.
    """

    images: Tensor
    labels: Tensor
    ids: Tensor
    skipped: tuple[str, ...] = ()

    def pin_memory(self) -> Batch:
        """The batch in memory from which a GPU copies while the program goes on."""
        return Batch(self.images.pin_memory(), self.labels.pin_memory(), self.ids, self.skipped)


class Source(Protocol):
    """Numbered samples."""

    def __len__(self) -> int: ...

    def file(self, number: int) -> str | None:
        """The file of a sample, or None if it is in memory."""
        ...

    def identity(self) -> bytes:
        """Bytes that change with the samples or their labels, but not with the folder that they are in."""
        ...


class Pictures(Source, Protocol):
    """Numbered samples that are decoded when they are needed."""

    def image(self, number: int, max_pixels: int) -> Image.Image | ImageFile: ...


class BatchLoader(Protocol):
    """Loads samples of a source as a batch of pixels. With a seed the images are augmented, with None they are not."""

    @property
    def source(self) -> Source: ...

    @property
    def mean(self) -> tuple[float, ...]: ...

    @property
    def std(self) -> tuple[float, ...]: ...

    def __call__(self, ids: Tensor, seed: int | None) -> Batch: ...


@dataclass(frozen=True)
class Split:
    """Some samples of a source. `loader` turns sample numbers into a batch; it can be pickled for other processes.

    pools: Processes that load batches (see `batches`), which end with the split.
    """

    loader: BatchLoader
    ids: Tensor
    pools: dict[int, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def source(self) -> Source:
        return self.loader.source

    def __len__(self) -> int:
        return len(self.ids)

    def order(self, columns: int, generator: torch.Generator) -> Tensor:
        """The sample numbers in random order, in batches [batches, columns]; what is left over is left out."""
        if isinstance(self.source, Shards):
            return self.ids[drawn(self.source.shard_of(self.ids), columns, generator)]
        count = len(self) // columns
        mixed = self.ids[torch.randperm(len(self), generator=generator)]
        return mixed[: count * columns].view(count, columns)

    def files(self) -> list[str]:
        """The files of the samples; none if they are in memory."""
        return [file for number in self.ids.tolist() if (file := self.source.file(number)) is not None]

    def load(self, ids: Tensor, *, seed: int | None = None) -> Batch:
        """Load samples as a batch of network inputs. With a seed the images are augmented."""
        return self.finished(self.loader(ids, seed))

    def finished(self, batch: Batch, device: torch.device | None = None) -> Batch:
        """The batch with normalised images, on a device. Pixels go there as bytes, a quarter of the size."""
        pixels = batch.images.to(device, non_blocking=True)
        images = network_input(pixels, self.loader.mean, self.loader.std)
        return Batch(images, batch.labels.to(device, non_blocking=True), batch.ids, batch.skipped)


@dataclass(frozen=True)
class Data:
    """Three splits, and the preprocessing that turns an image file into a network input (see `images.prepare`).

    classes: Their names; none if the images have no labels. name: What to call the data. counts: Training images of
    each class, where an image has one class.
    warnings: What a user should know before training, and beside the results.
    """

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
    name: str = ""
    counts: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        """The data in a few words: its classes, and the images of each split."""
        classes = f"{len(self.classes)} classes" if self.classes else "no labels"
        if self.classes and self.counts and max(self.counts) > 1.5 * min(self.counts):
            few, many = (self.classes[self.counts.index(count)] for count in (min(self.counts), max(self.counts)))
            classes += f" ({few} {min(self.counts):,} to {many} {max(self.counts):,} training images)"
        sizes = f"{len(self.train):,} training, {len(self.calibration):,} calibration, {len(self.test):,} test images"
        return f"{self.name}: {classes}, {sizes}, {self.image_size} px"

    def split(self, name: str) -> Split:
        splits = {"test": self.test, "calibration": self.calibration, "train": self.train}
        if name not in splits:
            raise ValueError(f"split {name!r} is unknown; choose test, calibration or train")
        return splits[name]

    @property
    def fingerprint(self) -> str:
        """A digest of the images and labels in each split. It does not depend on where the files are stored."""
        digest = hashlib.sha256(repr((self.classes, self.image_size)).encode())
        identities: dict[int, bytes] = {}
        for split in (self.train, self.calibration, self.test):
            digest.update(split.ids.numpy().tobytes())
            source = split.source
            identities[id(source)] = identities.get(id(source)) or source.identity()
            digest.update(identities[id(source)])
        return digest.hexdigest()


def read_files(
    ids: Tensor,
    source: Pictures,
    fit: Callable[[int, Any], Image.Image],
    options: Reading,
    size: int,
) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Read samples as uint8 images [B, 3, S, S]. A damaged file is an error or is skipped, as `options` say.

    fit: Turns the image of a sample number into a square of `size`.
    Returns the images, the numbers of the samples that could be read, and the files that could not.
    """
    images, read, skipped = [], [], []
    for number in ids.tolist():
        try:
            square = fit(number, source.image(number, options.max_pixels))
        except ImageError as error:
            if options.on_corrupt == "stop":
                raise DamagedError(error.found, f"{error.remedy}; {SKIPPING}") from error
            skipped.append(error.file)
            continue
        images.append(to_tensor(square))
        read.append(number)
    pixels = torch.stack(images) if images else torch.zeros(0, 3, size, size, dtype=torch.uint8)
    return pixels, torch.tensor(read, dtype=torch.long), tuple(skipped)


@dataclass(frozen=True)
class Loader:
    """Decodes, crops and augments images with labels. A batch depends only on sample numbers and seed."""

    source: Images
    config: DataConfig
    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, ids: Tensor, seed: int | None) -> Batch:
        source, skipped = self.source, tuple[str, ...]()
        if isinstance(source, Arrays):
            images = source.images[ids]
            if seed is not None and (self.augment.by_picture or self.config.augment.crop == "resized"):
                images = torch.stack([self.changed(image, int(n), seed) for image, n in zip(images, ids, strict=True)])
        else:
            images, ids, skipped = read_files(ids, source, partial(self.fitted, seed), self.config, self.size)
        if seed is not None and len(images):
            images = self.augment.batch(images, seed)
        labels = source.labels_of(ids) if isinstance(source, Stream) else source.labels[ids]
        return Batch(images[:, : len(self.mean)], labels, ids, skipped)

    @property
    def augment(self) -> Augment:
        return Augment(self.config.augment, self.size, self.mean, self.std)

    def changed(self, pixels: Tensor, number: int, seed: int) -> Tensor:
        """An augmented image [C, S, S] of an array; a grey one is coloured for as long as that takes."""
        image = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy())
        return torch.tensor(to_array(self.fitted(seed, number, image), len(pixels)))

    def fitted(self, seed: int | None, number: int, image: Image.Image | ImageFile) -> Image.Image:
        """A square of the image, cropped at full resolution. What is random depends on the seed and sample number."""
        config, interpolation = self.config, self.config.interpolation
        if seed is None:
            return centre_crop(image, self.size, crop=config.crop_ratio, interpolation=interpolation)
        rng = random.Random(f"{seed}/{number}")
        if config.augment.crop == "resized":
            scale = config.augment.scale
            square = random_crop(image, self.size, scale=scale, rng=rng, interpolation=interpolation)
        elif isinstance(self.source, Arrays) and isinstance(image, Image.Image):
            square = image
        else:
            square = centre_crop(image, self.size, crop=config.crop_ratio, interpolation=interpolation)
        return self.augment.picture(square, rng)


def open_dataset(config: DataConfig, default_size: int = 224, own: Datasets | None = None) -> Data:
    """Open images with labels as three splits. Only evaluation reads the test images.

    own: The datasets of a run on data from Python.
    """
    raw = open_raw(config, own)
    size = config.image_size or raw.size or default_size
    if isinstance(raw.train, Own | Stream) and raw.size == size:
        config = replace(config, crop_ratio=1.0)  # the images are what the network sees
    train, held, test = (
        source.resized(size) if isinstance(source, Arrays) else source
        for source in (raw.train, raw.calibration, raw.test)
    )
    assert train is not None
    ids = torch.arange(len(train))
    known = None if isinstance(train, Stream) else train.labels
    if not raw.classes:  # nothing is tested
        test, test_ids = train, ids[:0]
    elif test is None:
        ids, test_ids = stratified(known, ids, 0.2, seed=0, names=raw.classes)
        test = train
    else:
        test_ids = torch.arange(len(test))
    share: float | None = config.calibration
    if held is not None:
        if config.kind != "shards":
            config.refuse(["calibration", "split_seed"], "the data brings its own calibration images")
        train_ids, held_ids, share = ids, torch.arange(len(held)), None
    elif raw.groups is not None and known is not None:
        train_ids, held_ids = by_group(known, raw.groups, config.calibration, seed=config.split_seed)
    else:
        split = stratified(known, ids, config.calibration, seed=config.split_seed, names=raw.classes)
        train_ids, held_ids = split
    held = train if held is None else held
    mean, std = normalisation(config, train, train_ids, raw.channels)
    return Data(
        Split(Loader(train, config, size, mean, std), train_ids),
        Split(Loader(held, config, size, mean, std), held_ids),
        Split(Loader(test, config, size, mean, std), test_ids),
        classes=raw.classes,
        channels=raw.channels,
        image_size=size,
        mean=mean,
        std=std,
        fit="crop",
        crop=1.0 if isinstance(train, Arrays) else config.crop_ratio,
        interpolation=config.interpolation,
        name=config.name,
        counts=() if known is None else tuple(known[train_ids].bincount(minlength=len(raw.classes)).tolist()),
        warnings=(*raw.warnings, *few_to_calibrate(len(held_ids), len(ids), share, key="data.calibration")),
    )


def normalisation(
    config: DataConfig, source: Images, ids: Tensor, channels: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel that inputs are normalised with."""
    if config.mean is None or config.std is None:
        mean, std = statistics(source, ids)
        return mean[:channels], std[:channels]  # ImageNet's have three
    if len(config.mean) != channels:
        raise ValueError(
            f"data.mean has {len(config.mean)} numbers but the images have {channels} channels; give one per channel"
        )
    return config.mean, config.std


def few_to_calibrate(count: int, images: int, share: float | None, *, key: str) -> list[str]:
    """A warning if there are too few calibration images to trust.

    images: Number of images that calibration images are taken from. share: Share of them that is taken, which the
    option `key` sets, or None where the data brings its own calibration images.
    """
    if count >= TRUSTED:
        return []
    error = 100 * 1.96 * (0.9 * 0.1 / max(1, count)) ** 0.5
    enough = math.ceil(100 * TRUSTED / images) / 100
    remedy = "add images to it" if share is None else "add training images"
    if share is not None and enough <= 0.5:
        remedy = f"set --{key} {max(enough, share):g}, or {remedy}"
    return [
        f"only {count} images calibrate: they choose the best epoch and the budgets, and an accuracy of 90 % on them "
        f"is uncertain by {error:.0f} points; {remedy}"
    ]


def stratified(
    labels: Tensor | None, ids: Tensor, share: float, *, seed: int, names: Sequence[str] = ()
) -> tuple[Tensor, Tensor]:
    """Set aside a share of every class, with at least one sample of each.

    labels: Classes of all samples, or None where images have no single class. names: Names of the classes.
    Returns the remaining ids and those set aside, both in rising order.
    """
    generator = torch.Generator().manual_seed(seed)
    groups = {"the training split": ids}
    if labels is not None:
        present, counts = labels[ids].unique(return_counts=True)
        sorted_ids = ids[labels[ids].argsort(stable=True)]
        groups = {
            f"the class {names[label] if names else label}": group
            for label, group in zip(present.tolist(), sorted_ids.split(counts.tolist()), strict=True)
        }
    taken = []
    for name, group in groups.items():
        count = max(1, round(len(group) * share))
        if count >= len(group):
            raise DataError(
                f"{name} has only {len(group)} image{'s'[: len(group) != 1]} to split; at least 3 are needed for "
                f"training, calibration and test"
            )
        taken.append(group[torch.randperm(len(group), generator=generator)[:count]])
    aside = torch.cat(taken).sort().values
    return ids[~torch.isin(ids, aside)], aside


def by_group(labels: Tensor, groups: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """`stratified` for images that come in groups, each of one class. The images of a group stay together."""
    first = torch.from_numpy(np.unique(groups.numpy(), return_index=True)[1])
    _, taken = stratified(labels, first, share, seed=seed)
    aside = torch.isin(groups, groups[taken])
    return (~aside).nonzero().flatten(), aside.nonzero().flatten()
