"""Results as typed, versioned records: evaluations, benchmarks, experiments and their figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from dsnet.errors import ResultError
from dsnet.files import read_limited, write_whole
from dsnet.results.base import Difference, Made, Measure, Metric, Stat, made
from dsnet.results.bench import (
    Bench,
    DeployedTime,
    DeployedTimes,
    EqualRun,
    EqualScore,
    FileSizes,
    FixedTime,
    Latency,
    Loaded,
    PathTime,
    RoutedTime,
    RoutedTimes,
    Setting,
    SpeedUp,
    StaticTime,
    Table1,
    Times,
    Way,
    WidthTime,
    WidthTimes,
)
from dsnet.results.dynamic import BudgetRow, ClassRow, Dynamic, Gate, Group, Point
from dsnet.results.evaluation import (
    Answers,
    Box,
    ClassScore,
    Drift,
    DriftBudget,
    Evaluation,
    Evaluations,
    Example,
    PathRow,
)
from dsnet.results.experiment import Claim, Experiment, Table
from dsnet.results.figures import Bar, BarGroup, Bars, Chart, Dot, Figure, Matrix, Series
from dsnet.schema import parse, plain

__all__ = [
    "COMMANDS",
    "VERSION",
    "Answers",
    "Bar",
    "BarGroup",
    "Bars",
    "Bench",
    "Box",
    "BudgetRow",
    "Chart",
    "Claim",
    "ClassRow",
    "ClassScore",
    "DeployedTime",
    "DeployedTimes",
    "Difference",
    "Dot",
    "Drift",
    "DriftBudget",
    "Dynamic",
    "EqualRun",
    "EqualScore",
    "Evaluation",
    "Evaluations",
    "Example",
    "Experiment",
    "Figure",
    "FileSizes",
    "FixedTime",
    "Gate",
    "Group",
    "Latency",
    "Loaded",
    "Made",
    "Matrix",
    "Measure",
    "Metric",
    "PathRow",
    "PathTime",
    "Point",
    "Result",
    "RoutedTime",
    "RoutedTimes",
    "Series",
    "Setting",
    "SpeedUp",
    "Stat",
    "StaticTime",
    "Table",
    "Table1",
    "Times",
    "Way",
    "WidthTime",
    "WidthTimes",
    "as_json",
    "kind_of",
    "made",
    "name_of",
    "read",
    "write",
]

VERSION = 3
T = TypeVar("T")

Result = Evaluation | Evaluations | Bench | Experiment
COMMANDS = {"evaluation": "eval", "evaluations": "eval", "bench": "bench", "experiment": "reproduce"}


def as_json(result: Result) -> dict[str, Any]:
    """The content of a result's file: its kind, the version and its fields."""
    content = plain(result)
    for evaluation in [content, *content.get("results", ())]:
        if (dynamic := evaluation.get("dynamic")) and dynamic["max_size"] is None:
            del dynamic["max_size"]  # came later; without a cap, results keep the form that they had
    return {"dsnet": name_of(type(result)), "version": VERSION, **content}


def name_of(kind: type) -> str:
    """The kind of a result as files name it, such as `evaluation`."""
    return kind.__name__.lower()


def write(result: Result, file: Path) -> Path:
    """Write a result as JSON, atomically."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(as_json(result), indent=1) + "\n").encode())
    return file


def read(file: Path, kind: type[T], *, remedy: str = "") -> T:
    """Read a result that `write` wrote; the error names the file, the field, the value and the remedy."""
    name = name_of(kind)
    remedy = remedy or f"run `dsnet {COMMANDS[name]}` again"
    content = content_of(file, remedy)
    stated, version = content.pop("dsnet", None), content.pop("version", None)
    if stated not in COMMANDS and "schema" in content:  # before version 3
        stated, version = name, content["schema"]
    if stated != name:
        held = f"the result of kind {stated!r}" if stated in COMMANDS else "something else"
        raise ResultError(f"{file} holds {held}, not one of kind {name!r}; {remedy}")
    if version != VERSION:
        raise ResultError(f"{file} has version {version!r} of results but this dsnet reads {VERSION}; {remedy}")
    return parse(kind, content, str(file), error=ResultError, remedy=remedy)


def kind_of(file: Path) -> str | None:
    """The kind of result in a file, such as `evaluation`; None for any other file."""
    try:
        stated = content_of(file, "").get("dsnet")
    except ResultError:
        return None
    return stated if stated in COMMANDS else None


def content_of(file: Path, remedy: str) -> dict[str, Any]:
    try:
        content = json.loads(read_limited(file, "json"))
    except (OSError, ValueError, RecursionError) as error:
        raise ResultError(f"{file} cannot be read ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise ResultError(f"{file} does not hold a result; {remedy}")
    return content
