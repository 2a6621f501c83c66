"""Latency of routers on the test images of their runs, at several budgets and at equal scores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsnet.bench.candidates import Artefacts
from dsnet.bench.timing import Call, interleaved, machine, summary
from dsnet.manifest import Policy
from dsnet.models import eager, route
from dsnet.results import EqualRun, EqualScore, RoutedTime, RoutedTimes
from dsnet.routing.budgets import policy_for
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.tasks import images_of

BUDGETS, IMAGES = 5, 64


@dataclass(frozen=True)
class Operating:
    """A network at one of its budgets.

    `name` is the run that the network came from; `traces` are those of its whole test split, or None.
    """

    name: str
    artefacts: Artefacts
    policy: Policy
    asked: float
    traces: Traces | None


def bench_runs(
    folders: Sequence[str], *, root: str | None = None, scored: bool = False, threads: int = 1, rounds: int = 1
) -> RoutedTimes:
    """Latency of dynamic networks on a sample of test images.

    With `scored`, the networks are also scored on the whole split and compared at equal scores.
    """
    points: list[Operating] = []
    sample: Tensor | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(folders):
            folder = RunFolder.of(Path(name))
            net, task = folder.load().float(), folder.task
            manifest = net.manifest()
            if manifest.router is None or not manifest.router.budgets:
                raise ValueError(f"{name} has no calibrated router; train it with `dsnet train --stage gate`")
            config, data = folder.opened(root)
            if sample is None:
                places = torch.linspace(0, len(data.test) - 1, min(IMAGES, len(data.test))).long()
                sample = data.test.load(data.test.ids[places]).images
            artefacts, traces = Artefacts(net, Path(scratch) / str(number), data.image_size), None
            if scored:
                split = images_of(task, data, "test", config)
                scorer = task.scorer(manifest, task.options(config, {}))
                traces = Traces(eager(net), split.batches(), scorer, load=split.load)
            budgets = manifest.router.budgets
            for asked in np.linspace(budgets[0].madds, budgets[-1].madds, BUDGETS).tolist():
                points.append(Operating(name, artefacts, policy_for(manifest, asked), asked, traces))
        assert sample is not None
        rows = routed_times(points, sample, threads=threads, rounds=rounds)
    equal = equal_accuracy(rows) if scored else ()
    model = points[0].artefacts.manifest.model
    return RoutedTimes(model, len(sample), rounds, tuple(rows), machine(), equal, task.metric)


def routed_times(points: Sequence[Operating], images: Tensor, *, threads: int, rounds: int) -> list[RoutedTime]:
    """One row per operating point: every image `rounds` times, one at a time, in ONNX Runtime.

    `ideal` is the time of static networks for the same paths, as if the path of each image were known beforehand.
    """
    paths = [
        [tuple(path) for path in route(point.artefacts.net, images, point.policy).paths.tolist()] for point in points
    ]
    calls: dict[Any, Call] = {}
    for number, (point, taken) in enumerate(zip(points, paths, strict=True)):
        calls[number] = file_call(point.artefacts.dynamic(), threads, point.policy)
        for path in dict.fromkeys(taken):
            if (point.name, path) not in calls:
                calls[point.name, path] = file_call(point.artefacts.static(path), threads)
    inputs = [(image.numpy(),) for image in images.split(1)]
    times = {key: summary(found) for key, found in interleaved(calls, rounds, warmup=0, inputs=inputs).items()}
    rows = []
    for number, (point, taken) in enumerate(zip(points, paths, strict=True)):
        router, table = point.artefacts.manifest.router, point.artefacts.table
        ideal = float(np.mean([times[point.name, path].mean for path in taken]))
        row = RoutedTime(
            name=point.name,
            router=router.spec.kind,
            targets=router.spec.targets,
            runtime="onnx",
            threads=threads,
            asked=point.asked,
            lam=point.policy.lam,
            madds=float(np.mean([table.madds(path, dynamic=True) for path in taken])),
            paths=len(set(taken)),
            times=times[number],
            ideal=ideal,
            ratio=times[number].mean / ideal,
        )
        if point.traces is not None:
            outcome = point.traces.at(point.policy)
            row = replace(row, score=point.traces.score(outcome), madds_split=outcome.spent)
        rows.append(row)
    return rows


def file_call(file: Path, threads: int, policy: Policy | None = None) -> Call:
    """An ONNX file as a call that takes an image."""
    runner = FileRunner(file, threads=threads)
    feed = knobs(runner.manifest, policy or Policy())
    return lambda image: runner.session.run(None, {IMAGE: image, **feed})


def equal_accuracy(rows: Sequence[RoutedTime], levels: int = 4) -> tuple[EqualScore, ...]:
    """Milliseconds and MAdds of every run at scores that all of them reach, interpolated between operating points."""
    names = dict.fromkeys(row.name for row in rows)
    rising = {name: climbing([row for row in rows if row.name == name]) for name in names}
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
    assert row.score is not None, "only rows that were scored on the whole split can be compared"
    return row.score
