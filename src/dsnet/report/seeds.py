"""Combines runs that differ only in their seed into one result."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from dsnet.results import Difference, Evaluation, Stat

SOURCES = ("source", "gate_from")  # the runs of different seeds start from different sources


def together(results: Sequence[Evaluation]) -> list[Evaluation]:
    """Runs that differ in their seed as one result; detectors of different kinds side by side."""
    detectors = all(result.objects is not None for result in results)
    if detectors and any(kind(result) != kind(results[0]) for result in results):
        return list(results)
    return [combine(results)]


def combine(results: Sequence[Evaluation]) -> Evaluation:
    """Combine several runs: every Stat is averaged, every Difference keeps the intervals of all seeds, warnings are
    joined, everything else is the first run's."""
    first = results[0]
    for other in results[1:]:
        if kind(other) != kind(first):
            raise ValueError(
                f"runs of different kinds cannot be shown as one: {kind(first)} and {kind(other)}; "
                f"evaluate them one by one"
            )
        if settings(other) != settings(first):
            raise ValueError(
                f"results with different rows cannot be shown as one: {settings(first)} and {settings(other)}; "
                f"evaluate the runs with the same paths and budgets"
            )
    seeds = tuple(seed for result in results for seed in result.seeds)
    if len(results) == 1:
        return first
    if len(set(seeds)) != len(seeds):
        raise ValueError(f"runs with seeds {list(seeds)} were given; each must have its own")
    both: Evaluation = replace(averaged(results), seeds=seeds)
    if both.dynamic is None:
        return both
    warnings = tuple(words for result in results if result.dynamic is not None for words in result.dynamic.warnings)
    return replace(both, dynamic=replace(both.dynamic, warnings=warnings))


def kind(result: Evaluation) -> list[Any]:
    """What runs must have in common to be combined."""
    training = {key: key in SOURCES or value for key, value in result.training.items()}
    router = None if result.dynamic is None else (result.dynamic.router, result.dynamic.targets)
    return [result.task, result.model, result.dataset, result.split, result.image_size, training, router]


def settings(result: Evaluation) -> list[Any]:
    """What the rows of a result stand for: image sizes and paths, names and MAdds of budgets."""
    budgets = () if result.dynamic is None else result.dynamic.rows
    return [*((row.size, row.path) for row in result.rows), *((row.name, row.asked) for row in budgets)]


def averaged(records: Sequence[Any]) -> Any:
    """Combine records: every Stat and Difference that all of them have is combined, everything else is the first
    one's."""
    first = records[0]
    if any(type(record) is not type(first) for record in records):
        return first
    if isinstance(first, Stat):
        values = [record.mean for record in records]
        return Stat(statistics.mean(values), statistics.stdev(values))
    if isinstance(first, Difference):
        low, high = (tuple(end for record in records for end in getattr(record, name)) for name in ("low", "high"))
        return Difference(statistics.mean(record.mean for record in records), low, high)
    if isinstance(first, dict):
        return {key: averaged([record.get(key) for record in records]) for key in first}
    if isinstance(first, tuple) and len({len(record) for record in records}) == 1:
        return tuple(averaged(same) for same in zip(*records, strict=True))
    if is_dataclass(first):
        parts = {part.name: averaged([getattr(record, part.name) for record in records]) for part in fields(first)}
        return replace(first, **parts)  # type: ignore[type-var]
    return first
