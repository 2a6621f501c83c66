"""What a dynamic network spends and scores on images unlike those that its budgets were calibrated on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dsnet.config import RunConfig
from dsnet.data.corrupt import CORRUPTIONS, corrupted
from dsnet.data.dataset import Data
from dsnet.errors import RoutingError
from dsnet.manifest import Policy
from dsnet.results import Drift, DriftBudget, Evaluation, Stat
from dsnet.routing.traces import Outcome, Traces
from dsnet.routing.tracking import BudgetTracker
from dsnet.runs.dynamic import policy_of
from dsnet.runtime.runner import Runner
from dsnet.tasks import Task, traces_of

STEP = 16  # images that a tracker is given at once


def with_drift(
    result: Evaluation,
    runner: Runner,
    data: Data,
    task: Task,
    config: RunConfig,
    *,
    max_width: int | None = None,
    max_size: int | None = None,
    note: Callable[[str], None] = lambda words: None,
) -> Evaluation:
    """An evaluation with its budgets on the images as they are, and on corrupted copies of them.

    note: Called with a line of text before each kind of images.
    """
    start = time.perf_counter()
    if result.dynamic is None:
        raise RoutingError(f"this {result.model} {runner.manifest.why_fixed()}, so its budgets cannot drift")
    kinds = {"unchanged": data}
    kinds |= {corruption.name: corrupted(data, result.split, corruption) for corruption in CORRUPTIONS}
    drift = []
    for number, (name, kind) in enumerate(kinds.items(), start=1):
        note(f"budgets on other images, {number} of {len(kinds)}: {name}")
        traces, _ = traces_of(task, runner, kind, result.split, config, options=result.options)
        widest = next(iter(traces.scorer.of(runner.manifest.space.widest).values()))
        rows = [(row.name, row.asked, policy_of(row, max_width, max_size)) for row in result.dynamic.rows]
        drift.append(Drift(name, Stat(widest), tuple(drifted(runner, traces, *row) for row in rows)))
    seconds = round(result.made.seconds + time.perf_counter() - start, 2)
    return replace(result, drift=tuple(drift), made=replace(result.made, seconds=seconds))


def drifted(runner: Runner, traces: Traces, name: str, asked: float, policy: Policy) -> DriftBudget:
    """One budget on the images of the traces, without and with tracking."""
    tracker = BudgetTracker(runner, budget=asked, image_size=traces.image_size, **policy.caps)
    plain, tracked = traces.at(policy), follow(traces, tracker)
    measured = [Stat(value) for one in (plain, tracked) for value in (one.spent, traces.score(one))]
    return DriftBudget(name, asked, *measured)


def follow(traces: Traces, tracker: BudgetTracker, seed: int = 0) -> Outcome:
    """The routes of all images if a tracker is given a few at a time, in random order: folders are sorted by class."""
    order = np.random.default_rng(seed).permutation(len(traces))
    paths, madds = np.zeros((len(traces), traces.manifest.points), np.int64), np.zeros(len(traces), np.int64)
    for start in range(0, len(order), STEP):
        rows = order[start : start + STEP]
        outcome = traces.at(tracker.policy(), rows)
        tracker.add(outcome.madds)
        paths[rows], madds[rows] = outcome.paths, outcome.madds
    return traces.outcome(paths, madds)
