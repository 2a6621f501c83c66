"""What an experiment is, as data: tables of recipes and measures, claims about them, figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dsnet.experiments.grid import Finished
from dsnet.experiments.recipe import Recipe, Scale

Measure = Callable[[Finished], float]
Form = Literal["percent", "points", "madds", "number"]
Runs = Mapping[str, Sequence[Finished]]  # by label of a row, one per seed
Plot = Callable[[Runs], dict[str, Any]]  # what report/svg.py draws


@dataclass(frozen=True)
class Column:
    """A figure of every row."""

    name: str
    measure: Measure
    form: Form = "percent"


@dataclass(frozen=True)
class Row:
    """Runs of one recipe, one per seed. paper: what the paper reports, by column. measures: instead of the column's."""

    label: str
    recipe: Recipe
    paper: Mapping[str, str] = field(default_factory=dict)
    measures: Mapping[str, Measure] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """How one row differs from another in a column; differences are paired by seed.

    paper: the paper's difference, in the unit of the column (points, for percentages). Its sign is the direction; where
    the paper has no figure, it is more.
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
class Experiment:
    """A question of the paper. Where it trains nothing, `measure` makes its tables and figures itself."""

    name: str
    title: str
    about: str
    tables: Callable[[Scale], tuple[Table, ...]] = lambda scale: ()
    plots: Callable[[Scale], tuple[Plot, ...]] = lambda scale: ()
    measure: Callable[[Scale], dict[str, Any]] | None = None
