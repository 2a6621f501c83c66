"""Declarations of experiments, and their results: tables next to the paper's values, verdicts and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Literal

from dsnet import results
from dsnet.experiments.grid import Finished
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.report.tables import human
from dsnet.results import Bench, Figure, Made

MISSING, OUTSIDE = "not run", "out of range"
Measure = Callable[[Finished], float]
Form = Literal["percent", "points", "madds", "number"]
Runs = Mapping[str, Sequence[Finished]]  # by label of a row, one per seed
Plot = Callable[[Runs], Figure]


@dataclass(frozen=True)
class Column:
    """A value that is measured for every row."""

    name: str
    measure: Measure
    form: Form = "percent"


@dataclass(frozen=True)
class Row:
    """Runs of one recipe, one per seed.

    `paper` holds the values that the paper reports, by column; `measures` overrides the measures of columns.
    """

    label: str
    recipe: Recipe
    paper: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, Measure] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """How one row differs from another in a column; differences are paired by seed.

    `paper` is the paper's difference, in the unit of the column (points, for percentages). Its sign is the direction of
    the claim; without a value, the claim is that `row` is higher.
    """

    text: str
    column: str
    row: str
    over: str
    paper: float | None = None


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    claims: tuple[Claim, ...] = ()
    note: str = ""


@dataclass(frozen=True)
class Findings:
    """Results that do not follow from columns of single runs. rule: how its claims are judged, if not by seed alone."""

    text: tuple[str, ...]
    tables: tuple[results.Table, ...]
    claims: tuple[results.Claim, ...]
    figures: tuple[Figure, ...]
    bench: Bench | None = None
    rule: str = ""


@dataclass(frozen=True)
class Experiment:
    """One experiment. If it trains nothing, `measure` makes its tables and figures.

    compare: Makes tables and figures of all finished runs together. The rows of `tables` then only name the runs.
    """

    name: str
    title: str
    about: str
    tables: Callable[[Scale], tuple[Table, ...]] = lambda scale: ()
    plots: Callable[[Scale], tuple[Plot, ...]] = lambda scale: ()
    measure: Callable[[Scale], Findings] | None = None
    compare: Callable[[Scale, Runs], Findings] | None = None


def result_of(experiment: Experiment, scale: Scale, runs: Runs, seeds: Sequence[int]) -> results.Experiment:
    """Build the result of an experiment from its finished runs. Rows without runs are marked as not run."""
    tables: list[results.Table] = []
    claims: list[results.Claim] = []
    for table in experiment.tables(scale):
        tables.append(laid_out(table, runs))
        claims += [judged(claim, table, runs) for claim in table.claims]
    trains = experiment.measure is None or scale.name == "smoke"
    general, how = (scale.about, scale.trained) if trains else ("", "")
    longer = f"{scale.longer} times as long" if scale.longer > 1 else ""
    note = longer and f"Here every training is {longer}."
    text = (experiment.about, general, scale.notes.get(experiment.name, how), note)
    return results.Experiment(
        experiment=experiment.name,
        title=", ".join(part for part in (experiment.title, longer) if part),
        scale=scale.name,
        seeds=tuple(seeds),
        text=tuple(said for said in text if said),
        tables=tuple(tables),
        claims=tuple(claims),
        figures=tuple(plot(runs) for plot in experiment.plots(scale)),
        made=Made(),
        runs={label: tuple(run.folder.name for run in mine) for label, mine in runs.items()},
    )


def laid_out(table: Table, runs: Runs) -> results.Table:
    """Lay out every measured column, with the paper's values next to it if there are any."""
    columns, cells = ["<"], [[row.label] for row in table.rows]
    values = {row.label: {column.name: values_of(row, column, runs) for column in table.columns} for row in table.rows}
    kept: dict[str, dict[str, dict[int, float | None]]] = {
        label: {name: {**found} for name, found in mine.items()} for label, mine in values.items()
    }
    for column in table.columns:
        columns.append(column.name)
        for row, line in zip(table.rows, cells, strict=True):
            line.append(shown(list(values[row.label][column.name].values()), column.form))
        if any(column.name in row.paper for row in table.rows):
            columns.append("paper")
            for row, line in zip(table.rows, cells, strict=True):
                line.append(row.paper.get(column.name, ""))
    return results.Table(table.title, tuple(columns), tuple(map(tuple, cells)), table.note, kept)


def values_of(row: Row, column: Column, runs: Runs) -> dict[int, float]:
    """The values of a row by seed; nan if a run has no such value."""
    measure = row.measures.get(column.name, column.measure)
    return {run.seed: measure(run) for run in runs.get(row.label, ())}


def judged(claim: Claim, table: Table, runs: Runs) -> results.Claim:
    """Judge the direction of a claim. It holds if all seeds agree and fails if all disagree; else no verdict."""
    column = next(column for column in table.columns if column.name == claim.column)
    rows = {row.label: values_of(row, column, runs) for row in table.rows}
    ours, others = rows[claim.row], rows[claim.over]
    differences = [ours[seed] - others[seed] for seed in ours if seed in others]
    wanted = -1 if claim.paper is not None and claim.paper < 0 else 1
    signs = {sign(difference) for difference in differences}
    known = all(math.isfinite(difference) for difference in differences)
    said = " ".join(difference_of(difference, column.form) for difference in differences) if known else OUTSIDE
    return results.Claim(
        claim=claim.text,
        paper="" if claim.paper is None else difference_of(claim.paper / unit(column.form), column.form, 1),
        ours=said or MISSING,
        holds=True if known and signs == {wanted} else False if known and signs == {-wanted} else None,
    )


def sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)


def unit(form: Form) -> float:
    """The factor by which values are multiplied for display."""
    return 100.0 if form == "percent" else 1.0


def difference_of(value: float, form: Form, digits: int = 2) -> str:
    if form == "madds":
        return f"{'-' if value < 0 else '+'}{human(abs(value))}"
    return f"{unit(form) * value:+.{digits}f}"


def shown(values: Sequence[float], form: Form) -> str:
    """Mean and, over several seeds, standard deviation."""
    if not values:
        return MISSING
    if not all(math.isfinite(value) for value in values):
        return OUTSIDE
    if form == "madds":
        return human(mean(values))
    digits, sign = (3, "") if form == "number" else (2, "+" if form == "points" else "")
    text = f"{unit(form) * mean(values):{sign}.{digits}f}"
    return text if len(values) == 1 else f"{text} ± {unit(form) * stdev(values):.{digits}f}"
