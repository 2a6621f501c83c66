"""What all results share: numbers with a spread, metrics, and how a result was made."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass

from dsnet.schema import Measured
from dsnet.version import __version__, commit


@dataclass(frozen=True)
class Stat(Measured):
    """A number; over several seeds, their mean and standard deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Measure(Measured):
    """The name of a number, and the format that Python prints it in."""

    name: str
    form: str


@dataclass(frozen=True)
class Metric(Measured):
    """The score of a task, such as top-1 or mAP, and the further measures that are reported for every path."""

    name: str
    form: str
    more: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class Made(Measured):
    """How a result was made: versions, machine, runtime, date and duration."""

    dsnet: str = __version__
    commit: str = ""
    torch: str = ""
    onnxruntime: str = ""
    runtime: str = ""
    machine: str = ""
    date: str = ""
    command: str = ""
    seconds: float = 0.0


def made(*, seconds: float = 0.0, threads: int | None = None, **known: str) -> Made:
    """`Made` for this process. threads: number of threads that the work used. known: the fields to set."""
    used = f"{os.cpu_count()} cores" if threads is None else f"{threads} threads"
    machine = f"{platform.machine()} {platform.system()}, {used}"
    date = time.strftime("%Y-%m-%d")
    return Made(commit=commit(), machine=machine, date=date, seconds=round(seconds, 2), **known)
