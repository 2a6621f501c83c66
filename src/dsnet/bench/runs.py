"""Latency of runs: their widths and budgets with accuracy, and routers at several budgets and at equal scores."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsnet.bench.candidates import Artefacts
from dsnet.bench.timing import interleaved
from dsnet.errors import ResultError
from dsnet.latency import threads_text
from dsnet.latency.files import BenchConfig, bench_budgets
from dsnet.latency.measure import TRIED, Operating, budgets_of, measure, noise, uniform_paths
from dsnet.latency.timing import Call, machine, summary
from dsnet.manifest import Manifest, Policy
from dsnet.models import DynamicRunner, eager, route
from dsnet.models.devices import torch_threads
from dsnet.results import (
    DeployedTimes,
    EqualRun,
    EqualScore,
    Evaluation,
    FixedTime,
    Latency,
    RoutedTime,
    RoutedTimes,
    read,
)
from dsnet.routing.budgets import policy_for
from dsnet.routing.parts import as_array
from dsnet.routing.traces import Traces, slimmest_score
from dsnet.runs.folder import RunFolder
from dsnet.runtime.onnx import FileRunner
from dsnet.space import WidthPath
from dsnet.tasks import images_of

IMAGES, SORTED = 64, 512  # number of images that are timed, and of those among which they are chosen


@dataclass(frozen=True)
class Benched:
    """A run that is measured: its network in the forms that are timed, its evaluation, and the traces of its whole test
    split if it has to be scored."""

    name: str
    artefacts: Artefacts
    evaluation: Evaluation | None = None
    traces: Traces | None = None


@dataclass(frozen=True)
class AtBudget:
    """A run at one of its budgets."""

    run: Benched
    point: Operating
    policy: Policy


def evaluation_of(run: Path) -> Evaluation | None:
    """The evaluation of a run on its test images, or None if there is none."""
    try:
        return read(run / "results" / "test.json", Evaluation)
    except ResultError:
        return None


def sample_images(run: Path, root: str | None) -> Tensor:
    """A few test images of a run [N, C, S, S], as easy and as hard for its router as all of them.

    They are evenly spaced among many images that are sorted by the router's score, so that about as many of them take
    each path as on the whole split.
    """
    folder = RunFolder.of(run)
    _, data = folder.opened(root)
    images: Tensor = data.test.load(data.test.ids[spaced(len(data.test), SORTED)]).images
    runner = eager(folder.load().float())
    if runner.manifest.routes:
        scores = [as_array(runner.run(part).scores[0]) for part in images.split(folder.task.batch)]
        assert runner.manifest.router is not None
        belief = slimmest_score(runner.manifest.router.spec.targets, np.concatenate(scores))
        images = images[np.argsort(belief, kind="stable")]
    return images[spaced(len(images), IMAGES)]


def spaced(total: int, wanted: int) -> Tensor:
    """Evenly spaced numbers below `total`, as many as are wanted or all."""
    return torch.linspace(0, total - 1, min(wanted, total)).long()


def bench_deployed(
    run: Benched, config: BenchConfig, images: Tensor | None, routed: RoutedTimes | None
) -> tuple[list[Latency], list[DeployedTimes]]:
    """The latency tables of a run, and accuracy and milliseconds of its widths and budgets.

    In ONNX Runtime, fixed widths are files of their own, as they would be deployed. routed: known times of budgets.
    """
    tables, ways = [], []
    artefacts, onnx = run.artefacts, "onnx" in config.runtimes
    x = torch.from_numpy(noise(artefacts.manifest, TRIED)) if images is None else images
    for threads in config.threads:
        if "runner" in config.runtimes:
            with torch_threads(threads):
                runner = DynamicRunner(artefacts.net)
                table = measure(runner, repeats=config.repeats, images=x, what=f"PyTorch, {threads_text(threads)}")
                tables.append(table)
                ways += [] if onnx else [bench_budgets(runner, table, config, images=images, evaluation=run.evaluation)]
        if onnx:
            file = FileRunner(
                artefacts.dynamic() if artefacts.manifest.points else artefacts.static(()), threads=threads
            )
            fixed = {path: fixed_call(artefacts, path, threads, x) for path in uniform_paths(file.manifest)}
            what = f"ONNX Runtime, {threads_text(threads)}"
            table = measure(file, repeats=config.repeats, images=x.numpy(), fixed=fixed, what=what)
            rows = [] if routed is None else [row for row in routed.rows if row.name == run.name]
            times = {row.asked: row.times for row in rows if row.threads == threads}
            others = () if routed is None or not times else routed.fixed
            alone = {row.path: row.times for row in others if row.name == run.name}
            tables.append(table)
            arrays = None if images is None else images.numpy()
            known: dict[str, Any] = {"images": arrays, "evaluation": run.evaluation}
            ways.append(bench_budgets(file, table, config, measured=times, fixed=alone, **known))
    return tables, ways


def fixed_call(artefacts: Artefacts, path: WidthPath, threads: int, images: Tensor) -> Call:
    """A call that runs a path from a file of its own."""
    return partial(FileRunner(artefacts.static(path), threads=threads).run_path, images[:1].numpy(), path)


def bench_runs(
    first: Benched, others: Sequence[str], images: Tensor, *, root: str | None = None, threads: int = 1, rounds: int = 1
) -> RoutedTimes:
    """Latency of dynamic networks on a sample of test images.

    With other runs, the networks are compared at equal scores. Runs without an evaluation are scored for that.
    """
    with tempfile.TemporaryDirectory() as scratch:
        runs = [first]
        for number, name in enumerate(others):
            net = RunFolder.of(Path(name)).load().float()
            artefacts = Artefacts(net, Path(scratch) / str(number), first.artefacts.size)
            runs.append(Benched(name, artefacts, evaluation_of(Path(name))))
        points = []
        for run in runs:
            manifest = run.artefacts.manifest
            check_routed(run.name, manifest)
            dynamic = None if run.evaluation is None else run.evaluation.dynamic
            if others and (dynamic is None or dynamic.capped):
                run = replace(run, traces=traces_of(run, root))
            for point in budgets_of(manifest, run.evaluation):
                points.append(AtBudget(run, point, policy_for(manifest, point.asked)))
        rows, fixed = routed_times(points, images, threads=threads, rounds=rounds)
    metric = RunFolder.of(Path(first.name)).task.metric
    equal = equal_accuracy(rows) if others else ()
    model = first.artefacts.manifest.model
    return RoutedTimes(model, len(images), rounds, tuple(rows), machine(), equal, metric, tuple(fixed))


def check_routed(name: str, manifest: Manifest) -> None:
    """Refuse a run whose router has no budgets to be measured at."""
    if manifest.router is None or not manifest.router.budgets:
        raise ValueError(f"{name} has no calibrated router; train it with `dsnet train --stage gate`")


def traces_of(run: Benched, root: str | None) -> Traces:
    """The traces of a run on its whole test split."""
    folder = RunFolder.of(Path(run.name))
    config, data = folder.opened(root)
    split = images_of(folder.task, data, "test", config)
    scorer = folder.task.scorer(run.artefacts.manifest, folder.task.options(config, {}))
    return Traces(eager(run.artefacts.net), split.batches(), scorer, load=split.load)


def routed_times(
    points: Sequence[AtBudget], images: Tensor, *, threads: int, rounds: int
) -> tuple[list[RoutedTime], list[FixedTime]]:
    """One row per run and budget, and one per run and width: every image `rounds` times, one by one, in ONNX Runtime.

    `ideal` is the time of static networks for the same paths, as if the path of each image were known beforehand.
    """
    paths = [[tuple(path) for path in route(at.run.artefacts.net, images, at.policy).paths.tolist()] for at in points]
    calls: dict[Any, Call] = {}
    files: dict[str, FileRunner] = {}
    for number, (at, taken) in enumerate(zip(points, paths, strict=True)):
        name, artefacts = at.run.name, at.run.artefacts
        if name not in files:
            files[name] = FileRunner(artefacts.dynamic(), threads=threads)
        calls[number] = partial(_routed, files[name], at.policy)
        for path in dict.fromkeys([*uniform_paths(artefacts.manifest), *taken]):
            if (name, path) not in calls:
                calls[name, path] = partial(_fixed, FileRunner(artefacts.static(path), threads=threads), path)
    inputs = [(image.numpy(),) for image in images.split(1)]
    what = f"{len(points)} budgets, {len(images)} test images, {threads_text(threads)}"
    times = {
        key: summary(found) for key, found in interleaved(calls, rounds, warmup=1, inputs=inputs, what=what).items()
    }
    rows = []
    for number, (at, taken) in enumerate(zip(points, paths, strict=True)):
        router, table = at.run.artefacts.manifest.router, at.run.artefacts.table
        ideal = float(np.mean([times[at.run.name, path].mean for path in taken]))
        row = RoutedTime(
            name=at.run.name,
            router=router.spec.kind,
            targets=router.spec.targets,
            runtime="onnx",
            threads=threads,
            asked=at.point.asked,
            lam=at.policy.lam,
            madds=float(np.mean([table.madds(path, dynamic=True) for path in taken])),
            paths=len(set(taken)),
            times=times[number],
            ideal=ideal,
            ratio=times[number].mean / ideal,
            score=at.point.score,
            madds_split=at.point.madds,
        )
        if at.run.traces is not None:
            outcome = at.run.traces.at(at.policy)
            row = replace(row, score=at.run.traces.score(outcome), madds_split=outcome.spent)
        rows.append(row)
    widths = {at.run.name: uniform_paths(at.run.artefacts.manifest) for at in points}
    return rows, [FixedTime(name, path, times[name, path]) for name, paths in widths.items() for path in paths]


def _routed(runner: FileRunner, policy: Policy, image: np.ndarray) -> Any:
    return runner.run(image, policy)


def _fixed(runner: FileRunner, path: WidthPath, image: np.ndarray) -> Any:
    return runner.run_path(image, path)


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
