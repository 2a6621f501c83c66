"""Train cells into run folders. Each is trained once, interrupted ones continue, and several can train in parallel."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch

from dsnet.data.batches import end_with_parent
from dsnet.errors import TrainingError
from dsnet.experiments.recipe import Cell
from dsnet.files import write_whole
from dsnet.results import Evaluation, read
from dsnet.runs.resampled import Resampled
from dsnet.runs.train import train
from dsnet.tasks import GATE, STATE
from dsnet.training import Interrupted
from dsnet.training.distributed import barrier, rank

FAILED = 3  # exit code of a run whose log ends with the error
RESULT = "results/reproduce.json"  # test.json as it was after training; `dsnet eval` may overwrite test.json


@dataclass(frozen=True)
class Finished:
    """A finished run and its records."""

    folder: Path
    seed: int
    drawn: Evaluation | None = None  # over test images that are drawn again

    @cached_property
    def result(self) -> Evaluation:
        if self.drawn is not None:
            return self.drawn
        remedy = f"run `dsnet eval {self.folder}` and copy its results/test.json there"
        return read(self.folder / RESULT, Evaluation, remedy=remedy)

    @cached_property
    def resampled(self) -> Resampled | None:
        """Scores over test images that are drawn again; runs of older versions have none."""
        return Resampled.read(self.folder)

    def draws(self) -> Iterator[Finished]:
        """This run, evaluated over each set of images that were drawn again."""
        if self.resampled is not None:
            for number in range(len(self.resampled)):
                yield replace(self, drawn=self.resampled.evaluation(self.result, number))

    @property
    def commit(self) -> str:
        """Commit of the code that trained the run."""
        return str(json.loads((self.folder / "versions.json").read_text()).get("commit") or "an unrecorded commit")

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Metrics of stage I, one entry per epoch."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def is_finished(folder: Path) -> bool:
    return (folder / RESULT).is_file()


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Every cell once, after the cells that it needs."""
    return list({cell.name: cell for wanted in cells for cell in wanted.everything()}.values())


def train_all(cells: Sequence[Cell], runs: Path, workers: int = 1, device: str = "auto") -> None:
    """Train the cells and those that they need. With several workers, each run writes a log next to its folder."""
    left = [cell for cell in in_order(cells) if not is_finished(runs / cell.name)]
    barrier()  # all processes must read the same list before one of them finishes a run
    if workers == 1:
        for number, cell in enumerate(left, 1):
            if rank() == 0:
                print(f"[{number}/{len(left)}] {cell.name}", file=sys.stderr, flush=True)
            train_cell(cell, runs / cell.name, device)
        return
    train_beside(left, runs, workers, device)


def train_beside(left: list[Cell], runs: Path, workers: int, device: str) -> None:
    """Train each run in its own process. If interrupted, all running processes save their state first.

    The processes share the cores: if each used all of them, their threads would wait for each other most of the time.
    """
    context = multiprocessing.get_context("spawn")
    threads = max(1, torch.get_num_threads() // workers)
    running: dict[SpawnProcess, Cell] = {}
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        while left or running:
            waits = {cell.name for cell in [*left, *running.values()]}
            ready = [cell for cell in left if not any(need.name in waits for need in cell.needs)]
            for cell in ready[: workers - len(running)]:
                print(f"{len(left):4d} left, {cell.name} starts", file=sys.stderr, flush=True)
                work = partial(train_cell, device=device)
                process = context.Process(target=train_logged, args=(work, cell, runs / cell.name, threads))
                process.start()
                running[process] = cell
                left.remove(cell)
            wait([process.sentinel for process in running])
            for process in [process for process in running if not process.is_alive()]:
                check_end(process, running.pop(process), runs)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.join()
        signal.signal(signal.SIGTERM, before)


def check_end(process: SpawnProcess, cell: Cell, runs: Path) -> None:
    process.join()
    if process.exitcode == 0:
        return
    log = runs / f"{cell.name}.log"
    said = log.read_text().strip().splitlines() if log.exists() else []
    why = said[-1] if said and process.exitcode == FAILED else f"its process ended with code {process.exitcode}"
    raise TrainingError(
        f"{cell.name}: {why}. Its log is {log}; run the same command to continue from its last checkpoint"
    )


def train_logged(train: Callable[[Cell, Path], None], cell: Cell, folder: Path, threads: int) -> None:
    """Train a cell in its own process. Output goes to a log; if training fails, its last line is the error.

    threads: Threads of the process, if the cell's config gives none.
    """
    end_with_parent()
    torch.set_num_threads(threads)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".log").open("a", buffering=1) as log:
        sys.stdout = sys.stderr = log
        try:
            train(cell, folder)
        except (ValueError, OSError, RuntimeError, Interrupted) as error:
            print(" ".join(str(error).split()))
            sys.exit(FAILED)


def train_cell(cell: Cell, folder: Path, device: str = "auto") -> None:
    """Train a cell, or continue from its last checkpoint."""
    begun = any((folder / part / STATE).exists() for part in (".", GATE))
    barrier()
    if folder.exists() and not begun and rank() == 0:  # it was stopped before its first checkpoint
        shutil.rmtree(folder)
    barrier()
    train(cell.config, folder, resume=begun, draw=False, resample=True, device=device)
    if rank() == 0:
        result = folder / "results" / "test.json"  # a run on images without labels has none
        result.parent.mkdir(exist_ok=True)
        write_whole(folder / RESULT, result.read_bytes() if result.exists() else b"{}")
