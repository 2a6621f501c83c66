"""What a report says about runs and experiments."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dsnet import results
from dsnet.report import charts, tables
from dsnet.report.bench import bench_tables
from dsnet.report.document import (
    Block,
    Chapter,
    Document,
    Figure,
    Images,
    Picture,
    Section,
    Table,
    Text,
    made_by,
    missing,
)
from dsnet.report.experiment import claims_table
from dsnet.report.keys import key_figures
from dsnet.report.page import anchor
from dsnet.report.seeds import combine, kind
from dsnet.report.tables import human
from dsnet.results import Bench, Evaluation, Experiment

GAIN = "Top-1 in %; dynamic: at the middle budget; gain: points over fixed widths at the same average MAdds."


@dataclass(frozen=True)
class Run:
    """All that a run's folder has to tell. Where something is not there, it is None or empty, and `no_result`,
    `no_bench` and `no_pictures` say why if there is more to say than that."""

    name: str
    folder: str
    config: str | None = None
    result: Evaluation | None = None
    no_result: str = ""
    bench: Bench | None = None
    no_bench: str = ""
    metrics: Sequence[Mapping[str, float]] = ()
    gate_metrics: Sequence[Mapping[str, float]] = ()
    pictures: Sequence[Images] = ()
    no_pictures: str = ""
    sheet: bytes | None = None
    detector: bool = False
    static: Sequence[Evaluation] = ()

    @property
    def place(self) -> str:
        return shlex.quote(self.folder)


def compose(name: str, runs: Sequence[Run], experiments: Sequence[Experiment]) -> Document:
    """One chapter where there is one thing to tell of; else experiments, an overview of the runs, and their chapters,
    which open on a click."""
    if len(runs) + len(experiments) == 1:
        only = run_chapter(runs[0]) if runs else experiment_chapter(experiments[0])
        title = runs[0].result.model if runs and runs[0].result is not None else only.title
        words = only.about if title == only.title else f"{only.title}: {only.about}"
        return Document(title, words, [only])
    counts = [(len(runs), "run"), (len(experiments), "experiment")]
    words = " and ".join(f"{count} {noun}{'s' * (count > 1)}" for count, noun in counts if count)
    chapters = [experiment_chapter(experiment) for experiment in experiments]
    if runs:
        first = 1 + len(experiments)
        links = {run.name: anchor(first + number) for number, run in enumerate(runs)}
        chapters += [overview(runs, links, folded=bool(experiments)), *(run_chapter(run, folded=True) for run in runs)]
    return Document(name, words, chapters)


# Runs


def run_chapter(run: Run, *, folded: bool = False) -> Chapter:
    lead: list[Block] = []
    about = "not evaluated"
    if run.result is not None:
        about = tables.title(run.result)
        rows = tuple(key_figures(run.result, run.bench))
        lead.append(Table(results.Table("", ("<", "", "<"), rows), "tiles"))
    return Chapter(run.name, about, lead, [*sections_of(run), training(run), config(run)], folded=folded)


def sections_of(run: Run) -> list[Section]:
    noun = "Precision" if run.detector else "Accuracy"
    if run.result is not None and run.result.static:
        return [Section(noun, scores(run)), Section("Latency", latency(run))]
    found = [Section(f"{noun} against MAdds", scores(run)), Section("Gate distributions", gates(run))]
    if not run.detector:
        found += [Section("Easy and hard images", pictures(run)), Section("Routes per class", routes(run))]
    elif run.sheet is not None:
        sheet = Images("detections in example images", [Picture(run.sheet)], sheet=True)
        words = "Boxes are detections at the middle budget, dashed ones the annotated objects."
        found.append(Section("Examples", [Text(words), sheet]))
    return [*found, Section("Latency against ideal", latency(run))]


def not_evaluated(run: Run, what: str) -> Text:
    words = f"There is no evaluation that can be read; run `dsnet eval {run.place}`."
    return missing(what, sentence(run.no_result) or words)


def not_routed(run: Run, what: str) -> Text:
    if run.result is None:
        return not_evaluated(run, what)
    return missing(what, f"This network has no router; train one with `dsnet train --stage gate --from {run.place}`.")


def sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:].rstrip('.')}." if words else ""


def scores(run: Run) -> list[Block]:
    result = run.result
    if result is None:
        return [not_evaluated(run, f"{'precision' if run.detector else 'accuracy'} against MAdds")]
    blocks: list[Block] = [Figure(charts.accuracy([result], run.static))]
    paths = replace(tables.paths_table(result), title="Every path that was evaluated")
    blocks.append(Table(paths, "open" if run.detector else "folded"))
    if (by_class := tables.classes_table(result)) is not None:
        blocks.append(Table(by_class, "folded"))
    budgets = tables.budgets_table(result)
    if budgets is not None and result.dynamic is not None:
        blocks += [Table(budgets), *(Text(f"Warning: {warning}") for warning in result.dynamic.warnings)]
    elif not result.static:
        blocks.append(not_routed(run, "the dynamic network"))
    return blocks


def gates(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "gate distributions")]
    found = charts.difficulty(run.result)
    if found is None:
        return [Figure(charts.gates(run.result))]
    words = "Easy: the slimmest width is right. Dependent: only wider ones are. Hard: no width is."
    return [Figure(charts.gates(run.result)), Figure(found), Text(words)]


def pictures(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "example images")]
    madds = human(run.result.dynamic.middle.madds.mean)
    words = Text(f"The images with the cheapest and the dearest paths, the surest first, at {madds} MAdds.")
    if run.pictures:
        routed = any(len(picture.lines) > 1 for group in run.pictures for picture in group.pictures)
        again = [] if routed else [missing("routes of example images", f"Run `dsnet eval {run.place}` again.")]
        return [words, *run.pictures, *again]
    if run.sheet is not None:
        sheet = Images("images routed slimmest and widest", [Picture(run.sheet)], sheet=True)
        why = f"{sentence(run.no_pictures)} This sheet was drawn by `dsnet eval`."
        return [words, sheet, missing("single images with their routes", why)]
    why = (
        f"{run.no_pictures or 'There are none'}; say where the data is with `--root`, or run `dsnet eval {run.place}`."
    )
    return [missing("example images", why)]


def routes(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "per-class routing")]
    table, bars = tables.routes_table(run.result), charts.classes(run.result)
    if table is None or bars is None:
        return [missing("per-class routing", f"Run `dsnet eval {run.place}` again.")]
    return [Figure(bars), Table(table, "folded")]


def latency(run: Run) -> list[Block]:
    if run.bench is None:
        return [missing("latency against ideal", sentence(run.no_bench) or f"Run `dsnet bench {run.place}`.")]
    figures = [Figure(chart) for chart in charts.latency(run.bench)]
    words = "Ideal: the same path as a static network of the same runtime. Times are noise, ratios are what counts."
    return [*figures, Text(words), *(Table(part, "folded") for part in bench_tables(run.bench))]


def training(run: Run) -> Section:
    blocks: list[Block] = []
    measure = "mAP" if run.detector else "top-1"
    parts = (("Stage I", run.metrics, f"{measure} on calibration images"), ("Stage II", run.gate_metrics, ""))
    for stage, metrics, calibration in parts:
        for what, y in (("loss", "loss"), ("calibration", calibration)):
            chart = charts.curves(metrics, what, title=f"{stage}: {what}", y=y)
            blocks += [Figure(chart)] if chart.series else []
    if not run.metrics:
        words = "There is no metrics.jsonl, or nothing in it; `dsnet train` writes it."
        if run.gate_metrics:
            words = "A run of stage gate has none of its own; those of the run that it came from are there."
        blocks.append(missing("training curves of stage I", words))
    if run.result is not None and run.result.dynamic is not None and not run.gate_metrics:
        words = "gate/metrics.jsonl is not there: a threshold router does not train, others write it."
        blocks.append(missing("training curves of stage II", words))
    return Section("Training", blocks)


def config(run: Run) -> Section:
    found = missing("the config", "There is no config.yaml in the folder; `dsnet train` writes it.")
    if run.config is not None:
        found = Text(run.config, "config.yaml", "code")
    blocks = [found]
    if run.result is not None:
        blocks.append(Text(made_by(run.result.made, what="Evaluated")))
    return Section("Config", blocks)


# Several runs


def overview(runs: Sequence[Run], links: Mapping[str, str], *, folded: bool) -> Chapter:
    """A figure and a table for each set of data; runs that differ in their seed only are one."""
    groups = alike([run for run in runs if run.result is not None])
    by_data: dict[tuple[str, ...], list[tuple[str, str, Evaluation]]] = {}
    for group in groups:
        by_data.setdefault(data_of(group[2]), []).append(group)
    titles = {
        data: f"{mine[0][2].dataset}, {mine[0][2].images} {mine[0][2].split} images" for data, mine in by_data.items()
    }
    blocks: list[Block] = [
        Figure(charts.overview([group[1:] for group in mine], titles[data])) for data, mine in by_data.items()
    ]
    for data, mine in by_data.items():
        rows = tuple(tuple(tables.summary_cells(name, result)) for _, name, result in mine)
        note = GAIN if mine[0][2].objects is None else ""
        content = results.Table(titles[data], tuple(tables.summary_columns(mine[0][2])), rows, note)
        blocks.append(Table(content, links=[links[first] for first, *_ in mine]))
    for run in runs:
        if run.result is None:
            words = sentence(run.no_result) or f"Run `dsnet eval {run.place}`."
            blocks.append(missing(f"the evaluation of {run.name}", words))
    return Chapter("Overview of the runs", "", blocks, folded=folded)


def data_of(result: Evaluation) -> tuple[str, ...]:
    """What results must share to be drawn together: all folders of images are called folder, so their number counts."""
    return result.task, result.dataset, result.split, str(result.images)


def alike(runs: Sequence[Run]) -> list[tuple[str, str, Evaluation]]:
    """Runs that differ in their seed only as one, with means and standard deviations: first run, label, result."""
    groups: dict[str, list[tuple[str, Evaluation]]] = {}
    for run in runs:
        if run.result is not None:
            groups.setdefault(repr(kind(run.result)), []).append((run.name, run.result))
    found: list[tuple[str, str, Evaluation]] = []
    for mine in groups.values():
        try:
            more = f" + {len(mine) - 1} seed{'s' * (len(mine) > 2)}" if len(mine) > 1 else ""
            found.append((mine[0][0], mine[0][0] + more, combine([result for _, result in mine])))
        except ValueError:  # the same seed, or other paths and budgets
            found += [(name, name, result) for name, result in mine]
    return found


# Experiments


def experiment_chapter(experiment: Experiment, *, folded: bool = False) -> Chapter:
    """A result of `dsnet reproduce`, as it comes."""
    blocks: list[Block] = [Text(words) for words in experiment.text]
    if experiment.claims:
        blocks.append(Table(claims_table(experiment)))
    blocks += [Figure(figure) for figure in experiment.figures]
    blocks += [Table(table) for table in experiment.tables]
    blocks.append(Text(made_by(experiment.made)))
    seeds = experiment.seeds
    words = [f"scale {experiment.scale}"] if experiment.scale else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    return Chapter(experiment.title or experiment.experiment, ", ".join(words), blocks, folded=folded)
