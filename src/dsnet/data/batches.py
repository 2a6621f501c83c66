"""Batches of a split. Their order depends on seed and epoch only, whatever the first batch and number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from dsnet.data.dataset import Batch, Split
from dsnet.errors import DataError


def seed_of(*parts: int) -> int:
    """Combine several numbers into one seed."""
    return zlib.crc32(repr(parts).encode())


class Batches(Protocol):
    """What a training loop takes its batches from."""

    @property
    def split(self) -> Split: ...

    @property
    def batch_size(self) -> int:
        """Images per step, over all processes."""
        ...

    def __len__(self) -> int:
        """Batches per epoch."""
        ...

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, beginning with batch number `start`."""
        ...


@dataclass(frozen=True)
class TrainBatches:
    """Shuffled, augmented batches of one epoch; each rank takes every world-th sample of a global batch.

    The last, incomplete batch of an epoch is dropped. Its images come up in other epochs.
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
        """The sample numbers [batches, batch_size] of an epoch."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, epoch))
        shuffled = self.split.ids[torch.randperm(len(self.split), generator=generator)]
        return shuffled[: len(self) * self.batch_size].view(len(self), self.batch_size)

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, beginning with batch number `start`."""
        order = self.order(epoch)
        jobs: list[Job] = [
            (order[number, self.rank :: self.world], seed_of(self.seed, epoch, number, self.rank))
            for number in range(start, len(self))
        ]
        yield from load_all(self.split, jobs, self.workers)


def plain_batches(split: Split, batch_size: int, *, workers: int = 0, rank: int = 0, world: int = 1) -> Iterator[Batch]:
    """Batches of every sample once, in order, without augmentation; each rank takes every world-th sample."""
    ids = split.ids[rank::world]
    yield from load_all(split, [(part, None) for part in ids.split(batch_size)], workers)


class PlainImages:
    """A split in batches without augmentation. Damaged files are listed in `skipped`; too many of them are an error.

    name: Name of the split, for the error message. max_skipped: Largest share of damaged files that is accepted.
    """

    def __init__(self, split: Split, batch_size: int, *, name: str, workers: int = 0, max_skipped: float = 0.0) -> None:
        self.split, self.batch_size, self.name = split, batch_size, name
        self.workers, self.max_skipped = workers, max_skipped
        self.skipped: tuple[str, ...] = ()

    def batches(self) -> Iterator[Batch]:
        self.skipped = ()
        for batch in plain_batches(self.split, self.batch_size, workers=self.workers):
            self.skipped += batch.skipped
            if len(self.skipped) > self.max_skipped * len(self.split):
                raise ValueError(
                    f"{len(self.skipped)} of {len(self.split)} {self.name} images are damaged, more than "
                    f"data.max_skipped allows ({self.max_skipped:.2%}); the first is {self.skipped[0]}"
                )
            yield batch

    def load(self, ids: np.ndarray) -> Batch:
        return self.split.load(torch.from_numpy(ids))


Job = tuple[Tensor, int | None]


def load_all(split: Split, jobs: list[Job], workers: int) -> Iterator[Batch]:
    """The batches of all jobs in order, loaded in this process or ahead of time by `workers` others."""
    if not workers:
        yield from (split.load(ids, seed=seed) for ids, seed in jobs)
        return
    pool = ProcessPoolExecutor(workers, initializer=_set_up_worker, initargs=(split,))
    try:
        ahead: deque[Future[Arrays]] = deque()
        for ids, seed in jobs:
            ahead.append(pool.submit(_load, ids.numpy(), seed))
            if len(ahead) > 2 * workers:
                yield _batch(ahead.popleft().result())
        while ahead:
            yield _batch(ahead.popleft().result())
    except BrokenProcessPool as error:
        raise DataError(
            "a data-loading process was killed, often for lack of memory; lower data.workers and resume the run"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


# Workers send batches as arrays. A tensor would be fetched from the worker's memory, and the worker may have ended.
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, tuple[str, ...]]
_split: Split | None = None  # the split that a worker process loads from


def _load(ids: np.ndarray, seed: int | None) -> Arrays:
    assert _split is not None
    batch = _split.load(torch.from_numpy(ids), seed=seed)
    return batch.images.numpy(), batch.labels.numpy(), batch.ids.numpy(), batch.skipped


def _batch(arrays: Arrays) -> Batch:
    images, labels, ids, skipped = arrays
    return Batch(torch.from_numpy(images), torch.from_numpy(labels), torch.from_numpy(ids), skipped)


def _set_up_worker(split: Split) -> None:
    global _split
    _split = split
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the main process, which saves first
    end_with_parent()


def end_with_parent() -> None:
    """End this child process when its parent ends. A parent that was killed cannot tell it to stop."""
    threading.Thread(target=_follow_parent, daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
