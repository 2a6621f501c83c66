"""The content of reports: evaluations, benchmarks, experiments, and the runs of a folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dsnet.prediction.answers import CONFIDENCE
from dsnet.report import advice, charts, classes, tables
from dsnet.report.bench import bench_tables
from dsnet.report.document import Block, Chapter, Document, Figure, Images, Picture, Table, Text, made_by, missing
from dsnet.report.drift import drift_tables
from dsnet.report.page import anchor
from dsnet.report.seeds import combine, kind
from dsnet.results import Bench, Evaluation, Experiment

DIFFICULTY = (
    "Easy: the slimmest width (the exit, if there is one) is right. Dependent: only wider ones are. Hard: none is."
)
DRIFT = (
    "A budget is an average over the calibration images. On corrupted copies of the test images the router spends more "
    "or less; `dsnet predict --budget_tracking` corrects the budget while images run."
)
IDEAL = "Ideal: the same path as a static network of the same runtime. Times vary from run to run; compare the ratios."


@dataclass(frozen=True)
class Run:
    """Everything that a report shows about a run. Missing parts are None or empty.

    why: reasons why `result`, `bench` or `pictures` is missing, if the file is not simply absent.
    """

    name: str
    folder: str
    config: str | None = None
    result: Evaluation | None = None
    bench: Bench | None = None
    metrics: Sequence[Mapping[str, float]] = ()
    gate_metrics: Sequence[Mapping[str, float]] = ()
    pictures: Sequence[Images] = ()
    sheet: bytes | None = None
    static: Sequence[Evaluation] = ()
    why: Mapping[str, str] = field(default_factory=dict)

    def remedy(self, part: str, command: str) -> str:
        """Why a part is missing, or the command that creates it."""
        words = self.why.get(part, "")
        return sentence(words) if words else f"Run `{command} {shlex.quote(self.folder)}`."


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def compose(name: str, runs: Sequence[Run], experiments: Sequence[Experiment]) -> Document:
    """A document of one chapter for a single run or experiment. Otherwise it has the experiments, an overview of the
    runs, and a folded chapter for each run."""
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


# Results as blocks


def evaluation_blocks(result: Evaluation) -> list[Block]:
    """Every table and warning of an evaluation, and how the network was trained."""
    paths, *others = tables.evaluation_tables(result)
    words = advice.paragraph(result, None, "RUN")
    first = [Text(words)] if words else []
    trained = Text(f"Training: {json.dumps(result.training)}.")
    tabled = [Table(replace(paths, title="")), *map(Table, [*others, *drift_tables(result)])]
    return [*first, *tabled, *warnings(result), trained]


def warnings(result: Evaluation) -> list[Text]:
    routing = result.dynamic.warnings if result.dynamic is not None else ()
    return [Text(f"Warning: {words}") for words in (*result.warnings, *routing)]


def experiment_parts(result: Experiment) -> tuple[list[Block], list[Block], list[Block], list[Block]]:
    """Text, tables, verdicts and figures."""
    text: list[Block] = [*map(Text, result.text)]
    verdicts: list[Block] = [Table(tables.claims_table(result, "Does it hold?"))] if result.claims else []
    if result.runs:
        verdicts += [Text(result.rule)] * bool(verdicts and result.rule)
        seeds = ", ".join(map(str, result.seeds))
        text += [Text(f"Mean ± standard deviation over seeds {seeds}.")] * (len(result.seeds) > 1)
    return text, [*map(Table, result.tables)], verdicts, [*map(Figure, result.figures)]


def examples_note(result: Evaluation) -> str:
    where = "at its widest"
    if result.dynamic is not None:
        row = result.dynamic.best_row
        where = f"at budget {row.name}" if row.name else f"at {tables.human(row.madds.mean)} MAdds"
    confidence = float(result.options.get("confidence", CONFIDENCE))
    return (
        f"What {result.model} finds {where} with a confidence of {confidence:.0%} or more in "
        f"{result.split} images; dashed are the annotated objects."
    )


# Runs


def run_chapter(run: Run, *, folded: bool = False) -> Chapter:
    blocks: list[Block] = []
    about = "not evaluated"
    if run.result is not None:
        about = tables.title(run.result)
        words = advice.paragraph(run.result, run.bench, run.folder)
        blocks += [Text(words, kind="advice")] if words else []
        blocks.append(Table(advice.key_figures(run.result, run.bench), "tiles"))
    for title, parts in sections(run).items():
        blocks += [Text(title, kind="heading"), *parts]
    return Chapter(run.name, about, blocks, folded)


def sections(run: Run) -> dict[str, Sequence[Block]]:
    """The sections of a run's chapter by title. Static networks have no routes, and detectors show boxes instead of
    classes."""
    result = run.result
    ends = {"Latency against ideal": latency(run), "Training": training(run), "Config": config(run)}
    if result is not None and result.static:
        told: dict[str, Sequence[Block]] = {"Classes": confusions(run)} if result.answers else {}
        return {"Accuracy": scores(run), **told, **ends}
    titled = {"Accuracy against MAdds": scores(run), "Gate distributions": gates(run)}
    if result is not None and result.drift:
        titled["Budgets on other images"] = [Text(DRIFT), *map(Table, drift_tables(result))]
    if result is None or result.objects is None:
        titled |= {"Easy and hard images": pictures(run), "Routes per class": routes(run)}
        titled["Classes"] = confusions(run)
    elif run.sheet is not None:
        sheet = Images("detections in example images", [Picture(run.sheet)], sheet=True)
        titled["Examples"] = [Text(examples_note(result)), sheet]
    if result is not None and result.objects is not None and (lost := classes.losses_table(result)) is not None:
        titled["Classes"] = [Text(classes.worst(result)), Table(lost, "folded")]
    return {**titled, **ends}


def not_routed(run: Run, what: str) -> Text:
    if run.result is None:
        return missing(what, run.remedy("result", "dsnet eval"))
    return missing(what, f"This network has no router. {run.remedy('router', 'dsnet train --stage gate --from')}")


def scores(run: Run) -> list[Block]:
    result = run.result
    if result is None:
        return [missing("accuracy against MAdds", run.remedy("result", "dsnet eval"))]
    paths = replace(tables.paths_table(result), title="Every path that was evaluated")
    by_class, budgets = tables.classes_table(result), tables.budgets_table(result)
    clocks = [] if run.bench is None else charts.clocks(run.bench)
    blocks: list[Block] = [*map(Figure, [charts.accuracy([result], run.static), *clocks]), Table(paths, "folded")]
    blocks += [] if by_class is None else [Table(by_class, "folded")]
    if budgets is not None:
        windows = tables.windows_table(result)
        return [*blocks, Table(budgets), *([] if windows is None else [Table(windows)]), *warnings(result)]
    return blocks if result.static else [*blocks, not_routed(run, "the dynamic network")]


def gates(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "gate distributions")]
    bars, by_difficulty = Figure(charts.gates(run.result)), charts.difficulty(run.result)
    return [bars] if by_difficulty is None else [bars, Figure(by_difficulty), Text(DIFFICULTY)]


def pictures(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "example images")]
    madds = tables.human(run.result.dynamic.best_row.madds.mean)
    words = Text(f"Images with the cheapest and the most expensive paths at {madds} MAdds, of each class in turn.")
    if run.pictures:
        routed = any(len(picture.lines) > 1 for group in run.pictures for picture in group.pictures)
        again = [] if routed else [missing("routes of example images", run.remedy("routes", "dsnet eval"))]
        return [words, *run.pictures, *again]
    why = run.remedy("pictures", "dsnet eval")
    if run.sheet is not None:
        sheet = Images("images routed slimmest and widest", [Picture(run.sheet)], sheet=True)
        return [words, sheet, missing("single images with their routes", f"{why} `dsnet eval` drew this sheet.")]
    return [missing("example images", f"{why} If the data has moved, say where it is with `--root`.")]


def routes(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "per-class routing")]
    table, bars = tables.routes_table(run.result), charts.classes(run.result)
    if table is None or bars is None:
        return [missing("per-class routing", run.remedy("routes", "dsnet eval"))]
    return [Figure(bars), Table(table, "folded")]


def confusions(run: Run) -> list[Block]:
    """What is confused, precision and recall of every class, and what every budget costs each class."""
    if run.result is None or not run.result.answers:
        return [missing("confusions and scores of classes", run.remedy("answers", "dsnet eval"))]
    result, words = run.result, classes.worst(run.result)
    blocks: list[Block] = [*map(Figure, classes.matrices(result))]
    pairs, lost, told = classes.pairs_table(result), classes.losses_table(result), classes.scores_table(result)
    blocks += [] if pairs is None else [Table(pairs)]
    blocks += [Text(words)] if words else []
    return [*blocks, *(Table(table, "folded") for table in (lost, told) if table is not None)]


def latency(run: Run) -> list[Block]:
    if run.bench is None:
        return [missing("latency against ideal", run.remedy("bench", "dsnet bench"))]
    figures = map(Figure, charts.latency(run.bench))
    return [*figures, Text(IDEAL), *(Table(table, "folded") for table in bench_tables(run.bench))]


def training(run: Run) -> list[Block]:
    blocks: list[Block] = []
    measure = "score" if run.result is None else run.result.metric.name
    parts = (("Stage I", run.metrics, f"{measure} on calibration images"), ("Stage II", run.gate_metrics, ""))
    for stage, metrics, calibration in parts:
        for what, y in (("loss", "loss"), ("calibration", calibration)):
            chart = charts.curves(metrics, what, title=f"{stage}: {what}", y=y)
            blocks += [Figure(chart)] if chart.series else []
    if not run.metrics:
        words = "There is no metrics.jsonl, or nothing in it; `dsnet train` writes it."
        if run.gate_metrics:
            words = "A run of stage gate has no such curves; see the run that it started from."
        blocks.append(missing("training curves of stage I", words))
    if run.result is not None and run.result.dynamic is not None and not run.gate_metrics:
        words = (
            "There is no gate/metrics.jsonl. A threshold router is not trained; training any other router writes it."
        )
        blocks.append(missing("training curves of stage II", words))
    return blocks


def config(run: Run) -> list[Block]:
    block = missing("the config", "There is no config.yaml in the folder; `dsnet train` writes it.")
    if run.config is not None:
        block = Text(run.config, "config.yaml", "code")
    return [block] if run.result is None else [block, Text(made_by(run.result.made, what="Evaluated"))]


# Several runs


def overview(runs: Sequence[Run], links: Mapping[str, str], *, folded: bool) -> Chapter:
    """A figure and a table for each dataset; runs that differ only in their seed are combined."""
    by_data: dict[tuple[str, ...], list[tuple[str, str, Evaluation]]] = {}
    for group in alike(runs):
        by_data.setdefault(data_of(group[2]), []).append(group)
    figures, rows = [], []
    for entries in by_data.values():
        first, named = entries[0][2], [group[1:] for group in entries]
        title = f"{first.dataset}, {first.images} {first.split} images"
        figures.append(Figure(charts.overview(named, title)))
        rows.append(Table(tables.summary_table(title, named), links=[links[name] for name, *_ in entries]))
    lost = [
        missing(f"the evaluation of {run.name}", run.remedy("result", "dsnet eval"))
        for run in runs
        if run.result is None
    ]
    return Chapter("Overview of the runs", "", [*figures, *rows, *lost], folded)


def data_of(result: Evaluation) -> tuple[str, ...]:
    """What results must share to be drawn together. The number of images tells datasets of the same name apart."""
    return result.task, result.dataset, result.split, str(result.images)


def alike(runs: Sequence[Run]) -> list[tuple[str, str, Evaluation]]:
    """Combine runs that differ only in their seed: (name of the first run, label, result) of each group."""
    groups: dict[str, list[tuple[str, Evaluation]]] = {}
    for run in runs:
        if run.result is not None:
            groups.setdefault(repr(kind(run.result)), []).append((run.name, run.result))
    combined: list[tuple[str, str, Evaluation]] = []
    for members in groups.values():
        try:
            more = f" + {len(members) - 1} seed{'s' * (len(members) > 2)}" if len(members) > 1 else ""
            combined.append((members[0][0], members[0][0] + more, combine([result for _, result in members])))
        except ValueError:  # the same seed, or other paths and budgets
            combined += [(name, name, result) for name, result in members]
    return combined


# Experiments


def experiment_chapter(experiment: Experiment) -> Chapter:
    """The chapter of a result of `dsnet reproduce`."""
    text, numbers, verdicts, figures = experiment_parts(experiment)
    seeds = experiment.seeds
    words = [f"scale {experiment.scale}"] if experiment.scale else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    blocks = [*text, *verdicts, *figures, *numbers, Text(made_by(experiment.made))]
    return Chapter(experiment.title or experiment.experiment, ", ".join(words), blocks)
