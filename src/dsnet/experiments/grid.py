"""Cells become run folders: each is trained once, an interrupted one goes on, several at a time."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path as File
from typing import Any

from dsnet.config import TrainConfig
from dsnet.data.batches import end_with_parent
from dsnet.experiments.recipe import Cell
from dsnet.pipeline import GATE, train
from dsnet.pipeline.detection import train_detection
from dsnet.training import TrainingError
from dsnet.training.distributed import rank


@dataclass(frozen=True)
class Finished:
    """What a finished run says about itself."""

    folder: File

    @cached_property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "results" / "test.json").read_text())
        return found

    @cached_property
    def history(self) -> list[dict[str, Any]]:
        """Of stage I, an entry per epoch."""
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]


def is_finished(folder: File) -> bool:
    return (folder / "results" / "test.json").is_file()


def in_order(cells: Sequence[Cell]) -> list[Cell]:
    """Every cell once, behind what it needs."""
    return list({cell.name: cell for wanted in cells for cell in wanted.everything()}.values())


def train_all(cells: Sequence[Cell], runs: File, workers: int = 1) -> None:
    """Finish the cells and what they need. With several workers each run writes to a log beside its folder."""
    left = [cell for cell in in_order(cells) if not is_finished(runs / cell.name)]
    if workers == 1:
        for number, cell in enumerate(left, 1):
            if rank() == 0:
                print(f"[{number}/{len(left)}] {cell.name}", flush=True)
            train_cell(cell, runs / cell.name)
        return
    context = multiprocessing.get_context("spawn")
    running: dict[Future[None], Cell] = {}
    with ProcessPoolExecutor(workers, mp_context=context, initializer=end_with_parent) as pool:
        try:
            while left or running:
                waits = {cell.name for cell in [*left, *running.values()]}
                ready = [cell for cell in left if not any(need.name in waits for need in cell.needs)]
                for cell in ready[: workers - len(running)]:
                    print(f"{len(left):4d} left, {cell.name} begins", flush=True)
                    running[pool.submit(train_logged, cell, runs / cell.name)] = cell
                    left.remove(cell)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    finish(future, running.pop(future), runs)
        except BaseException:
            for process in multiprocessing.active_children():  # a run that is told to end saves its state first
                process.terminate()
            raise


def finish(future: Future[None], cell: Cell, runs: File) -> None:
    try:
        future.result()
    except BrokenProcessPool:
        raise TrainingError(
            f"the process that trained {cell.name} died, perhaps for lack of memory; its log is "
            f"{runs / cell.name}.log; the same command goes on from its last checkpoint"
        ) from None
    except (ValueError, OSError, RuntimeError) as error:
        raise TrainingError(f"{cell.name}: {error}; its log is {runs / cell.name}.log") from error


def train_logged(cell: Cell, folder: File) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".log").open("a", buffering=1) as log:
        sys.stdout = sys.stderr = log
        train_cell(cell, folder)


def train_cell(cell: Cell, folder: File) -> None:
    """Train a cell, or go on from its last checkpoint."""
    begun = any((folder / part / "state" / "last.pt").exists() for part in (".", GATE))
    if folder.exists() and not begun and rank() == 0:  # it was stopped before its first checkpoint
        shutil.rmtree(folder)
    if isinstance(cell.config, TrainConfig):
        train(cell.config, folder, resume=begun, draw=False)
    else:
        train_detection(cell.config, folder, resume=begun)
