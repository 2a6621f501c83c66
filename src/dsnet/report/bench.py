"""The tables of a benchmark. They fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from dsnet.latency import threads_text
from dsnet.report.tables import filled, human
from dsnet.results import Bench, DeployedTime, DeployedTimes, Loaded, RoutedTimes, Table, Table1, WidthTime, WidthTimes
from dsnet.space import path_words

QUIET = (0.95, 1.05)  # an ideal that differs more from itself says that the machine was disturbed
BUSY = 1.25  # times of a fixed width have a mean near their median
Columns = dict[str, Callable[[Any], str]]


def bench_tables(bench: Bench) -> list[Table]:
    """The tables of a benchmark: accuracy and milliseconds first, then ratios to the ideal."""
    tables = [deployed_table(one) for one in bench.deployed if one.rows]
    if (widths := bench.widths) is not None:
        told = bool(bench.deployed) and all(row.ratio is None and row.batch == 1 for row in widths.rows)
        tables += [] if told else width_tables(widths)
        if widths.file is not None:
            told_of = f"{started(widths.file.artefact)}: {memory(widths.file)}"
            tables[0] = replace(tables[0], note=f"{tables[0].note} {told_of}".strip())
        if widths.against:
            columns = {"<static network": lambda row: row.model, **SETTING, **TIMES}
            tables.append(filled("Static networks that could run instead, as ONNX files", widths.against, columns))
    if (routed := bench.routed) is not None:
        tables.append(routed_table(routed))
        if routed.equal:
            tables.append(equal_table(routed))
    return tables if bench.table1 is None else [*tables, table1_table(bench.table1)]


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def ms(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


SETTING: Columns = {
    "threads": lambda row: str(row.threads),
    "batch": lambda row: str(row.batch),
    "MAdds": lambda row: human(row.madds),
}
TIMES: Columns = {
    "mean ms": lambda row: ms(row.times.mean),
    "p50": lambda row: ms(row.times.p50),
    "p95": lambda row: ms(row.times.p95),
    "p99": lambda row: ms(row.times.p99),
}
TO_IDEAL: Columns = {"to ideal": lambda row: ratio(row.ratio)}


def deployed_table(deployed: DeployedTimes) -> Table:
    """Accuracy and milliseconds of fixed widths and budgets."""
    rows, metric, setting = deployed.rows, deployed.metric, deployed.setting
    fixed = [row for row in rows if row.path is not None]
    full = max(fixed, key=lambda row: row.madds) if len(fixed) > 1 else None
    if full is not None and deployed.widest not in (0, full.madds):  # a file of some of the widths
        full = None
    columns: Columns = {
        "<what runs": lambda row: what_runs(row, full),
        "MAdds": lambda row: human(row.madds),
        **(
            {}
            if metric is None
            else {metric.name: lambda row: "" if row.score is None else f"{row.score:{metric.form}}"}
        ),
        **TIMES,
    }
    if full is not None:
        columns["of full"] = lambda row: f"{row.times.mean / full.times.mean:.0%}"
    notes = ["One image at a time. Fixed widths run alone; budgets include all that the router does."]
    if full is not None:
        notes.append("Of full: mean time relative to the full network.")
    if any(row.path is None for row in rows):
        notes.append(
            f"Budgets were measured with {deployed.images} test images."
            if deployed.images
            else "* computed: the times of paths, weighted by the shares of the calibration images that take them."
        )
    if metric is None:
        notes.append("There is no accuracy: run `dsnet eval` first.")
    if any(row.times.mean > BUSY * row.times.p50 for row in fixed):
        notes.append(
            "The machine was busy with other work: means lie far above medians. Measure again when it is quiet."
        )
    where = f"{setting.runtime}, {threads_text(setting.threads)}, {setting.image_size} px"
    return filled(f"Accuracy and milliseconds: {where}", rows, columns, " ".join(notes))


def what_runs(row: DeployedTime, full: DeployedTime | None) -> str:
    if row.path is None:
        return f"budget {row.name or human(row.asked or 0)}{' *' * row.computed}"
    if row is full or not row.path:
        return "full network"
    return row.name or path_words(row.path)


def width_tables(widths: WidthTimes) -> list[Table]:
    """Every runtime next to its ideal, one table for each number of threads and batch size."""
    groups = groupby(widths.rows, key=lambda row: (row.threads, row.batch))
    found = [(threads, batch, list(rows)) for (threads, batch), rows in groups]
    tables = []
    for number, (threads, batch, rows) in enumerate(found, start=1):
        place = widths.made.runtime or threads_text(threads)
        title = f"{widths.model}, {widths.image_size} px, {place}, batch {batch}"
        last = number == len(found)
        tables.append(
            filled(
                f"{title}: {widths.repeats} interleaved rounds",
                rows,
                width_columns(rows, batch),
                notes(widths, rows, last),
            )
        )
    return tables


def width_columns(rows: Sequence[WidthTime], batch: int) -> Columns:
    columns: Columns = {
        "<runtime": lambda row: row.runtime,
        "<path": lambda row: row.words,
        "MAdds": lambda row: human(row.madds),
        **{name: cell for name, cell in TIMES.items() if name in ("mean ms", "p99")},
    }
    if batch > 1:
        columns["images/s"] = lambda row: f"{row.images_per_second:.1f}"
    if any(row.ratio is not None for row in rows):
        columns |= {
            **TO_IDEAL,
            "<A/A": lambda row: "" if row.noise is None else f"{row.noise:.2f}" + " noise" * is_noise(row),
        }
    return columns


def is_noise(row: WidthTime) -> bool:
    return row.noise is not None and not QUIET[0] <= row.noise <= QUIET[1]


def notes(widths: WidthTimes, rows: Sequence[WidthTime], last: bool) -> str:
    """What the columns mean, the realised speed-up, and with the last table what is said once."""
    lines = []
    if any(row.ratio is not None for row in rows):
        lines.append(
            "To ideal: time relative to the same path built statically in the same runtime, median of rounds. "
            "A/A: that ideal measured twice."
        )
    if any(map(is_noise, rows)):
        lines.append(
            f"Rows marked as noise: the ideal differs from itself by more than {QUIET[1] - 1:.0%}, so their ratios "
            f"mean little. Measure again on a quiet machine, or with more --repeats."
        )
    setting = {(row.threads, row.batch) for row in rows}
    for row in widths.speed_up:
        if (row.threads, row.batch) in setting:
            faster = f"slimmest {row.realised:.2f}x as fast as widest, MAdds {row.madds:.2f}x"
            lines.append(f"{row.runtime}: {faster} ({row.share:.0%}).")
    if last and (files := widths.files) is not None:
        lines.append(
            f"Dynamic file: {human(files.dynamic)} bytes, {files.dynamic / files.widest:.3f}x the widest's; "
            f"loaded in {files.load_seconds:.2f} s, taking {human(files.load_bytes)} bytes of memory "
            f"({files.load_bytes / files.dynamic:.1f}x the file)."
        )
        lines += [
            f"{started(held.artefact)}: {memory(held)}" for held in files.artefacts if held.artefact != "dynamic file"
        ]
    return "\n".join(lines)


def started(words: str) -> str:
    """Words at the start of a sentence."""
    return words[:1].upper() + words[1:]


def memory(held: Loaded) -> str:
    ratio = held.memory / held.size
    return f"{human(held.size)} bytes, {human(held.memory)} bytes of memory ({ratio:.1f}x) once every path has run."


def routed_table(routed: RoutedTimes) -> Table:
    """The dynamic network next to its ideal. The run and its router are columns if there are several."""
    several = len({row.name for row in routed.rows}) > 1
    columns: Columns = {
        **({"<run": lambda row: Path(row.name).name, "<router": lambda row: row.router} if several else {}),
        "budget": lambda row: human(row.asked),
        "MAdds": lambda row: human(row.madds),
        routed.metric.name: lambda row: "" if row.score is None else format(row.score, routed.metric.form),
        **{name: cell for name, cell in TIMES.items() if name in ("mean ms", "p99")},
        "ideal ms": lambda row: ms(row.ideal),
        **TO_IDEAL,
    }
    first = routed.rows[0]
    router = "" if several else f", router {first.router}"
    note = (
        f"{routed.images} test images one by one, {routed.rounds} times; MAdds are those of these images. "
        f"Ideal: time of the chosen paths as static networks of the same runtime, without any routing."
    )
    return filled(f"Dynamic {routed.model}{router}", routed.rows, columns, note)


def equal_table(routed: RoutedTimes) -> Table:
    rows = tuple(
        (format(level.score, routed.metric.form), Path(name).name, ms(run.ms), human(run.madds), ratio(run.ratio))
        for level in routed.equal
        for name, run in level.runs.items()
    )
    columns = (routed.metric.name, "<run", "ms", "MAdds", "time to first")
    return Table("At equal accuracy", columns, rows, "Interpolated between budgets.")


def table1_table(table1: Table1) -> Table:
    columns = {"<way": lambda row: row.way, **TIMES, **TO_IDEAL, "paper": lambda row: ratio(row.paper)}
    where = (
        f"{table1.model} at its slimmest, {table1.image_size} px, batch {table1.batch}, {threads_text(table1.threads)}"
    )
    note = "Paper: its figures are milliseconds on a GPU, relative to its ideal. Ideal here: extracted and folded."
    return filled(f"Table 1: {where}", table1.rows, columns, note)
