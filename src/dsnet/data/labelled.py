"""Images with labels: opens them as three splits, and loads them."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

import torch
from PIL import Image
from torch import Tensor

from dsnet.data.augment import Augment
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Batch, Data, Split, read_files
from dsnet.data.opening import open_raw
from dsnet.data.own import Datasets, Own, Stream
from dsnet.data.sources import Arrays, Images, statistics
from dsnet.data.splits import by_group, few_to_calibrate, stratified
from dsnet.images import ImageFile, centre_crop, random_crop, to_array


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
