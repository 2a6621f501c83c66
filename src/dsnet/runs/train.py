"""Trains a run of any task: its stages one after the other, then the evaluation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from dsnet import tasks
from dsnet.config import RunConfig
from dsnet.data.batches import TrainBatches
from dsnet.data.check import check_files
from dsnet.data.dataset import Data
from dsnet.data.folders import listed
from dsnet.data.own import Datasets
from dsnet.errors import DamagedError, DataError
from dsnet.models import eager
from dsnet.models.devices import SINGLE, torch_threads, unused_gpus
from dsnet.results import Evaluation
from dsnet.runs.evaluate import evaluate, evaluate_resampled
from dsnet.runs.folder import RunFolder
from dsnet.tasks import Plan
from dsnet.training import Interrupted, Loop
from dsnet.training.display import make_display
from dsnet.training.distributed import barrier, process_group, rank, together, world
from dsnet.training.memory import keep_memory
from dsnet.training.start import check_shared, opened_once

N = TypeVar("N", bound=nn.Module)


def train(
    config: RunConfig,
    folder: Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    draw: bool = True,
    resample: bool = False,
    own: Datasets | None = None,
    device: str = "auto",
) -> Evaluation | None:
    """Train what the config asks for, or go on. draw: figures of the result as well. resample: also write the scores
    over test images that are drawn again.

    overwrite: Delete the run that is in the folder, once all checks have passed. device: auto, cpu, cuda,
        cuda:N or mps.
    own: The datasets of a run on data from Python.
    Returns the evaluation of the saved network on the test split; processes other than the first return None.
    """
    keep_memory()
    task = tasks.named(config.task)
    run = RunFolder(folder, task)
    with (
        torch_threads(config.threads),
        removed_if_empty(folder),
        process_group(config.timeout, device) as place,
        together(folder),
        ExitStack() as until_the_end,
    ):
        check_shared(folder, resume=resume)
        if resume and rank() == 0:
            until_the_end.enter_context(run.held())
        elif rank() == 0:
            run.check_free(config, overwrite=overwrite)
        data = opened_once(lambda: task.open_data(config)) if own is None else task.open_data(config, own=own)
        plans = task.plans(config, data, folder, resume=resume)
        left = plans_left(plans, run) if resume else plans
        # Find errors in the config before the folder is touched.
        for plan in left:
            check_precision(plan, place)
            if plan.stage is not None:
                train_batches(plan, data, config, place)
        loop: Loop[Any] | None = None
        if not (resume and left[0].goes_on):  # else the network is in the folder
            net = task.begin(config, data, again=folder if resume else None)
            for plan in () if resume else plans:
                plan.check(net)
            loop = None if left[0].goes_on else make_loop(left[0], net, data, run, config, place)
        if rank() == 0:
            announce(tasks.blank(folder) if resume and left[0].goes_on else net, data, folder, place)
        until_the_end.enter_context(damage_explained(folder))
        if resume:
            run.reopen(data)
            run.change_skipping(config)
        elif rank() == 0:
            check(data, config)
            until_the_end.enter_context(run.held())
            run.claim(config, data, task.sources(config, net), overwrite=overwrite)
        for plan in left:
            barrier()  # wait until the first process has written its files
            train_stage(plan, loop, data, run, config, place, resume=resume)
            net = loop = None  # the memory of this stage is for the next one
        barrier()
        if not data.classes:  # an evaluation needs labels
            return None
        runner = eager(run.load().to(place))
        result, resampled = (
            evaluate_resampled(runner, data, task, config) if resample else (evaluate(runner, data, task, config), None)
        )
        if rank() == 0:
            if resampled is not None:
                resampled.write(folder)
            run.record("test", result, data, draw=draw)
        barrier()  # no process leaves while another one works: the end of the group would wait for it
        return result if rank() == 0 else None


@contextmanager
def removed_if_empty(folder: Path) -> Iterator[None]:
    """Remove the folder again if nothing was written to it."""
    try:
        yield
    finally:
        with suppress(OSError):
            folder.rmdir()


@contextmanager
def damage_explained(folder: Path) -> Iterator[None]:
    """A damaged image that a run came across is left where it is: without it, the splits would be others."""
    try:
        yield
    except DamagedError as error:
        more = f"--resume {folder} --data.on_corrupt skip"
        remedy = f"restore it and continue with --resume {folder}, or leave it there and pass over it with {more}"
        raise DataError(f"{error.found}; {remedy}") from error


def announce(net: Any, data: Data, folder: Path, place: torch.device) -> None:
    """Say what is trained on which data, and where the run is written."""
    processes = f"{world()} processes on " if world() > 1 else ""
    print(f"{net.spec.name} on {data}, {processes}{place}, writes to {folder}", flush=True)
    if left := unused_gpus(place):
        count = torch.cuda.device_count()
        print(
            f"{left} of {count} GPUs are not used; torchrun --nproc_per_node {count} -m dsnet train uses all of them",
            flush=True,
        )
    for warning in data.warnings:
        print(f"warning: {warning}", flush=True)


def check(data: Data, config: RunConfig) -> None:
    """Check the image files before anything is written. Damaged ones are an error, or counted if they are skipped."""
    if skipped := check_files(data, config.data):
        print(f"damaged files that are skipped: {len(skipped):,}\n{listed(skipped)}", flush=True)


def check_precision(plan: Plan[Any], place: torch.device) -> None:
    """Refuse mixed precision on devices that train in single precision only."""
    if place.type in SINGLE and plan.optim.amp != "none":
        raise ValueError(
            f"{plan.key}.amp is {plan.optim.amp}, but {place.type} trains in single precision; "
            f"set --{plan.key}.amp none"
        )


def plans_left(plans: Sequence[Plan[Any]], run: RunFolder) -> Sequence[Plan[Any]]:
    """The stages that a resumed run goes on with: where a later one has a state, the network of those before it is in
    the folder."""
    number = max((number for number, plan in enumerate(plans) if run.begun([plan])), default=0)
    return plans[number:]


def train_stage(
    plan: Plan[N],
    loop: Loop[N] | None,
    data: Data,
    run: RunFolder,
    config: RunConfig,
    place: torch.device,
    *,
    resume: bool,
) -> None:
    """One stage; leaves its finished network in the folder. loop: where it is made already."""
    if loop is None:  # every process reads the folder
        net = plan.prepare(run.load()).to(place)
        loop = make_loop(plan, net, data, run, config, place)
    if loop is not None:
        if resume and (run.begun([plan]) or not plan.goes_on):
            loop.resume()
        net = run_loop(loop, plan, run)
    finished = plan.finish(net)
    if rank() == 0:
        run.save(finished.to(memory_format=torch.contiguous_format))  # type: ignore[call-overload]


def make_loop(
    plan: Plan[N], net: N, data: Data, run: RunFolder, config: RunConfig, place: torch.device
) -> Loop[N] | None:
    """The loop of a stage, or None where it has nothing to learn."""
    if plan.stage is None:
        return None
    stage = plan.stage(net.to(place)).to(place)
    batches = plan.cache(stage, train_batches(plan, data, config, place))
    return Loop(
        stage,
        batches,
        plan.optim,
        folder=run.below(plan),
        seed=config.seed,
        momentum=plan.momentum,
        key=plan.key,
        keep=plan.keep,
        save_steps=config.save_steps,
        max_skipped=config.data.max_skipped if config.data.on_corrupt == "skip" else None,
        device=place,
    )


def train_batches(plan: Plan[Any], data: Data, config: RunConfig, place: torch.device) -> TrainBatches:
    split = data.split(plan.split)
    size = plan.optim.batch(len(split), processes=world())
    try:
        return TrainBatches(split, size, config.seed, config.data.workers, rank(), world(), place)
    except ValueError as error:
        raise ValueError(f"{plan.key}.batch_size: {error}") from None


def run_loop(loop: Loop[N], plan: Plan[N], run: RunFolder) -> N:
    """Train to the end, with a display; errors and interruptions name the run's folder."""
    display = make_display(run.below(plan), rank=rank())
    validate: Callable[[N], dict[str, float]] = lambda average: plan.validate(average, loop.note_skipped)  # noqa: E731
    try:
        return loop.run(validate, display, plan.watch)
    except Interrupted as stop:
        raise Interrupted(stop.number, run.folder) from None
    finally:
        display.close()
