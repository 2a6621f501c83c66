"""The training state on disk. A run that is resumed from it gives the same results, bit for bit, as an unbroken one."""

from __future__ import annotations

import hashlib
import io
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dsnet.errors import CheckpointError
from dsnet.files import write_whole

MAGIC = b"dsnet training state 1\n"


@dataclass
class Progress:
    """The position of a run. `batch` is the next batch of `epoch`; `sums` are losses over this epoch's batches so far.

    `skips` counts consecutive steps without a finite gradient, `skipped` lists damaged files, `stale` counts the epochs
    since the best score.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    skips: int = 0
    best: float = -1.0
    stale: int = 0
    skipped: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)


def save_state(file: Path, state: dict[str, Any]) -> None:
    """Write tensors and plain values, with a digest in front. A crash leaves the old file or the new one."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    payload = buffer.getvalue()
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, MAGIC + hashlib.sha256(payload).digest() + payload)


def load_state(file: Path) -> dict[str, Any]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{file} does not exist, so there is nothing to resume; start the run anew") from None
    head = len(MAGIC) + 32
    if not data.startswith(MAGIC) or len(data) < head:
        raise CheckpointError(f"{file} is not a training state of this version of dsnet; start the run anew")
    digest, payload = data[len(MAGIC) : head], data[head:]
    if hashlib.sha256(payload).digest() != digest:
        raise CheckpointError(f"{file} does not match its digest: it is truncated or damaged; restore it from a copy")
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError) as error:
        raise CheckpointError(f"{file} cannot be read ({error}); start the run anew") from error


def random_state() -> dict[str, Any]:
    """The state of every random generator of this process that a step may draw from."""
    state: dict[str, Any] = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = [torch.cuda.get_rng_state()]  # of this process's GPU
    return state


def set_random_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    if torch.cuda.is_available() and state.get("cuda"):
        torch.cuda.set_rng_state(state["cuda"][0])
