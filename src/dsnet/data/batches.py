"""Batches in an order that depends on seed and epoch alone, from any position, with any number of workers."""

from __future__ import annotations

import re
import signal
import time
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from dsnet.data.dataset import Batch, Split
from dsnet.data.images import DataError


def seed_of(*parts: int) -> int:
    """One seed from several numbers."""
    return zlib.crc32(repr(parts).encode())


@dataclass(frozen=True)
class TrainBatches:
    """Shuffled, augmented batches of one epoch; each rank takes every world-th sample of a global batch.

    The last, smaller batch of an epoch is left out: its images come up in other epochs.
    """

    split: Split
    batch_size: int
    seed: int
    workers: int = 0
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.batch_size % self.world:
            raise ValueError(f"batch size {self.batch_size} cannot be shared by {self.world} processes; use a multiple")
        if self.batch_size > len(self.split):
            raise ValueError(
                f"batch size {self.batch_size} is larger than the {len(self.split)} training images; "
                f"choose a smaller one"
            )

    def __len__(self) -> int:
        return len(self.split) // self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Sample numbers [batches, batch_size] of an epoch."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        shuffled = self.split.ids[torch.randperm(len(self.split), generator=generator)]
        return shuffled[: len(self) * self.batch_size].view(len(self), self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from number `start` on."""
        order = self.order(epoch)
        jobs: list[Job] = [
            (order[number, self.rank :: self.world], seed_of(self.seed, epoch, number, self.rank))
            for number in range(start, len(self))
        ]
        yield from load_all(self.split, jobs, self.workers)


def plain_batches(split: Split, batch_size: int, *, workers: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
    """Every sample once, in order, without augmentation; each rank takes every world-th sample."""
    ids = split.ids[rank::world]
    yield from load_all(split, [(part, None) for part in ids.split(batch_size)], workers)


Job = tuple[Tensor, int | None]


class _Jobs(TorchDataset["Batch | DataError"]):
    def __init__(self, split: Split, jobs: list[Job]) -> None:
        self.split, self.jobs = split, jobs

    def __len__(self) -> int:
        return len(self.jobs)

    def __getitem__(self, number: int) -> Batch | DataError:
        ids, seed = self.jobs[number]
        try:
            return self.split.load(ids, seed=seed)
        except DataError as error:
            return DataError(str(error))  # as a value: torch would bury it in the worker's traceback


def load_all(split: Split, jobs: list[Job], workers: int) -> Iterator[Batch]:
    found: Iterable[Batch | DataError] = (split.load(ids, seed=seed) for ids, seed in jobs)
    if workers and jobs:
        generator = torch.Generator()  # or torch would draw from the global one at every start
        found = DataLoader(
            _Jobs(split, jobs), batch_size=None, num_workers=workers, worker_init_fn=_set_up_worker, generator=generator
        )
    for batch in found:
        if isinstance(batch, DataError):
            raise batch
        yield batch


def _set_up_worker(worker: int) -> None:
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which saves first


@contextmanager
def named_worker_deaths() -> Iterator[None]:
    """Turns torch's report of a killed data-loading process, which comes at any moment, into a clear error."""
    try:
        try:
            yield
        except (ConnectionError, EOFError):
            # A killed process closes its connections a moment before torch's signal handler, which raises, hears of it.
            time.sleep(1)
            raise
    except RuntimeError as error:
        if re.search(r"DataLoader worker.*(exited unexpectedly|killed by signal)", str(error)):
            raise DataError(
                f"a data-loading process was killed, often for lack of memory ({error}); "
                f"lower data.workers and resume the run"
            ) from error
        raise
