"""Evaluations: the scores of every path and of the dynamic network."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from pydantic import JsonValue

from dsnet.results.base import Made, Metric, Stat
from dsnet.schema import Measured
from dsnet.space import WidthPath, Window, is_exit, path_name, setting_name


@dataclass(frozen=True)
class Difference(Measured):
    """A difference of two scores on the same images, with the ends of its 95 % paired interval for each seed."""

    mean: float
    low: tuple[float, ...]
    high: tuple[float, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """The ends of the interval, averaged over seeds. Seeds do not make it narrower: they see the same images, and
        what is hard for one of them is hard for the others."""
        return fmean(self.low), fmean(self.high)

    @property
    def sign(self) -> int:
        """1 or -1 if every seed lies on that side of zero and the interval excludes zero; 0 if the scores are called
        equal."""
        low, high = self.interval
        middles = [ends[0] + ends[1] for ends in zip(self.low, self.high, strict=True)]
        if low > 0 and min(middles) > 0:
            return 1
        return -1 if high < 0 and max(middles) < 0 else 0


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
class Gate(Measured):
    """Shares of the images at each width of a choice point, and their entropy in bits."""

    shares: tuple[float, ...]
    entropy: float = 0.0

    @property
    def exit(self) -> float:
        """Share of the images that the early classifier answers."""
        return max(0.0, round(1 - sum(self.shares), 9))


@dataclass(frozen=True)
class Group(Measured):
    """Average MAdds and gate distributions of the images of one difficulty; `madds` is None if there are none."""

    madds: float | None
    gates: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class BudgetRow(Measured):
    """The dynamic network at one budget.

    Args:
        name: Name of the budget, such as M; may be empty.
        asked: The budget in MAdds.
        hull: The score that fixed widths reach at the same MAdds.
        gain: Points above the hull.
        gain_se: Paired standard error of the gain.
        groups: Routes of easy, dependent and hard images.
        to_paths: Differences to the paths of the evaluation's rows, in their order; empty if none was computed.
        lottery: The score of choosing at random, with the same share of images on every path. None if some path was
            not run on all images.
        oracle: The score of a router that knows the narrowest width that is right, at the same MAdds.
        window: First and last position of the widths that decisions chose among; None for all of them.
        exit_hull, exit_gain, exit_gain_se: As hull, gain and gain_se, but the exit counts as one more fixed width. None
            without an exit.
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
    to_paths: tuple[Difference, ...] = ()
    lottery: Stat | None = None
    oracle: Stat | None = None
    window: Window | None = None
    exit_hull: Stat | None = None
    exit_gain: Stat | None = None
    exit_gain_se: float | None = None

    @property
    def to_full(self) -> Difference | None:
        """The difference to the full network, whose row is the last."""
        return self.to_paths[-1] if self.to_paths else None


@dataclass(frozen=True)
class Point(Measured):
    madds: Stat
    score: Stat


@dataclass(frozen=True)
class ClassRow(Measured):
    """One class: its images (objects for detectors), its score and average MAdds at each budget (None without images),
    and the share of its images at each width of the first gate at the best budget."""

    name: str
    images: int
    scores: tuple[float | None, ...]
    madds: tuple[float | None, ...]
    shares: tuple[float, ...] = ()


@dataclass(frozen=True)
class Dynamic(Measured):
    """The evaluation of the dynamic network.

    Args:
        range: Lowest and highest average MAdds that the router can spend.
        as_trained: The row at lambda 0, in the middle window if the router has windows.
        auc: Area under the ROC curve of the router's score as a predictor of whether the slimmest candidate is right.
        auc_wider: The same for the difference of its scores of the widest and of the slimmest candidate, as a
            predictor of whether the widest is right and the slimmest is wrong.
        difficulty: Shares of easy, dependent and hard images.
        oracle: A router that knows the narrowest width that is right.
        best: Position of the best budget: the cheapest whose score equals the full network's, or else the most
            accurate. None in results that were made before it was determined.
        max_width: Cap on the width index that all rows were evaluated with.
        max_size: Cap on the image size in pixels that all rows were evaluated with.
        windows: The rows at lambda 0 in every window, lowest first; empty if the router has no windows.
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
    best: int | None = None
    max_width: int | None = None
    auc_wider: Stat | None = None
    windows: tuple[BudgetRow, ...] = ()
    max_size: int | None = None

    @property
    def exits(self) -> bool:
        """Whether the early classifier may answer; then shares of widths do not add up to one."""
        return self.router == "exit_first"

    def spread(self, shares: tuple[float, ...]) -> tuple[float, ...]:
        """The shares of a gate that add up to one: at the exit, if there is one, and at each width."""
        return (Gate(shares).exit, *shares) if self.exits else shares

    @property
    def middle(self) -> BudgetRow:
        return self.rows[len(self.rows) // 2]

    @property
    def shown(self) -> int:
        """Position of the budget that examples and figures are about."""
        return len(self.rows) // 2 if self.best is None else self.best

    @property
    def best_row(self) -> BudgetRow:
        return self.rows[self.shown]


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
