"""Experiments: tables next to the paper's numbers, and verdicts."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsnet.results.base import Made
from dsnet.results.bench import Bench
from dsnet.results.figures import Figure
from dsnet.schema import Measured


@dataclass(frozen=True)
class Table(Measured):
    """A table. Columns whose name begins with '<' are left-aligned. values: row -> column -> seed -> number."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    values: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim(Measured):
    """A claim of the paper and our measurement; `holds` is None if there is no verdict. why: why there cannot be one,
    such as `seeds only`."""

    claim: str
    paper: str
    ours: str
    holds: bool | None
    why: str = ""


@dataclass(frozen=True)
class Experiment(Measured):
    experiment: str
    title: str
    scale: str
    seeds: tuple[int, ...]
    text: tuple[str, ...]
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    figures: tuple[Figure, ...]
    made: Made
    runs: dict[str, tuple[str, ...]] = field(default_factory=dict)
    trained_at: dict[str, int] = field(default_factory=dict)
    trained_seconds: float = 0.0
    bench: Bench | None = None
    rule: str = ""  # how claims are judged
