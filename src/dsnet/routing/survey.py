"""What traces run and record: batches of images, shared by a team of processes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from dsnet.cost import PathCosts
from dsnet.manifest import Manifest, Policy
from dsnet.routing.parts import Outputs, Routed
from dsnet.routing.policy import Prices
from dsnet.space import WidthPath

T = TypeVar("T")


class Team(Protocol):
    """The processes that share the images of some traces. All of them make the same traces and ask the same of them."""

    @property
    def rank(self) -> int: ...

    @property
    def world(self) -> int: ...

    def gathered(self, mine: Sequence[T]) -> list[T]:
        """The items of all processes."""
        ...


class Alone:
    """One process."""

    rank, world = 0, 1

    def gathered(self, mine: Sequence[T]) -> list[T]:
        return list(mine)


class Batch(Protocol):
    """Images [B, C, S, S], labels [B, ...] and sample numbers [B]."""

    @property
    def images(self) -> Any: ...

    @property
    def labels(self) -> Any: ...

    @property
    def ids(self) -> Any: ...


class Surveyed(Protocol):
    """The part of a runner's interface that traces use."""

    @property
    def manifest(self) -> Manifest: ...

    def survey(self, x: Any, paths: Sequence[WidthPath]) -> tuple[list[Outputs], Any]: ...

    def run(self, x: Any, policy: Policy) -> Routed: ...

    def prices(self, image_size: int) -> Prices: ...

    def table(self, image_size: int) -> PathCosts: ...


@dataclass(frozen=True)
class Seen:
    """What a batch of images left behind: its number among all batches, and sample numbers and labels of its images.

    taken: What the scorer took of the outputs, by path. scores: Scores of the first decision [B, R].
    """

    number: int
    ids: np.ndarray
    labels: np.ndarray
    taken: dict[WidthPath, Any]
    scores: np.ndarray | None


@dataclass(frozen=True)
class Went:
    """What images of one batch left behind that took the same path under a policy: their rows and labels, what the
    scorer took of their outputs, and the scores of every decision."""

    number: int
    path: WidthPath
    rows: np.ndarray
    labels: np.ndarray
    taken: Any
    scores: list[np.ndarray]
