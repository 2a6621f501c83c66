"""Images in tar files of WebDataset's layout, with an index that tells where each of them lies.

A folder of shards holds tar files, a table for each split and `shards.json`, the head that names them all with their
digests. The table has the label, place and checksum of every image, so an image is read by its number, in one read. The
order of an epoch can thus depend on seed and epoch alone, and a run goes on in the middle of an epoch without reading
what came before. Shards at a URL are fetched whole, before they are needed, and kept in a folder (see `remote`).
"""

from __future__ import annotations

import io
import json
import os
import zlib
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import torch
from torch import Tensor

from dsnet.data.remote import Store, is_url, joined, read_url
from dsnet.errors import DataError
from dsnet.files import digest, matches_digest, read_limited
from dsnet.images import ImageError, ImageFile
from dsnet.limits import allow
from dsnet.schema import Typed, parse_json

HEAD = "shards.json"
BLOCK = 512  # bytes of a tar header, which lies before the content of a file
STREAMS = 96  # shards that a batch is drawn from; most numbers of processes divide it
ROW = np.dtype([("label", "<u4"), ("size", "<u4"), ("crc", "<u4"), ("offset", "<u8")])
Kind = Literal["train", "calibration", "test"]
WRITE = "write the shards again with `dsnet shards`"


@dataclass(frozen=True)
class Shard(Typed):
    """A tar file: its name relative to the index or its URL, its images and bytes, its SHA-256."""

    name: str
    images: int
    bytes: int
    digest: str


@dataclass(frozen=True)
class Part(Typed):
    """A split: its table with the digest, images of each class, shards in the order of the table."""

    table: str
    digest: str
    counts: list[int]
    shards: list[Shard]

    @property
    def images(self) -> int:
        return sum(shard.images for shard in self.shards)


@dataclass(frozen=True)
class Index(Typed):
    """What `shards.json` holds.

    Args:
        calibration: Share of the training images that was set aside when the shards were written, if it was.
    """

    dsnet: Literal["shards"]
    version: Literal[1]
    classes: list[str]
    splits: dict[Kind, Part]
    calibration: float | None = None
    digest: str = ""


def read_index(root: str) -> Index:
    """Read and verify the index in a folder or at a URL."""
    place = joined(root, HEAD)
    if is_url(root):
        content = read_url(place, "json")
    else:
        if not Path(place).is_file():
            raise DataError(f"{place} does not exist; make shards of a folder of images with `dsnet shards FOLDER OUT`")
        content = read_limited(Path(place), "json")
    index = parse_json(Index, content, place, error=DataError, remedy=WRITE)
    if not matches_digest(json.loads(content)):
        raise DataError(f"{place} does not match its digest: it is damaged or was edited; {WRITE}")
    if "train" not in index.splits:
        raise DataError(f"{place} has no training images, only {', '.join(index.splits)}; {WRITE}")
    return index


def read_table(root: str, part: Part, classes: int) -> np.ndarray:
    """Read and verify the table of a split."""
    place = joined(root, part.table)
    allow("images", part.images, f"the number of images of {place} is", error=DataError)
    try:
        content = read_url(place, "table") if is_url(root) else Path(place).read_bytes()
    except FileNotFoundError:
        raise DataError(f"{place} does not exist, but {joined(root, HEAD)} names it; {WRITE}") from None
    if digest(content) != part.digest:
        raise DataError(f"{place} is not the table that {joined(root, HEAD)} names (its digest differs); {WRITE}")
    table = np.load(io.BytesIO(content), allow_pickle=False)
    if table.dtype != ROW or len(table) != part.images or (len(table) and int(table["label"].max()) >= classes):
        raise DataError(f"{place} does not fit {joined(root, HEAD)}; {WRITE}")
    return table


@dataclass(frozen=True)
class Shards:
    """The images of a split in shards, decoded when they are needed.

    store: Where shards at URLs are kept.
    """

    root: str
    shards: tuple[Shard, ...]
    table: np.ndarray = field(repr=False)
    classes: int
    store: Store | None = None

    def __len__(self) -> int:
        return len(self.table)

    @cached_property
    def labels(self) -> Tensor:
        return torch.from_numpy(self.table["label"].astype(np.int64))

    @cached_property
    def ends(self) -> np.ndarray:
        """The number behind the last image of every shard."""
        return np.cumsum([shard.images for shard in self.shards])

    def shard_of(self, ids: Tensor) -> Tensor:
        """The number of the shard that each image lies in."""
        return torch.from_numpy(np.searchsorted(self.ends, ids.numpy(), side="right"))

    def file(self, number: int) -> None:
        """Images in shards have no file of their own."""

    def identity(self) -> bytes:
        """The labels and the digests of all shards, for the fingerprint of the data."""
        return self.labels.numpy().tobytes() + "".join(shard.digest for shard in self.shards).encode()

    def image(self, number: int, max_pixels: int) -> ImageFile:
        """The image of a number, whose bytes are compared with their checksum."""
        row, shard = self.table[number], self.shards[int(np.searchsorted(self.ends, number, side="right"))]
        data = self.read(shard, int(row["offset"]) - BLOCK, int(row["size"]) + BLOCK)
        name = data[:100].split(b"\0")[0].decode(errors="replace")
        place = Path("" if is_url(self.root) else self.root, shard.name, name)
        content = data[BLOCK:]
        if len(content) != row["size"] or zlib.crc32(content) != row["crc"]:
            raise ImageError(place, "its bytes are not those that the index names", "copy the shard again")
        return ImageFile(place, max_pixels=max_pixels, data=content)

    def read(self, shard: Shard, offset: int, size: int) -> bytes:
        for _ in range(3):  # another process may make room in the store just now
            try:
                file = self.local(shard)
                if is_url(self.place(shard)):  # an open file would keep its space after the store removed it
                    with file.open("rb", buffering=0) as fetched:
                        fetched.seek(offset)
                        return fetched.read(size)
                stream = opened(str(file), os.getpid())
                stream.seek(offset)
                return stream.read(size)
            except FileNotFoundError:
                if self.store is None:
                    break
        raise DataError(f"the shard {self.place(shard)} does not exist any more; restore it and resume the run")

    def place(self, shard: Shard) -> str:
        return shard.name if is_url(shard.name) else joined(self.root, shard.name)

    def local(self, shard: Shard) -> Path:
        """The file of a shard, which is fetched if it lies elsewhere."""
        place = self.place(shard)
        if not is_url(place):
            return Path(place)
        assert self.store is not None
        return self.store.file(place, size=shard.bytes, digest=shard.digest)

    def expect(self, ids: Tensor) -> None:
        """Begin to fetch the shards of images that are needed soon."""
        if self.store is not None:
            for number in self.shard_of(ids).unique().tolist():
                shard = self.shards[number]
                if is_url(place := self.place(shard)):
                    self.store.expect(place, size=shard.bytes, digest=shard.digest)

    def check(self) -> None:
        """Compare the shards on disk with the index: all must be there, with their sizes."""
        missing, wrong = [], []
        for shard in self.shards:
            if is_url(place := self.place(shard)):
                continue
            try:
                size = Path(place).stat().st_size
            except FileNotFoundError:
                missing.append(place)
                continue
            if size != shard.bytes:
                wrong.append(f"{place} has {size:,} bytes instead of {shard.bytes:,}")
        if missing:
            raise DataError(
                f"{len(missing):,} of {len(self.shards):,} shards do not exist, the first is {missing[0]}; restore "
                f"them beside the index, or {WRITE}"
            )
        if wrong:
            raise DataError(
                f"{len(wrong):,} of {len(self.shards):,} shards are damaged or of another index: {wrong[0]}; copy them "
                f"again, or {WRITE}"
            )


@lru_cache(maxsize=256)
def opened(file: str, process: int) -> BinaryIO:
    """An open file. Every process opens its own, because a position is shared by those that inherit it."""
    return Path(file).open("rb", buffering=0)


def drawn(shards: Tensor, columns: int, generator: torch.Generator) -> Tensor:
    """A random order of images that lie in shards: their positions [batches, columns] in `shards`.

    shards: The shard of every image. columns: Images in a batch.
    The shards come in random order, one after the other, each with its images in random order. This sequence is cut
    into STREAMS streams, and column c of every batch goes on with stream c modulo STREAMS. A batch is thus drawn from
    many shards, and a shard is read once, in a part of the epoch. Processes that share the columns of a batch read
    different shards where their number divides STREAMS.
    """
    count = len(shards) // columns
    mixed = torch.randperm(len(shards), generator=generator)
    places = torch.randperm(int(shards.max()) + 1, generator=generator)
    sequence = mixed[places[shards[mixed]].argsort(stable=True)]
    streams = min(STREAMS, columns)
    sizes = [count * len(range(stream, columns, streams)) for stream in range(streams)]
    order = sequence.new_empty(count, columns)
    for stream, part in enumerate(sequence[: count * columns].split(sizes)):
        order[:, stream::streams] = part.view(count, -1)
    return order
