"""The content of charts, bars and matrices. `report/figures.py` draws them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dsnet.schema import Measured


@dataclass(frozen=True)
class Dot(Measured):
    x: float
    y: float
    spread: float | None = None


@dataclass(frozen=True)
class Series(Measured):
    """One line or set of points. colour: index of the colour; by default each series has its own."""

    name: str
    points: tuple[Dot, ...]
    kind: Literal["line", "points"] = "line"
    colour: int | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Chart(Measured):
    """Lines and points over two axes. whole_x: x ticks are at whole numbers only."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    whole_x: bool = False


@dataclass(frozen=True)
class Bar(Measured):
    name: str
    shares: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class BarGroup(Measured):
    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Bars(Measured):
    """Stacked bars of shares that add up to one. names: what each share stands for."""

    title: str
    names: tuple[str, ...]
    groups: tuple[BarGroup, ...]


@dataclass(frozen=True)
class Matrix(Measured):
    """Counts of images in a square: one row for each class, one column for each answer. Rows are shaded by share."""

    title: str
    x: str
    y: str
    names: tuple[str, ...]
    counts: tuple[tuple[int, ...], ...]


Figure = Chart | Bars | Matrix
