"""What a report says about one run, and about one experiment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dsnet import results
from dsnet.report import bench as benches
from dsnet.report import charts, tables
from dsnet.report.adapter import as_dict
from dsnet.report.blocks import (
    Bars,
    Block,
    Chapter,
    Claims,
    Code,
    Missing,
    Pictures,
    Plot,
    Section,
    Sheet,
    Table,
    Text,
    Tiles,
)
from dsnet.report.keys import key_figures
from dsnet.report.plots import (
    accuracy_plot,
    class_bars,
    curves,
    detector_bars,
    difficulty_bars,
    gate_bars,
    precision_plot,
)
from dsnet.report.tables import human
from dsnet.results import Bench, Chart, Evaluation


@dataclass(frozen=True)
class RunParts:
    """All that a run's folder has to tell; what is not there is None or empty."""

    name: str
    folder: str
    config: str | None = None
    result: Evaluation | None = None
    bench: Bench | None = None
    metrics: Sequence[dict[str, Any]] = ()
    gate_metrics: Sequence[dict[str, Any]] = ()
    pictures: Sequence[Pictures] = ()
    no_pictures: str = ""  # why there are none
    sheet: bytes | None = None
    detector: bool = False
    static: Sequence[Evaluation] = ()

    @property
    def place(self) -> str:
        return shlex.quote(self.folder)

    @property
    def routes(self) -> bool:
        return self.result is not None and self.result.dynamic is not None


def run_chapter(run: RunParts, *, folded: bool = False) -> Chapter:
    sections = detector_sections(run) if run.detector else classifier_sections(run)
    sections += [training_section(run), config_section(run)]
    lead = [] if run.result is None else [Tiles(key_figures(run.result, run.bench))]
    return Chapter(run.name, about(run), lead, sections, folded=folded)


def about(run: RunParts) -> str:
    if run.result is None:
        return "not evaluated"
    return tables.title(run.result)


def made_by(result: Evaluation) -> str:
    return f"dsnet {result.made.dsnet}, torch {result.made.torch}, {result.made.machine}"


def block(table: results.Table, title: str | None = None, *, folded: bool = False) -> Table:
    return Table(table.columns, table.rows, table.title if title is None else title, table.note, folded=folded)


def classifier_sections(run: RunParts) -> list[Section]:
    if run.result is not None and run.result.static:
        return [Section("Accuracy", accuracy_blocks(run)), Section("Latency", latency_blocks(run))]
    return [
        Section("Accuracy against MAdds", accuracy_blocks(run)),
        Section("Gate distributions", gate_blocks(run)),
        Section("Easy and hard images", picture_blocks(run)),
        Section("Routes per class", class_blocks(run)),
        Section("Latency against ideal", latency_blocks(run)),
    ]


def not_evaluated(run: RunParts, what: str) -> Missing:
    return Missing(what, f"There is no evaluation that can be read; run `dsnet eval {run.place}`.")


def not_routed(run: RunParts, what: str) -> Missing:
    if run.result is None:
        return not_evaluated(run, what)
    return Missing(what, f"This network has no router; train one with `dsnet train --stage gate --from {run.place}`.")


def accuracy_blocks(run: RunParts) -> list[Block]:
    result = run.result
    if result is None:
        return [not_evaluated(run, "accuracy against MAdds")]
    blocks: list[Block] = [Plot(accuracy_plot(as_dict(result), [as_dict(other) for other in run.static]))]
    blocks.append(block(tables.paths_table(result), "Every path that was evaluated", folded=True))
    budgets = tables.budgets_table(result)
    if budgets is not None and result.dynamic is not None:
        blocks.append(block(budgets))
        blocks += [Text(f"Warning: {warning}") for warning in result.dynamic.warnings]
    elif not result.static:
        blocks.append(not_routed(run, "the dynamic network"))
    return blocks


def gate_blocks(run: RunParts) -> list[Block]:
    if not run.routes:
        return [not_routed(run, "gate distributions")]
    assert run.result is not None
    words = "Easy: the slimmest width is right. Dependent: only wider ones are. Hard: no width is."
    return [Bars(gate_bars(as_dict(run.result))), Bars(difficulty_bars(as_dict(run.result))), Text(words)]


def picture_blocks(run: RunParts) -> list[Block]:
    if run.result is None or run.result.dynamic is None:
        return [not_routed(run, "example images")]
    madds = human(run.result.dynamic.middle.madds.mean)
    words = f"The images with the cheapest and the dearest paths, the surest first, at {madds} MAdds."
    if run.pictures:
        routed = any(len(picture.lines) > 1 for group in run.pictures for picture in group.pictures)
        again = [] if routed else [Missing("routes of example images", f"Run `dsnet eval {run.place}` again.")]
        return [Text(words), *run.pictures, *again]
    if run.sheet is not None:
        missing = Missing(
            "single images with their routes", f"{run.no_pictures}. This sheet was drawn by `dsnet eval`."
        )
        return [Text(words), Sheet(run.sheet, "images routed slimmest and widest"), missing]
    remedy = (
        f"{run.no_pictures or 'There are none'}; say where the data is with `--root`, or run `dsnet eval {run.place}`."
    )
    return [Missing("example images", remedy)]


def class_blocks(run: RunParts) -> list[Block]:
    if not run.routes:
        return [not_routed(run, "per-class routing")]
    assert run.result is not None
    routes = tables.routes_table(run.result)
    if routes is None:
        return [Missing("per-class routing", f"Run `dsnet eval {run.place}` again.")]
    return [Bars(class_bars(as_dict(run.result))), block(routes, folded=True)]


def latency_blocks(run: RunParts) -> list[Block]:
    if run.bench is None:
        return [Missing("latency against ideal", f"Run `dsnet bench {run.place}`.")]
    blocks: list[Block] = [Plot(chart_dict(figure)) for figure in charts.latency(run.bench)]
    words = "Ideal: the same path as a static network of the same runtime. Times are noise, ratios are what counts."
    measured = [block(part, folded=True) for part in benches.bench_tables(run.bench)]
    return [*blocks, Text(words), *measured]


def chart_dict(chart: Chart) -> dict[str, Any]:
    series = [
        {"name": part.name, "kind": part.kind, "dashed": part.dashed, "points": [[dot.x, dot.y] for dot in part.points]}
        | ({} if part.colour is None else {"colour": part.colour})
        for part in chart.series
    ]
    return {"title": chart.title, "x": chart.x, "y": chart.y, "series": series}


def detector_sections(run: RunParts) -> list[Section]:
    result = run.result
    if result is None:
        return [Section("Precision against MAdds", [not_evaluated(run, "precision against MAdds")])]
    blocks: list[Block] = [Plot(precision_plot(as_dict(result))), block(tables.paths_table(result), "Every width")]
    if (classes := tables.classes_table(result)) is not None:
        blocks.append(block(classes, classes.title[0].upper() + classes.title[1:]))
    budgets = tables.budgets_table(result)
    if budgets is None or result.dynamic is None:
        return [
            Section("Precision against MAdds", blocks),
            Section("Gate distributions", [not_routed(run, "gate distributions")]),
        ]
    blocks.append(block(budgets, "The dynamic detector"))
    blocks += [Text(f"Warning: {warning}") for warning in result.dynamic.warnings]
    bars = Bars(detector_bars(as_dict(result)))
    return [Section("Precision against MAdds", blocks), Section("Gate distributions", [bars])]


def training_section(run: RunParts) -> Section:
    blocks: list[Block] = []
    measure = "mAP" if run.detector else "top-1"
    parts = (("Stage I", run.metrics, f"{measure} on calibration images"), ("Stage II", run.gate_metrics, ""))
    for stage, metrics, calibration in parts:
        for kind, y in (("loss", "loss"), ("calibration", calibration)):
            figure = curves(metrics, kind, title=f"{stage}: {kind}", y=y)
            if figure["series"]:
                names = [series["name"].replace("_", " ") for series in figure["series"]]
                blocks.append(Plot({**figure, "y": y or f"{', '.join(names)} on calibration images"}))
    if not run.metrics:
        words = "There is no metrics.jsonl, or nothing in it; `dsnet train` writes it."
        if run.gate_metrics:
            words = "A run of stage gate has none of its own; those of the run that it came from are there."
        blocks.append(Missing("training curves of stage I", words))
    if run.routes and not run.gate_metrics:
        words = "gate/metrics.jsonl is not there: a threshold router does not train, others write it."
        blocks.append(Missing("training curves of stage II", words))
    return Section("Training", blocks)


def config_section(run: RunParts) -> Section:
    found: Block = Missing("the config", "There is no config.yaml in the folder; `dsnet train` writes it.")
    if run.config is not None:
        found = Code("config.yaml", run.config)
    blocks = [found]
    if run.result is not None:
        blocks.append(Text(f"Evaluated with {made_by(run.result)}."))
    return Section("Config", blocks)


def experiment_chapter(experiment: dict[str, Any], *, folded: bool = False) -> Chapter:
    """A result of `dsnet reproduce`, as it comes."""
    blocks: list[Block] = [Text(words) for words in experiment.get("text", [])]
    if claims := experiment.get("claims"):
        blocks.append(Claims(claims))
    for figure in experiment.get("figures", []):
        blocks.append(Bars(figure) if figure.get("kind") == "shares" else Plot(figure))
    for part in experiment.get("tables", []):
        blocks.append(Table(part["columns"], part["rows"], part.get("title", ""), part.get("note", "")))
    made = experiment.get("made_by", {})
    if made:
        known = [f"dsnet {made.get('dsnet')}", f"torch {made.get('torch')}", f"{made.get('machine')}"]
        if made.get("seconds") is not None:
            known.append(f"{made['seconds']:.0f} seconds")
        blocks.append(Text(f"Made by `{made.get('command')}` at commit {made.get('commit')}: {', '.join(known)}."))
    seeds = experiment.get("seeds", [])
    words = [f"scale {experiment['scale']}"] if experiment.get("scale") else []
    words += [f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"] if seeds else []
    return Chapter(experiment.get("title") or experiment["experiment"], ", ".join(words), blocks, folded=folded)
