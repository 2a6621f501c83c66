"""Routers in milliseconds: runs on the images of their own test split, at several budgets, at equal scores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dsnet.bench.candidates import Artefacts
from dsnet.bench.routed import Operating, bench_routed
from dsnet.bench.widths import machine
from dsnet.manifest import Policy
from dsnet.models import eager
from dsnet.results import EqualRun, EqualScore, RoutedTime, RoutedTimes
from dsnet.routing.budgets import policy_for
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.tasks import images_of


def bench_runs(
    folders: Sequence[str],
    *,
    root: str | None = None,
    scored: bool = False,
    budgets: int = 5,
    images: int = 64,
    runtime: str = "onnx",
    threads: int = 1,
    rounds: int = 1,
) -> RoutedTimes:
    """Latency of dynamic networks on test images; with `scored` on the whole split, and compared at equal scores.

    An image that a probing router escalates pays for two bodies: MAdds alone do not decide.
    """
    points, found = [], []
    sample: torch.Tensor | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(folders):
            folder = RunFolder.of(Path(name))
            net, config = folder.load().float(), folder.config()
            manifest = net.manifest()
            if manifest.router is None or not manifest.router.budgets:
                raise ValueError(f"{name} has no calibrated router; train it with `dsnet train --stage gate`")
            data = folder.task.open_data(config, root)
            folder.reopen(data)
            if sample is None:
                images = min(images, len(data.test))
                sample = data.test.load(data.test.ids[torch.linspace(0, len(data.test) - 1, images).long()]).images
            artefacts = Artefacts(net, Path(scratch) / str(number), data.image_size)
            traces = None
            if scored:
                split = images_of(folder.task, data, "test", config)
                scorer = folder.task.scorer(manifest, folder.task.options(config, {}))
                traces = Traces(eager(net), split.batches(), scorer, load=split.load)
            rows = manifest.router.budgets
            for asked in np.linspace(rows[0].madds, rows[-1].madds, budgets):
                policy = policy_for(manifest, float(asked))
                points.append(Operating(name, artefacts, policy, float(asked)))
                found.append(score_at(traces, policy))
        assert sample is not None
        times = bench_routed(points, sample, runtime=runtime, threads=threads, rounds=rounds)
    times = [
        row if more is None else replace(row, score=more[0], madds_split=more[1])
        for row, more in zip(times, found, strict=True)
    ]
    equal = equal_accuracy(times) if scored else ()
    return RoutedTimes(points[0].artefacts.manifest.model, images, rounds, tuple(times), machine(), equal)


def score_at(traces: Traces | None, policy: Policy) -> tuple[float, float] | None:
    """Score and average MAdds on the whole split."""
    if traces is None:
        return None
    outcome = traces.at(policy)
    return traces.score(outcome), outcome.spent


def equal_accuracy(rows: Sequence[RoutedTime], levels: int = 4) -> tuple[EqualScore, ...]:
    """Milliseconds and MAdds of every run at accuracies that all of them reach, between their operating points."""
    curves: dict[str, list[RoutedTime]] = {}
    for row in rows:
        curves.setdefault(row.name, []).append(row)
    rising = {name: climbing(mine) for name, mine in curves.items()}
    low = max(score_of(mine[0]) for mine in rising.values())
    high = min(score_of(mine[-1]) for mine in rising.values())
    if high <= low:
        return ()
    found = []
    for level in np.linspace(low, high, levels):
        entries = {}
        for name, mine in rising.items():
            scores = [score_of(row) for row in mine]
            ms = float(np.interp(level, scores, [row.times.mean for row in mine]))
            entries[name] = ms, float(np.interp(level, scores, [row.madds_split or 0.0 for row in mine]))
        first, _ = entries[rows[0].name]
        runs = {name: EqualRun(ms, madds, ms / first) for name, (ms, madds) in entries.items()}
        found.append(EqualScore(float(level), runs))
    return tuple(found)


def climbing(rows: Sequence[RoutedTime]) -> list[RoutedTime]:
    """The operating points that are more accurate than all faster ones, fastest first."""
    kept: list[RoutedTime] = []
    for row in sorted(rows, key=lambda row: row.times.mean):
        if not kept or score_of(row) > score_of(kept[-1]):
            kept.append(row)
    return kept


def score_of(row: RoutedTime) -> float:
    assert row.score is not None, "rows that are compared were measured on the whole split"
    return row.score
