"""Routers as data: how a trained network chooses its widths, and the budgets that it was calibrated for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Annotated, Literal

from dsnet.errors import must
from dsnet.schema import Typed, reads
from dsnet.space import WidthPath, WidthSpace, Window

RENAMED = {"slim_first": "cheap_first"}  # names that routers had, with those that they have
RouterKind = Annotated[Literal["gate", "cheap_first", "threshold", "exit_first"], reads(RENAMED)]
Targets = Literal["try_best", "give_up", "narrowest", "correctness", "kl"]
KINDS = ("gate", "cheap_first", "threshold", "exit_first")
TARGETS = ("try_best", "give_up", "narrowest", "correctness", "kl")


@dataclass(frozen=True)
class Budget(Typed):
    """One calibrated operating point: the lambda that meets an average number of MAdds.

    Args:
        shares: The paths that the calibration images took, each with its share of the images. Rare paths are counted
            with others of similar cost. Empty in models of dsnet 0.1.
        window: The window that the router chooses within; None is the whole range.
    """

    madds: float
    lam: float
    accuracy: float
    image_size: int
    shares: tuple[tuple[WidthPath, float], ...] = ()
    window: Window | None = None

    def __post_init__(self) -> None:
        check_window(self.window)
        for name, kind in (("madds", float), ("lam", float), ("accuracy", float), ("image_size", int)):
            object.__setattr__(self, name, kind(getattr(self, name)))  # plain numbers, also from numpy
        must("the MAdds of a budget", self.madds, all_finite(self.madds) and self.madds > 0, "be a positive number")
        must("the lambda of a budget", self.lam, all_finite(self.lam), "be finite")


def all_finite(*values: float) -> bool:
    return all(map(math.isfinite, values))


def check_window(window: Window | None) -> None:
    good = window is None or 0 <= window[0] <= window[1]
    must("a window", window, good, "be two positions from 0, the lower one first, such as (0, 2)")


def present(router: str) -> str:
    """The name of a kind of router, which may be given by the one that it had before."""
    return RENAMED.get(router, router)


def former(router: str) -> str:
    """The first name of a kind of router. Digests are made of it, so that none of them changes with a name."""
    return next((old for old, new in RENAMED.items() if new == router), router)


@dataclass(frozen=True)
class RouterSpec(Typed):
    """How a trained network chooses its widths, and what its scores mean.

    Args:
        kind: `gate` scores widths with the slimming heads before they run. `cheap_first` runs the first candidate, the
            slimmest path or a small image size, and scores all candidates from its logits. `threshold` goes on to
            another candidate if the top probability of the first is low. `exit_first` runs the early classifier and
            scores its answer, the exit, and the uniform paths. With several image sizes it runs the exit of one size
            first, and the other candidates are exits of other sizes and full settings.
        targets: What the scores were trained on. With `correctness` they are probabilities, with `kl` negative
            divergences.
        hidden: Hidden units of the head that scores the candidates from a classifier's logits. 0 is a head of rank one:
            all scores are a_k + b_k h(x), with one linear function h.
        early: Hidden units of the early classifier, which reads the map that the first gate pools; 0 for a linear one.
            None for no early classifier: gates then read their own codes.
        bound: Whether the first gate decides for all gates, so that every path is uniform.
        candidates: The paths that a router with a single decision chooses from, in the order of their cost. By default
            the uniform ones. A router of a network with several image sizes names them; the first is looked at first.
        windows: Number of adjacent widths in a window. A gate was trained to choose within each window, and a budget
            picks the window. None if it was trained to choose among all widths.
    """

    kind: RouterKind = "gate"
    targets: Targets = "try_best"
    hidden: int = 32
    early: int | None = None
    bound: bool = False
    windows: int | None = None
    candidates: tuple[WidthPath, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", present(self.kind))
        if self.kind not in KINDS:
            raise ValueError(f"router {self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.targets not in TARGETS:
            raise ValueError(f"targets {self.targets!r} are unknown; choose from {', '.join(TARGETS)}")
        good = type(self.hidden) is int and self.hidden >= 0
        must("the router's hidden size", repr(self.hidden), good, "be at least 0")
        if self.early is None and self.exits:
            raise ValueError("router exit_first needs an early classifier; set early to its hidden units, 0 for linear")
        if self.early is not None:
            if self.probes:
                raise ValueError(f"router {self.kind} has no early classifier; leave early out, or use exit_first")
            good = type(self.early) is int and self.early >= 0
            must("the early classifier's hidden size", repr(self.early), good, "be at least 0")
            object.__setattr__(self, "bound", True)  # the classifier reads one map, so there is one decision
        if self.bound and self.probes:
            raise ValueError(f"router {self.kind} takes uniform paths anyway; leave bound out, it is for gates")
        if self.windows is not None:
            must("the size of a window", self.windows, self.windows >= 2, "be at least 2 widths")
            must("the router", self.kind, self.kind == "gate", "be a gate to choose within windows")
        if self.candidates:
            first = self.probes or self.exits
            must("the router", self.kind, first, "look at a candidate first to have a list of candidates")
            good = len(set(self.candidates)) == len(self.candidates) >= 2
            must("the list of candidates", self.candidates, good, "have at least two paths, each of them once")

    @property
    def probes(self) -> bool:
        """Whether the first candidate runs first, on every input."""
        return self.kind in ("cheap_first", "threshold")

    @property
    def exits(self) -> bool:
        """Whether the early classifier's own answer is a candidate."""
        return self.kind == "exit_first"

    @property
    def single(self) -> bool:
        """Whether there is one decision, between uniform paths."""
        return self.probes or self.bound


@dataclass(frozen=True)
class Router(Typed):
    """A trained router: its kind, the widths that it chooses from, and its calibrated budgets.

    combine: Of an exit_first router, the weights (u, v) for each width. An image that goes on to the width is answered
        by u times the logits of the exit plus v times those of the width. Empty with several image sizes, where the
        last look answers alone.
    """

    spec: RouterSpec
    routing: WidthSpace
    budgets: tuple[Budget, ...] = ()
    combine: tuple[tuple[float, float], ...] = ()

    def __post_init__(self) -> None:
        points, exits = len(self.routing), self.spec.exits
        must("the number of choice points of a router", points, points >= 1, "be at least 1")
        must("the exit of a routing space", self.routing.exit, self.routing.exit == exits, f"be {exits}")
        widths = len(self.routing.uniform) if self.combines else 0
        good = not self.combine or (len(self.combine) == widths and all_finite(*chain(*self.combine)))
        must("combine", self.combine, good, f"be finite, with one pair for each of {widths} widths")
        for path in self.spec.candidates:
            must("a candidate", path, path in self.routing, "be a path of the routing space")
        ends = [row.window[1] for row in self.budgets if row.window is not None]
        last = self.windows[-1][1]
        must("the last position of a window", max(ends, default=0), max(ends, default=0) <= last, f"be at most {last}")

    @property
    def probes(self) -> bool:
        return self.spec.probes

    @property
    def combines(self) -> bool:
        """Whether the answer of an image that goes on is combined with that of the exit."""
        return self.spec.exits and not self.routing.sized

    @cached_property
    def candidates(self) -> list[WidthPath]:
        """What a router with a single decision chooses from: the exits if there are any, and the uniform paths of the
        routing space, slimmest first."""
        return list(self.spec.candidates) or self.routing.exits + self.routing.uniform

    @cached_property
    def windows(self) -> list[Window]:
        """The windows that the router was trained to choose within, lowest first: all runs of so many adjacent
        positions. The whole range if it was trained to choose among all widths."""
        count = len(self.candidates) if self.spec.single else max(map(len, self.routing.choices))
        size = min(self.spec.windows or count, count)
        return [(low, low + size - 1) for low in range(count - size + 1)]
