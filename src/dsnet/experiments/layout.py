"""Declarations of experiments, and their results: tables next to the paper's values, verdicts and figures."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

import numpy as np

from dsnet import results
from dsnet.experiments.grid import Finished
from dsnet.experiments.paired import MORE, ONE_SEED, RULE, SEEDS_ONLY, WITHOUT, direction
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.paired import of_samples
from dsnet.report.tables import human
from dsnet.results import Bench, Figure, Made
from dsnet.routers import present

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

    `paper` holds the values that the paper reports, by column; `measures` overrides the measures of columns, and None
    leaves a cell empty.
    """

    label: str
    recipe: Recipe
    paper: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, Measure | None] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """How one row differs from another in a column; differences are paired by seed and by image.

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
    """Results that do not follow from columns of single runs. rule: how its claims are judged, if not by seed alone.
    seeds: Those that its tables show, where not every run has all of them."""

    text: tuple[str, ...]
    tables: tuple[results.Table, ...]
    claims: tuple[results.Claim, ...]
    figures: tuple[Figure, ...]
    bench: Bench | None = None
    rule: str = ""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Experiment:
    """One experiment. If it trains nothing, `measure` makes its tables and figures.

    compare: Makes tables and figures of all finished runs together. The rows of `tables` then only name the runs.
    prepare: Makes what its runs start from, in the folder of runs and results, from the folder of all data.
    """

    name: str
    title: str
    about: str
    tables: Callable[[Scale], tuple[Table, ...]] = lambda scale: ()
    plots: Callable[[Scale], tuple[Plot, ...]] = lambda scale: ()
    measure: Callable[[Scale], Findings] | None = None
    compare: Callable[[Scale, Runs], Findings] | None = None
    prepare: Callable[[Scale, Path, str | None], None] = lambda scale, out, root: None


def result_of(experiment: Experiment, scale: Scale, runs: Runs) -> results.Experiment:
    """Build the result of an experiment from its finished runs. Rows without runs are marked as not run."""
    tables: list[results.Table] = []
    claims: list[results.Claim] = []
    declared = experiment.tables(scale)
    seeds = set[int]().union(*(seeds_of(table, scale) for table in declared))
    for table in declared:
        fewer = (
            f"Seeds {', '.join(map(str, sorted(seeds_of(table, scale))))}." if seeds_of(table, scale) < seeds else ""
        )
        tables.append(laid_out(replace(table, note=f"{table.note} {fewer}".strip()), runs))
        claims += [judged(claim, table, runs) for claim in table.claims]
    trains = experiment.measure is None or scale.name == "smoke"
    general, how = (scale.about, scale.trained) if trains else ("", "")
    longer = f"{scale.longer} times as long" if scale.longer > 1 else ""
    note = longer and f"Here every training is {longer}."
    text = (experiment.about, general, scale.notes.get(experiment.name, how), note, routers(runs))
    return results.Experiment(
        experiment=experiment.name,
        title=", ".join(part for part in (experiment.title, longer) if part),
        scale=scale.name,
        seeds=tuple(sorted(seeds or scale.seeds)),
        text=tuple(said for said in text if said),
        tables=tuple(tables),
        claims=tuple(claims),
        figures=tuple(plot(runs) for plot in experiment.plots(scale)),
        made=Made(),
        runs={label: tuple(run.folder.name for run in mine) for label, mine in runs.items()},
        rule=rule_of(claims),
    )


def seeds_of(table: Table, scale: Scale) -> set[int]:
    return {seed for row in table.rows for seed in scale.seeds_of(row.recipe.base)}


def routers(runs: Runs) -> str:
    """Which routers were used, in words, with the rows that used them; empty without routers."""
    rows: dict[str, list[str]] = {}
    seen: set[tuple[Path, ...]] = set()
    for label, mine in runs.items():
        folders = tuple(run.folder for run in mine)
        if folders in seen:  # rows that show other figures of the same runs
            continue
        seen.add(folders)
        seeds: dict[str, list[str]] = {}
        for run in mine:
            if run.result.dynamic is not None:
                seeds.setdefault(router_words(run), []).append(str(run.seed))
        for words, which in seeds.items():
            rows.setdefault(words, []).append(label + f" (seed {' and '.join(which)})" * (len(seeds) > 1))
    if len(rows) < 2:
        return "".join(f"Router: {words}." for words in rows)
    return "Routers: " + "; ".join(f"{words} in {', '.join(labels)}" for words, labels in rows.items()) + "."


def router_words(run: Finished) -> str:
    """The router of a run: its kind, its targets, and what else is set."""
    dynamic, trained = run.result.dynamic, run.result.training.get("router")
    assert dynamic is not None
    spec = trained if isinstance(trained, dict) else {}
    kind = present(dynamic.router)
    keys = ("hidden", "early", "windows") if kind == "cheap_first" else ("early", "windows")
    more = [f"{key} {spec[key]}" for key in keys if spec.get(key) is not None]
    more += ["gates decide one by one"] * (dynamic.router == "gate" and not spec.get("bound"))
    return f"{kind} ({', '.join([dynamic.targets, *more])})"


def rule_of(claims: Sequence[results.Claim]) -> str:
    """How the claims were judged, in words."""
    reasons = {claim.why for claim in claims}
    more = [MORE] * (reasons != {SEEDS_ONLY})
    return " ".join([RULE, *more, *(words for why, words in WITHOUT.items() if why in reasons)]) if claims else ""


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
            empty = measure_of(row, column) is None
            line.append("" if empty else shown(list(values[row.label][column.name].values()), column.form))
        if any(column.name in row.paper for row in table.rows):
            columns.append("paper")
            for row, line in zip(table.rows, cells, strict=True):
                line.append(row.paper.get(column.name, ""))
    return results.Table(table.title, tuple(columns), tuple(map(tuple, cells)), table.note, kept)


def values_of(row: Row, column: Column, runs: Runs) -> dict[int, float]:
    """The values of a row by seed; nan if a run has no such value."""
    measure = measure_of(row, column)
    return {} if measure is None else {run.seed: measure(run) for run in runs.get(row.label, ())}


def measure_of(row: Row, column: Column) -> Measure | None:
    return row.measures.get(column.name, column.measure)


def judged(claim: Claim, table: Table, runs: Runs) -> results.Claim:
    """Judge the direction of a claim by the rule of `paired`."""
    column = next(column for column in table.columns if column.name == claim.column)
    row, other = (next(row for row in table.rows if row.label == label) for label in (claim.row, claim.over))
    pairs = paired(runs.get(row.label, ()), runs.get(other.label, ()))
    ours, others = measure_of(row, column), measure_of(other, column)
    assert ours is not None
    assert others is not None
    means = np.array([ours(run) - others(theirs) for run, theirs in pairs])
    known = bool(np.isfinite(means).all())
    said = " ".join(difference_of(difference, column.form) for difference in means.tolist()) if known else OUTSIDE
    holds, why = None, ""
    if len(pairs) and known:
        ends = interval_of(pairs, ours, others)
        why = SEEDS_ONLY if ends is None else ONE_SEED if len(pairs) == 1 else ""
        if ends is not None:
            said += f" ({' to '.join(difference_of(end, column.form) for end in ends)})"
            holds = direction(means, ends) if not why else None
    upwards = claim.paper is None or claim.paper >= 0
    return results.Claim(
        claim=claim.text,
        paper="" if claim.paper is None else difference_of(claim.paper / unit(column.form), column.form, 1),
        ours=said or MISSING,
        holds=holds if upwards or holds is None else not holds,
        why=why,
    )


def paired(ours: Sequence[Finished], others: Sequence[Finished]) -> list[tuple[Finished, Finished]]:
    """The runs of the seeds that both rows have."""
    by_seed = {run.seed: run for run in others}
    return [(run, by_seed[run.seed]) for run in ours if run.seed in by_seed]


def interval_of(
    pairs: Sequence[tuple[Finished, Finished]], ours: Measure, others: Measure
) -> tuple[float, float] | None:
    """The 95 % interval of the mean difference over seeds, by a bootstrap over images. None if a value is not known for
    drawn images, or if the images of two runs differ."""
    differences = []
    for run, other in pairs:
        if run.resampled is None or other.resampled is None or run.resampled.images != other.resampled.images:
            return None
        drawn = zip(run.draws(), other.draws(), strict=True)
        differences.append([ours(mine) - others(theirs) for mine, theirs in drawn])
    each = np.mean(differences, 0)
    if not np.isfinite(each).all():
        return None
    mean = float(np.mean([ours(run) - others(other) for run, other in pairs]))
    found = of_samples(mean, each)
    return found.low[0], found.high[0]


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
