"""What a report is made of, whatever it is written as: chapters of sections of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Text:
    words: str


@dataclass(frozen=True)
class Missing:
    """A part that is not there, and what brings it."""

    what: str
    remedy: str


@dataclass(frozen=True)
class Plot:
    figure: dict[str, Any]  # of svg.chart


@dataclass(frozen=True)
class Bars:
    figure: dict[str, Any]  # of svg.stacked_bars


@dataclass(frozen=True)
class Table:
    """Columns as in `tables`: '<' first is left-aligned. A folded table opens on a click."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    note: str = ""
    folded: bool = False
    links: Sequence[str] = ()  # one anchor per row


@dataclass(frozen=True)
class Tiles:
    """Key figures: (label, value, note)."""

    figures: Sequence[tuple[str, str, str]]


@dataclass(frozen=True)
class Picture:
    """An image as PNG, with lines below it; `right` is None where there is no answer to judge."""

    png: bytes
    lines: Sequence[str]
    right: bool | None = None


@dataclass(frozen=True)
class Pictures:
    title: str
    pictures: Sequence[Picture]


@dataclass(frozen=True)
class Sheet:
    """One large picture that was drawn before."""

    png: bytes
    words: str


@dataclass(frozen=True)
class Claims:
    """{"claim", "paper", "ours", "holds": true, false or null} each."""

    claims: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Code:
    title: str
    text: str


Block = Text | Missing | Plot | Bars | Table | Tiles | Pictures | Sheet | Claims | Code


@dataclass(frozen=True)
class Section:
    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Chapter:
    """A run, an experiment or an overview; `lead` blocks stand before its sections."""

    title: str
    about: str
    lead: Sequence[Block] = ()
    sections: Sequence[Section] = ()
    folded: bool = False


@dataclass(frozen=True)
class Report:
    title: str
    about: str
    chapters: Sequence[Chapter] = field(default_factory=list)
