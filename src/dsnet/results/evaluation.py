"""Evaluations: the scores of every path and of the dynamic network."""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import JsonValue

from dsnet.results.base import Difference, Made, Metric, Stat
from dsnet.results.dynamic import Dynamic
from dsnet.schema import Measured
from dsnet.space import WidthPath, is_exit, path_name, setting_name


@dataclass(frozen=True)
class PathRow(Measured):
    """The score and cost of one path at one image size.

    Args:
        share: MAdds as a share of the widest path's.
        more: The metric's further measures, or the score of each class.
        parts: MAdds of each named part, if the network has named parts.
        to_full: Difference to the widest path that was evaluated; None if no interval was computed.
    """

    size: int
    path: WidthPath
    madds: int
    params: int
    share: float
    score: Stat
    more: dict[str, Stat] = field(default_factory=dict)
    parts: dict[str, int] = field(default_factory=dict)
    to_full: Difference | None = None

    @property
    def uniform(self) -> bool:
        """Whether the path has the same width index everywhere. The exit has no width."""
        return len(set(self.path)) <= 1 and not self.exits

    @property
    def exits(self) -> bool:
        """Whether this is the row of the exit: the early classifier's answer for every image."""
        return is_exit(self.path)


@dataclass(frozen=True)
class ClassScore(Measured):
    """How well a class is recognised; None where nothing of the class was in the images, or none was answered."""

    images: int
    precision: float | None
    recall: float | None
    f1: float | None


@dataclass(frozen=True)
class Answers(Measured):
    """The answers of one network: how well it recognises every class, and which classes it confuses.

    Args:
        budget: Position of the dynamic network's budget; None for the full network.
        wrong: Class, wrong answer and number of images, the most frequent first. At most 1,000.
    """

    budget: int | None
    classes: tuple[ClassScore, ...]
    wrong: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class DriftBudget(Measured):
    """One budget on images that the router was not calibrated on: what it spent and scored, without and with tracking.

    asked: The budget in MAdds.
    """

    name: str
    asked: float
    spent: Stat
    score: Stat
    tracked_spent: Stat
    tracked_score: Stat


@dataclass(frozen=True)
class Drift(Measured):
    """The widest path and the dynamic network on one kind of images, such as `noise 15%`."""

    images: str
    widest: Stat
    budgets: tuple[DriftBudget, ...]


@dataclass(frozen=True)
class Box(Measured):
    """An object: its class, its box (left, top, right, bottom) as shares of the image, and its score if detected."""

    name: str
    box: tuple[float, float, float, float]
    score: float | None = None


@dataclass(frozen=True)
class Example(Measured):
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
class Evaluation(Measured):
    """Scores of every path (cheapest first) and of the dynamic network on one split.

    Args:
        options: Settings of the task's metric, such as the overlap from which a detection counts as right.
        answers: Answers of the full network, and of the dynamic network at its best budget. Empty for detectors.
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
    drift: tuple[Drift, ...] = ()
    examples: tuple[Example, ...] = ()
    training: dict[str, JsonValue] = field(default_factory=dict)
    skipped: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # about the data; those about the router are in `dynamic`
    answers: tuple[Answers, ...] = ()

    @property
    def full(self) -> PathRow:
        """The widest path."""
        return max(self.rows, key=lambda row: row.madds)

    @property
    def static(self) -> bool:
        """Whether the network has a single width."""
        return all(not row.path for row in self.rows)

    @property
    def exit(self) -> PathRow | None:
        """The row of the exit, if there is one; of several image sizes, that of the cheapest."""
        return next(iter(self.exits), None)

    @property
    def exits(self) -> list[PathRow]:
        """The rows of the exits, cheapest first."""
        return sorted((row for row in self.rows if row.exits), key=lambda row: row.madds)

    @property
    def sized(self) -> bool:
        """Whether the network runs at several image sizes, so that the first entry of a path is that of a size."""
        return len(self.sizes) > 1

    @property
    def sizes(self) -> list[int]:
        """The image sizes, smallest first."""
        return sorted({row.size for row in self.rows})

    def spread(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        """The shares of the first choice that add up to one: of image sizes if there are several, else those of the
        exit and of each width."""
        return shares if self.sized or self.dynamic is None else self.dynamic.spread(shares)

    def name_of(self, row: PathRow) -> str:
        """The path of a row as users write and read it."""
        return self.path_name(row.path)

    def path_name(self, path: WidthPath) -> str:
        """A path as users write and read it."""
        return setting_name(path, self.sizes[path[0]]) if self.sized else path_name(path)

    @property
    def uniform(self) -> list[PathRow]:
        """The rows of the uniform paths at every image size, cheapest first."""
        found = [row for row in self.rows if (len(set(row.path[1:])) <= 1 if self.sized else row.uniform)]
        return sorted((row for row in found if not row.exits), key=lambda row: row.madds)


@dataclass(frozen=True)
class Evaluations(Measured):
    """Evaluations of different networks, shown on one page."""

    results: tuple[Evaluation, ...]
