"""An experiment from its declaration to its result: train what is missing, measure, lay out, write."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path as File
from typing import Any

import torch

from dsnet.experiments.catalogue import EXPERIMENTS
from dsnet.experiments.declare import Experiment
from dsnet.experiments.digits import write_digits
from dsnet.experiments.grid import Finished, in_order, is_finished, train_all
from dsnet.experiments.layout import result_of
from dsnet.experiments.recipe import Cell, Scale, cell_of
from dsnet.reports.experiment import export_experiment
from dsnet.training.distributed import rank
from dsnet.version import __version__

RUNS, DATA = "runs", "data"


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: File,
    *,
    root: str | None = None,
    seeds: Sequence[int] | None = None,
    workers: int = 1,
    train: bool = True,
    command: str = "",
) -> list[dict[str, Any]]:
    """Run experiments below `out`; each result is written to OUT/NAME.json, NAME.md and figures beside them.

    Runs are shared by all experiments below `out`. train: without it, only what is finished is shown.
    """
    seeds = tuple(scale.seeds if seeds is None else seeds)
    if scale.name == "smoke":
        root = str(out / DATA)
        write_digits(File(root))
    grids = {name: cells_of(EXPERIMENTS[name], scale, seeds, out, root) for name in names}
    if train:
        train_all([cell for rows in grids.values() for cells in rows.values() for cell in cells], out / RUNS, workers)
    if rank() != 0:
        return []
    results = []
    for name in names:
        begun, experiment = time.time(), EXPERIMENTS[name]
        done = {
            label: [Finished(out / RUNS / cell.name) for cell in cells if is_finished(out / RUNS / cell.name)]
            for label, cells in grids[name].items()
        }
        result = result_of(experiment, scale, done, seeds)
        if experiment.measure is not None:
            result |= experiment.measure(scale)
        trained = sum(
            seconds_of(out / RUNS / cell.name)
            for cell in in_order([cell for cells in grids[name].values() for cell in cells])
        )
        result["made_by"] = {"command": command or f"dsnet reproduce {name} --scale {scale.name}", **provenance()}
        result["made_by"]["seconds"] = round(trained + time.time() - begun)
        export_experiment(result, out / name)
        results.append(result)
    return results


def cells_of(
    experiment: Experiment, scale: Scale, seeds: Sequence[int], out: File, root: str | None
) -> dict[str, list[Cell]]:
    """The runs of an experiment by label of their row, one per seed."""
    rows = [row for table in experiment.tables(scale) for row in table.rows]
    return {row.label: [cell_of(row.recipe, scale, seed, runs=out / RUNS, root=root) for seed in seeds] for row in rows}


def seconds_of(folder: File) -> float:
    """How long a run was at work, from its first file to its last; 0 if it is not there."""
    times = [
        file.stat().st_mtime for file in (folder / "config.yaml", folder / "results" / "test.json") if file.exists()
    ]
    return max(times) - min(times) if times else 0.0


def provenance() -> dict[str, str]:
    """Of the code and the machine."""
    where = File(__file__).parent
    asked = ["git", "-C", str(where), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        commit = ""
    return {
        "commit": commit or f"dsnet {__version__}",
        "machine": f"{platform.machine()} {platform.system()}, {os.cpu_count()} cores",
        "dsnet": __version__,
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def progress(names: Sequence[str], scale: Scale, out: File, root: str | None, seeds: Sequence[int]) -> dict[str, Any]:
    """By experiment: how many runs it has in all, and how many are finished."""
    found = {}
    for name in names:
        rows = cells_of(EXPERIMENTS[name], scale, seeds, out, root)
        cells = in_order([cell for mine in rows.values() for cell in mine])
        found[name] = (sum(is_finished(out / RUNS / cell.name) for cell in cells), len(cells))
    return found
