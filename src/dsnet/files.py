"""Atomic writing of files, digests of their content, and folders that one process holds at a time."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import tempfile
from collections.abc import Iterator
from pathlib import Path

from dsnet.limits import allow

LOCK = ".lock"  # the file in a folder that the process which holds the folder has locked


def write_whole(file: Path, data: bytes) -> None:
    """Write a file atomically (temporary file, sync, rename): a crash leaves the old file or the new one."""
    descriptor, name = tempfile.mkstemp(prefix=f".{file.name}.", suffix=".tmp", dir=file.parent)
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(0o644)
        temporary.replace(file)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if not isinstance(error, OSError):
            raise
        raise OSError(
            error.errno, f"cannot write {file} ({error.strerror}); what was there before is untouched"
        ) from error


def read_limited(file: Path, name: str) -> bytes:
    """The content of a file, unless it is larger than the limit of this name."""
    allow(name, file.stat().st_size, f"the size of {file} in bytes is")
    return file.read_bytes()


def digest(data: bytes) -> str:
    """The SHA-256 of the data, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


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
        except OSError:
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


def lock(descriptor: int) -> None:
    """Lock an open file, or raise an OSError if another process has locked it."""
    try:
        import fcntl
    except ImportError:  # Windows
        import msvcrt

        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
