"""A dry run: a few steps of a training that is not begun, for what it will need and how long it will take."""

from __future__ import annotations

import copy
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from dsnet import tasks
from dsnet.config import RunConfig
from dsnet.data.batches import Batches
from dsnet.data.dataset import Batch, Data
from dsnet.models.devices import torch_threads, tuned, wait_for
from dsnet.runs.folder import RunFolder
from dsnet.runs.train import check_precision, make_loop
from dsnet.tasks import Plan
from dsnet.training import Loop
from dsnet.training.distributed import process_group, world
from dsnet.training.memory import keep_memory
from dsnet.training.start import opened_once

STEPS = 20  # that are timed
WARM_UP = 2  # steps before them, in which memory is taken and processes start
FORWARD = (torch.ops.aten.convolution, torch.ops.aten.addmm)  # torch counts grouped convolutions wrongly going backward


@dataclass(frozen=True)
class Measured:
    """What a stage needs.

    Args:
        images: Images in a step, over all processes.
        madds: MAdds of a step in one process, forward: of all sub-networks and the teacher.
        memory: Bytes of one process at most: on the device, or of the whole process on a CPU.
        loaded: Images per second of the loader alone.
        trained: Images per second of whole steps.
        steps: Steps of the whole stage.
    """

    stage: str
    parameters: int
    images: int
    madds: int
    memory: int
    loaded: float
    trained: float
    steps: int

    @property
    def hours(self) -> float:
        return self.steps * self.images / self.trained / 3600


@dataclass(frozen=True)
class Dry:
    """What a training will need. `unmeasured` names the stages that begin with a pass over all images."""

    about: str
    device: str
    stages: tuple[Measured, ...]
    unmeasured: tuple[tuple[str, int], ...]

    def lines(self, workers: int) -> list[str]:
        found = [self.about]
        for stage in self.stages:
            found += [
                f"{stage.stage}: {stage.parameters / 1e6:,.2f} M parameters",
                f"  a step: {stage.images:,} images over {world()} process{'es' * (world() > 1)}, "
                f"{stage.madds / 1e9:,.1f} GMAdds forward in each (all sub-networks and the teacher)",
                f"  memory: {stage.memory / 1e9:,.2f} GB on {self.device} in each process",
                f"  loader alone: {stage.loaded:,.0f} images/s with {workers} workers",
                f"  training: {stage.trained:,.0f} images/s, {stage.steps:,} steps, {stage.hours:,.1f} hours without "
                f"validation",
            ]
        return found + [f"{name}: {steps:,} steps; not measured" for name, steps in self.unmeasured]


def dry_run(config: RunConfig, device: str = "auto") -> Dry:
    """Take some steps of every stage. Nothing is written outside of the folder for temporary files."""
    keep_memory()
    task = tasks.named(config.task)
    with (
        torch_threads(config.threads),
        process_group(config.timeout, device) as place,
        tempfile.TemporaryDirectory() as folder,
    ):
        run = RunFolder(Path(folder), task)
        data = opened_once(lambda: task.open_data(config))
        plans = [plan for plan in task.plans(config, data, run.folder, resume=False) if plan.stage is not None]
        net = task.begin(config, data, again=None)
        for name, source in task.sources(config, net).items():  # a stage may read what a run keeps in its folder
            tasks.save(source, run.folder / name)
        measured, left = [], []
        for plan in plans:
            name = "stage II" if plan.goes_on else "stage I"
            start = plan.prepare(copy.deepcopy(net).eval()) if plan.goes_on else net
            if plan.caches(start):
                images = len(data.split(plan.split))
                left.append((name, plan.optim.total(images // plan.optim.batch(images, processes=world()))))
                continue
            check_precision(plan, place)
            measured.append(measure(name, plan, start, data, run, config, place))
    return Dry(f"dry run of {net.spec.name} on {data}; nothing is written", str(place), tuple(measured), tuple(left))


def measure(
    name: str, plan: Plan[Any], net: Any, data: Data, run: RunFolder, config: RunConfig, place: torch.device
) -> Measured:
    loop = make_loop(plan, net, data, run, config, place)
    assert loop is not None
    batches, size = loop.batches, loop.batches.batch_size
    loaded = size / seconds_each(endless(batches), place)
    loop.stage.train()
    ready = endless(batches)
    with FlopCounterMode(display=False) as counter:
        loop.step(next(ready))
    madds = sum(count for kind, count in counter.get_flop_counts()["Global"].items() if kind in FORWARD) // 2
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trained = size / seconds_each(stepped(loop, ready), place)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    return Measured(name, parameters, size, madds, peak_memory(place), loaded, trained, loop.total)


def endless(batches: Batches) -> Iterator[Batch]:
    """Batches of one epoch after the other."""
    return chain.from_iterable(batches.epoch(epoch) for epoch in range(10**9))


def stepped(loop: Loop[Any], batches: Iterator[Batch]) -> Iterator[None]:
    for batch in batches:
        with tuned(loop.device):
            loop.step(batch)
        yield


def seconds_each(things: Iterator[Any], place: torch.device) -> float:
    """Seconds for one of STEPS things, behind a warm-up."""
    for _ in islice(things, WARM_UP):
        pass
    wait_for(place)
    began = time.perf_counter()
    for _ in islice(things, STEPS):
        pass
    wait_for(place)
    return (time.perf_counter() - began) / STEPS


def peak_memory(place: torch.device) -> int:
    if place.type == "cuda":
        return int(torch.cuda.max_memory_allocated(place))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
