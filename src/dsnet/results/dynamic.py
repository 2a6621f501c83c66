"""Results of the dynamic network: what it scores and spends at every budget, and how it routes."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsnet.results.base import Difference, Stat
from dsnet.schema import Measured
from dsnet.space import Window


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
    def capped(self) -> bool:
        """Whether all rows were evaluated with a cap."""
        return self.max_width is not None or self.max_size is not None

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
