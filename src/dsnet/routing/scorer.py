"""The interface of a task's metric, which is computed from recorded outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dsnet.results import Difference, Example, Metric
from dsnet.routing.parts import Outputs
from dsnet.space import WidthPath

if TYPE_CHECKING:
    from dsnet.routing.traces import Outcome, Traces


class Scorer(Protocol):
    """Records what the metric of a task needs, for each path and image."""

    @property
    def metric(self) -> Metric:
        """The task's metric, with the further measures that are meaningful for this network."""
        ...

    def take(self, outputs: Outputs, labels: Any) -> Any:
        """What the metric needs of some outputs: little, because processes send it to each other."""
        ...

    def add(self, path: WidthPath, rows: np.ndarray, taken: Any, labels: np.ndarray) -> None:
        """Record what `take` took of the outputs of a path; `rows` are the images' positions among all images."""
        ...

    def of(self, path: WidthPath) -> dict[str, float]:
        """The metric, then the further measures, with every image along one path."""
        ...

    def along(self, paths: np.ndarray) -> float:
        """The metric with every image along its own path [N, points]."""
        ...

    def difference(self, paths: np.ndarray, others: np.ndarray) -> Difference | None:
        """The metric along some paths [N, points] minus that along others, with its 95 % paired interval. None if the
        interval would take too long."""
        ...

    def resample(self, paths: np.ndarray) -> np.ndarray | None:
        """The metric along some paths [N, points], then over sets of images that are drawn again [1 + R]. None if this
        would take too long."""
        ...

    def right(self, path: WidthPath) -> np.ndarray | None:
        """Which images [N] a path gets right; None if the metric is not a mean over images."""
        ...

    def each(self, paths: np.ndarray) -> dict[str, tuple[int, float]] | None:
        """The number of objects and the score of every class, by name, with every image along its own path. None if
        classes are judged by labels."""
        ...

    def answered(self, paths: np.ndarray) -> np.ndarray | None:
        """The class that every image [N] is given along its own path; None if images have no single class."""
        ...

    @property
    def labels(self) -> np.ndarray | None:
        """The class of every image [N]; None if images have no single class."""
        ...

    def budgets(self, traces: Traces) -> dict[str, float]:
        """The budgets in average MAdds at which a dynamic network is evaluated, by name."""
        ...

    @property
    def objects(self) -> int | None:
        """The number of annotated objects; None if images have class labels instead."""
        ...

    def examples(self, traces: Traces, outcome: Outcome | None) -> tuple[Example, ...]:
        """A few images with their predictions. outcome: the routes at the best budget; None without a router."""
        ...
