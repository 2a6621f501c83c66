"""Image files with labels: one folder per class, or a CSV file that names the label of every file."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dsnet.data.shards import HEAD
from dsnet.data.sources import Files, Raw
from dsnet.data.voc import image_of, read_list
from dsnet.errors import DataError
from dsnet.images import SUFFIXES

VALIDATION = ("val", "valid")  # calibration images where there are test images too, otherwise test images
SPLITS = ("train", "calibration", *VALIDATION, "test")
FEWEST = 10  # images without labels
SHOWN = 20  # how many files an error lists


class Listing(NamedTuple):
    """Files with the number of their class and of their split in SPLITS: columns, because there may be millions."""

    files: list[str]
    labels: np.ndarray
    splits: np.ndarray

    def part(self, splits: Sequence[str]) -> np.ndarray:
        """The places of the files of some splits."""
        return np.flatnonzero(np.isin(self.splits, [SPLITS.index(split) for split in splits]))


def open_folder(root: Path | None, labels: Path | None) -> Raw:
    """Open the image files below `root`, or those that the CSV file `labels` names."""
    if labels is not None:
        return read_labels(labels, root)
    assert root is not None  # DataConfig asks for it
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the folder that holds one folder per class")
    if (root / HEAD).is_file():
        raise DataError(f"{root} holds shards; train on them with --data.dataset shards --data.root {root}")
    return scan(root)


def open_images(root: Path, folders: Sequence[str] | None = None) -> Raw:
    """All images below a folder, without classes. Every image has label 0, which means nothing.

    folders: Folders and image lists below it that are read instead.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give a folder of images")
    files = images_below(root) if folders is None else [file for name in folders for file in images_of(root / name)]
    files = list(dict.fromkeys(files))
    if len(files) < FEWEST:
        raise DataError(f"{root} has {len(files)} images ({', '.join(SUFFIXES)}); give at least {FEWEST}")
    return Raw(Files(tuple(files), torch.zeros(len(files), dtype=torch.long), root), None, (), 3, None)


def images_of(place: Path) -> list[str]:
    """The images below a folder, or of an image list of VOC's form."""
    if place.suffix == ".txt":
        folder, entries = read_list(place.parent.parent.parent, place.stem)
        return [str(image_of(folder, entry)) for entry in entries]
    found = images_below(place)
    if not found:
        why = "has no images" if place.is_dir() else "does not exist"
        raise DataError(f"{place} {why} ({', '.join(SUFFIXES)}); correct data.folders")
    return found


def scan(root: Path) -> Raw:
    """Find images in one folder per class, below train/ and val/ (or valid/ or test/), or directly below `root`."""
    split_folders = {"train": root}
    if (root / "train").is_dir():
        split_folders = {split: root / split for split in SPLITS if (root / split).is_dir()}
    names = class_folders(split_folders["train"])
    if len(names) < 2:
        raise DataError(f"{split_folders['train']} has {len(names)} class folders; at least 2 are needed")
    place = {name: number for number, name in enumerate(names)}
    files: list[str] = []
    labels, splits, strange = [], [], dict[str, list[str]]()
    for split, folder in split_folders.items():
        before = len(files)
        found = sorted({*names, *class_folders(folder)})
        for name in found:
            images = images_below(folder / name)
            if split == "train" and not images:
                raise DataError(f"{folder / name} has no images ({', '.join(SUFFIXES)}); remove it or fill it")
            if name in place:
                files += images
                labels.append(np.full(len(images), place[name], np.int32))
            elif images:
                strange.setdefault(split, []).append(name)
        splits.append(np.full(len(files) - before, SPLITS.index(split), np.int8))
        if len(files) == before and split not in strange:
            raise DataError(
                f"{folder} has no images in class folders such as {folder / names[0]}; fill it or remove it"
            )
    listing = Listing(files, np.concatenate(labels), np.concatenate(splits))
    places = {split: str(folder) for split, folder in split_folders.items()}
    return as_raw(listing, names, root, places, strange)


def class_folders(folder: Path) -> list[str]:
    return sorted(child.name for child in folder.iterdir() if child.is_dir() and not child.name.startswith("."))


def images_below(folder: Path) -> list[str]:
    """The image files below a folder, in alphabetical order."""
    return sorted(below(str(folder))) if folder.is_dir() else []


def below(folder: str) -> list[str]:
    """Image files in any order. A directory entry knows its kind, so that no file has to be looked at."""
    found: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found += below(entry.path)
            elif entry.name.lower().endswith(SUFFIXES) and not entry.name.startswith(".") and entry.is_file():
                found.append(entry.path)
    return found


def read_labels(labels: Path, root: Path | None) -> Raw:
    """Read a CSV file with the columns file, label and, if you like, split. Other columns are ignored.

    Files are relative to `root`, or else to the folder of the CSV file, which may itself lie below `root`.
    """
    if root is not None and not labels.is_file() and (root / labels.name).is_file():
        labels = root / labels.name
    base = root or labels.parent
    rows: dict[str, tuple[int, str, str]] = {}
    missing = []
    for line, row in read_rows(labels):
        file, label = (row.get(key) or "" for key in ("file", "label"))
        split = row.get("split") or "train"
        where = f"{labels}, line {line}"
        if not file or not label:
            raise DataError(f"{where}: the {'label' if file else 'file'} is empty; fill it in, or remove the line")
        if split not in SPLITS:
            raise DataError(f"{where}: the split {split!r} is unknown; choose from {', '.join(SPLITS)}")
        path = os.path.normpath(base / file)
        if path in rows:
            raise DataError(f"{where}: {file} is in line {rows[path][0]} already; keep one of the two lines")
        if not Path(path).is_file():
            missing.append(f"line {line}: {path}")
        rows[path] = line, label, split
    if missing:
        remedy = "mend the column file, or say with --data.root which folder the files are relative to"
        raise DataError(f"{labels} names {len(missing)} files that do not exist; {remedy}:\n{listed(missing)}")
    names = ordered({label for _, label, _ in rows.values()})
    if len(names) < 2:
        raise DataError(f"{labels} has {len(names)} class{'' if names else 'es'}; at least 2 are needed")
    place = {name: number for number, name in enumerate(names)}
    found = [(place[label], path, split) for path, (_, label, split) in rows.items()]
    found.sort(key=lambda row: row[0])  # class by class, as folders are read
    numbers, splits = [row[0] for row in found], [SPLITS.index(row[2]) for row in found]
    listing = Listing([row[1] for row in found], np.array(numbers, np.int32), np.array(splits, np.int8))
    trained = set(listing.labels[listing.part(["train"])].tolist())
    strange: dict[str, list[str]] = {}
    for number, _, split in found:
        if number not in trained and names[number] not in strange.setdefault(split, []):
            strange[split].append(names[number])
    return as_raw(listing, names, base, {split: f"the {split} images of {labels}" for split in SPLITS}, strange)


def read_rows(file: Path) -> list[tuple[int, dict[str, str]]]:
    """The rows of a CSV file, each with the number of its line."""
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.DictReader(text, skipinitialspace=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            if not {"file", "label"} <= set(header):
                raise DataError(
                    f"{file}, line 1: the header is {','.join(header) or 'empty'}; it must name the columns file and "
                    f"label, and may name split: file,label,split"
                )
            reader.fieldnames = header
            return [
                (reader.line_num, {key: value.strip() for key, value in row.items() if isinstance(value, str)})
                for row in reader
            ]
    except FileNotFoundError:
        raise DataError(f"{file} does not exist; give the CSV file with the columns file and label") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{file} is not a CSV file in UTF-8 ({error}); save it as one") from error


def ordered(names: Iterable[str]) -> list[str]:
    """Names in alphabetical order; whole numbers by their value."""
    names = list(names)
    return sorted(names, key=(lambda name: (int(name), name)) if all(name.isdecimal() for name in names) else None)


def as_raw(
    listing: Listing, names: Sequence[str], root: Path, places: dict[str, str], strange: dict[str, list[str]]
) -> Raw:
    """The splits of listed files. places: What to call each split in messages. strange: Classes of each split that have
    no training images."""
    given = [split for number, split in enumerate(SPLITS) if (listing.splits == number).any()]
    calibration, test = ["calibration"], [split for split in (*VALIDATION, "test") if split in (*given, *strange)]
    if "test" in test:
        calibration += [split for split in test if split in VALIDATION]
        test = ["test"]
    if "train" not in given:
        raise DataError(f"{places['train']}: there are none; the network learns from the split train")
    for split in (*calibration, *test):
        if found := sorted(strange.get(split, ())):
            raise DataError(
                f"{places[split]}: {these(found)} no training images, so the network cannot learn "
                f"{'them' if len(found) > 1 else 'it'}; add training images, correct the name, or take "
                f"{'them' if len(found) > 1 else 'it'} out"
            )

    def files(splits: Sequence[str]) -> Files | None:
        mine = listing.part(splits)
        if not len(mine):
            return None
        chosen = tuple(listing.files[number] for number in mine.tolist())
        return Files(chosen, torch.from_numpy(listing.labels[mine].astype(np.int64)), root)

    train, warnings = files(["train"]), []
    assert train is not None
    tested = set(listing.labels[listing.part(test)].tolist())
    if test and (absent := [name for number, name in enumerate(names) if number not in tested]):
        warnings.append(
            f"{these(absent)} no test images in {places[test[0]]}, so evaluation says nothing about "
            f"{'them' if len(absent) > 1 else 'it'}; add some"
        )
    return Raw(train, files(test), tuple(names), 3, None, calibration=files(calibration), warnings=tuple(warnings))


def these(names: Sequence[str]) -> str:
    """The beginning of a sentence about classes, such as "the class emu has" or "the classes cat, dog and emu have"."""
    if len(names) == 1:
        return f"the class {names[0]} has"
    shown = [*names[:SHOWN], *([f"{len(names) - SHOWN} more"] if len(names) > SHOWN else [])]
    return f"the classes {', '.join(shown[:-1])} and {shown[-1]} have"


def listed(lines: Sequence[str]) -> str:
    """The first lines below each other, with the number of the rest."""
    rest = [f"and {len(lines) - SHOWN:,} more"] if len(lines) > SHOWN else []
    return "\n".join(f"  {line}" for line in [*lines[:SHOWN], *rest])
