"""Memory of a training on the CPU."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

MMAP_MAX, TRIM_THRESHOLD = -4, -1  # names of glibc's options, from malloc.h


def keep_memory() -> None:
    """Let glibc keep freed memory and hand it out again.

    By default it gives large blocks back to the system at once. A step of training frees and asks for the same blocks
    as the one before, and the system has to clear their pages anew each time. Other C libraries are left as they are.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            options = ctypes.CDLL(None).mallopt
            options(MMAP_MAX, 0)
            options(TRIM_THRESHOLD, 2**31 - 1)
