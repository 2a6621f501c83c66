"""Files at URLs: small ones are read, large ones are fetched whole into a folder that is kept below a size."""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
import time
import urllib.request
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

from dsnet.errors import DataError
from dsnet.files import file_digest, one_at_a_time
from dsnet.limits import limit

ATTEMPTS = 4  # to fetch a file, with 1, 2 and 4 seconds between them
PATIENCE = 60  # seconds without an answer after which an attempt has failed
THREADS = 4  # that fetch files before they are needed


def is_url(place: str) -> bool:
    return "://" in place


def joined(root: str, name: str) -> str:
    """A place below a folder or a URL."""
    if is_url(name):
        return name
    if not is_url(root):
        return str(Path(root, name))
    kind, _, place = root.partition("://")  # urljoin knows only some kinds
    return f"{kind}://{posixpath.normpath(f'{place}/{name}')}"


def stream_of(url: str) -> AbstractContextManager[BinaryIO]:
    """Open a URL: http and https by Python itself, other kinds (s3, gs) by fsspec, where it has a package for them."""
    if url.split("://")[0] in ("http", "https", "file"):
        found: AbstractContextManager[BinaryIO] = urllib.request.urlopen(url, timeout=PATIENCE)
        return found
    try:
        opening: Any = import_module("fsspec").open(url, "rb")
    except ImportError as error:
        raise DataError(f"{url} cannot be opened ({error}); install that package, or give an https URL") from None
    except ValueError as error:
        raise DataError(
            f"{url} cannot be opened ({error}); give an https URL, or one of a kind that fsspec knows"
        ) from None
    return opening


def read_url(url: str, kind: str) -> bytes:
    """The content of a small file at a URL. kind: The limit of its size."""
    most = limit(kind)

    def read() -> bytes:
        with stream_of(url) as stream:
            found = stream.read(most + 1)
            if len(found) <= most and getattr(stream, "length", None):  # what the server said would follow
                raise EOFError("the connection ended in the middle")
            return found

    content = tried(url, read)
    if len(content) > most:
        raise DataError(f"{url} is larger than the limit of {most:,} bytes; it is not an index of shards")
    return content


def tried(url: str, attempt: Any) -> Any:
    """What an attempt gives, which is repeated if the network fails."""
    for number in range(ATTEMPTS):
        try:
            return attempt()
        except (OSError, EOFError, HTTPException) as error:
            gone = getattr(error, "code", None) in (401, 403, 404, 410)
            if gone or number == ATTEMPTS - 1:
                raise DataError(
                    f"{url} could not be fetched ({error}); see that the server answers, and resume the run"
                ) from error
        time.sleep(2**number)
    raise AssertionError


@dataclass(frozen=True)
class Store:
    """A folder of fetched files, under the names of their digests. The one unused for longest makes room.

    size: Gigabytes that it may take. The file that is needed is fetched even if it takes more.
    """

    folder: Path
    size: float
    under_way: dict[str, Future[Path]] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:  # threads stay in their process
        return {"folder": self.folder, "size": self.size, "under_way": {}}

    @cached_property
    def threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(THREADS)

    def expect(self, url: str, *, size: int, digest: str) -> None:
        """Fetch a file in the background. Trouble shows when it is needed."""
        if digest not in self.under_way and not self.name(digest).exists():
            self.under_way[digest] = self.threads.submit(self.file, url, size=size, digest=digest)
        for known, future in list(self.under_way.items()):
            if future.done():
                del self.under_way[known]

    def name(self, digest: str) -> Path:
        return self.folder / f"{digest[:40]}.tar"

    def file(self, url: str, *, size: int, digest: str) -> Path:
        """The fetched file. Of several processes that need it, one fetches it and the others wait."""
        file = self.name(digest)
        if not file.exists():
            with one_at_a_time(file):
                if not file.exists():
                    self.make_room(size)
                    tried(url, lambda: self.fetch(url, file, size, digest))
        with contextlib.suppress(OSError):
            os.utime(file)
        return file

    def fetch(self, url: str, file: Path, size: int, digest: str) -> None:
        part = file.with_suffix(".part")
        with stream_of(url) as stream, part.open("wb") as target:
            shutil.copyfileobj(stream, target, 2**20)
        if part.stat().st_size != size or file_digest(part) != digest:
            part.unlink()
            raise EOFError("it is damaged, or not the file that the index names")
        part.replace(file)

    def make_room(self, size: int) -> None:
        """Remove the files that were unused for longest, until `size` more bytes fit."""
        found = []
        for file in self.folder.glob("*.tar"):
            with contextlib.suppress(FileNotFoundError):  # another process removes files too
                found.append((file.stat().st_mtime, file.stat().st_size, file))
        room = 1e9 * self.size - size - sum(bytes_ for _, bytes_, _ in found)
        for _, bytes_, file in sorted(found):
            if room >= 0:
                break
            file.unlink(missing_ok=True)
            room += bytes_
