"""What is measured, as typed records with one version: evaluations, benchmarks, experiments and their figures."""

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
    """A figure; over several seeds their mean and standard deviation."""

    mean: float
    std: float | None = None


@dataclass(frozen=True)
class Measure(Typed):
    """The name of a figure, and how Python formats it."""

    name: str
    form: str


@dataclass(frozen=True)
class Metric(Typed):
    """What a task is judged by, such as top-1 or mAP, and what is reported beside it for every path."""

    name: str
    form: str
    more: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class Made(Typed):
    """Who made a result: versions, machine, runtime, and how long it took."""

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
    """`Made` with all that this process knows by itself; threads: that the work used. known: the other fields."""
    used = f"{os.cpu_count()} cores" if threads is None else f"{threads} threads"
    machine = f"{platform.machine()} {platform.system()}, {used}"
    date = time.strftime("%Y-%m-%d")
    return Made(commit=commit(), machine=machine, date=date, seconds=round(seconds, 2), **known)


@dataclass(frozen=True)
class PathRow(Typed):
    """A path at an image size, every image along it. share: of the widest path's MAdds. parts: MAdds by part, where a
    network has named parts. more: the metric's further measures, or the score of each class."""

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
        """Whether it has one width everywhere."""
        return len(set(self.path)) <= 1


@dataclass(frozen=True)
class Gate(Typed):
    """Shares of the images at each width of a choice point, and their entropy in bits."""

    shares: tuple[float, ...]
    entropy: float = 0.0


@dataclass(frozen=True)
class Group(Typed):
    """Where the images of one difficulty go; None where there are none."""

    madds: float | None
    gates: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class BudgetRow(Typed):
    """The dynamic network at one budget. name: of the budget, where it has one. hull: the score that the fixed widths
    reach at the same MAdds. gain: points above it, gain_se: its paired standard error. groups: by difficulty."""

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
    """One class: per budget its score and average MAdds (None without images), and the middle budget's shares at the
    first gate."""

    name: str
    images: int
    scores: tuple[float | None, ...]
    madds: tuple[float | None, ...]
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dynamic(Typed):
    """The dynamic network. range: MAdds that the router can be made to spend. as_trained: at lambda 0. auc: how well
    its score tells whether the slimmest candidate is right. difficulty: shares of easy, dependent and hard images.
    oracle: a router that knows the narrowest right width."""

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
    """An object: its class, its box (left, top, right, bottom) as shares of the image, its score where it was found."""

    name: str
    box: tuple[float, float, float, float]
    score: float | None = None


@dataclass(frozen=True)
class Example(Typed):
    """One image and its answer. group: why it is shown, such as `slimmest` or `widest`. label, answer: class numbers.
    detections, objects: what was found, and what is annotated."""

    id: int
    path: WidthPath
    group: str = ""
    label: int | None = None
    answer: int | None = None
    detections: tuple[Box, ...] = ()
    objects: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Evaluation(Typed):
    """How good every path and the dynamic network are on a split, cheapest path first.

    options: what a task was told, such as the overlap that makes a detection right.
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
        """Whether it is a network with one width."""
        return all(not row.path for row in self.rows)

    @property
    def uniform(self) -> list[PathRow]:
        """The rows of paths with one width everywhere, cheapest first."""
        return sorted((row for row in self.rows if row.uniform), key=lambda row: row.madds)


@dataclass(frozen=True)
class Evaluations(Typed):
    """Evaluations of different networks, shown on one page."""

    results: tuple[Evaluation, ...]


# Benchmarks: milliseconds.


@dataclass(frozen=True)
class Times(Typed):
    """Milliseconds of a call."""

    mean: float
    p50: float
    p95: float


@dataclass(frozen=True)
class WidthTime(Typed):
    """A path in a runtime. ratio: to the same path built statically. noise: of that ideal to itself."""

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
    """A static network that one could run instead."""

    model: str
    runtime: str
    batch: int
    threads: int
    madds: int
    times: Times


@dataclass(frozen=True)
class SpeedUp(Typed):
    """time(widest) / time(slimmest) beside the ratio of their MAdds."""

    runtime: str
    batch: int
    threads: int
    realised: float
    madds: float
    share: float


@dataclass(frozen=True)
class FileSizes(Typed):
    """Bytes of the dynamic file and of the widest path alone; seconds and bytes of memory to load the former."""

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
    """A dynamic network at a budget. ideal: what the chosen paths take as static networks. score, madds_split: on the
    whole split, where they were measured."""

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
    """Every run at one score that all of them reach."""

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


# Figures: what a chart or a row of bars shows. `report/figures.py` draws them.


@dataclass(frozen=True)
class Dot(Typed):
    x: float
    y: float
    spread: float | None = None


@dataclass(frozen=True)
class Series(Typed):
    """colour: series of one number are drawn in one colour; by default each has its own."""

    name: str
    points: tuple[Dot, ...]
    kind: Literal["line", "points"] = "line"
    colour: int | None = None
    dashed: bool = False


@dataclass(frozen=True)
class Chart(Typed):
    """Lines and points over two axes. whole_x: ticks stay at whole numbers."""

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
    """Shares that add up to one, side by side; `names` of the shares."""

    title: str
    names: tuple[str, ...]
    groups: tuple[BarGroup, ...]


Figure = Chart | Bars


# Experiments: tables beside the paper's figures, and verdicts.


@dataclass(frozen=True)
class Table(Typed):
    """Columns whose name begins with '<' are left-aligned. values: row -> column -> seed -> figure."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
    values: dict[str, dict[str, dict[int, float | None]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim(Typed):
    """A claim of the paper beside what was measured; holds is None where there is no verdict."""

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
    """What a result's file holds: its kind, the version, its fields."""
    return {"dsnet": name_of(type(result)), "version": VERSION, **plain(result)}


def name_of(kind: type) -> str:
    """The kind of a result as files name it, such as `evaluation`."""
    return kind.__name__.lower()


def write(result: Result, file: Path) -> Path:
    """A result as JSON, whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, (json.dumps(as_json(result), indent=1) + "\n").encode())
    return file


def read(file: Path, kind: type[T], *, remedy: str = "") -> T:
    """A result that `write` wrote; one error names file, field, value and remedy."""
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
    """The kind of result that a file says it holds, such as `evaluation`; None for other JSON."""
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
