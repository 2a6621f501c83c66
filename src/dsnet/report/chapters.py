"""What a report says about evaluations, benchmarks and experiments, and about the runs of a folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from dsnet.predict.answers import CONFIDENCE
from dsnet.report import charts, tables
from dsnet.report.document import Block, Chapter, Document, Figure, Images, Picture, Table, Text, made_by, missing
from dsnet.report.page import anchor
from dsnet.report.seeds import combine, kind
from dsnet.results import Bench, Evaluation, Experiment

DIFFICULTY = "Easy: the slimmest width is right. Dependent: only wider ones are. Hard: no width is."
IDEAL = "Ideal: the same path as a static network of the same runtime. Times are noise, ratios are what counts."
MEANING = (
    "Differences are paired by seed, in points for accuracies. A direction holds if every seed shows it; it has no "
    "verdict where seeds disagree or nothing differs. With few seeds, a small difference that holds is no proof."
)


@dataclass(frozen=True)
class Run:
    """All that a run's folder has to tell. What is not there is None or empty; `why` says of `result`, `bench` and
    `pictures` why, if there is more to say than that."""

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
        """Why a part is missing, or the command that brings it."""
        words = self.why.get(part, "")
        return sentence(words) if words else f"Run `{command} {shlex.quote(self.folder)}`."


def sentence(words: str) -> str:
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


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


# Results as blocks


def evaluation_blocks(result: Evaluation) -> list[Block]:
    """Every table, warnings, and how the network was trained."""
    paths, *others = tables.evaluation_tables(result)
    trained = Text(f"Training: {json.dumps(result.training)}.")
    return [Table(replace(paths, title="")), *map(Table, others), *warnings(result), trained]


def warnings(result: Evaluation) -> list[Text]:
    return [Text(f"Warning: {words}") for words in (result.dynamic.warnings if result.dynamic is not None else ())]


def experiment_parts(result: Experiment) -> tuple[list[Block], list[Block], list[Block], list[Block]]:
    """Text, tables, verdicts and figures."""
    text: list[Block] = [*map(Text, result.text)]
    verdicts: list[Block] = [Table(tables.claims_table(result, "Does it hold?"))] if result.claims else []
    if result.runs:
        verdicts += [Text(MEANING)] * bool(verdicts)
        seeds = ", ".join(map(str, result.seeds))
        text += [Text(f"Mean ± standard deviation over seeds {seeds}.")] * (len(result.seeds) > 1)
    return text, [*map(Table, result.tables)], verdicts, [*map(Figure, result.figures)]


def examples_note(result: Evaluation) -> str:
    how = "at budget M" if result.dynamic is not None else "at its widest"
    confidence = float(result.options.get("confidence", CONFIDENCE))
    return (
        f"What {result.model} finds {how} with a confidence of {confidence:.0%} or more in "
        f"{result.split} images; dashed are the annotated objects."
    )


# Runs


def run_chapter(run: Run, *, folded: bool = False) -> Chapter:
    blocks: list[Block] = []
    about = "not evaluated"
    if run.result is not None:
        about = tables.title(run.result)
        blocks.append(Table(tables.key_figures(run.result, run.bench), "tiles"))
    for title, mine in sections(run).items():
        blocks += [Text(title, kind="heading"), *mine]
    return Chapter(run.name, about, blocks, folded)


def sections(run: Run) -> dict[str, Sequence[Block]]:
    """What a run's chapter tells, by title. One width has no routes, and boxes are shown instead of classes."""
    result = run.result
    ends = {"Latency against ideal": latency(run), "Training": training(run), "Config": config(run)}
    if result is not None and result.static:
        return {"Accuracy": scores(run), **ends}
    found = {"Accuracy against MAdds": scores(run), "Gate distributions": gates(run)}
    if result is None or result.objects is None:
        found |= {"Easy and hard images": pictures(run), "Routes per class": routes(run)}
    elif run.sheet is not None:
        sheet = Images("detections in example images", [Picture(run.sheet)], sheet=True)
        found["Examples"] = [Text(examples_note(result)), sheet]
    return {**found, **ends}


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
    blocks: list[Block] = [Figure(charts.accuracy([result], run.static)), Table(paths, "folded")]
    blocks += [] if by_class is None else [Table(by_class, "folded")]
    if budgets is not None:
        return [*blocks, Table(budgets), *warnings(result)]
    return blocks if result.static else [*blocks, not_routed(run, "the dynamic network")]


def gates(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "gate distributions")]
    bars, found = Figure(charts.gates(run.result)), charts.difficulty(run.result)
    return [bars] if found is None else [bars, Figure(found), Text(DIFFICULTY)]


def pictures(run: Run) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "example images")]
    madds = tables.human(run.result.dynamic.middle.madds.mean)
    words = Text(f"The images with the cheapest and the dearest paths, the surest first, at {madds} MAdds.")
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


def latency(run: Run) -> list[Block]:
    if run.bench is None:
        return [missing("latency against ideal", run.remedy("bench", "dsnet bench"))]
    figures = map(Figure, charts.latency(run.bench))
    return [*figures, Text(IDEAL), *(Table(table, "folded") for table in tables.bench_tables(run.bench))]


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
            words = "A run of stage gate has none of its own; those of the run that it came from are there."
        blocks.append(missing("training curves of stage I", words))
    if run.result is not None and run.result.dynamic is not None and not run.gate_metrics:
        words = "gate/metrics.jsonl is not there: a threshold router does not train, others write it."
        blocks.append(missing("training curves of stage II", words))
    return blocks


def config(run: Run) -> list[Block]:
    found = missing("the config", "There is no config.yaml in the folder; `dsnet train` writes it.")
    if run.config is not None:
        found = Text(run.config, "config.yaml", "code")
    return [found] if run.result is None else [found, Text(made_by(run.result.made, what="Evaluated"))]


# Several runs


def overview(runs: Sequence[Run], links: Mapping[str, str], *, folded: bool) -> Chapter:
    """A figure and a table for each set of data; runs that differ in their seed only are one."""
    by_data: dict[tuple[str, ...], list[tuple[str, str, Evaluation]]] = {}
    for group in alike(runs):
        by_data.setdefault(data_of(group[2]), []).append(group)
    figures, rows = [], []
    for mine in by_data.values():
        first, named = mine[0][2], [group[1:] for group in mine]
        title = f"{first.dataset}, {first.images} {first.split} images"
        figures.append(Figure(charts.overview(named, title)))
        rows.append(Table(tables.summary_table(title, named), links=[links[name] for name, *_ in mine]))
    lost = [
        missing(f"the evaluation of {run.name}", run.remedy("result", "dsnet eval"))
        for run in runs
        if run.result is None
    ]
    return Chapter("Overview of the runs", "", [*figures, *rows, *lost], folded)


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


def experiment_chapter(experiment: Experiment) -> Chapter:
    """A result of `dsnet reproduce`, as it comes."""
    text, found, verdicts, figures = experiment_parts(experiment)
    seeds = experiment.seeds
    words = [f"scale {experiment.scale}"] if experiment.scale else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    blocks = [*text, *verdicts, *figures, *found, Text(made_by(experiment.made))]
    return Chapter(experiment.title or experiment.experiment, ", ".join(words), blocks)
