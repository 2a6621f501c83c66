"""The devices that PyTorch computes on, by the names that the option `--device` takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from dsnet.runtime.engine import device_name

SINGLE = {"mps"}  # kinds of devices without double precision


def find_device(name: str | torch.device = "auto") -> torch.device:
    """The device with a name: auto takes a GPU if there is one, and cuda the GPU of this process.

    torchrun's processes of one machine take one GPU each.
    """
    name, processes = device_name(str(name)), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if name == "mps":
        if not torch.backends.mps.is_available():
            raise ValueError("device 'mps' is not there: it needs macOS on an Apple chip; use cpu")
        if processes > 1:
            raise ValueError(f"device 'mps' is one device for {processes} processes; use cpu, or one process")
        return torch.device("mps")
    if not torch.cuda.is_available():
        raise ValueError(
            f"device {name!r} is not there: PyTorch {torch.__version__} sees no GPU; use cpu, or install a build of "
            f"PyTorch for your GPU and its driver"
        )
    visible = torch.cuda.device_count()
    if ":" not in name:
        index = int(os.environ.get("LOCAL_RANK", "0"))
    elif processes == 1:
        index = int(name.removeprefix("cuda:"))
    else:
        raise ValueError(f"device {name!r} is one GPU for {processes} processes; use cuda, which gives each its own")
    if index >= visible:
        asked = f"process {index} of this machine needs GPU {index}" if processes > 1 else f"GPU {index} is asked for"
        raise ValueError(
            f"{asked}, but {visible} GPU{'s are' if visible != 1 else ' is'} visible; start as many processes as there "
            f"are GPUs (also to resume), and see CUDA_VISIBLE_DEVICES"
        )
    return torch.device("cuda", index)


def finest(device: torch.device) -> torch.dtype:
    """The most precise numbers of a device."""
    return torch.float32 if device.type in SINGLE else torch.float64


def exact(x: Tensor) -> Tensor:
    """A tensor in double precision, on the CPU if its device has none."""
    return (x.cpu() if x.device.type in SINGLE else x).double()


def unused_gpus(place: torch.device) -> int:
    """The number of GPUs of this machine that no process of this job uses, if this one uses a GPU."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, torch.cuda.device_count() - processes) if place.type == "cuda" else 0


@contextmanager
def tuned(device: torch.device) -> Iterator[None]:
    """Let cuDNN try its algorithms on every new shape. That pays in training, where shapes repeat, and not in routing,
    where groups of images have any size."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def words_for(device: torch.device) -> str:
    """What a device adds to the name of a runtime: nothing for the CPU."""
    if device.type == "cuda":
        return f" on {torch.cuda.get_device_name(device)}"
    return "" if device.type == "cpu" else f" on {device}"


def wait_for(device: torch.device) -> None:
    """Wait until a device has done all that it was asked for, so that a clock can be read."""
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).synchronize()


@contextmanager
def torch_threads(number: int | None) -> Iterator[None]:
    """Let PyTorch use a number of threads for a while. None: as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
