"""One reader for training, evaluation and prediction: the same pixels for the same file, at a fraction of the cost."""

from __future__ import annotations

import random
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image

from dsnet import images, pictures, prediction
from dsnet.data.augment import AugmentConfig
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.images import FILTERS, GAP, ImageFile, centre_crop, random_crop, read_image, squeeze
from dsnet.manifest import Policy
from dsnet.models import create_model, eager
from dsnet.tasks import card_of

SAVED = {
    "plain.jpg": {"quality": 95},
    "progressive.jpg": {"quality": 95, "progressive": True},
    "grey.jpg": {"quality": 95},
    "print.jpg": {"quality": 95},
    "plain.png": {},
    "clear.png": {},
    "plain.webp": {"quality": 95},
    "plain.gif": {},
    "plain.bmp": {},
    "plain.tif": {},
}
MODES = {"grey.jpg": "L", "print.jpg": "CMYK", "clear.png": "RGBA"}


def slope(width: int, height: int) -> Image.Image:
    """Smooth colours that differ along both axes, so that a shift of a few pixels can be seen."""
    across = np.linspace(0, 255, width)[None, :].repeat(height, 0)
    down = np.linspace(255, 0, height)[:, None].repeat(width, 1)
    return Image.fromarray(np.stack([across, down, (across + down) / 2], 2).astype(np.uint8))


def save(file: Path, image: Image.Image, orientation: int = 1) -> Path:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    image.convert(MODES.get(file.name, "RGB")).save(file, exif=exif, **SAVED[file.name])
    return file


@pytest.mark.parametrize("name", SAVED)
def test_training_evaluation_and_prediction_read_the_same_pixels(name: str, tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for number, (width, height) in enumerate([(301, 203), (203, 301), (64, 48), (20, 33), (640, 477)]):
            (tmp_path / label / str(number)).mkdir(parents=True)
            save(tmp_path / label / str(number) / name, slope(width, height), orientation=1 + 3 * number % 8)
    for size in (16, 48):
        data = open_dataset(DataConfig(root=str(tmp_path), image_size=size, crop_ratio=0.8))
        net = create_model("ds_mobilenet_v1_tiny", num_classes=2, image_size=size)
        net.card = card_of(data)
        manifest = net.manifest()
        for split in (data.train, data.test):
            for file, x in zip(split.files(), split.load(split.ids).images, strict=True):
                assert np.array_equal(pictures.as_input(pictures.opened(file), manifest), x.numpy()), file


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [(301, 203), (640, 480)])
def test_a_reduced_image_is_the_whole_one_at_the_same_place(
    orientation: int, size: tuple[int, int], tmp_path: Path
) -> None:
    file = save(tmp_path / "plain.jpg", slope(*size), orientation)
    whole = read_image(file)
    for side in (8, 12, 20):
        reduced = ImageFile(file)
        assert (reduced.width, reduced.height) == whole.size
        box = (whole.width * 0.1, whole.height * 0.2, whole.width * 0.9, whole.height)
        found = np.asarray(reduced.resize((side, side), FILTERS["bilinear"], box=box), np.int64)
        assert reduced.scale > 1
        expected = np.asarray(whole.resize((side, side), FILTERS["bilinear"], box=box), np.int64)
        assert np.abs(found - expected).max() <= 4
        assert np.abs((found - expected).mean((0, 1))).max() < 0.5  # not shifted


def test_a_crop_has_enough_pixels_for_each_of_its_result(tmp_path: Path) -> None:
    rng = random.Random(0)
    for _ in range(60):
        width, height = rng.randint(1, 400), rng.randint(1, 400)
        file = save(tmp_path / "plain.jpg", Image.new("RGB", (width, height)), rng.randint(1, 8))
        image = ImageFile(file)
        left, top = rng.uniform(0, 0.5) * image.width, rng.uniform(0, 0.5) * image.height
        box = (left, top, rng.uniform(left + 0.5, image.width), rng.uniform(top + 0.5, image.height))
        size = rng.randint(1, 60), rng.randint(1, 60)
        assert image.resize(size, FILTERS["bicubic"], box=box).size == size
        sides = (box[2] - box[0], box[3] - box[1])
        assert image.scale == 1 or all(
            side >= GAP * image.scale * wanted for side, wanted in zip(sides, size, strict=True)
        )


def test_every_crop_is_taken_of_a_reduced_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Crops are chosen in pixels of the whole image, so the same seed takes the same part."""
    file = save(tmp_path / "plain.jpg", slope(640, 480))

    def crops() -> list[tuple[int, np.ndarray]]:
        found = []
        for crop in (
            lambda image: centre_crop(image, 16, crop=0.875, interpolation="bicubic"),
            lambda image: squeeze(image, 16, "bilinear"),
            lambda image: random_crop(image, 16, scale=(0.9, 1), interpolation="bilinear", rng=random.Random(1)),
            lambda image: random_crop(image, 16, scale=(0.02, 0.03), interpolation="bilinear", rng=random.Random(1)),
            lambda image: centre_crop(image, 16, crop=0.875, interpolation="nearest"),
        ):
            image = ImageFile(file)
            pixels = np.asarray(crop(image), np.int64)
            found.append((image.scale, pixels))
        return found

    reduced = crops()
    monkeypatch.setattr(images, "GAP", float("inf"))
    whole = crops()
    assert [scale for scale, _ in reduced] == [8, 8, 8, 2, 1]
    assert [scale for scale, _ in whole] == [1] * 5
    for (_, found), (_, expected) in zip(reduced, whole, strict=True):
        assert np.abs(found - expected).max() <= 4
    assert np.array_equal(reduced[-1][1], whole[-1][1])  # nearest pixels are those of the whole image


def test_training_reads_random_crops_of_large_files(tmp_path: Path) -> None:
    for label in ("cat", "dog"):
        for number in range(4):
            (tmp_path / label / str(number)).mkdir(parents=True)
            save(tmp_path / label / str(number) / "plain.jpg", slope(320, 240))
    config = DataConfig(root=str(tmp_path), image_size=16, augment=AugmentConfig("resized", scale=(0.2, 1.0)))
    split = open_dataset(config).train
    batch = split.load(split.ids, seed=1)
    assert torch.equal(batch.images, split.load(split.ids, seed=1).images)
    assert not torch.equal(batch.images, split.load(split.ids, seed=2).images)
    assert len({image.numpy().tobytes() for image in batch.images}) == len(batch.images)


def test_prediction_holds_one_image_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive = weakref.WeakSet()
    most = []

    class Counted(ImageFile):
        def __init__(self, file: Path) -> None:
            super().__init__(file)
            alive.add(self)
            most.append(len(alive))

    monkeypatch.setattr(pictures, "ImageFile", Counted)
    for number in range(6):
        slope(50, 40).save(tmp_path / f"{number}.png")
    net = create_model("ds_mobilenet_v1_tiny", num_classes=10).eval()
    files = sorted(tmp_path.iterdir())
    found = list(prediction.predict(eager(net), files, Policy(), path=(0,), batch_size=6))
    assert [Path(answer.file) for answer in found] == files
    assert most == [1] * 6
