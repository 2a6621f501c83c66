"""Atomic writing of files, and digests of their content."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path


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


def digest(data: bytes) -> str:
    """The SHA-256 of the data, in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()
