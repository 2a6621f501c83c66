"""Writes results as figures in a run's folder, and as generated pages of documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsnet.report import charts, figures
from dsnet.report.bench import bench_tables
from dsnet.report.chapters import evaluation_blocks, examples_note, experiment_parts
from dsnet.report.document import Block, Chapter, Document, Figure, Images, Picture, Table, Text, made_by
from dsnet.report.markdown import write_markdown
from dsnet.report.tables import title
from dsnet.results import Bench, Evaluation, Evaluations, Experiment, Result, write


def figures_of(results: Sequence[Evaluation], static: Sequence[Evaluation] = ()) -> list[Figure]:
    """A figure of the score over MAdds and, for a single dynamic network, a figure of its gates."""
    drawings = [Figure(charts.accuracy(results, static))]
    if len(results) == 1 and results[0].dynamic is not None:
        drawings.append(Figure(charts.gates(results[0]), "gates"))
    return drawings


def draw(results: Sequence[Evaluation], prefix: Path, static: Sequence[Evaluation] = ()) -> list[Path]:
    """Draw PREFIX.png and PREFIX-gates.png, unless figures are switched off."""
    if not figures.enabled():
        return []
    return [
        figures.save(each.content, prefix.with_name(f"{prefix.name}{each.name and f'-{each.name}'}.png"))
        for each in figures_of(results, static)
    ]


def export(result: Result, prefix: Path, *, static: Sequence[Evaluation] = (), sheet: Path | None = None) -> list[Path]:
    """Write PREFIX.json, PREFIX.md and the figures: PREFIX.png, or PREFIX.svg for experiments, and so on.

    static: static networks to draw next to an evaluation. sheet: ready-made sheet of its example images.
    """
    write(result, prefix.with_name(prefix.name + ".json"))
    if isinstance(result, Experiment):
        text, tables, claims, drawn = experiment_parts(result)
        heading, blocks, footer = (
            result.title,
            [*text, *tables, *claims, *drawn],
            experiment_footer(result, prefix.name),
        )
    elif isinstance(result, Bench):
        made = next(part.made for part in (result.widths, result.routed, result.table1) if part is not None)
        footer = [f"{made_by(made, command=result.command)} Times vary from run to run; compare the ratios."]
        heading, blocks = (
            f"Latency of {prefix.name}",
            [*map(Table, bench_tables(result)), *map(Figure, [*charts.clocks(result), *charts.latency(result)])],
        )
    else:
        results = result.results if isinstance(result, Evaluations) else (result,)
        heading, blocks = evaluations_page(results, prefix.name)
        blocks += figures_of(results, static)
        if sheet is not None:
            blocks.append(Images(sheet.stem, [Picture(sheet.read_bytes())], sheet=True, name="examples"))
            blocks.append(Text(examples_note(results[-1])))
        drift = " --drift" * any(each.drift for each in results)
        command = f"dsnet eval {'RUN ...' if len(results) > 1 else 'RUN'}{drift} --export {prefix.name}"
        footer = [f"{made_by(results[0].made, command=command)} Every figure is in {prefix.name}.json."]
    suffix = ".svg" if isinstance(result, Experiment) else ".png"
    return write_markdown(Document(heading, "", [Chapter("", "", blocks)]), prefix, footer=footer, suffix=suffix)


def evaluations_page(results: Sequence[Evaluation], name: str) -> tuple[str, list[Block]]:
    """Title and blocks of a page; if there are several results, each has a section."""
    if len(results) == 1:
        return title(results[0]), evaluation_blocks(results[0])
    blocks: list[Block] = []
    for result in results:
        blocks += [Text(title(result), kind="heading"), *evaluation_blocks(result)]
    return f"{name.replace('_', ' ')}: {results[0].metric.name} against MAdds", blocks


def experiment_footer(result: Experiment, name: str) -> list[str]:
    trained = ", ".join(f"{count} at {commit}" for commit, count in result.trained_at.items())
    commits = [f"Commits that its runs were trained at: {trained}."] if trained else []
    return [made_by(result.made), *commits, f"Every figure is in [{name}.json]({name}.json)."]
