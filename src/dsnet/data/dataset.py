"""Datasets with three splits: train, calibration and test. Each split is a list of sample numbers of a source.

Images with labels and images with boxes share these types. `labelled` opens the former, `voc` the latter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from PIL import Image
from torch import Tensor

from dsnet.data.augment import network_input, to_tensor
from dsnet.data.config import Reading
from dsnet.data.shards import Shards, drawn
from dsnet.errors import DamagedError
from dsnet.images import Fit, ImageError, ImageFile, Interpolation

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
