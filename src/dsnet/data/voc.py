"""Images with boxes in PASCAL VOC's layout: JPEGImages, Annotations and ImageSets/Main for every year."""

from __future__ import annotations

import hashlib
import random
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from PIL import Image
from torch import Tensor

from dsnet.data.boxes import BoxAugmentConfig, augment, inside, padded, resized
from dsnet.data.config import Reading
from dsnet.data.dataset import Batch, Data, Split, read_files
from dsnet.data.sources import IMAGENET_MEAN, IMAGENET_STD
from dsnet.data.splits import few_to_calibrate, stratified
from dsnet.errors import DataError, must
from dsnet.images import MAX_PIXELS, ImageFile, Interpolation
from dsnet.limits import allow

VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor"),
)
FILL = (124, 116, 104)  # ImageNet's mean, which normalisation maps to about zero
SUFFIXES = (".jpg", ".jpeg", ".png", ".JPG", ".JPEG", ".PNG")


@dataclass(frozen=True)
class DetectionDataConfig(Reading):
    """Which images with objects to train on, and how they are split and read.

    Args:
        root: Folder of the data: a VOCdevkit, or one folder with JPEGImages, Annotations and ImageSets/Main.
        train: Image lists to train on, such as 2007/trainval, or train in a single folder.
        calibration: Image lists that are held out. Without any, calibration_share of the training images is set aside.
        test: Image lists to evaluate on.
        classes: Names of the classes, in order. By default VOC's twenty, or those of the training images, sorted.
        image_size: Height and width of the images in pixels. Images are squeezed to a square, as in SSD.
        calibration_share: Share of the training images that is set aside where there are no calibration lists.
        split_seed: Seed of the choice of calibration images.
        interpolation: How images are resized.
        mean: Mean of the pixels of each channel, as shares of 255, with which inputs are normalised. By default
            ImageNet's, or that of a backbone that was converted.
        std: Standard deviation of the same kind.
        on_corrupt: Stop at a damaged image, or skip it and list it in skipped.txt.
        max_skipped: Largest share of damaged images to skip. Above it the run stops.
        max_pixels: Images with more pixels than this are refused before they are decoded. Fewer are allowed in
            formats that take more memory for a pixel.
        workers: Number of processes that load images. 0 loads them in the main process.
        augment: How training images and their boxes are augmented.
    """

    root: str = ""
    train: list[str] = field(default_factory=lambda: ["train"])
    calibration: list[str] = field(default_factory=list)
    test: list[str] = field(default_factory=lambda: ["test"])
    classes: list[str] | None = None
    image_size: int = 300
    calibration_share: float = 0.1
    split_seed: int = 0
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    on_corrupt: Literal["stop", "skip"] = "stop"
    max_skipped: float = 0.01
    max_pixels: int = MAX_PIXELS
    workers: int = 0
    augment: BoxAugmentConfig = field(default_factory=BoxAugmentConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        allow("image_size", self.image_size, "data.image_size is")
        if self.image_size < 64:
            raise ValueError(f"data.image_size is {self.image_size}; a detector needs at least 64 pixels")
        share = self.calibration_share
        must("data.calibration_share", share, 0 < share < 0.9, "be a share between 0 and 0.9")
        if self.classes is not None and len(set(self.classes)) != len(self.classes):
            raise ValueError(f"data.classes {self.classes} names a class twice")
        if shared := set(self.test) & {*self.train, *self.calibration}:
            raise ValueError(f"data.test shares the lists {sorted(shared)} with training; test on other images")

    @property
    def name(self) -> str:
        """What to call the data: the name of its folder."""
        return Path(self.root).resolve().name

    def check_used(self) -> None:
        if self.calibration:
            self.refuse(["calibration_share", "split_seed"], "data.calibration names the calibration images")


@dataclass(frozen=True)
class Record:
    """An image file and its objects [G, 6]: corners in pixels, class, difficult."""

    file: str
    objects: Tensor


@dataclass(frozen=True)
class Annotation:
    """The content of an annotation file: the name of each object, and its xmin, ymin, xmax, ymax and difficult."""

    file: Path
    objects: tuple[tuple[str, list[float]], ...]


@dataclass(frozen=True)
class Records:
    """The images of one or more lists, in the order of the lists."""

    items: tuple[Record, ...]
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.items)

    def file(self, number: int) -> str:
        return self.items[number].file

    def image(self, number: int, max_pixels: int) -> ImageFile:
        return ImageFile(Path(self.file(number)), max_pixels=max_pixels)

    def identity(self) -> bytes:
        """A digest of the images and their objects. It does not depend on where the files are stored."""
        digest = hashlib.sha256(repr(self.classes).encode())
        for item in self.items:
            digest.update(Path(item.file).name.encode())
            digest.update(item.objects.numpy().tobytes())
        return digest.digest()


def read_lists(root: Path, lists: Sequence[str], classes: Sequence[str] | None = None) -> Records:
    """Read the images of several lists, such as 2007/trainval, or trainval where `root` has no years.

    classes: Class names in order. By default VOC's twenty below a VOCdevkit, otherwise those of the objects, sorted.
    """
    if not root.is_dir():
        raise DataError(f"{root} is not a folder; give the VOCdevkit folder, or one with JPEGImages and Annotations")
    if not lists:
        raise DataError(f"no image lists were named; name some of {', '.join(known_lists(root)) or 'none there'}")
    samples: dict[str, tuple[Path, Annotation]] = {}
    for name in lists:
        folder, entries = read_list(root, name)
        for entry in entries:
            samples.setdefault(f"{folder}/{entry}", (image_of(folder, entry), read_annotation(folder, entry)))
    names = sorted({name for _, annotation in samples.values() for name, _ in annotation.objects})
    years = any("/" in name for name in lists)
    if not classes:
        classes = VOC_CLASSES if years and set(names) <= set(VOC_CLASSES) else names
    if not classes:
        raise DataError(f"the images of {', '.join(lists)} below {root} have no objects; there is nothing to learn")
    items = tuple(Record(str(image), objects_of(annotation, classes)) for image, annotation in samples.values())
    return Records(items, tuple(classes))


def known_lists(root: Path) -> list[str]:
    """The lists below a folder that `read_lists` can read."""
    plain = [file.stem for file in sorted((root / "ImageSets" / "Main").glob("*.txt"))]
    years = sorted(folder for folder in root.glob("VOC*") if folder.is_dir())
    dated = [
        f"{year.name[3:]}/{file.stem}" for year in years for file in sorted((year / "ImageSets/Main").glob("*.txt"))
    ]
    return plain + [name for name in dated if "_" not in name]  # VOC's aeroplane_train etc. are for classification


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
    image = next((file for file in candidates if file.is_file()), None)
    if image is None:
        raise DataError(f"{candidates[0]} does not exist, but a list names it; restore it or take {entry} off the list")
    return image


def read_annotation(folder: Path, entry: str) -> Annotation:
    """Read an annotation file. Malformed XML, incomplete objects and inverted boxes are errors."""
    file = folder / "Annotations" / f"{entry}.xml"
    try:
        tree = ET.parse(file).getroot()
    except FileNotFoundError:
        raise DataError(
            f"{file} does not exist, but a list names it; restore it or take {entry} off the list"
        ) from None
    except (ET.ParseError, UnicodeDecodeError) as error:
        raise DataError(f"{file} is not well-formed XML ({error}); restore it, or take {entry} off the list") from error
    objects = []
    for number, element in enumerate(tree.findall("object"), start=1):
        name = (element.findtext("name") or "").strip()
        try:
            edges = [float(element.findtext(f"bndbox/{key}") or "") for key in ("xmin", "ymin", "xmax", "ymax")]
        except ValueError:
            raise DataError(f"{file}: object {number} has no complete bndbox of numbers; mend or remove it") from None
        if not name:
            raise DataError(f"{file}: object {number} has no name; mend or remove it")
        if not (edges[0] <= edges[2] and edges[1] <= edges[3]):
            raise DataError(f"{file}: object {number}, {name}, has the box {edges}, which ends before it begins")
        difficult = (element.findtext("difficult") or "0").strip() not in ("", "0")
        objects.append((name, [*edges, float(difficult)]))
    return Annotation(file, tuple(objects))


def objects_of(annotation: Annotation, classes: Sequence[str]) -> Tensor:
    """Objects [G, 6] in continuous coordinates. VOC's own count pixels from 1 and include the last one."""
    rows = []
    for name, (left, top, right, bottom, difficult) in annotation.objects:
        if name not in classes:
            raise DataError(
                f"{annotation.file} has an object of the class {name!r}, which is not one of {', '.join(classes)}; "
                f"add it to data.classes, or mend the file"
            )
        rows.append([left - 1, top - 1, right, bottom, float(classes.index(name)), difficult])
    return torch.tensor(rows, dtype=torch.float32).view(-1, 6)


@dataclass(frozen=True)
class BoxLoader:
    """Decodes, augments and resizes images with boxes. A batch depends only on sample numbers and seed."""

    source: Records
    config: DetectionDataConfig

    @property
    def mean(self) -> tuple[float, ...]:
        return self.config.mean or IMAGENET_MEAN

    @property
    def std(self) -> tuple[float, ...]:
        return self.config.std or IMAGENET_STD

    def __call__(self, ids: Tensor, seed: int | None) -> Batch:
        """Load images [B, 3, S, S]. Labels are objects [B, G, 6]: corners as shares, class (-1 pads), difficult."""
        objects: list[Tensor] = []

        def fit(number: int, image: ImageFile) -> Image.Image:
            square, its_objects = self.fitted(image, number, seed)
            objects.append(its_objects)
            return square

        images, kept, skipped = read_files(ids, self.source, fit, self.config, self.config.image_size)
        return Batch(images, padded(objects), kept, skipped)

    def fitted(self, image: ImageFile, number: int, seed: int | None) -> tuple[Image.Image, Tensor]:
        """Turn an image into a square, with the corners of its objects as shares of the side."""
        record, size, interpolation = self.source.items[number], self.config.image_size, self.config.interpolation
        objects = inside(record.objects, image.width, image.height, record.file)
        if seed is None:
            return resized(image, objects, size, interpolation)
        rng = random.Random(f"{seed}/{number}")
        return augment(image, objects, self.config.augment, rng, size=size, interpolation=interpolation, fill=FILL)


def open_detection_data(config: DetectionDataConfig) -> Data:
    """Open images with boxes as three splits. Only evaluation reads the test images."""
    if not config.root:
        raise DataError("data.root is missing: say where the images and annotations are with --data.root FOLDER")
    root = Path(config.root)
    train = read_lists(root, config.train, config.classes)
    test = read_lists(root, config.test, train.classes)
    share: float | None = None
    if config.calibration:
        held = read_lists(root, config.calibration, train.classes)
        train_ids, held_ids = torch.arange(len(train)), torch.arange(len(held))
    else:
        ids, share = torch.arange(len(train)), config.calibration_share
        held, (train_ids, held_ids) = train, stratified(None, ids, share, seed=config.split_seed)
    loader = BoxLoader(train, config)
    return Data(
        Split(loader, train_ids),
        Split(BoxLoader(held, config), held_ids),
        Split(BoxLoader(test, config), torch.arange(len(test))),
        classes=train.classes,
        channels=3,
        image_size=config.image_size,
        mean=loader.mean,
        std=loader.std,
        fit="squeeze",
        crop=1.0,
        interpolation=config.interpolation,
        name=config.name,
        warnings=tuple(few_to_calibrate(len(held_ids), len(train), share, key="data.calibration_share")),
    )
