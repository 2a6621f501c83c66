"""What the processes of a job agree on before they train: the folder, whether they resume, and the data."""

from __future__ import annotations

import platform
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from dsnet.errors import CheckpointError
from dsnet.training.distributed import rank, world

T = TypeVar("T")
PATIENCE = 30  # seconds in which a new file must be seen by all machines


def check_shared(folder: Path, *, resume: bool) -> None:
    """Refuse a job whose processes do not see the same folder, or of which only some resume.

    The first process leaves a file there, and all others look for it. Files of a network appear after some seconds.
    """
    if world() == 1:
        return
    name = f".{uuid.uuid4().hex}.tmp"  # a temporary file, which no reader of the folder takes for a part of the run
    if rank() == 0:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    name, first = from_first((name, resume))
    seen = any(_seen(folder / name, delay) for delay in range(PATIENCE)) if first == resume else True
    told = everyone((platform.node(), seen, resume))
    if rank() == 0:
        (folder / name).unlink(missing_ok=True)
    if blind := [(number, machine) for number, (machine, saw, _) in enumerate(told) if not saw]:
        number, machine = blind[0]
        raise CheckpointError(
            f"process {number} on {machine} does not see the files that process 0 on {told[0][0]} writes to {folder}; "
            f"give --out a folder that all machines share"
        )
    if len({resumes for *_, resumes in told}) > 1:
        raise CheckpointError(
            f"some processes found a run in {folder} and others did not; wait until all machines see the same files, "
            f"and start the job again"
        )


def _seen(file: Path, delay: int) -> bool:
    time.sleep(min(1, delay))
    return file.exists()


def opened_once(make: Callable[[], T]) -> T:
    """What `make` gives in the first process, for all of them: a million files are listed once. Its errors are raised
    in every process."""
    if world() == 1:
        return make()
    found: Any = None
    if rank() == 0:
        try:
            found = make()
        except (ValueError, OSError) as error:
            found = error
    found = from_first(found)
    if isinstance(found, Exception):
        raise found
    return found


def from_first(value: T) -> T:
    """The value of the first process."""
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def everyone(value: T) -> list[T]:
    """The values of all processes, by rank."""
    box: list[Any] = [None] * world()
    dist.all_gather_object(box, value)
    return box
