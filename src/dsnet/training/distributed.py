"""Training in one process or in several that torchrun started: the process group and its collective calls."""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dsnet.errors import TrainingError
from dsnet.models.devices import find_device
from dsnet.training.average import batch_norms

T = TypeVar("T")


@contextmanager
def process_group(minutes: float = 30, device: str = "auto") -> Iterator[torch.device]:
    """Join the process group of a torchrun job for the duration of a `with` block, which gets this process's device.

    minutes: How long a process waits for another one, to join and in every collective call.
    Joins nothing without torchrun, with a single process, or if the group exists already.
    """
    place = find_device(device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if dist.is_initialized() or "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield place
        return
    backend = "cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo"
    lost = (
        f"process {os.environ['RANK']} of {os.environ['WORLD_SIZE']} could not join the others by {backend} ({{}}); "
        f"check that they run and can be reached, or let torchrun try again with --max-restarts"
    )
    patience = timedelta(minutes=minutes)
    try:
        store, rank, size = next(dist.rendezvous("env://", timeout=patience))
        store = met(store, rank, size, patience)
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=patience)
    except RuntimeError as error:
        raise ValueError(lost.format(error)) from error
    try:
        yield place
    finally:
        dist.destroy_process_group()


def met(store: dist.Store, rank: int, size: int, patience: timedelta) -> dist.Store:
    """A part of `store` for the processes that are there now.

    torchrun keeps one store through all restarts. What the processes of an earlier start wrote into it, their addresses
    for one, is read by those of the next, which then call ports that nobody listens to. So every process writes a token
    of its own, process 0 calls the roll of all tokens, and who is on the roll answers. Once all have answered, the roll
    names a part of the store that nobody used before.
    """
    own, called, answered = uuid.uuid4().hex, "", ""
    store.set(f"here/{rank}", own)
    end = time.monotonic() + patience.total_seconds()
    while time.monotonic() < end:
        if rank == 0:
            tokens = [read(store, f"here/{other}") for other in range(size)]
            if all(tokens) and (roll := " ".join(tokens)) != called:
                store.set("roll", roll)
                called = roll
        roll = read(store, "roll")
        if own in roll:
            name = hashlib.sha256(roll.encode()).hexdigest()
            if name != answered:
                store.set(f"{name}/{rank}", "here")
                answered = name
            if store.check([f"{name}/{other}" for other in range(size)]):
                return dist.PrefixStore(name, store)
        time.sleep(0.02)
    raise RuntimeError(f"not all {size} were there after {patience.total_seconds():g} s")


def read(store: dist.Store, key: str) -> str:
    """A value of the store, empty where there is none yet."""
    return store.get(key).decode() if store.check([key]) else ""


@contextmanager
def together(folder: Path) -> Iterator[None]:
    """Errors that come from the loss of another process say so, and how the run in `folder` goes on."""
    try:
        yield
    except RuntimeError as error:
        if world() > 1 and re.search(r"[Cc]onnection|[Tt]imed? ?out|peer|NCCL", str(error)):
            raise TrainingError(
                f"process {rank()} of {world()} lost touch with another one, which died or hung ({error}); "
                f"see the other process's output, then continue with --resume {folder}"
            ) from error
        raise


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def total(values: Tensor) -> Tensor:
    """The sum of `values` over all processes."""
    if world() > 1:
        dist.all_reduce(values)
    return values


def average_statistics(net: nn.Module) -> None:
    """Replace running statistics by their mean over processes. Each process collected its own from its own images."""
    if world() > 1:
        for norm in batch_norms(net):
            for buffer in (norm.running_mean, norm.running_var):
                dist.all_reduce(buffer)
                buffer /= world()


def wrap(stage: nn.Module) -> nn.Module:
    """Wrap a stage in DistributedDataParallel, which leaves running statistics to `average_statistics`."""
    if world() == 1:
        return stage
    # torch 2.13 renamed broadcast_buffers
    renamed = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
    options: dict[str, Any] = {"forward_sync_buffers" if renamed else "broadcast_buffers": False}
    options["gradient_as_bucket_view"] = True  # gradients are reduced where they lie
    return DistributedDataParallel(stage, **options)


def gathered(items: Sequence[T]) -> list[T]:
    """The items of all processes, in the order of their ranks. They are pickled, so they should be small."""
    if world() == 1:
        return list(items)
    lists: list[Any] = [None] * world()
    dist.all_gather_object(lists, list(items))
    return [item for part in lists for item in part]


def in_order(items: Sequence[T]) -> list[T]:
    """What all processes made of their batches, in the order of the batches; a process has every world-th of them."""
    numbered = [(rank() + place * world(), item) for place, item in enumerate(items)]
    return [item for _, item in sorted(gathered(numbered), key=lambda one: one[0])]


def share(net: nn.Module) -> None:
    """Give the tensors of the first process's network to all others."""
    if world() > 1:
        for tensor in net.state_dict().values():
            dist.broadcast(tensor, 0)


class Team:
    """All processes, which share the images of an evaluation; see `routing.traces`."""

    @property
    def rank(self) -> int:
        return rank()

    @property
    def world(self) -> int:
        return world()

    def gathered(self, mine: Sequence[T]) -> list[T]:
        return gathered(mine)


def barrier() -> None:
    if world() > 1:
        dist.barrier()
