"""Writes shards of a dataset of image files, and indexes of shards that exist already.

The same images give the same shards, byte for byte. The index is written last, so a folder with an index is complete.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from dsnet.data.config import DataConfig
from dsnet.data.dataset import SKIPPING, Data
from dsnet.data.labelled import open_dataset
from dsnet.data.remote import is_url, stream_of, tried
from dsnet.data.shards import BLOCK, HEAD, ROW, Index, Kind, Part, Shard
from dsnet.data.sources import Files
from dsnet.errors import DataError, must
from dsnet.files import digest, file_digest, with_digest, write_whole
from dsnet.images import SUFFIXES, ImageError, check_image
from dsnet.schema import plain, to_json

LARGEST = 2**28  # bytes after which a shard is full, however few images it has
Report = Callable[[str, int], None]


class Sample(NamedTuple):
    """An image to pack: its name in the shard without suffix, its suffix, label and file."""

    key: str
    suffix: str
    label: int
    file: str


class Packed(NamedTuple):
    """What was packed: the index, and the files that were left out because they are damaged."""

    head: Index
    skipped: tuple[str, ...]


def pack(config: DataConfig, out: Path, *, images: int = 1000, seed: int = 0, report: Report | None = None) -> Packed:
    """Write the images of a folder, or of a CSV file of labels, as shards in the splits that training would use.

    images: Images in a shard. seed: Order of the training images, which are shuffled so that a shard holds all classes.
    report: Called with the split and the number of images behind every shard.
    """
    must("the number of images in a shard", images, images >= 1, "be at least 1")
    check_empty(out)
    data = open_dataset(config)
    out.mkdir(parents=True, exist_ok=True)
    parts: dict[Kind, Part] = {}
    skipped: list[str] = []
    kinds: tuple[Kind, ...] = ("train", "calibration", "test")
    for kind in kinds:
        rows, shards = [], []
        for number, shard in enumerate(filled(samples(data, kind, seed), config, images, skipped)):
            name = f"{kind}-{number:06d}.tar"
            write_whole(out / name, shard.content)
            shards.append(Shard(name, len(shard.rows), len(shard.content), digest(shard.content)))
            rows += shard.rows
            if report is not None:
                report(kind, len(rows))
        parts[kind] = write_table(out, kind, rows, shards, len(data.classes))
    own = isinstance(data.calibration.source, Files) and data.calibration.source is not data.train.source
    index = Index("shards", 1, list(data.classes), parts, None if own else config.calibration)
    return Packed(write_index(out, index), tuple(skipped))


def check_empty(out: Path) -> None:
    if (out / HEAD).exists():
        raise DataError(f"{out} already holds shards; choose another folder, or remove it")


def samples(data: Data, kind: Kind, seed: int) -> list[Sample]:
    """The images of a split with their names in the shards. Those to train on are shuffled."""
    split = data.split(kind)
    source, ids = split.source, split.ids
    assert isinstance(source, Files)
    if kind == "train":
        ids = ids[torch.randperm(len(ids), generator=torch.Generator().manual_seed(seed))]
    found, taken = [], dict[str, int]()
    for number in ids.tolist():
        file = Path(os.path.relpath(source.files[number], source.root))
        key = (
            file.with_suffix("").as_posix().replace("../", "").replace(".", "_")
        )  # WebDataset cuts names at the first dot
        taken[key] = again = taken.get(key, 0) + 1
        key = key if again == 1 else f"{key}-{again}"
        found.append(Sample(key, file.suffix.lower(), int(source.labels[number]), source.files[number]))
    return found


class Filled(NamedTuple):
    content: bytes
    rows: list[tuple[int, int, int, int]]


def filled(found: Sequence[Sample], config: DataConfig, images: int, skipped: list[str]) -> Iterator[Filled]:
    """The content of one shard after the other. Damaged images are an error, or are added to `skipped`."""
    content, rows = bytearray(), list[tuple[int, int, int, int]]()
    with ThreadPoolExecutor(config.workers or os.cpu_count()) as threads:
        for first in range(0, len(found), images):
            part = found[first : first + images]
            for sample, data in zip(part, threads.map(lambda one: checked(one, config), part), strict=True):
                if isinstance(data, ImageError):
                    if config.on_corrupt == "stop":
                        raise DataError(f"{data}; {SKIPPING}") from data
                    skipped.append(sample.file)
                    continue
                content += header(f"{sample.key}{sample.suffix}", len(data))
                rows.append((sample.label, len(data), zlib.crc32(data), len(content)))
                content += padded(data)
                label = str(sample.label).encode()
                content += header(f"{sample.key}.cls", len(label)) + padded(label)
                if len(rows) == images or len(content) >= LARGEST:
                    yield Filled(closed(content), rows)
                    content, rows = bytearray(), []
    if rows:
        yield Filled(closed(content), rows)


def checked(sample: Sample, config: DataConfig) -> bytes | ImageError:
    """The content of an image that can be read, or why it cannot."""
    try:
        check_image(Path(sample.file), max_pixels=config.max_pixels)
        return Path(sample.file).read_bytes()
    except ImageError as error:
        return error


def header(name: str, size: int) -> bytes:
    """The header of a file in a tar, without owner and time, which would differ from machine to machine."""
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def closed(content: bytearray) -> bytes:
    """A tar with its end: two empty blocks, and as many as fill a record."""
    content += bytes(2 * BLOCK)
    return bytes(content) + bytes(-len(content) % tarfile.RECORDSIZE)


def write_table(
    out: Path, kind: Kind, rows: Sequence[tuple[int, int, int, int]], shards: Sequence[Shard], classes: int
) -> Part:
    if not rows:
        raise DataError(f"there are no {kind} images to pack; see --on_corrupt")
    table = np.array(rows, ROW)
    buffer = BytesIO()
    np.save(buffer, table)
    write_whole(out / f"{kind}.npy", buffer.getvalue())
    counts = np.bincount(table["label"], minlength=classes).tolist()
    return Part(f"{kind}.npy", digest(buffer.getvalue()), counts, list(shards))


def write_index(out: Path, index: Index) -> Index:
    content = plain(index)
    del content["digest"]
    complete = Index(**{**vars(index), "digest": with_digest(content)["digest"]})
    write_whole(out / HEAD, to_json(complete, indent=1).encode())
    return complete


# Shards that exist already


def index_shards(
    patterns: Mapping[Kind, str], out: Path, *, classes: Sequence[str] = (), report: Report | None = None
) -> Index:
    """Write an index of shards that exist, at paths or URLs. Every image has a file .cls with its number or class.

    patterns: The shards of each split, with braces: data/train-{0000..1023}.tar. classes: Names of the classes; by
    default their numbers.
    """
    check_empty(out)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[Kind, tuple[list[Shard], list[tuple[str, int, int, int]]]] = {}
    for kind, pattern in patterns.items():
        shards: list[Shard] = []
        rows: list[tuple[str, int, int, int]] = []
        for place in expanded(pattern):
            with content_of(place) as file:
                mine = list(members(place, file))
                name = place if is_url(place) else os.path.relpath(place, out)
                shards.append(Shard(name, len(mine), file.stat().st_size, file_digest(file)))
            rows += mine
            if report is not None:
                report(kind, len(rows))
        found[kind] = shards, rows
    names = list(classes) or numbered(label for _, rows in found.values() for label, *_ in rows)
    number = {name: label for label, name in enumerate(names)}
    parts: dict[Kind, Part] = {}
    for kind, (shards, rows) in found.items():
        table = [(label_of(label, number, bool(classes)), *rest) for label, *rest in rows]
        parts[kind] = write_table(out, kind, table, shards, len(names))  # type: ignore[arg-type]
    return write_index(out, Index("shards", 1, names, parts))


@contextmanager
def content_of(place: str) -> Iterator[Path]:
    """A shard as a file; one at a URL is fetched for as long as it is read."""
    if not is_url(place):
        if not Path(place).is_file():
            raise DataError(f"the shard {place} does not exist; mend the pattern")
        yield Path(place)
        return
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:

        def fetch() -> None:
            file.seek(0)
            file.truncate()
            with stream_of(place) as stream:
                while part := stream.read(2**20):
                    file.write(part)
            file.flush()

        tried(place, fetch)
        yield Path(file.name)


def members(place: str, file: Path) -> Iterator[tuple[str, int, int, int]]:
    """Label, size, checksum and offset of every image in a shard, in its order."""
    images: dict[str, tuple[int, int, int]] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(file, "r:") as tar:
            for member in tar:
                folder, _, base = member.name.rpartition("/")
                stem, _, suffix = base.partition(".")
                key = f"{folder}/{stem}"
                if not member.isfile() or not (f".{suffix.lower()}" in SUFFIXES or suffix == "cls"):
                    continue
                stream = tar.extractfile(member)
                data = b"" if stream is None else stream.read()
                if suffix == "cls":
                    labels[key] = data.decode(errors="replace").strip()
                elif key in images:
                    raise DataError(f"{place} has two images named {key}; names must differ up to the first dot")
                else:
                    images[key] = len(data), zlib.crc32(data), member.offset_data
    except tarfile.TarError as error:
        raise DataError(f"{place} cannot be read as an uncompressed tar ({error}); copy it again") from error
    for key, where in images.items():
        if key not in labels:
            raise DataError(f"{place}: the image {key} has no label; write its class into {key}.cls beside it")
        yield labels[key], *where
    if not images:
        raise DataError(f"{place} holds no images ({', '.join(SUFFIXES)}); take it out of the pattern")


def numbered(labels: Iterable[str]) -> list[str]:
    """Names of classes that are numbers: 0 up to the largest; or the names that were found, sorted."""
    found = set(labels)
    if all(label.isdecimal() and len(label) < 7 for label in found):
        return [str(label) for label in range(max(map(int, found)) + 1)]
    return sorted(found)


def label_of(text: str, number: Mapping[str, int], named: bool) -> int:
    """The class of a label, which is its name or its number."""
    if text in number:
        return number[text]
    if named and text.isdecimal() and int(text) < len(number):
        return int(text)
    raise DataError(f"a label is {text[:40]!r}, which is none of the {len(number)} classes; mend it or the classes")


def expanded(pattern: str) -> list[str]:
    """The places that a pattern with braces stands for: {0000..0099} counts, {a,b} lists; a name may have several."""
    parts: list[list[str]] = []
    rest = pattern
    while "{" in rest:
        before, _, rest = rest.partition("{")
        inside, closing, rest = rest.partition("}")
        if not closing or not inside or "{" in inside:
            raise DataError(f"the pattern {pattern} has an open or empty brace; write {{0000..0099}} or {{train,val}}")
        first, dots, last = inside.partition("..")
        if dots:
            if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
                raise DataError(f"the pattern {pattern} counts {inside}; write rising numbers such as {{0000..0099}}")
            counted = [f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1)]
        else:
            counted = inside.split(",")
        parts += [[before], counted]
    return ["".join(choice) for choice in product(*parts, [rest])]
