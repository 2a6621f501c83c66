"""Benchmarks as tables, and as a page of documentation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dsnet.report import charts, document
from dsnet.report.document import Chapter, Document, Figure, Section, made_by
from dsnet.report.markdown import write_markdown
from dsnet.report.tables import human, print_table
from dsnet.results import Bench, Made, RoutedTimes, Table, Table1, Times, WidthTimes, write

COLUMNS = ["<runtime", "<path", "threads", "batch", "MAdds", "mean ms", "p50", "p95", "images/s", "to ideal", "A/A"]
STATIC_COLUMNS = ["<static network", "threads", "batch", "MAdds", "mean ms", "p50", "p95"]
ROUTED_COLUMNS = ["<run", "<router", "budget", "MAdds", "top-1", "mean ms", "p50", "p95", "ideal ms", "to ideal"]
TABLE1_COLUMNS = ["<way", "mean ms", "p50", "p95", "to ideal", "paper, to ideal"]
EQUAL_COLUMNS = ["top-1", "<run", "ms", "MAdds", "time to first"]
ROUTED_NOTE = "Ideal: what the chosen paths take as static networks of the same runtime, were they known beforehand."
TABLE1_NOTE = "The paper's figures are milliseconds on a GPU, relative to its ideal. Ideal here: extracted and folded."


def bench_tables(bench: Bench) -> list[Table]:
    """Everything that was measured."""
    found = []
    if widths := bench.widths:
        where = f"{widths.model}, {widths.image_size} px, {widths.repeats} interleaved rounds"
        found.append(table(where, COLUMNS, width_cells(widths), width_note(widths)))
        if widths.against:
            title = "what one could run instead, as static ONNX files"
            found.append(table(title, STATIC_COLUMNS, static_cells(widths)))
    if routed := bench.routed:
        where = f"dynamic {routed.model}, {routed.images} test images one by one, {routed.rounds} times"
        found.append(table(where, ROUTED_COLUMNS, routed_cells(routed), ROUTED_NOTE))
        if routed.equal:
            cells = equal_cells(routed)
            found.append(table("at equal accuracy", EQUAL_COLUMNS, cells, "Interpolated between budgets."))
    if first := bench.table1:
        where = f"{first.model} at its slimmest, {first.image_size} px, batch {first.batch}"
        title = f"Table 1: {where}, {first.threads} threads"
        found.append(table(title, TABLE1_COLUMNS, table1_cells(first), TABLE1_NOTE))
    return found


def table(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]], note: str = "") -> Table:
    return Table(title, tuple(columns), tuple(map(tuple, cells)), note)


def show_bench(bench: Bench) -> None:
    for part in bench_tables(bench):
        print_table(part.title, part.columns, part.rows, note=part.note)


def export_bench(bench: Bench, prefix: Path) -> list[Path]:
    """PREFIX.json, PREFIX.md and figures."""
    write(bench, prefix.with_name(prefix.name + ".json"))
    sections = [Section(part.title, [document.Table(replace(part, title=""))]) for part in bench_tables(bench)]
    figures = Section("", [Figure(chart) for chart in charts.latency(bench)])
    page = Document(f"Latency of {prefix.name}", "", [Chapter("", sections=[*sections, figures])])
    footer = f"{made_by(made_of(bench), command=bench.command)} Times are noise, ratios are what counts."
    return write_markdown(page, prefix, footer=[footer])


def made_of(bench: Bench) -> Made:
    """What measured it."""
    return next(part.made for part in (bench.widths, bench.routed, bench.table1) if part is not None)


def dotted(path: Sequence[int]) -> str:
    return ",".join(map(str, path)) or "-"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def ms(times: Times) -> list[str]:
    return [f"{value:.2f}" for value in (times.mean, times.p50, times.p95)]


def width_cells(widths: WidthTimes) -> list[list[str]]:
    return [
        [
            row.runtime,
            dotted(row.path),
            str(row.threads),
            str(row.batch),
            human(row.madds),
            *ms(row.times),
            f"{row.images_per_second:.1f}",
            ratio(row.ratio),
            ratio(row.noise),
        ]
        for row in widths.rows
    ]


def width_note(widths: WidthTimes) -> str:
    parts = [
        "To ideal: time relative to the same path built statically in the same runtime (extracted, folded), median of "
        "rounds. A/A: that ideal measured twice."
    ]
    for row in widths.speed_up:
        where = f"{row.runtime}, {row.threads} threads, batch {row.batch}"
        gain = f"slimmest {row.realised:.2f}x as fast as widest, MAdds {row.madds:.2f}x"
        parts.append(f"{where}: {gain} ({row.share:.0%}).")
    if files := widths.files:
        parts.append(
            f"Dynamic file: {human(files.dynamic)} bytes, {files.dynamic / files.widest:.3f}x the widest's; "
            f"loaded in {files.load_seconds:.2f} s, taking {human(files.load_bytes)} bytes of memory "
            f"({files.load_bytes / files.dynamic:.1f}x the file)."
        )
    return "\n".join(parts)


def static_cells(widths: WidthTimes) -> list[list[str]]:
    return [[row.model, str(row.threads), str(row.batch), human(row.madds), *ms(row.times)] for row in widths.against]


def routed_cells(routed: RoutedTimes) -> list[list[str]]:
    return [
        [
            row.name,
            f"{row.router} {row.targets}",
            human(row.asked),
            human(row.madds),
            "" if row.score is None else f"{row.score:.2%}",
            *ms(row.times),
            f"{row.ideal:.2f}",
            ratio(row.ratio),
        ]
        for row in routed.rows
    ]


def equal_cells(routed: RoutedTimes) -> list[list[str]]:
    return [
        [f"{level.score:.2%}", name, f"{run.ms:.3f}", human(run.madds), ratio(run.ratio)]
        for level in routed.equal
        for name, run in level.runs.items()
    ]


def table1_cells(table: Table1) -> list[list[str]]:
    return [[row.way, *ms(row.times), ratio(row.ratio), ratio(row.paper)] for row in table.rows]
