"""Routers in milliseconds: runs on the images of their own test split, at several budgets, at equal accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsnet.config import CONFIG
from dsnet.data.splits import check_data
from dsnet.results import EqualRun, EqualScore, RoutedTime, RoutedTimes
from dsnet.routing import Traces, policy_for
from dsnet.runtime.bench import Artefacts, Operating, bench_routed, machine
from dsnet.tasks import load, read_config
from dsnet.tasks.assess import open_data, traces_of
from dsnet.tasks.detection import detector_policy, load_detector
from dsnet.tasks.detection.assess import open_data as open_detection
from dsnet.tasks.detection.bench import DetectorArtefacts


def bench_runs(
    folders: Sequence[str],
    *,
    root: str | None = None,
    accuracy: bool = False,
    budgets: int = 5,
    images: int = 64,
    runtime: str = "onnx",
    threads: int = 1,
    rounds: int = 1,
) -> RoutedTimes:
    """Latency of dynamic networks on test images; with `accuracy` on the whole split, and compared at equal accuracy.

    An image that a probing router escalates pays for two bodies: MAdds alone do not decide.
    """
    points, found = [], []
    sample: torch.Tensor | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(folders):
            folder = Path(name)
            net, config = load(folder, "classification"), read_config(folder / CONFIG)
            if net.spec.router is None or not net.card.budgets:
                raise ValueError(f"{folder} has no calibrated router; train it with `dsnet train --stage gate`")
            data = open_data(config, root)
            check_data(folder, data)
            if sample is None:
                sample = data.test.load(data.test.ids[torch.linspace(0, len(data.test) - 1, images).long()]).images
            artefacts = Artefacts(net, Path(scratch) / str(number), data.image_size)
            traces = traces_of(net, data.test, config, [], name="test") if accuracy else None
            low, high = net.card.budgets[0].madds, net.card.budgets[-1].madds
            for asked in np.linspace(low, high, budgets):
                policy = policy_for(net, float(asked), image_size=data.image_size)
                points.append(Operating(str(folder), artefacts, policy, float(asked)))
                found.append(scored(traces, policy))
        assert sample is not None
        rows = bench_routed(points, sample, runtime=runtime, threads=threads, rounds=rounds)
    rows = [
        row if more is None else replace(row, score=more[0], madds_split=more[1])
        for row, more in zip(rows, found, strict=True)
    ]
    equal = equal_accuracy(rows) if accuracy else ()
    return RoutedTimes(points[0].artefacts.net.spec.name, images, rounds, tuple(rows), machine(), equal)


def scored(traces: Traces | None, policy: Any) -> tuple[float, float] | None:
    """Accuracy and average MAdds on the whole split."""
    if traces is None:
        return None
    outcome = traces.at(policy)
    return outcome.correct.double().mean().item(), outcome.madds.double().mean().item()


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


def bench_detection(
    name: str, *, root: str | None = None, budgets: int = 5, images: int = 64, threads: int = 1, rounds: int = 1
) -> RoutedTimes:
    """Latency of a dynamic detector on its test images at several budgets, sliced in PyTorch and as ONNX."""
    folder = Path(name)
    detector, config = load_detector(folder).float(), read_config(folder / CONFIG)
    if detector.spec.backbone.router is None or not detector.card.budgets:
        raise ValueError(f"{folder} has no calibrated gate; train it with `dsnet train --stage gate`")
    data = open_detection(config, root)
    check_data(folder, data)
    images = min(images, len(data.test))
    sample = data.test.load(data.test.ids[torch.linspace(0, len(data.test) - 1, images).long()]).images
    low, high = detector.card.budgets[0].madds, detector.card.budgets[-1].madds
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        artefacts = DetectorArtefacts(detector, Path(scratch))
        for runtime, words in (("runner", "eager"), ("onnx", "onnx")):
            asked = [low + (high - low) * number / (budgets - 1) for number in range(budgets)]
            points = [Operating(words, artefacts, detector_policy(detector, madds), madds) for madds in asked]
            rows += bench_routed(points, sample, runtime=runtime, threads=threads, rounds=rounds)
    return RoutedTimes(detector.spec.name, images, rounds, tuple(rows), machine())
