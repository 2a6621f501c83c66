"""Batches of a split. Their order depends on seed and epoch only, whatever the first batch and number of workers."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from types import FrameType
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dsnet.data.dataset import Batch, BatchLoader, Split
from dsnet.data.own import Stream
from dsnet.data.shards import Shards
from dsnet.errors import DataError

AHEAD = 64  # batches before it is needed, a shard at a URL is fetched
TIMEOUT = 600  # seconds without a batch after which loading has failed


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
    device: Where the images are normalised and stay; pixels go there as bytes.
    """

    split: Split
    batch_size: int
    seed: int
    workers: int = 0
    rank: int = 0
    world: int = 1
    device: torch.device | None = None

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
        if isinstance(self.split.source, Stream):
            return self.split.source.order(epoch, self.batch_size)
        return self.split.order(self.batch_size, torch.Generator().manual_seed(seed_of(self.seed, epoch)))

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The batches of an epoch, beginning with batch number `start`."""
        jobs, source = self.jobs(epoch)[start:], self.split.source
        for number, batch in enumerate(load_all(self.split, jobs, self.workers, self.device)):
            if isinstance(source, Shards):
                for ids, _ in jobs[number + AHEAD if number else 0 : number + AHEAD + 1]:
                    source.expect(ids)
            yield batch

    def jobs(self, epoch: int) -> list[Job]:
        """The sample numbers and the seed of every batch of an epoch."""
        order = self.order(epoch)
        return [
            (order[number, self.rank :: self.world], seed_of(self.seed, epoch, number, self.rank))
            for number in range(len(self))
        ]


def plain_batches(
    split: Split,
    batch_size: int,
    *,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    device: torch.device | None = None,
) -> Iterator[Batch]:
    """Batches of every sample once, in order, without augmentation; each rank takes every world-th batch."""
    yield from load_all(split, plain_jobs(split, batch_size, rank, world), workers, device)


def plain_jobs(split: Split, batch_size: int, rank: int, world: int) -> list[Job]:
    return [(part, None) for part in split.ids.split(batch_size)[rank::world]]


class PlainImages:
    """A split in batches without augmentation. Too many damaged files are an error.

    name: Name of the split, for the error message. max_skipped: Largest share of damaged files that is accepted.
    rank, world: The process with this rank takes every world-th batch.
    keep: Bytes of pixels that are kept for `load`, so that images are not decoded again.
    found: Damaged files of each batch so far.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        name: str,
        workers: int = 0,
        max_skipped: float = 0.0,
        rank: int = 0,
        world: int = 1,
        keep: int = 0,
        device: torch.device | None = None,
    ) -> None:
        self.split, self.batch_size, self.name, self.device = split, batch_size, name, device
        self.workers, self.max_skipped, self.rank, self.world = workers, max_skipped, rank, world
        self.found: list[tuple[str, ...]] = []
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}  # pixels and label by sample number
        self.room = keep

    def batches(self) -> Iterator[Batch]:
        self.found = []
        jobs = plain_jobs(self.split, self.batch_size, self.rank, self.world)
        for batch in raw_batches(self.split, jobs, self.workers):
            self.found.append(batch.skipped)
            self.check(self.found)
            if (size := batch.images.nbytes) <= self.room:
                self.room -= size
                held = zip(batch.images.clone(), batch.labels.clone(), strict=True)  # not in memory that workers share
                self.kept |= zip(batch.ids.tolist(), held, strict=True)
            yield self.split.finished(batch, self.device)

    def check(self, found: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        """All damaged files of some batches. Too many of them are an error."""
        skipped = tuple(file for files in found for file in files)
        if len(skipped) > self.max_skipped * len(self.split):
            raise ValueError(
                f"{len(skipped)} of {len(self.split)} {self.name} images are damaged, more than data.max_skipped "
                f"allows ({self.max_skipped:.2%}); the first is {skipped[0]}"
            )
        return skipped

    def load(self, parts: Sequence[np.ndarray]) -> Iterator[Batch]:
        """Batches of the samples with these numbers. Only those that are not kept are loaded again."""
        absent = [[number for number in part.tolist() if number not in self.kept] for part in parts]
        jobs: list[Job] = [(torch.tensor(numbers), None) for numbers in absent if numbers]
        with closing(raw_batches(self.split, jobs, self.workers)) as loaded:
            for part, numbers in zip(parts, absent, strict=True):
                fresh = [next(loaded)] if numbers else []
                whole = fresh[0] if len(numbers) == len(part) else self.joined(part, fresh)
                yield self.split.finished(whole, self.device)

    def joined(self, part: np.ndarray, fresh: Sequence[Batch]) -> Batch:
        """One batch of kept and loaded samples, in the order of their numbers in `part`, without damaged ones."""
        new = {number: row for batch in fresh for row, number in enumerate(batch.ids.tolist())}
        ids = [number for number in part.tolist() if number in new or number in self.kept]
        rows = [(fresh[0].images[new[n]], fresh[0].labels[new[n]]) if n in new else self.kept[n] for n in ids]
        images, labels = (torch.stack(column) for column in zip(*rows, strict=True))
        return Batch(images, labels, torch.tensor(ids), tuple(file for batch in fresh for file in batch.skipped))


Job = tuple[Tensor, int | None]


def load_all(split: Split, jobs: list[Job], workers: int, device: torch.device | None = None) -> Iterator[Batch]:
    """The batches of all jobs in order, loaded in this process or ahead of time by `workers` others."""
    for batch in raw_batches(split, jobs, workers):
        yield split.finished(batch, device)


def raw_batches(split: Split, jobs: list[Job], workers: int) -> Generator[Batch, None, None]:
    """`load_all`, but with the images as pixels."""
    workers = min(workers, 1) if isinstance(split.source, Stream) else workers  # each would read the whole stream
    yield from Pool.of(split, workers).batches(jobs) if workers else (split.loader(ids, seed) for ids, seed in jobs)


class Pool:
    """Processes that load batches of a split. They live as long as the split, so that no epoch has to start them."""

    @staticmethod
    def of(split: Split, workers: int) -> Pool:
        """The pool of a split, started when it is first asked for; another one while that loads for somebody else."""
        pool = split.pools.get(workers)
        if pool is None or pool.busy or pool.broken:
            pool = split.pools[workers] = Pool(split.loader, workers)
        return pool

    def __init__(self, loader: BatchLoader, workers: int) -> None:
        self.jobs: list[tuple[np.ndarray, int | None]] = []
        self.busy = self.broken = False
        self.loader = DataLoader(
            Jobs(loader),
            batch_size=None,  # an item is a whole batch
            sampler=self.jobs,
            num_workers=workers,
            persistent_workers=True,
            pin_memory=torch.cuda.is_available(),
            timeout=TIMEOUT,
            worker_init_fn=set_up_worker,
            generator=torch.Generator(),  # or the loader would draw from the global one
        )

    def batches(self, jobs: list[Job]) -> Iterator[Batch]:
        self.jobs[:] = [(ids.numpy(), seed) for ids, seed in jobs]
        self.busy = True
        try:
            loaded = iter(self.loader)
            name_killed_processes()
            for batch in loaded:
                if isinstance(batch, Exception):
                    raise batch
                yield batch
        except (RuntimeError, DataError) as error:
            self.broken = True  # nobody uses these processes again
            raise error if isinstance(error, DataError) else DataError(trouble(error)) from error
        finally:
            self.busy = False


def name_killed_processes() -> None:
    """Let the signal of a killed process raise an error of one line. The DataLoader's own has several."""
    theirs = signal.getsignal(signal.SIGCHLD)
    if not callable(theirs) or theirs.__name__ == "ours" or threading.current_thread() is not threading.main_thread():
        return

    def ours(number: int, frame: FrameType | None) -> None:
        try:
            theirs(number, frame)
        except RuntimeError as error:
            raise DataError(trouble(error)) from error

    signal.signal(signal.SIGCHLD, ours)


def trouble(error: RuntimeError) -> str:
    """What happened to the loading processes, in one line."""
    if "timed out" in str(error):
        return (
            f"the data-loading processes gave no batch for {TIMEOUT} seconds; see whether the disk or network file "
            f"system answers, and resume the run"
        )
    if "exited unexpectedly" in str(error) or "is killed by signal" in str(error):
        return "a data-loading process was killed, often for lack of memory; lower data.workers and resume the run"
    return f"a data-loading process failed: {' '.join(str(error).split())}"


class Jobs(Dataset[Batch | Exception]):
    """A dataset whose items are batches. An error is an item too: the DataLoader would wrap it in a traceback."""

    def __init__(self, loader: BatchLoader) -> None:
        self.loader = loader

    def __getitem__(self, job: tuple[np.ndarray, int | None]) -> Batch | Exception:
        ids, seed = job
        try:
            return self.loader(torch.from_numpy(ids), seed)
        except Exception as error:
            return error


def set_up_worker(number: int) -> None:
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
