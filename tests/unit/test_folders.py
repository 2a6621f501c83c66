"""Which files are read, by folders or by a CSV file, and what is refused before a run begins."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from dsnet.config import packaged
from dsnet.data import check
from dsnet.data.augment import AugmentConfig
from dsnet.data.batches import PlainImages
from dsnet.data.check import check_files, damaged_files
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Data
from dsnet.data.labelled import open_dataset
from dsnet.data.voc import DetectionDataConfig
from dsnet.errors import DataError
from dsnet.images import MAX_PIXELS, ImageError, check_image, read_image
from dsnet.tasks import read_config
from support.counted import Counted
from support.folders import make_folder, voc_folder


def opened(root: Path, **options: object) -> Data:
    return open_dataset(DataConfig(root=str(root), image_size=20, **options))  # type: ignore[arg-type]


def names(data: Data, split: str) -> list[str]:
    return [f"{Path(file).parent.name}/{Path(file).name}" for file in data.split(split).files()]


def test_a_root_or_labels_alone_mean_a_folder(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    assert (DataConfig().kind, DataConfig(root=str(root)).kind, DataConfig(labels="a.csv").kind) == (
        "digits",
        "folder",
        "folder",
    )
    assert str(opened(root)) == "pets: 3 classes, 33 training, 3 calibration, 36 test images, 20 px"
    for number in range(4, 12):
        (root / "train" / "emu" / f"{number:02d}.jpg").unlink()
    assert "3 classes (emu 3 to cat 11 training images), 25 training" in str(opened(root))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DataConfig("digits", root="pets"), "data.root is pets, but digits are part of the installation"),
        (DataConfig("folder", root="pets", folders=["train"]), "data.folders is .*it is for images without labels"),
        (DataConfig(crop_ratio=0.5), "data.crop_ratio is 0.5, but it would have no effect: it is for image files, and"),
        (DataConfig("idx", root="a", on_corrupt="skip"), "data.on_corrupt is skip.*and idx is read as arrays"),
        (DataConfig("cifar10", root="a", labels="a.csv"), "data.labels is a.csv, but it would have no effect"),
        (DataConfig(augment=AugmentConfig(pad=2)), "data.augment.pad is 2.*augment.crop is none; leave it out"),
        (DataConfig(augment=AugmentConfig("pad", scale=(0.5, 1.0))), "data.augment.scale.*augment.crop is pad"),
        (DataConfig(augment=AugmentConfig(magnitude=3)), "data.augment.magnitude is 3.*augment.randaugment is 0"),
        (DetectionDataConfig(calibration=["a"], split_seed=1), "data.split_seed is 1.*names the calibration images"),
    ],
)
def test_options_without_effect_are_refused(config: DataConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config.check_used()


@pytest.mark.parametrize("name", packaged())
def test_every_option_of_the_packaged_configs_has_an_effect(name: str) -> None:
    read_config(packaged()[name]).data.check_used()


def test_few_calibration_images_are_warned_of(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets", count=100)
    (few,) = opened(root).warnings
    assert few.startswith(
        "only 30 images calibrate: they choose the best epoch and the budgets, and an accuracy of 90 %"
    )
    assert few.endswith("is uncertain by 11 points; set --data.calibration 0.34, or add training images")
    assert not opened(root, calibration=0.34).warnings
    assert not open_dataset(DataConfig()).warnings


def test_a_test_class_that_is_not_trained_is_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    (root / "val" / "emu").rename(root / "val" / "Emu")
    with pytest.raises(DataError, match=r"pets/val: the class Emu has no training images, .*correct the name"):
        opened(root)
    shutil.rmtree(root / "val" / "Emu")
    data = opened(root)
    assert data.warnings[0].startswith(
        f"the class emu has no test images in {root / 'val'}, so evaluation says nothing"
    )
    assert len(data.test) == 24
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    with pytest.raises(DataError, match=r"pets/val has no images in class folders such as .*val/cat"):
        opened(root)


def test_val_calibrates_where_there_is_a_test_folder_too(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets", ("train", "val", "test"))
    data = opened(root)
    assert [len(split) for split in (data.train, data.calibration, data.test)] == [36, 36, 36]
    assert all("/val/" in file for file in data.calibration.files())
    assert all("/test/" in file for file in data.test.files())
    with pytest.raises(ValueError, match=r"data.calibration is 0.2.*the data brings its own calibration images"):
        opened(root, calibration=0.2)


def csv_of(root: Path, header: str = "file,label,split") -> list[str]:
    """The lines of a CSV file that says what the folders say."""
    files = sorted(root.glob("*/*/*.jpg"))
    return [header, *(f"{file.relative_to(root)},{file.parent.name},{file.parent.parent.name}" for file in files)]


def test_a_csv_file_says_what_folders_say(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    labels = tmp_path / "labels.csv"
    labels.write_text("\ufeff" + "\r\n".join(csv_of(root, "file, label ,split")))
    folders, listed = opened(root), opened(root, labels=str(labels))
    assert listed.fingerprint == folders.fingerprint
    assert listed.classes == folders.classes
    for split in ("train", "calibration", "test"):
        assert names(listed, split) == names(folders, split)
    assert torch.equal(listed.test.load(torch.arange(4)).labels, folders.test.load(torch.arange(4)).labels)
    moved = shutil.copy(labels, root / "labels.csv")
    beside = open_dataset(DataConfig(labels=str(moved), image_size=20))  # relative to the CSV file
    assert beside.fingerprint == folders.fingerprint
    assert beside.name == "labels"
    labels.unlink()
    assert opened(root, labels=str(labels)).fingerprint == folders.fingerprint  # found below the root


def test_splits_of_a_csv_file(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    lines = csv_of(root)
    lines = [line.replace(",val", ",calibration") if number % 2 else line for number, line in enumerate(lines)]
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    data = opened(root, labels=str(tmp_path / "labels.csv"))
    assert [len(split) for split in (data.train, data.calibration, data.test)] == [36, 18, 18]
    (tmp_path / "labels.csv").write_text("\n".join(line.rpartition(",")[0] for line in lines[: 1 + 36]))
    data = opened(root, labels=str(tmp_path / "labels.csv"))
    assert [len(split) for split in (data.train, data.calibration, data.test)] == [27, 3, 6]


def test_numbers_as_labels_are_ordered_by_value(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    number = {"cat": "10", "dog": "9", "emu": "2"}
    lines = [line.split(",") for line in csv_of(root)[1:]]
    rows = [",".join([file, number[label], split]) for file, label, split in lines]
    (tmp_path / "labels.csv").write_text("\n".join(["file,label,split", *rows]))
    assert opened(root, labels=str(tmp_path / "labels.csv")).classes == ("2", "9", "10")


@pytest.mark.parametrize(
    ("line", "text", "message"),
    [
        (0, "name;label", r"labels.csv, line 1: the header is name;label; it must name the columns file and label"),
        (0, "", r"labels.csv, line 1: the header is"),
        (4, "train/cat/99.jpg,cat,train", r"names 1 files that do not exist; .*\n  line 5: .*train/cat/99.jpg"),
        (3, "train/cat/02.jpg,,train", r"labels.csv, line 4: the label is empty"),
        (3, ",cat,train", r"labels.csv, line 4: the file is empty"),
        (3, "train/cat/02.jpg,cat,dev", r"line 4: the split 'dev' is unknown; choose from train, calibration, val"),
        (3, "train/cat/01.jpg,cat,val", r"line 4: train/cat/01.jpg is in line 3 already"),
        (40, "val/cat/03.jpg,fox,val", r"the val images of .*: the class fox has no training images"),
    ],
)
def test_wrong_lines_of_a_csv_file_are_named(line: int, text: str, message: str, tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    lines = csv_of(root)
    lines[line] = text
    (tmp_path / "labels.csv").write_text("\n".join(lines))
    with pytest.raises(DataError, match=message):
        opened(root, labels=str(tmp_path / "labels.csv"))


def test_csv_files_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    labels = tmp_path / "labels.csv"
    with pytest.raises(DataError, match=r"labels.csv does not exist; give the CSV file"):
        opened(root, labels=str(labels))
    labels.write_text("\n".join(line for line in csv_of(root) if "dog" not in line and "emu" not in line))
    with pytest.raises(DataError, match=r"labels.csv has 1 class; at least 2 are needed"):
        opened(root, labels=str(labels))
    labels.write_bytes(b"file,label\n\xff\xfe,\n")
    with pytest.raises(DataError, match=r"is not a CSV file in UTF-8"):
        opened(root, labels=str(labels))


def damage(root: Path, count: int) -> list[Path]:
    files = sorted((root / "train").rglob("*.jpg"))[:count]
    for number, file in enumerate(files):
        file.write_bytes(file.read_bytes()[:400] if number % 2 else b"no image")
    return files


def test_every_damaged_file_is_listed_up_to_twenty(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    files = damage(root, 23)
    with pytest.raises(
        DataError, match=r"^23 of 72 images cannot be read; replace or remove them; --data.on_corrupt skip"
    ) as stop:
        check_files(opened(root), DataConfig(root=str(root)))
    _, *lines = str(stop.value).splitlines()
    assert all(str(file) in line for file, line in zip(files, lines[:20], strict=False))
    assert lines[20:] == ["  and 3 more"]


def test_skipped_files_are_counted_against_their_split(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    skip = DataConfig(root=str(root), image_size=20, on_corrupt="skip", max_skipped=0.05)
    assert check_files(open_dataset(skip), skip) == []
    files = list(map(str, damage(root, 1)))
    assert check_files(open_dataset(skip), skip) == files
    damage(root, 2)
    with pytest.raises(
        DataError, match=r"2 of 33 train images are damaged, more than data.max_skipped allows \(5.00%\)"
    ):
        check_files(open_dataset(skip), skip)
    assert len(check_files(open_dataset(skip), replace(skip, max_skipped=0.1))) == 2


def skipped_by(data: Data, name: str) -> int:
    """The number of files that are skipped when a whole split is read."""
    images = PlainImages(data.split(name), 16, name=name, max_skipped=1.0)
    return sum(len(batch.skipped) for batch in images.batches())


def disagreements(root: Path, trials: int, seed: int) -> tuple[int, list[object]]:
    """Damage random files of random splits. Returns how often the check accepted them, and where it was not right: a
    split is read later without an error if and only if the check accepted it."""
    rng, right, accepted, wrong = random.Random(seed), {}, 0, []
    for file in sorted(make_folder(root, ("train", "calibration", "test"), count=7).rglob("*.jpg")):
        right[file] = file.read_bytes()
    for _ in range(trials):
        share = rng.choice([0.0, 0.05, 0.1, 0.25])
        options = DataConfig(root=str(root), image_size=8, on_corrupt="skip", max_skipped=share)
        for file in rng.sample(sorted(right), rng.randint(0, 8)):
            file.write_bytes(rng.choice([b"no image", right[file][: rng.randint(0, 600)]]))
        data = open_dataset(options)
        skipped = {name: skipped_by(data, name) for name in ("train", "calibration", "test")}
        later = [name for name in ("calibration", "test") if skipped[name] > share * len(data.split(name))]
        if skipped["train"] + skipped["calibration"] > share * len(data.train):  # as the loop counts
            later.append("train")
        try:
            check_files(data, options)
            accepted, early = accepted + 1, None
        except DataError as error:
            early = str(error)
        wrong += [(share, early, later)] if (early is None) != (not later) else []
        for file, content in right.items():
            file.write_bytes(content)
    return accepted, wrong


def test_the_check_before_training_is_right_about_every_split(tmp_path: Path) -> None:
    accepted, wrong = disagreements(tmp_path, 8, seed=0)
    assert 0 < accepted < 8
    assert not wrong


@pytest.mark.slow
def test_the_check_before_training_is_right_many_times(tmp_path: Path, counted: Counted) -> None:
    accepted, wrong = disagreements(tmp_path, 300, seed=1)
    law = "Damaged files of any split are refused before training if and only if they would end the run later"
    counted(law, 300, wrong, accepted=accepted, refused=300 - accepted)


def test_of_very_many_files_headers_and_a_sample_are_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [str(file) for file in sorted(make_folder(tmp_path).rglob("*.jpg"))]
    Path(files[0]).write_bytes(b"no image")  # its header is wrong
    for file in files[1:]:
        Path(file).write_bytes(Path(file).read_bytes()[:-40])  # headers are intact
    assert len(damaged_files(files, max_pixels=MAX_PIXELS)) == len(files)
    monkeypatch.setattr(check, "ALL", 10)
    monkeypatch.setattr(check, "SAMPLE", 5)
    found = damaged_files(files, max_pixels=MAX_PIXELS)
    assert files[0] in found
    assert len(found) in (5, 6)
    assert set(damaged_files(files, max_pixels=100)) == set(files)  # the size is in the header


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "gif", "bmp", "tif"])
def test_a_file_passes_the_check_if_it_can_be_read(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f"image.{suffix}"
    Image.effect_noise((90, 70), 50).convert("RGB").save(file)
    content = file.read_bytes()
    check_image(file)
    for share in (0.0, 0.05, 0.3, 0.9, 0.999):
        file.write_bytes(content[: int(share * len(content))])
        assert refused(check_image, file) == refused(read_image, file), share


def test_png_files_with_a_wrong_checksum_outside_of_the_pixels_pass(tmp_path: Path) -> None:
    file = tmp_path / "image.png"
    Image.new("RGB", (9, 9), "red").save(file)
    file.write_bytes(file.read_bytes()[:-12])  # without its end
    assert not refused(read_image, file)
    assert not refused(check_image, file)


def refused(function: object, file: Path) -> bool:
    try:
        function(file)  # type: ignore[operator]
    except ImageError:
        return True
    return False


def test_images_without_labels_come_from_the_folders_that_are_named(tmp_path: Path) -> None:
    """Test images beside them are not read, and an image list of VOC's form gives its images alone."""
    make_folder(tmp_path / "pets")
    voc_folder(tmp_path / "VOC2007", {"train": 6, "test": 4})

    def read(*folders: str) -> set[str]:
        config = DataConfig("images", root=str(tmp_path), folders=list(folders) or None, image_size=20)
        data = open_dataset(config)
        files = data.split("train").files() + data.split("calibration").files()
        return {str(Path(file).relative_to(tmp_path)) for file in files}

    lists = "VOC2007/ImageSets/Main"
    train, listed = read("pets/train"), read(f"{lists}/train.txt", "pets/train", "pets/train/cat") - read("pets/train")
    assert len(read()) == 2 * len(train) + 10
    assert len(train) == 36
    assert all(name.startswith("pets/train/") for name in train)
    entries = (tmp_path / lists / "train.txt").read_text().split()
    assert {Path(name).stem for name in listed} == set(entries)
    for folders, words in (
        (["cats"], "cats does not exist .*correct data.folders"),
        (["VOC2007/ImageSets"], "ImageSets has no images"),
        ([f"{lists}/none.txt"], "none.txt does not exist; there are test, train"),
    ):
        with pytest.raises(DataError, match=words):
            read(*folders)
    with pytest.raises(ValueError, match=r"data.folders is \[\]; it must name folders"):
        DataConfig("images", root=str(tmp_path), folders=[])
