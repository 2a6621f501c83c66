"""The config keys of data: which images a run reads, and how."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from dsnet.data.augment import AugmentConfig
from dsnet.errors import must
from dsnet.images import MAX_PIXELS, Interpolation
from dsnet.limits import allow
from dsnet.schema import Typed

Dataset = Literal[
    "digits", "cluttered_digits", "cifar10", "fashion_mnist", "idx", "folder", "images", "shards", "python"
]
EMBEDDED = ("digits", "cluttered_digits")
FILES_ONLY = ("crop_ratio", "interpolation", "on_corrupt", "max_skipped", "max_pixels")
SHARDS_ONLY = ("cache", "cache_size")


class Reading(Typed):
    """The config keys for reading files that all kinds of data share."""

    on_corrupt: Literal["stop", "skip"]
    max_skipped: float
    max_pixels: int
    workers: int
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("stop", "skip"):
            raise ValueError(f"data.on_corrupt {self.on_corrupt!r} is unknown; choose stop or skip")
        must("data.workers", self.workers, self.workers >= 0, "be at least 0")
        must("data.max_skipped", self.max_skipped, 0 <= self.max_skipped <= 1, "be a share in [0, 1]")
        if (self.mean is None) != (self.std is None) or len(self.mean or ()) != len(self.std or ()):
            raise ValueError(
                f"data.mean is {self.mean} and data.std is {self.std}; give both, with a number per channel"
            )
        must("data.std", self.std, self.std is None or min(self.std, default=0) > 0, "have positive numbers only")

    def check_used(self) -> None:
        """Refuse options that would have no effect. Configs of earlier runs may have such options, new ones may not."""

    def refuse(self, names: Sequence[str], why: str) -> None:
        """Refuse any of these options that differs from its default."""
        defaults = type(self)()
        for name in names:
            owner, default, key = self, defaults, name
            if "." in name:
                group, key = name.split(".")
                owner, default = getattr(self, group), getattr(defaults, group)
            if getattr(owner, key) != getattr(default, key):
                value = getattr(owner, key)
                raise ValueError(f"data.{name} is {value}, but it would have no effect: {why}; leave it out")


@dataclass(frozen=True)
class DataConfig(Reading):
    """Which images to train on, and how they are split and read.

    Args:
        dataset: Images to train on: a folder if root is given, else digits. `images` have no labels.
        root: Folder with one folder per class, or of shards.
        folders: Folders below root whose images are read, or image lists of VOC's form such as
            VOC2007/ImageSets/Main/train.txt, for images without labels. By default all images below root.
        labels: CSV file with the columns file, label and, if you like, split. Files are relative to root, or to it.
        image_size: Side of the images in pixels, or the data's own.
        calibration: Share of the training images that is set aside to check progress and to calibrate budgets.
            Raise it if there are fewer than a few hundred such images.
        split_seed: Seed of the choice of calibration images.
        crop_ratio: Share of the short side that the centre crop keeps at evaluation, for folders.
        interpolation: How images of folders are resized.
        mean: Mean of the pixels of each channel, as shares of 255, with which inputs are normalised. By default
            ImageNet's for files, and that of the training images for arrays. On files, --from takes it from a network
            that was converted.
        std: Standard deviation of the same kind.
        on_corrupt: Stop at a damaged file, or skip it and list it in skipped.txt.
        max_skipped: Largest share of damaged files to skip. Above it the run stops.
        max_pixels: Images with more pixels than this are refused before they are decoded. Fewer are allowed in
            formats that take more memory for a pixel.
        workers: Number of processes that load images. 0 loads them in the main process.
        cache: Folder in which shards that lie at a URL are kept, by default dsnet-shards in the folder for temporary
            files.
        cache_size: Gigabytes that this folder may take. The shards unused for longest make room.
        augment: How training images are augmented.
    """

    dataset: Dataset | None = None
    root: str | None = None
    folders: list[str] | None = None
    labels: str | None = None
    image_size: int | None = None
    calibration: float = 0.1
    split_seed: int = 0
    crop_ratio: float = 0.875
    interpolation: Interpolation = "bilinear"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    on_corrupt: Literal["stop", "skip"] = "stop"
    max_skipped: float = 0.01
    max_pixels: int = MAX_PIXELS
    workers: int = 0
    cache: str | None = None
    cache_size: float = 100.0
    augment: AugmentConfig = field(default_factory=AugmentConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        datasets = get_args(Dataset)
        if self.kind not in datasets:
            raise ValueError(f"data.dataset {self.dataset!r} is unknown; choose from {', '.join(datasets)}")
        if self.kind in ("cifar10", "idx", "folder", "images", "shards") and not (self.root or self.labels):
            raise ValueError(f"data.root is missing: say where the {self.kind} files are with --data.root FOLDER")
        if not 0 < self.calibration < 0.9:
            raise ValueError(f"data.calibration is {self.calibration}; give a share between 0 and 0.9")
        size = self.image_size
        must("data.image_size", size, size is None or size >= 1, "be at least 1, or null")
        allow("image_size", size or 1, "data.image_size is")
        must("data.cache_size", self.cache_size, self.cache_size > 0, "be above 0 gigabytes")
        must("data.folders", self.folders, self.folders != [], "name folders below data.root, or be left out")
        must("data.crop_ratio", self.crop_ratio, 0 < self.crop_ratio <= 1, "be a share in (0, 1]")

    @property
    def kind(self) -> str:
        """The dataset, also where the config does not name it."""
        return self.dataset or ("folder" if self.root or self.labels else "digits")

    @property
    def reads_files(self) -> bool:
        """Whether the images are files, which are decoded when they are needed."""
        return self.kind in ("folder", "images", "shards")

    @property
    def name(self) -> str:
        """What to call the data: the dataset, or the name of its folder or CSV file."""
        if not self.reads_files:
            return self.kind
        return Path(self.root).resolve().name if self.root else Path(self.labels or "").stem

    @property
    def store(self) -> Path:
        """Where shards from URLs are kept."""
        return Path(self.cache) if self.cache else Path(tempfile.gettempdir(), "dsnet-shards")

    def check_used(self) -> None:
        if self.kind in EMBEDDED and self.root:
            raise ValueError(
                f"data.root is {self.root}, but {self.kind} are part of the installation; leave data.dataset out to "
                f"train on the images in {self.root}, or leave data.root out"
            )
        if not self.reads_files and self.kind != "python":
            self.refuse(("labels", *FILES_ONLY), f"it is for image files, and {self.kind} is read as arrays")
        if self.kind == "images":
            self.refuse(["labels"], "data.dataset images has no labels")
        else:
            self.refuse(["folders"], "it is for images without labels, data.dataset images")
        if self.kind in ("shards", "python"):
            self.refuse(["labels"], f"it is for image files, and {self.kind} has its own labels")
        if self.kind != "shards":
            self.refuse(SHARDS_ONLY, "it is for shards, data.dataset shards")
        augment = self.augment
        if augment.crop != "pad":
            self.refuse(["augment.pad"], f"it is for augment.crop pad, and augment.crop is {augment.crop}")
        if augment.crop != "resized":
            self.refuse(["augment.scale"], f"it is for augment.crop resized, and augment.crop is {augment.crop}")
        if not augment.randaugment:
            self.refuse(["augment.magnitude", "augment.magnitude_std"], "augment.randaugment is 0")
