"""Files that are written whole or not at all, digests of their content, and folders that one process holds at a time.

An artefact of several files (a model, a bundle) has a *head*: a small file that holds the digests of the others. A
writer completes the other files under names that no head uses yet, replaces the head, and then removes what the new
head does not need. Replacing the head is the one step that switches from the old artefact to the new one, so a writer
may be killed anywhere. A rename of one file is atomic on every file system that matters; an exchange of two folders is
not offered by all of them. A reader takes the files that match the digests of the head (`settled`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from dsnet.errors import CheckpointError
from dsnet.limits import allow

LOCK = ".lock"  # the file in a folder that the process which holds the folder has locked
TEMPORARY = ".tmp"
T = TypeVar("T")


def write_whole(file: Path, data: bytes) -> None:
    """Write a file atomically (temporary file, sync, rename): a crash leaves the old file or the new one.

    What killed writers of the same file left behind is removed.
    """
    temporary, stream = _temporary(file)
    try:
        with stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
            temporary.chmod(0o644)
            if os.name == "nt":  # which renames closed files only
                stream.close()
            temporary.replace(file)  # it is locked until it has its name
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise OSError(
            error.errno, f"cannot write {file} ({error.strerror}); what was there before is untouched"
        ) from error
    sync_folder(file.parent)
    with contextlib.suppress(OSError):
        _sweep(file)


def _temporary(file: Path) -> tuple[Path, BinaryIO]:
    """A new file beside the given one, locked as long as it is open."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=TEMPORARY, dir=file.parent)
        temporary = Path(name)
        with contextlib.suppress(BlockingIOError):
            lock(descriptor)
            if temporary.exists():
                return temporary, os.fdopen(descriptor, "wb")
        os.close(descriptor)  # another writer swept it before it was locked


def is_temporary(file: Path) -> bool:
    """Whether this is a file that is being written, or was when its writer was killed."""
    return file.name.startswith(".") and file.suffix == TEMPORARY


def _sweep(file: Path) -> None:
    """Remove the temporary files of writers that no longer live: nobody holds their locks."""
    for other in file.parent.iterdir() if os.name != "nt" else ():
        if is_temporary(other) and other.name.startswith(f".{file.name}."):
            with contextlib.suppress(OSError):
                descriptor = os.open(other, os.O_RDWR)
                try:
                    if lock(descriptor):
                        other.unlink()
                finally:
                    os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def settled(head: Path, read: Callable[[bytes], T]) -> T:
    """What `read` makes of a head and of the files that it names.

    If that fails and another process has replaced the head in the meantime, the new head is read.
    """
    while True:
        version, content = _version(head)
        try:
            return read(content)
        except (OSError, CheckpointError):
            if head.is_file() and _version(head) != (version, content):
                continue
            raise


def read_limited(file: Path, name: str) -> bytes:
    """The content of a file, unless it is larger than the limit of this name."""
    allow(name, file.stat().st_size, f"the size of {file} in bytes is", error=CheckpointError)
    return file.read_bytes()


def _version(head: Path) -> tuple[tuple[int, int], bytes]:
    """What tells a head from one that replaced it, be its content the same again; and its content."""
    with head.open("rb") as stream:
        found = os.fstat(stream.fileno())
        allow("json", found.st_size, f"the size of {head} in bytes is", error=CheckpointError)
        return (found.st_ino, found.st_mtime_ns), stream.read()


def digest(data: bytes) -> str:
    """The SHA-256 of the data, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_digest(file: Path) -> str:
    """The SHA-256 of a file, which is read in pieces."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def with_digest(content: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with an entry `digest`, that of all other entries."""
    return {**content, "digest": digest(_canonical(content))}


def matches_digest(content: Mapping[str, Any]) -> bool:
    """Whether the entry `digest` is that of all other entries."""
    rest = {key: value for key, value in content.items() if key != "digest"}
    return content.get("digest") == digest(_canonical(rest))


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def size_of(artefact: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    files = [artefact] if artefact.is_file() else [file for file in artefact.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def contents(folder: Path) -> list[Path]:
    """What a folder holds, apart from its lock and temporary files; nothing if it does not exist."""
    files = folder.iterdir() if folder.is_dir() else ()
    return [file for file in files if file.name != LOCK and not is_temporary(file)]


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process. BlockingIOError if another process holds it; its text names that process.

    The system takes the lock from a process that ends, however it ends, so a lock is never left behind.
    """
    file = folder / LOCK
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            lock(descriptor)
        except BlockingIOError:
            holder = os.read(descriptor, 200).decode(errors="replace") or "another process"
            os.close(descriptor)
            raise BlockingIOError(holder) from None
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), file.stat()):
                break
        os.close(descriptor)  # its last holder removed the file after it was opened here
    try:
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {platform.node()}".encode())
        yield
    finally:
        with contextlib.suppress(OSError):
            file.unlink()
        os.close(descriptor)


@contextlib.contextmanager
def one_at_a_time(file: Path) -> Iterator[None]:
    """Wait until no other process is in this block for the same file. No effect on Windows."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def lock(descriptor: int) -> bool:
    """Lock an open file, or raise BlockingIOError if it is locked already. False if the file system has no locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        except OSError as error:
            raise BlockingIOError from error
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
