"""Advice: which width or which budget of a network to deploy, from its evaluation and from measured milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from dsnet.latency import threads_text, times_at
from dsnet.results import Bench, BudgetRow, Difference, Evaluation, Latency, PathRow, Setting, Times
from dsnet.space import EXIT, WidthPath, path_words

SIMPLE = 0.05  # a fixed width that costs up to this share more than the dynamic network is preferred: it is simpler
NEAR = 0.01  # a loss of score that many accept: one point
CLOSE = 0.005  # share of the full network's MAdds; budgets of an evaluation and a benchmark that differ less are one


@dataclass(frozen=True)
class Option:
    """A way to deploy a network.

    Args:
        path: The path of a fixed width; None for the dynamic network.
        budget: The dynamic network's budget as a share of the full network's MAdds; None for a fixed width.
        share: Average MAdds as a share of the full network's.
        to_full: Difference to the full network; None if it is the full network, or if no interval was computed.
        times: Milliseconds per image, one image at a time; None if they were not measured.
        max_width, max_size: The caps that the dynamic network was evaluated with.
    """

    name: str
    path: WidthPath | None
    budget: float | None
    score: float
    madds: float
    share: float
    to_full: Difference | None = None
    times: Times | None = None
    full: bool = False
    max_width: int | None = None
    max_size: int | None = None


@dataclass(frozen=True)
class Measured:
    """Milliseconds of fixed widths by path, and of the dynamic network by position of the evaluation's budget."""

    fixed: Mapping[WidthPath, Times] = field(default_factory=dict)
    dynamic: Mapping[int, Times] = field(default_factory=dict)
    about: str = ""


@dataclass(frozen=True)
class Demand:
    """What is asked for; at most one of these.

    Args:
        accuracy: Least score.
        latency: Most milliseconds per image, on average.
        budget: Most MAdds, as a share of the full network's.
    """

    accuracy: float | None = None
    latency: float | None = None
    budget: float | None = None

    @property
    def none(self) -> bool:
        return self.accuracy is None and self.latency is None and self.budget is None


@dataclass(frozen=True)
class Advice:
    """What to deploy.

    Args:
        options: Every option that was evaluated, cheapest first.
        choice: The recommended option; None if the evaluation has no intervals to decide by.
        met: Whether the choice meets the demand. If not, it is the option that comes closest.
        near: A cheaper option that loses one point at most against the full network.
        unit: What the options' costs were compared in.
        measured: Where the milliseconds were measured.
    """

    demand: Demand
    options: tuple[Option, ...]
    choice: Option | None
    met: bool
    near: Option | None
    unit: Literal["ms", "MAdds"]
    measured: str = ""

    @property
    def full(self) -> Option:
        return next(option for option in self.options if option.full)

    @property
    def front(self) -> list[Option]:
        """The options that no other one beats in both cost and score, cheapest first."""
        return front_of(self.options, cost_in(self.unit))


def advise(result: Evaluation, demand: Demand | None = None, measured: Measured | None = None) -> Advice | None:
    """What to deploy; None for a network of a single width.

    Without a demand it is the cheapest option whose score equals the full network's, that is, whose 95 % paired
    interval of the difference includes zero, or is better. Given a least accuracy, it is the cheapest option that
    reaches it on the evaluated images. Given a limit of milliseconds or MAdds, it is the most accurate option within
    it. The dynamic network is recommended only where it pays: not if a fixed width meets the demand too, is as good,
    and costs no more or hardly more.
    """
    demand, measured = demand or Demand(), measured or Measured()
    if result.static:
        return None
    options = options_of(result, measured)
    uniform = {row.path for row in (*result.uniform, *result.exits)}
    timed = all(option.times is not None for option in options if option.path is None or option.path in uniform)
    if demand.latency is not None and not any(option.full and option.times is not None for option in options):
        raise ValueError(
            "the full network's milliseconds are not known, so no latency can be asked for; `dsnet bench` of the run "
            "measures them"
        )
    unit: Literal["ms", "MAdds"] = "ms" if (timed or demand.latency is not None) and demand.budget is None else "MAdds"
    if unit == "ms":  # a benchmark times uniform paths only
        options = [option for option in options if option.times is not None]
    cost = cost_in(unit)
    options = sorted(options, key=lambda option: (cost(option), -option.score))
    fits, best = fitting(options, demand, cost)
    met, choice = bool(fits), None
    if fits:
        # An option whose interval is merely wide must not win against one that is better and cheaper.
        choice = best([option for option in front_of(options, cost) if option in fits])
        if choice.path is None:
            fixed = front_of([option for option in options if option.path is not None], cost)
            cheap = [option for option in fixed if option in fits and cost(option) <= (1 + SIMPLE) * cost(choice)]
            simple = [option for option in cheap if as_good(result, option, choice)]
            choice = best(simple) if simple else choice
    elif not demand.none:
        choice = closest(options, demand, cost)
    full = next(option for option in options if option.full)
    near = None
    if demand.none:
        limit = cost(choice or full) * 0.9
        cheap = [one for one in options if one.score >= full.score - NEAR and cost(one) <= limit]
        near = cheap[0] if cheap else None
    where = measured.about if any(option.times for option in options) else ""
    return Advice(demand, tuple(options), choice, met, near, unit, where)


def options_of(result: Evaluation, measured: Measured) -> list[Option]:
    full, options = result.full, []
    for row in result.rows:
        is_full = row.path == full.path
        words = result.name_of(row) if result.sized else path_words(row.path)
        name, known = "full network" if is_full else words, measured.fixed.get(row.path)
        share = row.madds / full.madds
        options.append(Option(name, row.path, None, row.score.mean, row.madds, share, row.to_full, known, is_full))
    for place, budget in enumerate(result.dynamic.rows if result.dynamic is not None else ()):
        option = option_of(budget, full, measured.dynamic.get(place))
        caps = (
            {}
            if result.dynamic is None
            else {name: getattr(result.dynamic, name) for name in ("max_width", "max_size")}
        )
        options.append(replace(option, **caps))
    return options


def option_of(row: BudgetRow, full: PathRow, times: Times | None = None) -> Option:
    """The dynamic network at one budget. full: The widest path that was evaluated. Budgets are shares of the widest
    path that the network has, which a file may lack."""
    budget = float(f"{row.asked * full.share / full.madds:.3g}")
    name, madds = f"dynamic {row.name or f'{budget:g}'}", row.madds.mean
    return Option(name, None, budget, row.score.mean, madds, madds / full.madds, row.to_full, times)


def cost_in(unit: str) -> Callable[[Option], float]:
    def cost(option: Option) -> float:
        return option.times.mean if unit == "ms" and option.times is not None else option.madds

    return cost


def front_of(options: Collection[Option], cost: Callable[[Option], float]) -> list[Option]:
    """The options that are more accurate than all cheaper ones, cheapest first."""
    kept: list[Option] = []
    for option in sorted(options, key=lambda option: (cost(option), -option.score)):
        if not kept or option.score > kept[-1].score:
            kept.append(option)
    return kept


def fitting(
    options: Sequence[Option], demand: Demand, cost: Callable[[Option], float]
) -> tuple[list[Option], Callable[[Sequence[Option]], Option]]:
    """The options that meet a demand, and how the best of them is found."""

    def cheapest(found: Sequence[Option]) -> Option:
        return min(found, key=lambda option: (cost(option), -option.score))

    def most_accurate(found: Sequence[Option]) -> Option:
        return max(found, key=lambda option: (option.score, -cost(option)))

    if demand.accuracy is not None:
        return [option for option in options if option.score >= demand.accuracy], cheapest
    if demand.latency is not None:
        return [one for one in options if one.times is not None and one.times.mean <= demand.latency], most_accurate
    if demand.budget is not None:
        return [option for option in options if option.share <= demand.budget * (1 + 1e-9)], most_accurate
    if not any(option.to_full is not None for option in options):
        return [], cheapest
    return [one for one in options if one.full or (one.to_full is not None and one.to_full.sign >= 0)], cheapest


def as_good(result: Evaluation, fixed: Option, dynamic: Option) -> bool:
    """Whether a fixed width is as accurate as the dynamic network at a budget, as far as the images can tell."""
    assert result.dynamic is not None
    row = next(row for row in result.dynamic.rows if option_of(row, result.full).name == dynamic.name)
    for place, path_row in enumerate(result.rows):
        if path_row.path == fixed.path and row.to_paths:
            return row.to_paths[place].sign <= 0
    return fixed.score >= dynamic.score


def closest(options: Sequence[Option], demand: Demand, cost: Callable[[Option], float]) -> Option:
    """The option to name where none meets the demand: the most accurate, or else the cheapest."""
    if demand.accuracy is not None:
        return max(options, key=lambda option: (option.score, -cost(option)))
    return min(options, key=lambda option: (cost(option), -option.score))


def measured_in(bench: Bench | None, result: Evaluation) -> Measured:
    """The milliseconds that a benchmark measured: of fixed widths, and of the budgets of the same evaluation."""
    alike = [] if bench is None else [one for one in bench.deployed if one.setting.image_size == result.image_size]
    if not alike:
        return Measured()
    deployed, routed = alike[0], result.dynamic
    dynamic: dict[int, Times] = {}
    for place, budget in enumerate(() if routed is None or routed.capped else routed.rows):
        for row in deployed.rows:
            if row.asked is not None and abs(row.asked - budget.asked) <= CLOSE * result.full.madds:
                dynamic[place] = row.times
    fixed = {row.path: row.times for row in deployed.rows if row.path is not None}
    return Measured(fixed, dynamic, about(deployed.setting))


def about(setting: Setting) -> str:
    return f"{setting.runtime}, {threads_text(setting.threads)}, one image at a time"


def timed_by(held: Latency, result: Evaluation) -> Measured:
    """The milliseconds in a latency table. Those of a budget follow from the shares of images along each path."""
    rows = {row.path: row for row in held.rows}
    dynamic: dict[int, Times] = {}
    for place, budget in enumerate(result.dynamic.rows if result.dynamic is not None else ()):
        shares = shares_of(budget)
        if shares and all(path in rows and rows[path].routed is not None for path in shares):
            dynamic[place] = times_at(held, None, shares)
    fixed = {path: row.fixed for path, row in rows.items() if row.fixed is not None}
    return Measured(fixed, dynamic, about(held.setting))


def shares_of(row: BudgetRow) -> dict[WidthPath, float]:
    """The share of images along each path. Empty if gates choose differently, since each gate's shares do not tell."""
    first, *others = (gate.shares for gate in row.gates)
    if any(other != first for other in others):
        return {}
    exits = [(EXIT, row.gates[0].exit)]
    return {(width,) * len(row.gates): share for width, share in [*exits, *enumerate(first)] if share > 0}
