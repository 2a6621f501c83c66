"""Several runs at a glance, and the report as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsnet.report.adapter import as_dict
from dsnet.report.blocks import Block, Chapter, Missing, Plot, Report, Table
from dsnet.report.chapters import RunParts, experiment_chapter, run_chapter
from dsnet.report.html import anchor
from dsnet.report.plots import dynamic_points, line, uniform_points
from dsnet.report.tables import summary_cells, summary_columns
from dsnet.results import Evaluation, combine, kind

SPREAD = 20  # of MAdds, from which on an axis is logarithmic


def compose(name: str, runs: Sequence[RunParts], experiments: Sequence[dict[str, Any]]) -> Report:
    """One chapter where there is one thing to tell of; else experiments, an overview of the runs, and their chapters,
    which open on a click."""
    if len(runs) + len(experiments) == 1:
        only = run_chapter(runs[0]) if runs else experiment_chapter(experiments[0])
        title = runs[0].result.model if runs and runs[0].result else only.title
        words = only.about if title == only.title else f"{only.title}: {only.about}"
        return Report(title, words, [only])
    counts = [(len(runs), "run"), (len(experiments), "experiment")]
    words = " and ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)
    chapters = [experiment_chapter(experiment) for experiment in experiments]
    if runs:
        first = 1 + len(experiments)
        names = {run.name: anchor(first + number) for number, run in enumerate(runs)}
        chapters += [overview(runs, names, folded=bool(experiments)), *(run_chapter(run, folded=True) for run in runs)]
    return Report(name, words, chapters)


def overview(runs: Sequence[RunParts], anchors: dict[str, str], *, folded: bool) -> Chapter:
    blocks: list[Block] = []
    groups = alike([run for run in runs if run.result is not None and not run.detector])
    datasets = list(dict.fromkeys(data_of(result) for _, _, result in groups))
    by_data = {data: [group for group in groups if data_of(group[2]) == data] for data in datasets}
    titles = {data: f"{data[0]}, {data[2]} {data[1]} images" for data in datasets}
    blocks += [Plot(figure([group[1:] for group in mine], titles[data])) for data, mine in by_data.items()]
    detectors = [(run, run.result) for run in runs if run.detector and run.result is not None]
    if detectors:
        blocks.append(Plot({**figure([(run.name, result) for run, result in detectors], "detectors"), "y": "mAP"}))
    for data, mine in by_data.items():
        links = [anchors[first] for first, *_ in mine]
        note = "Top-1 in %; dynamic: at the middle budget; gain: points over fixed widths at the same average MAdds."
        rows = [summary_cells(*group[1:]) for group in mine]
        blocks.append(Table(summary_columns(mine[0][2]), rows, titles[data], note, links=links))
    if detectors:
        rows = [summary_cells(run.name, result) for run, result in detectors]
        links = [anchors[run.name] for run, _ in detectors]
        blocks.append(Table(summary_columns(detectors[0][1]), rows, "detectors", links=links))
    for run in runs:
        if run.result is None:
            blocks.append(Missing(f"the evaluation of {run.name}", f"Run `dsnet eval {run.place}`."))
    return Chapter("Overview of the runs", "", blocks, folded=folded)


def data_of(result: Evaluation) -> tuple[str, str, int]:
    """What results must share to be drawn together: all folders of images are called folder, so their number counts."""
    return result.dataset, result.split, result.images


def alike(runs: Sequence[RunParts]) -> list[tuple[str, str, Evaluation]]:
    """Runs that differ in their seed only as one, with means and standard deviations: first run, label, result."""
    groups: dict[str, list[RunParts]] = {}
    for run in runs:
        assert run.result is not None
        groups.setdefault(repr(kind(run.result)), []).append(run)
    found: list[tuple[str, str, Evaluation]] = []
    for mine in groups.values():
        results = [run.result for run in mine if run.result is not None]
        try:
            more = f" + {len(mine) - 1} seed{'s' * (len(mine) > 2)}" if len(mine) > 1 else ""
            found.append((mine[0].name, mine[0].name + more, combine(results)))
        except ValueError:  # the same seed, or other paths and budgets
            found += [(run.name, run.name, run.result) for run in mine if run.result is not None]
    return found


def figure(groups: Sequence[tuple[str, Evaluation]], dataset: str) -> dict[str, Any]:
    """Every dynamic network, every distinct curve of fixed widths, every static network."""
    fixed: dict[str, tuple[list[str], Evaluation, list[list[Any]]]] = {}
    for name, result in groups:
        points = uniform_points(as_dict(result))
        fixed.setdefault(repr([point[:2] for point in points]), ([], result, points))[0].append(name)
    series = []
    for names, result, points in fixed.values():
        lone = len(points) == 1
        named = result.model if len(names) > 1 else names[0]
        part = line(f"{named}, {'static' if lone else 'fixed widths'}", points, dashed=True)
        series.append({**part, "kind": "points"} if lone else part)
    routed = [(name, as_dict(result)) for name, result in groups if result.dynamic is not None]
    series += [line(f"{name}, dynamic", dynamic_points(result)) for name, result in routed]
    madds = [point[0] for part in series for point in part["points"]]
    plot = {"title": dataset, "x": "MAdds, average over images", "y": "top-1 (%)", "series": series}
    return {**plot, "log_x": max(madds) > SPREAD * min(madds)}
