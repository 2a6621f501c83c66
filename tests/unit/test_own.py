"""Datasets of torch are split, shuffled, augmented and resumed as files are, and odd items are named."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, IterableDataset

from dsnet.data.augment import AugmentConfig
from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Data
from dsnet.data.labelled import open_dataset
from dsnet.data.own import Datasets, picture
from dsnet.decoding import Upright
from dsnet.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 20, 20, 3), np.uint8)
CONFIG = DataConfig("python", augment=AugmentConfig(crop="resized", flip=True, randaugment=1))


class Mapped(Dataset[Any]):
    """Items in any of the forms that are understood."""

    def __init__(self, form: str = "array", count: int = 60, grey: bool = False) -> None:
        self.form, self.count, self.grey = form, count, grey

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> tuple[Any, int]:
        pixels = PIXELS[number, ..., 0] if self.grey else PIXELS[number]
        forms = {
            "array": lambda: pixels,
            "tensor": lambda: torch.from_numpy(pixels[None].copy() if self.grey else pixels.transpose(2, 0, 1).copy()),
            "picture": lambda: Image.fromarray(pixels),
            "floats": lambda: torch.rand(3, 20, 20),
            "fails": lambda: (1 / (number - 7), pixels)[1],
        }
        return forms[self.form](), number % 3


class Streamed(IterableDataset[Any]):
    """The items of Mapped in an order that follows from the epoch."""

    epoch = 0

    def __init__(self, ends: int = 60) -> None:
        self.ends = ends

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch).permutation(60)[: self.ends]
        return (Mapped()[int(number)] for number in order)


def opened(own: Datasets) -> Data:
    return open_dataset(CONFIG, own=own)


@pytest.mark.parametrize("grey", [False, True])
def test_every_form_of_an_image_gives_the_same_pixels(grey: bool) -> None:
    found = [opened(Datasets(Mapped(form, grey=grey))) for form in ("array", "tensor", "picture")]
    for data in found:
        assert (data.channels, data.image_size, data.crop) == (1 if grey else 3, 20, 1.0)
        assert data.classes == ("0", "1", "2")
        assert data.fingerprint == found[0].fingerprint
        for name in ("train", "calibration", "test"):
            part = data.split(name)
            for batch in plain_batches(part, 7):
                assert torch.equal(batch.images, part.load(batch.ids).images)
                expected = PIXELS[batch.ids][..., : data.channels].transpose(0, 3, 1, 2)
                assert np.array_equal(part.loader(batch.ids, None).images.numpy(), expected), "images that fit stay"
                assert torch.equal(batch.labels, batch.ids % 3)


@pytest.mark.parametrize("streamed", [False, True])
def test_batches_depend_on_seed_and_epoch_alone(streamed: bool) -> None:
    own = Datasets(Streamed(), Mapped(), Mapped(), images=60) if streamed else Datasets(Mapped())
    size = 8
    unbroken = list(TrainBatches(opened(own).train, size, seed=5).epoch(3))
    torch.manual_seed(1)
    for workers in (0, 2):
        data = opened(own)
        list(TrainBatches(data.train, size, seed=5, workers=workers).epoch(2))
        later = list(TrainBatches(data.train, size, seed=5, workers=workers).epoch(3, start=2))
        for a, b in zip(later, unbroken[2:], strict=True):
            assert torch.equal(a.ids, b.ids)
            assert torch.equal(a.images, b.images)
            assert torch.equal(a.labels, b.labels)
    halves = [TrainBatches(opened(own).train, size, seed=5, rank=rank, world=2).epoch(3) for rank in (0, 1)]
    for full, a, b in zip(unbroken, *halves, strict=True):
        assert torch.equal(torch.stack([a.ids, b.ids], 1).flatten(), full.ids)
        assert torch.equal(torch.stack([a.labels, b.labels], 1).flatten(), full.labels)
    other = next(TrainBatches(opened(own).train, size, seed=5).epoch(4))
    assert not torch.equal(other.images, unbroken[0].images)


def test_an_epoch_of_a_stream_holds_what_it_yields() -> None:
    data = opened(Datasets(Streamed(), Mapped(), Mapped(), images=60))
    assert (len(data.train), data.counts) == (60, ())
    batches = list(TrainBatches(data.train, 20, seed=0).epoch(1))
    labels = torch.cat([batch.labels for batch in batches])
    assert torch.equal(labels, torch.from_numpy(np.random.default_rng(1).permutation(60) % 3))


def test_what_an_item_raises_is_a_damaged_image() -> None:
    class Labelled(Mapped):
        targets = tuple(number % 3 for number in range(60))

    with pytest.raises(DataError, match=r"item 7 of Labelled cannot be read as an image \(ZeroDivisionError: .*--data"):
        list(plain_batches(opened(Datasets(Labelled("fails"), test=Mapped(), calibration=Mapped())).train, 8))
    config = DataConfig("python", on_corrupt="skip")
    data = open_dataset(config, own=Datasets(Labelled("fails"), Mapped(), Mapped()))
    skipped = [name for batch in plain_batches(data.train, 8) for name in batch.skipped]
    assert skipped == ["item 7 of Labelled"]


def test_odd_datasets_are_named() -> None:
    class Odd(Mapped):
        targets = (0, 1) * 30

    for call, message in (
        (
            lambda: opened(Datasets(Mapped("floats"))),
            r"item 0 of Mapped has an image of torch.float32 \(3, 20",
        ),
        (lambda: opened(Datasets([1, 2, 3])), "item 0 of list is a int; it must be an image and the number"),
        (lambda: opened(Datasets([])), "the training dataset, a list, is empty"),
        (lambda: opened(Datasets(Mapped(), classes=("a", "b"))), "a label is 2, but there are 2 classes"),
        (lambda: Datasets(Mapped(), test=Streamed()), r"the test dataset is a Streamed .* pass list\(dataset\)"),
        (lambda: Datasets(Streamed()), "an iterable dataset cannot be split; give test="),
        (lambda: opened(Datasets(Streamed(), Mapped(), Mapped())), "Streamed has no length; say with images="),
        (lambda: Datasets(3), "the training dataset is a int"),
        (lambda: open_dataset(CONFIG), "the data of this run are datasets from Python"),
        (lambda: list(plain_batches(opened(Datasets(Odd(), Mapped(), Mapped())).train, 8)), "its list of labels says"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    short = opened(Datasets(Streamed(ends=30), Mapped(), Mapped(), images=60))
    with pytest.raises(DataError, match="Streamed ended after 30 images, but an epoch has 60"):
        list(TrainBatches(short.train, 20, seed=0).epoch(0))


def test_pictures_are_read_as_by_predict() -> None:
    """Turned upright, with white behind what is transparent, and with 16 bits scaled."""
    turned = Image.fromarray(PIXELS[0, :10])
    turned.getexif()[0x0112] = 6
    clear = Image.new("RGBA", (20, 20))
    deep = Image.fromarray(np.full((20, 20), 20_000, np.uint16))
    for image in (turned, clear, deep):
        assert np.array_equal(np.asarray(picture(image, "x")), np.asarray(Upright(image).rgb()))
    assert picture(turned, "x").size == (10, 20)
    assert picture(clear, "x").getpixel((0, 0)) == (255, 255, 255)


def test_channels_and_size_are_those_of_many_items() -> None:
    class Mixed(Mapped):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            pixels = PIXELS[number]
            return (pixels[..., 0] if number == 0 else pixels, number % 3)

    class Sides(Mapped):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            return (PIXELS[number] if number == 0 else PIXELS[number, :10], number % 3)

    assert opened(Datasets(Mixed())).channels == 3
    config = DataConfig("python", image_size=12)
    assert open_dataset(config, own=Datasets(Sides())).crop < 1.0


def test_damaged_items_do_not_keep_a_run_from_beginning() -> None:
    class Odd(Mapped):
        targets = tuple(number % 3 for number in range(60))

        def __getitem__(self, number: int) -> tuple[Any, int]:
            if number % 8 == 0:
                raise OSError("truncated")
            return super().__getitem__(number)

    data = opened(Datasets(Odd(), Mapped(), Mapped()))
    assert (data.channels, data.image_size) == (3, 20)

    class Gone(Odd):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            raise OSError("truncated")

    with pytest.raises(DataError, match=r"item 0 of Gone cannot be read as an image \(OSError: truncated"):
        opened(Datasets(Gone(), Mapped(), Mapped()))


def test_a_picture_that_was_opened_only_may_be_damaged() -> None:
    file = io.BytesIO()
    Image.fromarray(PIXELS[0]).save(file, "PNG")
    broken = Image.open(io.BytesIO(file.getvalue()[:200]))

    class Lazy(Mapped):
        targets = tuple(number % 3 for number in range(60))

        def __getitem__(self, number: int) -> tuple[Any, int]:
            return (broken, 0) if number == 7 else super().__getitem__(number)

    data = open_dataset(DataConfig("python", on_corrupt="skip"), own=Datasets(Lazy(), Mapped(), Mapped()))
    assert sum(len(batch.labels) for batch in plain_batches(data.train, 8)) == 59


def test_sixteen_bits_are_grey() -> None:
    class Deep(Mapped):
        def __getitem__(self, number: int) -> tuple[Any, int]:
            return Image.fromarray(PIXELS[number, ..., 0].astype(np.uint16) * 200), number % 3

    assert opened(Datasets(Deep())).channels == 1
