"""Run experiments: train the missing runs, measure, lay out the results and write them."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from dsnet.config import CONFIG
from dsnet.experiments.catalogue import EXPERIMENTS
from dsnet.experiments.digits import write_digits
from dsnet.experiments.grid import RESULT, Finished, in_order, is_finished, train_all
from dsnet.experiments.layout import Experiment, result_of
from dsnet.experiments.recipe import Cell, Scale, cell_of
from dsnet.files import locked
from dsnet.report.export import export as export_result
from dsnet.results import Experiment as Result
from dsnet.results import made, read
from dsnet.training.distributed import barrier, process_group, rank
from dsnet.version import __version__

RUNS, DATA = "runs", "data"


def reproduce(
    names: Sequence[str],
    scale: Scale,
    out: Path,
    *,
    root: str | None = None,
    workers: int = 1,
    device: str = "auto",
    train: bool = True,
    export: Path | None = None,
    command: str = "",
) -> list[Result]:
    """Run experiments below `out`. Each result is written to OUT/NAME.json and OUT/NAME.md, with figures next to them.

    All experiments below `out` share their runs. Without `train`, only finished runs are shown, and experiments without
    any are left out. `export` is a second folder for the results.
    """
    root = str(out / DATA) if scale.name == "smoke" else root if train else root or DATA
    grids = {name: cells_of(EXPERIMENTS[name], scale, out, root) for name in names}
    with (
        process_group(24 * 60, device if train else "cpu"),
        held(out) if train else nullcontext(),
    ):  # others wait while one process evaluates
        first = rank() == 0
        if scale.name == "smoke" and first:
            write_digits(out / DATA)
        if train and first:
            for name in names:
                EXPERIMENTS[name].prepare(scale, out, root)
        barrier()
        if train:
            train_all([cell for rows in grids.values() for cell in flat_list(rows)], out / RUNS, workers, device)
    if not first:  # the rest is done by one process
        return []
    results = []
    for name in names if train else [name for name in names if has_begun(name, scale, grids[name], out)]:
        begun = time.time()
        result = measured(EXPERIMENTS[name], scale, grids[name], out, anew=train)
        if not result.made.command:
            seconds = round(time.time() - begun + result.trained_seconds)
            said = command or f"dsnet reproduce {name} --scale {scale.name}"
            about = made(torch=str(torch.__version__), command=said, seconds=seconds)
            result = replace(result, made=replace(about, commit=about.commit or f"of the release {__version__}"))
        for folder in (out, export):
            if folder is not None:
                export_result(result, folder / f"{name}{scale.suffix}")
        results.append(result)
    return results


def measured(experiment: Experiment, scale: Scale, cells: dict[str, list[Cell]], out: Path, *, anew: bool) -> Result:
    """The result of an experiment from its finished runs.

    The stored result of an experiment that measures time is reused, unless `anew`.
    """
    file = out / f"{experiment.name}{scale.suffix}.json"
    measures = experiment.measure is not None or experiment.compare is not None
    if measures and not anew and file.exists():
        return read(file, Result, remedy=f"run `dsnet reproduce {experiment.name} --scale {scale.name}` again")
    folders = {label: [(out / RUNS / cell.name, cell.config.seed) for cell in mine] for label, mine in cells.items()}
    done = {label: [Finished(*place) for place in mine if is_finished(place[0])] for label, mine in folders.items()}
    result = result_of(experiment, scale, done)
    found = None
    if experiment.measure is not None:
        found = experiment.measure(scale)
    elif experiment.compare is not None:
        found = experiment.compare(scale, done)
    if found is not None:
        result = replace(
            result,
            text=(*result.text, *found.text),
            tables=found.tables,
            claims=found.claims,
            figures=found.figures,
            bench=found.bench,
            rule=found.rule,
            seeds=found.seeds or result.seeds,
        )
    commits = Counter(run.commit for run in {run.folder: run for mine in done.values() for run in mine}.values())
    seconds = sum(seconds_of(out / RUNS / cell.name) for cell in in_order(flat_list(cells)))
    return replace(result, trained_at=dict(commits), trained_seconds=seconds)


def has_begun(name: str, scale: Scale, cells: dict[str, list[Cell]], out: Path) -> bool:
    """Whether there is something to show: a finished run, or the stored result of an experiment that trains nothing."""
    if EXPERIMENTS[name].measure is not None:
        return (out / f"{name}{scale.suffix}.json").exists()
    return any(is_finished(out / RUNS / cell.name) for cell in flat_list(cells))


def flat_list(cells: dict[str, list[Cell]]) -> list[Cell]:
    return [cell for mine in cells.values() for cell in mine]


def seconds_of(folder: Path) -> float:
    """Wall-clock time between a run's first and last file, pauses included; 0 if the run does not exist."""
    times = [file.stat().st_mtime for file in (folder / CONFIG, folder / RESULT) if file.exists()]
    return max(times) - min(times) if times else 0.0


@contextmanager
def held(out: Path) -> Iterator[None]:
    """Allow one command at a time to train below a folder; two would train the same runs."""
    if os.environ.get("RANK", "0") != "0":
        yield
        return
    out.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(out))
        except BlockingIOError as error:
            raise ValueError(
                f"another `dsnet reproduce` is at work in {out} ({error}); wait for it, or give another --out"
            ) from None
        yield


def cells_of(experiment: Experiment, scale: Scale, out: Path, root: str | None) -> dict[str, list[Cell]]:
    """The runs of an experiment by row label, one per seed."""
    recipes = {row.label: row.recipe for table in experiment.tables(scale) for row in table.rows}
    return {
        label: [cell_of(recipe, scale, seed, runs=out / RUNS, root=root) for seed in scale.seeds_of(recipe.base)]
        for label, recipe in recipes.items()
    }


def progress(names: Sequence[str], scale: Scale, out: Path, root: str | None) -> dict[str, tuple[int, int]]:
    """The number of finished runs and of all runs, by experiment."""
    found = {}
    for name in names:
        cells = in_order(flat_list(cells_of(EXPERIMENTS[name], scale, out, root)))
        found[name] = (sum(is_finished(out / RUNS / cell.name) for cell in cells), len(cells))
    return found
