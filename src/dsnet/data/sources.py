"""Sources of images with labels: arrays in memory (digits, CIFAR-10, idx files), files (see `folders`), and shards."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet.data.cluttered import Drawings, cluttered_digits
from dsnet.data.own import Own, Stream
from dsnet.data.shards import Shards
from dsnet.errors import DataError
from dsnet.images import ImageFile

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")  # where Debian's package installs it


@dataclass(frozen=True)
class Arrays:
    """Images in memory: uint8 [N, C, H, W], labels [N]."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def resized(self, size: int) -> Arrays:
        if self.images.shape[-2:] == (size, size):
            return self
        parts = [
            F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True).round().clamp(0, 255).byte()
            for part in self.images.split(1024)
        ]
        return Arrays(torch.cat(parts), self.labels)

    def file(self, number: int) -> None:
        """Arrays have no files."""

    def identity(self) -> bytes:
        """The labels as bytes, for the fingerprint of the data."""
        return self.labels.numpy().tobytes()


@dataclass(frozen=True)
class Files:
    """Images on disk, decoded when they are needed, with labels [N]."""

    files: tuple[str, ...]
    labels: Tensor
    root: Path

    def __len__(self) -> int:
        return len(self.files)

    def file(self, number: int) -> str:
        return self.files[number]

    def image(self, number: int, max_pixels: int) -> ImageFile:
        return ImageFile(Path(self.files[number]), max_pixels=max_pixels)

    def identity(self) -> bytes:
        """The labels and the file names below the root as bytes, for the fingerprint of the data."""
        prefix = f"{self.root}{os.sep}"
        names = "\n".join(
            file[len(prefix) :] if file.startswith(prefix) else os.path.relpath(file, self.root) for file in self.files
        )
        return self.labels.numpy().tobytes() + names.encode()


Images = Arrays | Files | Shards | Own | Stream  # what images with labels may come from


@dataclass(frozen=True)
class Raw:
    """A dataset as it was read. Test or calibration images that it does not name are taken from `train`.

    size: Side of the images, None for files of any size.
    groups: A number per training image. Images of one group show the same object and stay in one split.
    warnings: What a user should know before training.
    """

    train: Images
    test: Images | None
    classes: tuple[str, ...]
    channels: int
    size: int | None
    groups: Tensor | None = None
    calibration: Images | None = None
    warnings: tuple[str, ...] = ()


def open_source(dataset: str, root: Path | None) -> Raw:
    """Open a dataset of arrays by its name. digits, cluttered_digits and fashion_mnist need no root."""
    if dataset == "digits":
        return digits()
    if dataset == "cluttered_digits":
        return cluttered()
    if dataset == "fashion_mnist":
        return fashion_mnist(root)
    assert root is not None  # DataConfig asks for it
    return {"cifar10": cifar10, "idx": idx}[dataset](root)


def digits() -> Raw:
    """The 1,797 handwritten digits that scikit-learn installs, enlarged from 8 x 8 to 16 x 16."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    images = torch.from_numpy(np.round(bunch.images * (255 / 16)).astype(np.uint8))[:, None]
    arrays = Arrays(images, torch.from_numpy(bunch.target).long())
    return Raw(arrays.resized(16), None, tuple("0123456789"), channels=1, size=16)


@cache  # several commands of one process may open them
def cluttered() -> Raw:
    """The digits at random places, sizes and angles, some with clutter, noise or a missing part, 32 x 32."""

    def arrays(drawings: Drawings) -> Arrays:
        return Arrays(torch.from_numpy(drawings.images)[:, None], torch.from_numpy(drawings.labels))

    train, test = cluttered_digits()
    groups = torch.from_numpy(train.digits)
    return Raw(arrays(train), arrays(test), tuple("0123456789"), channels=1, size=32, groups=groups)


def cifar10(root: Path) -> Raw:
    """CIFAR-10 in the standard binary version: data_batch_1..5.bin, test_batch.bin, batches.meta.txt."""
    nested = root / "cifar-10-batches-bin"
    folder = nested if nested.is_dir() else root

    def read(names: list[str]) -> Arrays:
        rows = []
        for name in names:
            file = folder / name
            data = read_bytes(file, "the binary version of CIFAR-10 has data_batch_1.bin to data_batch_5.bin")
            if len(data) != 10_000 * 3073:
                raise DataError(f"{file} has {len(data)} bytes instead of {10_000 * 3073}; download it again")
            rows.append(torch.frombuffer(bytearray(data), dtype=torch.uint8).view(-1, 3073))
        table = torch.cat(rows)
        if int(table[:, 0].max()) > 9:
            raise DataError(f"{folder} has labels beyond 9; it is not CIFAR-10")
        return Arrays(table[:, 1:].reshape(-1, 3, 32, 32).contiguous(), table[:, 0].long())

    train = read([f"data_batch_{k}.bin" for k in range(1, 6)])
    meta = folder / "batches.meta.txt"
    classes = tuple(meta.read_text().split()) if meta.is_file() else tuple(map(str, range(10)))
    return Raw(train, read(["test_batch.bin"]), classes, channels=3, size=32)


def idx(root: Path) -> Raw:
    """MNIST and Fashion-MNIST files: {train,t10k}-{images-idx3,labels-idx1}-ubyte, plain or gzipped."""

    def read(name: str, dims: int) -> np.ndarray:
        file = next((f for f in (root / name, root / f"{name}.gz") if f.is_file()), root / name)
        data = read_bytes(file, "idx folders hold train-images-idx3-ubyte and the three files that go with it")
        if file.suffix == ".gz":
            try:
                data = gzip.decompress(data)
            except (OSError, EOFError, zlib.error) as error:
                raise DataError(f"{file} is not a complete gzip file ({error}); download it again") from error
        if len(data) < 4 + 4 * dims or data[:4] != bytes([0, 0, 8, dims]):
            raise DataError(f"{file} is not an idx file of unsigned bytes with {dims} dimensions")
        shape = struct.unpack(f">{dims}I", data[4 : 4 + 4 * dims])
        values = np.frombuffer(data, np.uint8, offset=4 + 4 * dims)
        if values.size != int(np.prod(shape)):
            raise DataError(f"{file} has {values.size} values instead of {int(np.prod(shape))}; it is truncated")
        return values.reshape(shape)

    def split(name: str) -> Arrays:
        images, labels = read(f"{name}-images-idx3-ubyte", 3), read(f"{name}-labels-idx1-ubyte", 1)
        if len(images) != len(labels):
            raise DataError(f"{root}: {len(images)} images but {len(labels)} labels in {name}")
        return Arrays(torch.from_numpy(images.copy())[:, None], torch.from_numpy(labels.astype(np.int64)))

    train, test = split("train"), split("t10k")
    classes = tuple(str(k) for k in range(int(train.labels.max()) + 1))
    return Raw(train, test, classes, channels=1, size=train.images.shape[-1])


def fashion_mnist(root: Path | None) -> Raw:
    """Fashion-MNIST with its class names, by default from the folder of Debian's package."""
    root = root or FASHION_MNIST
    if not root.is_dir():
        raise DataError(f"{root} does not exist; install Debian's dataset-fashion-mnist, or give --data.root FOLDER")
    names = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")
    return replace(idx(root), classes=names)


def read_bytes(file: Path, hint: str) -> bytes:
    try:
        return file.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{file} does not exist; {hint}") from None


def statistics(source: Images, ids: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over the training images. For files they are ImageNet's."""
    if not isinstance(source, Arrays):
        return IMAGENET_MEAN, IMAGENET_STD
    sums = torch.zeros(2, source.images.shape[1], dtype=torch.float64)
    for part in ids.split(4096):
        pixels = source.images[part].double() / 255
        sums += torch.stack([pixels.sum((0, 2, 3)), pixels.square().sum((0, 2, 3))])
    count = len(ids) * source.images.shape[2] * source.images.shape[3]
    mean, square = sums / count
    std = (square - mean.square()).clamp_min(1e-6).sqrt()
    return tuple(round(v, 6) for v in mean.tolist()), tuple(round(v, 6) for v in std.tolist())
