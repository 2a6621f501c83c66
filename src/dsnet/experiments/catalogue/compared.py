"""A dynamic network that began pretrained, next to what its user would do instead: what `slim` and `sizes` share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from dsnet.config import CONFIG
from dsnet.experiments.catalogue.alternatives import rule_of
from dsnet.experiments.catalogue.slim_points import DYNAMIC, STATIC, Curves, Points, Times, timed
from dsnet.experiments.catalogue.starts import SWEEP, sweep_label
from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Findings, Runs
from dsnet.experiments.measures import series
from dsnet.results import Chart, Claim
from dsnet.results import Table as ResultTable
from dsnet.runs.folder import RunFolder

LOST = 0.003  # of the static network's accuracy, which may be given up
COLUMNS = ("top-1", "MAdds", "of static", "p50 ms", "p95 ms", "of static's ms")
AXES = {
    COLUMNS[-1]: "mean ms over static's (ONNX Runtime, one thread, one image)",
    "MAdds": "MAdds (M), average over images",
}  # of the figures
Line = dict[str, dict[int, float | None]]  # values of a row by column and seed


class Compared(NamedTuple):
    """All operating points by seed and label, accuracies over budgets, and milliseconds. run: The dynamic network of
    the first seed. scratch: A folder for files that are timed."""

    points: Mapping[int, Points]
    curves: Mapping[int, Curves]
    times: Times
    run: Finished
    scratch: Path

    @property
    def labels(self) -> list[str]:
        """The labels of every seed, each of them once."""
        return list(dict.fromkeys(label for points in self.points.values() for label in points))

    @property
    def groups(self) -> dict[str, str]:
        """The group of every label."""
        return {label: point.group for points in self.points.values() for label, point in points.items()}


def compared(
    runs: Runs,
    points_of: Callable[[Mapping[str, Finished], Path], tuple[Points, Curves]],
    tables: Callable[[Compared], Iterable[ResultTable]],
    claims: Callable[[Compared], Sequence[Claim]],
    *,
    title: str,
    note: str,
    drawn: Callable[[str], bool] = lambda group: True,
) -> Findings:
    """Accuracy, MAdds and milliseconds of everything that could be deployed, over the seeds whose runs are finished.

    tables: More tables. drawn: Whether the figures show a group.
    """
    by_seed = {label: {run.seed: run for run in mine} for label, mine in runs.items()}
    seeds = sorted(set(by_seed[DYNAMIC]) & set(by_seed[STATIC]))
    if not seeds:
        return Findings(("No seed is finished yet.",), (), (), ())
    with tempfile.TemporaryDirectory() as name:
        points: dict[int, Points] = {}
        curves: dict[int, Curves] = {}
        for seed in seeds:
            mine = {label: each[seed] for label, each in by_seed.items() if seed in each}
            mine[STATIC] = best_static(mine)
            points[seed], curves[seed] = points_of(mine, Path(name) / str(seed))
        run = by_seed[DYNAMIC][seeds[0]]
        found = Compared(points, curves, timed(points, run), run, Path(name))
        more = tuple(tables(found))
    hidden = {label for mine in points.values() for label, point in mine.items() if point.beside}
    values = {label: figures(label, found) for label in found.labels if label not in hidden}
    rows = tuple((label, *cells(line), str(len(line["top-1"]))) for label, line in values.items())
    kept = {label: {name: dict(mine.items()) for name, mine in line.items()} for label, line in values.items()}
    count, judgements = len(next(iter(found.times.values()))), tuple(claims(found))
    table = ResultTable(title, ("<network", *COLUMNS, "seeds"), rows, note.format(images=count), kept)
    return Findings(
        text=(),
        tables=(table, *more, *sweep(by_seed), *trainings(by_seed, seeds)),
        claims=judgements,
        figures=tuple(chart(values, found.groups, over, drawn) for over in AXES),
        rule=rule_of(judgements),
        seeds=tuple(seeds),
    )


def best_static(runs: Mapping[str, Finished]) -> Finished:
    """Of the static networks of one seed, which differ in their learning rates, the best on the calibration images."""
    return max((runs[label] for label in rates() if label in runs), key=on_calibration)


def rates() -> list[str]:
    """The static network at the recipe's learning rate, and at the others."""
    return [STATIC, *map(sweep_label, SWEEP)]


def on_calibration(run: Finished) -> float:
    """Accuracy of a static network on the calibration images. Training keeps the best epoch."""
    return max(float(line[key]) for line in run.history for key in line if key.startswith("calibration/"))


def sweep(runs: Mapping[str, Mapping[int, Finished]]) -> Iterator[ResultTable]:
    """The learning rates of the static network: accuracy on the calibration images, which chose among them."""
    rows = []
    for label in rates():
        for seed, run in sorted(runs.get(label, {}).items()):
            rate = RunFolder.of(run.folder).config().optim.lr
            rows.append((f"{rate:g}", str(seed), f"{100 * on_calibration(run):.2f}"))
    if rows:
        columns = ("learning rate", "seed", "calibration top-1")
        yield ResultTable("Learning rates of the static network", columns, tuple(rows))


def trainings(runs: Mapping[str, Mapping[int, Finished]], seeds: Sequence[int]) -> Iterator[ResultTable]:
    """Seconds of training steps of every run, and of the run without labels that it started from."""
    rows = []
    for label, mine in runs.items():
        for seed in [seed for seed in seeds if seed in mine]:
            own, source = seconds_of(mine[seed]), RunFolder.of(mine[seed].folder).config().source
            trained = source is not None and (Path(source) / CONFIG).is_file()
            before = f"{seconds_of(Finished(Path(source), seed)):.0f}" if trained else ""
            rows.append((label, str(seed), f"{own:.0f}", f"{own / seconds_of(runs[STATIC][seed]):.2f}", before))
    note = (
        "Seconds of training steps by the clock, without validation; other runs may have trained at the same time. A "
        "repair without labels is made once for all tasks."
    )
    columns = ("<network", "seed", "seconds", "of static's", "seconds of the repair before")
    yield ResultTable("How long the networks learned", columns, tuple(rows), note)


def seconds_of(run: Finished) -> float:
    """Seconds of a run's steps in stage I, from the images per second of its epochs."""
    batch, before, total = int(RunFolder.of(run.folder).config().optim.batch_size), 0, 0.0
    for line in run.history:
        total += (line["step"] - before) * batch / max(line["images_per_second"], 1e-9)
        before = line["step"]
    return total


def figures(label: str, found: Compared) -> Line:
    """The columns of a row, by the seeds that have it."""
    line: Line = {name: {} for name in COLUMNS}
    for seed, points in found.points.items():
        if label not in points:
            continue
        spent, whole = found.times.get((seed, label)), found.times[seed, STATIC]
        mine = (
            float(points[label].right.mean()),
            points[label].madds,
            points[label].madds / points[STATIC].madds,
            None if spent is None else float(np.median(spent)),
            None if spent is None else float(np.quantile(spent, 0.95)),
            None if spent is None else float(spent.mean() / whole.mean()),
        )
        for name, value in zip(COLUMNS, mine, strict=True):
            line[name][seed] = value
    return line


def cells(line: Line) -> list[str]:
    """The figures of a row as text: means over seeds."""
    forms = ("{:.2%}", "{:.1f}M", "{:.3f}", "{:.2f}", "{:.2f}", "{:.2f}")
    found = []
    for name, form in zip(COLUMNS, forms, strict=True):
        known = [value for value in line[name].values() if value is not None]
        unit = 1e-6 if name == "MAdds" else 1.0
        found.append(form.format(unit * mean(known)).replace("%", "") if known else "")
    return found


def chart(
    values: Mapping[str, Line], groups: Mapping[str, str], over: str, drawn: Callable[[str], bool] = lambda group: True
) -> Chart:
    """Accuracy over milliseconds or MAdds, one line per kind of network."""
    unit = 1e-6 if over == "MAdds" else 1.0
    lines = []
    for group in filter(drawn, dict.fromkeys(groups[label] for label in values)):
        mine = [values[label] for label in values if groups[label] == group]
        mine = [line for line in mine if all(value is not None for value in line[over].values())]
        seeds = [seed for seed in mine[0][over] if all(seed in line[over] for line in mine)] if mine else []
        curves = [
            sorted((unit * (line[over][seed] or 0.0), 100 * (line["top-1"][seed] or 0.0)) for line in mine)
            for seed in seeds
        ]
        if curves:
            lines.append(series(group, curves, "line" if len(mine) > 1 else "points"))
    return Chart(
        f"Accuracy against {'MAdds' if over == 'MAdds' else 'mean milliseconds'}",
        AXES[over],
        "top-1 accuracy (%)",
        tuple(lines),
    )
