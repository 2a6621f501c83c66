"""Checks the files of a dataset before a run begins."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsnet.data.config import Reading
from dsnet.data.dataset import SKIPPING, Data
from dsnet.data.folders import listed
from dsnet.errors import DataError
from dsnet.images import ImageError, check_image

ALL = 100_000  # up to this number, every file is checked from end to end
SAMPLE = 10_000  # of more files, only the headers and a random sample of this size


def check_files(data: Data, options: Reading) -> list[str]:
    """Look for damaged files. They are an error, or are returned if `options` say that they are skipped."""
    parts = {name: data.split(name).files() for name in ("train", "calibration", "test")}
    files = sorted({file for part in parts.values() for file in part})
    found = damaged_files(files, max_pixels=options.max_pixels, threads=options.workers)
    if not found:
        return []
    lines = listed([f"{file} ({reason})" for file, reason in found.items()])
    if options.on_corrupt == "stop":
        remedy = f"replace or remove them; {SKIPPING}"
        raise DataError(f"{len(found):,} of {len(files):,} images cannot be read; {remedy}:\n{lines}")
    for name, part in parts.items():
        beside = parts["calibration"] if name == "train" else []  # training counts both, as its loop does
        damaged = sum(file in found for file in {*part, *beside})
        if damaged > options.max_skipped * len(part):
            raise DataError(
                f"{damaged:,} of {len(part):,} {name} images are damaged, more than data.max_skipped allows "
                f"({options.max_skipped:.2%}); replace or remove them, or raise data.max_skipped:\n{lines}"
            )
    return list(found)


def damaged_files(files: Sequence[str], *, max_pixels: int, threads: int = 0) -> dict[str, str]:
    """The files that cannot be read, each with the reason. `threads` of 0 takes one per processor."""
    whole = set(files if len(files) <= ALL else random.Random(0).sample(files, SAMPLE))

    def damage(file: str) -> str | None:
        try:
            check_image(Path(file), max_pixels=max_pixels, whole=file in whole)
        except ImageError as error:
            return error.reason
        return None

    with ThreadPoolExecutor(threads or os.cpu_count()) as pool:  # Pillow decodes without the GIL
        reasons = pool.map(damage, files)
        return {file: reason for file, reason in zip(files, reasons, strict=True) if reason is not None}
