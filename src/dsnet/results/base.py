"""What all results share: numbers with a spread, differences, metrics, and how a result was made."""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from statistics import fmean

from dsnet.schema import Measured
from dsnet.version import __version__, commit


@dataclass(frozen=True)
class Stat(Measured):
    """A number; over several seeds, their mean and standard deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Difference(Measured):
    """A difference of two scores on the same images, with the ends of its 95 % paired interval for each seed."""

    mean: float
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval, averaged over seeds. Seeds do not make it narrower: they see the same images, and
        what is hard for one of them is hard for the others."""
        return fmean(self.low), fmean(self.high)

    @property
    def sign(self) -> int:
        """1 or -1 if every seed lies on that side of zero and the interval excludes zero; 0 if the scores are called
        equal."""
        low, high = self.interval
        middles = [ends[0] + ends[1] for ends in zip(self.low, self.high, strict=True)]
        if low > 0 and min(middles) > 0:
            return 1
        return -1 if high < 0 and max(middles) < 0 else 0


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
