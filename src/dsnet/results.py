"""Results as typed, versioned records: evaluations, benchmarks, experiments and their figures."""

from __future__ import annotations

import json
import os
import platform
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import JsonValue

from dsnet.errors import ResultError
from dsnet.files import write_whole
from dsnet.schema import Typed, parse, plain
from dsnet.space import WidthPath
from dsnet.version import __version__, commit

VERSION = 3
T = TypeVar("T")


@dataclass(frozen=True)
class Stat(Typed):
    """A number; over several seeds, their mean and standard deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Measure(Typed):
    """The name of a number, and the format that Python prints it in."""

    name: str
    form: str


@dataclass(frozen=True)
class Metric(Typed):
    """The score of a task, such as top-1 or mAP, and the further measures that are reported for every path."""

    name: str
    form: str
    more: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class Made(Typed):
    """How a result was made: versions, machine, runtime, date and duration."""

    dsnet: str = __version__
    commit: str = ""
    torch: str = ""
    onnxruntime: str = ""
    runtime: str = ""
    machine: str = ""
    date: str = ""
    command: str = ""
    seconds: float = 0.0


def made(*, seconds: float = 0.0, threads: int | None = None, **known: str) -> Made:
    """`Made` for this process. threads: number of threads that the work used. known: the fields to set."""
    used = f"{os.cpu_count()} cores" if threads is None else f"{threads} threads"
    machine = f"{platform.machine()} {platform.system()}, {used}"
    date = time.strftime("%Y-%m-%d")
    return Made(commit=commit(), machine=machine, date=date, seconds=round(seconds, 2), **known)


@dataclass(frozen=True)
class PathRow(Typed):
    """The score and cost of one path at one image size.

    Args:
        share: MAdds as a share of the widest path's.
        more: The metric's further measures, or the score of each class.
        parts: MAdds of each named part, if the network has named parts.
    """

    size: int
    path: WidthPath
    madds: int
    params: int
    share: float
    score: Stat
    more: dict[str, Stat] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)

    @property
    def uniform(self) -> bool:
        """Whether the path has the same width index everywhere."""
        return len(set(self.path)) <= 1


@dataclass(frozen=True)
class Gate(Typed):
    """Shares of the images at each width of a choice point, and their entropy in bits."""

    shares: tuple[float, ...]
    entropy: float = 0.0


@dataclass(frozen=True)
class Group(Typed):
    """Average MAdds and gate distributions of the images of one difficulty; `madds` is None if there are none."""

    madds: float | None
    gates: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class BudgetRow(Typed):
    """The dynamic network at one budget.

    Args:
        name: Name of the budget, such as M; may be empty.
        asked: The budget in MAdds.
        hull: The score that fixed widths reach at the same MAdds.
        gain: Points above the hull.
        gain_se: Paired standard error of the gain.
        groups: Routes of easy, dependent and hard images.
    """

    name: str
    asked: float
    lam: float
    note: str
    madds: Stat
    p50: Stat
    p95: Stat
    score: Stat
    hull: Stat
    gain: Stat
    gain_se: float | None
    gates: tuple[Gate, ...]
    groups: dict[str, Group] = field(default_factory=dict)


@dataclass(frozen=True)
class Point(Typed):
    madds: Stat
    score: Stat


@dataclass(frozen=True)
class ClassRow(Typed):
    """One class: its score and average MAdds at each budget (None without images), and the share of its images at each
    width of the first gate at the middle budget."""

    name: str
    images: int
    scores: tuple[float | None, ...]
    madds: tuple[float | None, ...]
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dynamic(Typed):
    """The evaluation of the dynamic network.

    Args:
        range: Lowest and highest average MAdds that the router can spend.
        as_trained: The row at lambda 0.
        auc: Area under the ROC curve of the router's score as a predictor of whether the slimmest candidate is right.
        difficulty: Shares of easy, dependent and hard images.
        oracle: A router that knows the narrowest width that is right.
    """

    router: str
    targets: str
    range: tuple[float, ...]
    rows: tuple[BudgetRow, ...]
    as_trained: BudgetRow | None = None
    auc: Stat | None = None
    difficulty: dict[str, float] = field(default_factory=dict)
    oracle: Point | None = None
    warnings: tuple[str, ...] = ()
    classes: tuple[ClassRow, ...] = ()

    @property
    def middle(self) -> BudgetRow:
        return self.rows[len(self.rows) // 2]


@dataclass(frozen=True)
class Box(Typed):
    """An object: its class, its box (left, top, right, bottom) as shares of the image, and its score if detected."""

    name: str
    box: tuple[float, float, float, float]
    score: float | None = None


@dataclass(frozen=True)
class Example(Typed):
    """One image and its prediction.

    Args:
        group: Why the image is shown, such as `slimmest` or `widest`.
        label: Class number of the annotation.
        answer: Class number of the prediction.
        detections: The detected objects.
        objects: The annotated objects.
    """

    id: int
    path: WidthPath
    group: str = ""
    label: int | None = None
    answer: int | None = None
    detections: tuple[Box, ...] = ()
    objects: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Evaluation(Typed):
    """Scores of every path (cheapest first) and of the dynamic network on one split.

    options: settings of the task's metric, such as the overlap from which a detection counts as right.
    """

    task: str
    metric: Metric
    model: str
    dataset: str
    split: str
    images: int
    image_size: int
    seeds: tuple[int, ...]
    rows: tuple[PathRow, ...]
    made: Made
    classes: tuple[str, ...] = ()
    objects: int | None = None
    options: dict[str, str | float] = field(default_factory=dict)
    dynamic: Dynamic | None = None
    examples: tuple[Example, ...] = ()
    training: dict[str, JsonValue] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()

    @property
    def static(self) -> bool:
        """Whether the network has a single width."""
        return all(not row.path for row in self.rows)

    @property
    def uniform(self) -> list[PathRow]:
        """The rows of the uniform paths, cheapest first."""
        return sorted((row for row in self.rows if row.uniform), key=lambda row: row.madds)


@dataclass(frozen=True)
class Evaluations(Typed):
    """Evaluations of different networks, shown on one page."""

    results: tuple[Evaluation, ...]


# Benchmarks. Times are in milliseconds.


@dataclass(frozen=True)
class Times(Typed):
    """Milliseconds per call."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True)
class WidthTime(Typed):
    """Time of a path in a runtime.

    Args:
        ratio: Time relative to the same path built as a static network.
        noise: Time of that static network relative to itself in a second measurement.
    """

    runtime: str
    path: WidthPath
    batch: int
    threads: int
    madds: int
    times: Times
    images_per_second: float
    ratio: float | None = None
    noise: float | None = None


@dataclass(frozen=True)
class StaticTime(Typed):
    """Time of a static network that could be used instead."""

    model: str
    runtime: str
    batch: int
    threads: int
    madds: int
    times: Times


@dataclass(frozen=True)
class SpeedUp(Typed):
    """Measured speed-up of the slimmest path over the widest, and the ratio of their MAdds."""

    runtime: str
    batch: int
    threads: int
    realised: float
    madds: float
    share: float


@dataclass(frozen=True)
class FileSizes(Typed):
    """Bytes of the dynamic file and of a file of the widest path; seconds and memory to load the dynamic file."""

    dynamic: int
    widest: int
    load_seconds: float
    load_bytes: int


@dataclass(frozen=True)
class WidthTimes(Typed):
    model: str
    image_size: int
    repeats: int
    rows: tuple[WidthTime, ...]
    made: Made
    router: str | None = None
    against: tuple[StaticTime, ...] = ()
    speed_up: tuple[SpeedUp, ...] = ()
    files: FileSizes | None = None


@dataclass(frozen=True)
class RoutedTime(Typed):
    """Time of a dynamic network at one budget.

    Args:
        ideal: Milliseconds of the chosen paths as static networks.
        score: Score on the whole split, if measured.
        madds_split: Average MAdds on the whole split, if measured.
    """

    name: str
    router: str
    targets: str
    runtime: str
    threads: int
    asked: float
    lam: float
    madds: float
    paths: int
    times: Times
    ideal: float
    ratio: float
    score: float | None = None
    madds_split: float | None = None


@dataclass(frozen=True)
class EqualRun(Typed):
    ms: float
    madds: float
    ratio: float


@dataclass(frozen=True)
class EqualScore(Typed):
    """Time and MAdds of every run at a score that all of them reach."""

    score: float
    runs: dict[str, EqualRun]


@dataclass(frozen=True)
class RoutedTimes(Typed):
    model: str
    images: int
    rounds: int
    rows: tuple[RoutedTime, ...]
    made: Made
    equal: tuple[EqualScore, ...] = ()
    metric: Metric = Metric("top-1", ".2%")  # of the scores


@dataclass(frozen=True)
class Way(Typed):
    way: str
    times: Times
    ratio: float
    paper: float | None = None


@dataclass(frozen=True)
class Table1(Typed):
    """The paper's Table 1: ways to run a part of the channels."""

    model: str
    image_size: int
    batch: int
    threads: int
    rows: tuple[Way, ...]
    made: Made


@dataclass(frozen=True)
class Bench(Typed):
    command: str
    widths: WidthTimes | None = None
    routed: RoutedTimes | None = None
    table1: Table1 | None = None


# Figures: the content of charts and bars. `report/figures.py` draws them.


@dataclass(frozen=True)
class Dot(Typed):
    x: float
    y: float
    spread: float | None = None


@dataclass(frozen=True)
class Series(Typed):
    """One line or set of points. colour: index of the colour; by default each series has its own."""

    name: str
    points: tuple[Dot, ...]
    kind: Literal["line", "points"] = "line"
    colour: int | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Chart(Typed):
    """Lines and points over two axes. whole_x: x ticks are at whole numbers only."""

    title: str
    x: str
    y: str
    series: tuple[Series, ...]
    log_x: bool = False
    whole_x: bool = False


@dataclass(frozen=True)
class Bar(Typed):
    name: str
    shares: tuple[float, ...]
    note: str = ""


@dataclass(frozen=True)
class BarGroup(Typed):
    name: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Bars(Typed):
    """Stacked bars of shares that add up to one. names: what each share stands for."""

    title: str
    names: tuple[str, ...]
    groups: tuple[BarGroup, ...]


Figure = Chart | Bars


# Experiments: tables next to the paper's numbers, and verdicts.


@dataclass(frozen=True)
class Table(Typed):
    """A table. Columns whose name begins with '<' are left-aligned. values: row -> column -> seed -> number."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    values: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim(Typed):
    """A claim of the paper and our measurement; `holds` is None if there is no verdict."""

    claim: str
    paper: str
    ours: str
    holds: bool | None


@dataclass(frozen=True)
class Experiment(Typed):
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


Result = Evaluation | Evaluations | Bench | Experiment
COMMANDS = {"evaluation": "eval", "evaluations": "eval", "bench": "bench", "experiment": "reproduce"}


def as_json(result: Result) -> dict[str, Any]:
    """The content of a result's file: its kind, the version and its fields."""
    return {"dsnet": name_of(type(result)), "version": VERSION, **plain(result)}


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
        content = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ResultError(f"{file} cannot be read ({error}); {remedy}") from error
    if not isinstance(content, dict):
        raise ResultError(f"{file} does not hold a result; {remedy}")
    return content
