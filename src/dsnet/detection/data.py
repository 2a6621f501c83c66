"""Images with objects in PASCAL VOC's layout: JPEGImages, Annotations and ImageSets/Main for every year."""

from __future__ import annotations

import hashlib
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from dsnet.errors import DataError

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")


@dataclass(frozen=True)
class Record:
    """An image file and its objects [G, 6]: corners in pixels, class, difficult."""

    file: str
    objects: Tensor


@dataclass(frozen=True)
class Annotation:
    """An annotation file as it is written: names, boxes (xmin, ymin, xmax, ymax) and marks of its objects."""

    file: Path
    names: tuple[str, ...] = ()
    boxes: tuple[tuple[float, float, float, float], ...] = ()
    difficult: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Records:
    """The images of one or more lists, in their order."""

    items: tuple[Record, ...]
    classes: tuple[str, ...]
    root: str = field(default="", compare=False)

    def __len__(self) -> int:
        return len(self.items)

    def digest(self) -> bytes:
        """Of which images there are with which objects; the place of the files does not count."""
        found = hashlib.sha256(repr(self.classes).encode())
        for item in self.items:
            found.update(Path(item.file).name.encode())
            found.update(item.objects.numpy().tobytes())
        return found.digest()


def read_lists(root: Path, lists: Sequence[str], classes: Sequence[str] | None = None) -> Records:
    """The images of several lists joined, such as 2007/trainval, or trainval where `root` has no years.

    classes: their names in order; by default VOC's twenty below a VOCdevkit, otherwise those found, sorted.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the VOCdevkit folder, or one with JPEGImages and Annotations")
    if not lists:
        raise DataError(f"no image lists were named; name some of {', '.join(known_lists(root)) or 'none there'}")
    found: dict[str, tuple[Path, Annotation]] = {}
    for name in lists:
        folder, entries = read_list(root, name)
        for entry in entries:
            found.setdefault(f"{folder}/{entry}", (image_of(folder, entry), read_annotation(folder, entry)))
    names = sorted({name for _, annotation in found.values() for name in annotation.names})
    years = any("/" in name for name in lists)
    known = tuple(classes) if classes else VOC_CLASSES if years and set(names) <= set(VOC_CLASSES) else tuple(names)
    if not known:
        raise DataError(f"the images of {', '.join(lists)} below {root} have no objects; there is nothing to learn")
    items = tuple(Record(str(image), objects_of(annotation, known)) for image, annotation in found.values())
    return Records(items, known, str(root))


def known_lists(root: Path) -> list[str]:
    """What `read_lists` can read."""
    plain = [file.stem for file in sorted((root / "ImageSets" / "Main").glob("*.txt"))]
    years = sorted(folder for folder in root.glob("VOC*") if folder.is_dir())
    dated = [
        f"{year.name[3:]}/{file.stem}" for year in years for file in sorted((year / "ImageSets/Main").glob("*.txt"))
    ]
    return plain + [name for name in dated if "_" not in name]  # aeroplane_train and the like are for classification


def read_list(root: Path, name: str) -> tuple[Path, list[str]]:
    year, _, split = name.rpartition("/")
    folder = root / f"VOC{year}" if year else root
    file = folder / "ImageSets" / "Main" / f"{split}.txt"
    if not file.is_file():
        raise DataError(f"{file} does not exist; there are {', '.join(known_lists(root)) or 'no lists'} below {root}")
    entries = [line.split()[0] for line in file.read_text().splitlines() if line.strip()]
    if not entries:
        raise DataError(f"{file} names no images")
    return folder, entries


def image_of(folder: Path, entry: str) -> Path:
    candidates = [folder / "JPEGImages" / f"{entry}{suffix}" for suffix in SUFFIXES]
    found = next((file for file in candidates if file.is_file()), None)
    if found is None:
        raise DataError(f"{candidates[0]} does not exist, but a list names it; restore it or take {entry} off the list")
    return found


def read_annotation(folder: Path, entry: str) -> Annotation:
    """An annotation file, refused where it is not well formed, incomplete, or where a box is upside down."""
    file = folder / "Annotations" / f"{entry}.xml"
    try:
        tree = ET.parse(file).getroot()
    except FileNotFoundError:
        raise DataError(
            f"{file} does not exist, but a list names it; restore it or take {entry} off the list"
        ) from None
    except (ET.ParseError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not well-formed XML ({error}); restore it, or take {entry} off the list") from error
    names, boxes, marks = [], [], []
    for number, thing in enumerate(tree.findall("object"), start=1):
        name = (thing.findtext("name") or "").strip()
        try:
            edges = [float(thing.findtext(f"bndbox/{key}") or "") for key in ("xmin", "ymin", "xmax", "ymax")]
        except ValueError:
            raise DataError(f"{file}: object {number} has no complete bndbox of numbers; mend or remove it") from None
        if not name:
            raise DataError(f"{file}: object {number} has no name; mend or remove it")
        if not (edges[0] <= edges[2] and edges[1] <= edges[3]):
            raise DataError(f"{file}: object {number}, {name}, has the box {edges}, which ends before it begins")
        names.append(name)
        boxes.append((edges[0], edges[1], edges[2], edges[3]))
        marks.append((thing.findtext("difficult") or "0").strip() not in ("", "0"))
    return Annotation(file, tuple(names), tuple(boxes), tuple(marks))


def objects_of(annotation: Annotation, classes: Sequence[str]) -> Tensor:
    """Objects [G, 6] in continuous coordinates: VOC counts pixels from 1 and includes the last one."""
    rows = []
    for name, (left, top, right, bottom), mark in zip(
        annotation.names, annotation.boxes, annotation.difficult, strict=True
    ):
        if name not in classes:
            raise DataError(
                f"{annotation.file} has an object of the class {name!r}, which is not one of {', '.join(classes)}; "
                f"add it to data.classes, or mend the file"
            )
        rows.append([left - 1, top - 1, right, bottom, float(classes.index(name)), float(mark)])
    return torch.tensor(rows, dtype=torch.float32).view(-1, 6)


def inside(objects: Tensor, width: int, height: int, file: str) -> Tensor:
    """Objects cut to the image; one that lies outside of it altogether is an error."""
    limits = objects.new_tensor([width, height, width, height])
    cut = torch.cat([objects[:, :4].clamp_min(0).minimum(limits), objects[:, 4:]], 1)
    empty = ((cut[:, 2:4] - cut[:, :2]) <= 0).any(1)
    if bool(empty.any()):
        box = [round(edge, 1) for edge in objects[empty][0, :4].tolist()]
        raise DataError(
            f"{file} has {width} x {height} pixels, but its annotation has an object outside of it, at {box}"
        )
    return cut
