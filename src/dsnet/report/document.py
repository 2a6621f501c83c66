"""The structure of a report, whatever format it is written in: chapters of four kinds of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from dsnet import results
from dsnet.results import Made


@dataclass(frozen=True)
class Text:
    """A paragraph; text between backticks is code.

    kind: `heading` begins a section, `advice` says what to deploy, `missing` names a missing part and how to create it,
    `code` is a whole file.
    """

    words: str
    title: str = ""
    kind: Literal["words", "heading", "advice", "missing", "code"] = "words"


@dataclass(frozen=True)
class Table:
    """A table. look: `folded` opens on a click, `tiles` are rows of label, value, note. links: one anchor per row."""

    content: results.Table
    look: Literal["open", "folded", "tiles"] = "open"
    links: Sequence[str] = ()


@dataclass(frozen=True)
class Figure:
    """A figure. name: suffix of its file name; by default figures are numbered."""

    content: results.Figure
    name: str = ""


@dataclass(frozen=True)
class Picture:
    """A PNG image with lines of text below it. right: whether its prediction is right; None without a prediction."""

    png: bytes
    lines: Sequence[str] = ()
    right: bool | None = None


@dataclass(frozen=True)
class Images:
    """Small pictures with captions, or one ready-made `sheet`."""

    title: str
    pictures: Sequence[Picture]
    sheet: bool = False
    name: str = ""


Block = Text | Table | Figure | Images


@dataclass(frozen=True)
class Chapter:
    """A run, an experiment or an overview."""

    title: str
    about: str
    blocks: Sequence[Block]
    folded: bool = False


@dataclass(frozen=True)
class Document:
    title: str
    about: str
    chapters: Sequence[Chapter]


def missing(what: str, remedy: str) -> Text:
    return Text(remedy, f"Missing: {what}.", "missing")


def made_by(made: Made, *, command: str = "", what: str = "Made") -> str:
    """How a result was made, as the last line of a page."""
    command = command or made.command
    words = f"{what} by `{command}`" if command else what
    words += f" at commit {made.commit}" if made.commit else ""
    parts = [f"dsnet {made.dsnet}", made.torch and f"torch {made.torch}"]
    parts += [made.onnxruntime and f"onnxruntime {made.onnxruntime}", made.machine, made.date]
    words += f" with {', '.join(part for part in parts if part)}"
    return f"{words}; {minutes(made.seconds)} by the clock." if made.seconds >= 1 else f"{words}."


def minutes(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{max(1, round(seconds / 60))} minutes"
