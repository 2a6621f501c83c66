"""VOC folders: what is read, what is refused, and that boxes stay on their objects."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from dsnet.data.augment import to_tensor
from dsnet.data.batches import TrainBatches
from dsnet.data.boxes import BoxAugmentConfig, augment, flipped, inside, turned
from dsnet.data.voc import VOC_CLASSES, DetectionDataConfig, known_lists, open_detection_data, read_lists
from dsnet.errors import DataError
from dsnet.images import prepare, read_image
from support.folders import annotation, voc_folder

BCCD = os.environ.get("DSNET_BCCD", "")  # a folder of the blood-cell images


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    return voc_folder(tmp_path, {"train": 8, "test": 3})


def write(root: Path, text: str, entry: str = "train000") -> None:
    (root / "Annotations" / f"{entry}.xml").write_text(text)


def test_boxes_are_read_in_continuous_coordinates(voc: Path) -> None:
    records = read_lists(voc, ["train"])
    assert records.classes == ("blue", "red")
    assert len(records) == 8
    assert records.items[0].objects.tolist() == [[0, 0, 40, 35, 1, 0]]  # VOC's 1 to 40 are 40 pixels


def test_lists_of_several_years_are_joined(tmp_path: Path) -> None:
    voc_folder(tmp_path / "VOC2007", {"trainval": 2, "test": 1}, colours=("red",))
    for file in (tmp_path / "VOC2007" / "Annotations").glob("*.xml"):
        file.write_text(file.read_text().replace("red", "dog"))
    voc_folder(tmp_path / "VOC2012", {"trainval": 3}, colours=("red",))
    for file in (tmp_path / "VOC2012" / "Annotations").glob("*.xml"):
        file.write_text(file.read_text().replace("red", "cat"))
    (tmp_path / "VOC2007/ImageSets/Main/dog_trainval.txt").write_text("trainval000 1\n")
    assert known_lists(tmp_path) == ["2007/test", "2007/trainval", "2012/trainval"]
    records = read_lists(tmp_path, ["2007/trainval", "2012/trainval"])
    assert len(records) == 5  # the same names in different years are different images
    assert records.classes == VOC_CLASSES
    assert [int(item.objects[0, 4]) for item in records.items] == [11, 11, 7, 7, 7]
    assert len(read_lists(tmp_path, ["2007/trainval", "2007/trainval"])) == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<annotation><object>", "not well-formed XML"),
        ("", "not well-formed XML"),
        ("<annotation><object><name>red</name></object></annotation>", "object 1 has no complete bndbox"),
        (annotation([("red", 1, 1, 9, 9)]).replace(">9<", ">nine<"), "no complete bndbox of numbers"),
        (annotation([("", 1, 1, 9, 9)]), "object 1 has no name"),
        (annotation([("red", 50, 1, 9, 9)]), "ends before it begins"),
    ],
)
def test_broken_annotations_are_named(voc: Path, text: str, message: str) -> None:
    write(voc, text)
    with pytest.raises(DataError, match=message) as caught:
        read_lists(voc, ["train"])
    assert "train000.xml" in str(caught.value)


def test_unknown_classes_are_named(voc: Path) -> None:
    with pytest.raises(
        DataError, match=r"train000.xml has an object of the class 'red', which is not one of blue; add"
    ):
        read_lists(voc, ["train"], ["blue"])
    write(voc, annotation([("green", 1, 1, 9, 9)]), "test000")
    with pytest.raises(DataError, match="class 'green'"):
        open_detection_data(DetectionDataConfig(root=str(voc), image_size=64))


def test_missing_files_are_named(voc: Path) -> None:
    with pytest.raises(DataError, match=r"val.txt does not exist; there are test, train below"):
        read_lists(voc, ["val"])
    with pytest.raises(DataError, match="is not a folder"):
        read_lists(voc / "nowhere", ["train"])
    (voc / "Annotations" / "train001.xml").unlink()
    with pytest.raises(DataError, match=r"train001.xml does not exist, but a list names it"):
        read_lists(voc, ["train"])
    (voc / "JPEGImages" / "train000.jpg").unlink()
    with pytest.raises(DataError, match=r"train000.jpg does not exist"):
        read_lists(voc, ["train"])


def test_boxes_are_cut_to_the_image_and_refused_outside_of_it(voc: Path) -> None:
    write(voc, annotation([("red", -5, 10, 120, 30)]), "test000")
    data = open_detection_data(DetectionDataConfig(root=str(voc), image_size=64))
    assert data.test.load(torch.arange(1)).labels[0, 0, :4].tolist() == pytest.approx([0, 9 / 80, 1, 30 / 80])
    objects = torch.tensor([[-6.0, 9.0, 120.0, 30.0, 0, 0]])
    assert inside(objects, 100, 80, "a.jpg").tolist() == [[0, 9, 100, 30, 0, 0]]
    with pytest.raises(DataError, match=r"a.jpg has 100 x 80 pixels, but its annotation has an object outside of it"):
        inside(torch.tensor([[100.0, 9.0, 120.0, 30.0, 0, 0]]), 100, 80, "a.jpg")


def test_images_without_objects_are_loaded(voc: Path) -> None:
    write(voc, "<annotation></annotation>", "test000")
    data = open_detection_data(DetectionDataConfig(root=str(voc), image_size=64))
    batch = data.test.load(torch.arange(3))
    assert (batch.labels[0, :, 4] == -1).all()
    assert (batch.labels[1, :, 4] >= 0).sum() == 1
    for entry in range(8):
        write(voc, "<annotation></annotation>", f"train{entry:03d}")
    with pytest.raises(DataError, match="have no objects; there is nothing to learn"):
        read_lists(voc, ["train"])


def test_difficult_objects_keep_their_mark(voc: Path) -> None:
    write(voc, annotation([("red", 1, 1, 50, 50), ("blue", 50, 1, 90, 40)], difficult=[1]))
    assert read_lists(voc, ["train"]).items[0].objects[:, 5].tolist() == [0, 1]


def test_damaged_images_stop_or_are_listed(voc: Path) -> None:
    (voc / "JPEGImages" / "test001.jpg").write_bytes(b"no image")
    config = DetectionDataConfig(root=str(voc), image_size=64)
    with pytest.raises(DataError, match=r"test001.jpg cannot be read"):
        open_detection_data(config).test.load(torch.arange(3))
    batch = open_detection_data(DetectionDataConfig(root=str(voc), image_size=64, on_corrupt="skip")).test.load(
        torch.arange(3)
    )
    assert batch.ids.tolist() == [0, 2]
    assert [Path(file).name for file in batch.skipped] == ["test001.jpg"]


def test_predictions_see_what_evaluation_sees(voc: Path) -> None:
    """A file that is prepared without torch is, bit for bit, what the plain batches of training hold."""
    data = open_detection_data(DetectionDataConfig(root=str(voc), image_size=67))
    batch = data.test.load(data.test.ids)
    for entry, x in zip(("test000", "test001", "test002"), batch.images, strict=True):
        image = read_image(voc / "JPEGImages" / f"{entry}.jpg")
        how = {"crop": 1.0, "interpolation": "bilinear", "mean": data.mean, "std": data.std}
        assert np.array_equal(prepare(image, size=67, channels=3, fit="squeeze", **how), x.numpy())


def test_splits_are_apart_and_seeded(voc: Path) -> None:
    config = DetectionDataConfig(root=str(voc), image_size=64, calibration_share=0.25)
    data = open_detection_data(config)
    assert sorted([*data.train.ids.tolist(), *data.calibration.ids.tolist()]) == list(range(8))
    assert len(data.calibration) == 2
    assert open_detection_data(config).fingerprint == data.fingerprint
    write(voc, annotation([("red", 2, 1, 9, 9)]))
    assert open_detection_data(config).fingerprint != data.fingerprint


def test_wrong_configs_are_refused_at_birth() -> None:
    with pytest.raises(ValueError, match="test on other images"):
        DetectionDataConfig(train=["trainval"], test=["trainval"])
    with pytest.raises(ValueError, match="at least 64 pixels"):
        DetectionDataConfig(image_size=32)
    with pytest.raises(ValueError, match="names a class twice"):
        DetectionDataConfig(classes=["a", "a"])
    with pytest.raises(DataError, match=r"data.root is missing"):
        open_detection_data(DetectionDataConfig())


@pytest.mark.parametrize("turn", [False, True])
def test_augmented_boxes_stay_on_their_objects(turn: bool) -> None:
    """A red rectangle on white: whatever is done, the box holds the red pixels and nothing else."""
    config = BoxAugmentConfig(colour=0.0, expand=3.0, turn=turn)
    kept = 0
    for seed in range(40):
        image = Image.new("RGB", (200, 150), "white")
        image.paste("red", (60, 40, 130, 100))
        objects = torch.tensor([[60.0, 40, 130, 100, 1, 0]])
        rng = random.Random(seed)
        square, found = augment(image, objects, config, rng, size=128, interpolation="nearest", fill=(255, 255, 255))
        assert square.size == (128, 128)
        pixels = to_tensor(square).permute(1, 2, 0)
        red = (pixels[:, :, 0] > 128) & (pixels[:, :, 1] < 128)
        assert len(found) == 1
        rows, columns = red.any(1).nonzero().flatten(), red.any(0).nonzero().flatten()
        edges = [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]
        assert (found[0, :4] * 128).tolist() == pytest.approx([int(edge) for edge in edges], abs=1.6)
        kept += int(found[0, 4])
    assert kept == 40


def test_flips_and_turns_come_back() -> None:
    image = Image.new("RGB", (64, 64))
    objects = torch.tensor([[0.1, 0.2, 0.5, 0.9, 2, 1]])
    torch.testing.assert_close(flipped(*flipped(image, objects))[1], objects)
    four = (image, objects)
    for _ in range(4):
        four = turned(*four)
    torch.testing.assert_close(four[1], objects)


def test_augmentation_depends_on_the_seed_alone(voc: Path) -> None:
    split = open_detection_data(DetectionDataConfig(root=str(voc), image_size=64)).train
    first, again, other = (split.load(split.ids, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.images, again.images)
    assert torch.equal(first.labels, again.labels)
    assert not torch.equal(first.images, other.images)


def test_loading_processes_change_nothing(voc: Path) -> None:
    split = open_detection_data(DetectionDataConfig(root=str(voc), image_size=64)).train
    for one, other in zip(*(TrainBatches(split, 3, 0, workers).epoch(0) for workers in (0, 1)), strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)


@pytest.mark.skipif(not BCCD, reason="DSNET_BCCD does not say where the BCCD images are")
def test_real_annotations_are_read() -> None:
    records = read_lists(Path(BCCD), ["train", "val", "test"])
    assert records.classes == ("Platelets", "RBC", "WBC")
    assert len(records) == 364
    assert sum(len(item.objects) for item in records.items) == 4888
