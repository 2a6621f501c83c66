"""Faults: files with a flipped bit, and processes that are killed at a given file operation."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

OPERATIONS = ("open", "fsync", "ftruncate", "chmod", "replace", "rename", "unlink", "remove", "mkdir", "rmdir")


def flipped(data: bytes, bit: int) -> bytes:
    """The data with one other bit."""
    place, shift = divmod(bit, 8)
    return data[:place] + bytes([data[place] ^ 1 << shift]) + data[place + 1 :]


class Killed(BaseException):
    """Ends a process that is killed. Nothing that it does afterwards reaches the disk."""


@contextmanager
def killed_at(number: int, fault: BaseException | None = None) -> Iterator[list[str]]:
    """Operations on files run until the given one; that one and all later ones fail, as after a SIGKILL.

    Gives the operations that were asked for. A handler of the dying process may try to clean up, but cannot.
    fault: what the operation raises instead, once, so that handlers can clean up: KeyboardInterrupt, or a full disk.
    """
    asked: list[str] = []
    descriptors: set[int] = set()  # the system closes them when the process ends, which frees their locks

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **options: Any) -> Any:
            asked.append(f"{name} {args[0]}")
            if fault is not None and len(asked) == number + 1:
                raise fault
            if fault is None and len(asked) > number:
                raise Killed
            found = real(*args, **options)
            if name == "open":
                descriptors.add(found) if isinstance(found, int) else descriptors.discard(args[0])
            return found

        return operation

    def close(descriptor: int) -> None:
        descriptors.discard(descriptor)
        real_close(descriptor)

    real_close = os.close
    with pytest.MonkeyPatch.context() as patch:
        for name in OPERATIONS:
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        patch.setattr(io, "open", wrapped("open", io.open))
        patch.setattr(os, "close", close)
        with suppress(Killed, KeyboardInterrupt, OSError, ValueError):
            yield asked
    for descriptor in descriptors:
        os.close(descriptor)
