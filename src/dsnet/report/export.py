"""Evaluations as figures beside a run, and as a page of documentation; nothing in it is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from dsnet.report import charts, figures, tables
from dsnet.report.document import Block, Chapter, Document, Figure, Images, Picture, Section, Table, Text, made_by
from dsnet.report.markdown import write_markdown
from dsnet.results import Evaluation, Evaluations, write


def figures_of(results: Sequence[Evaluation], static: Sequence[Evaluation] = ()) -> list[Figure]:
    """The score over MAdds and, of one dynamic network, its gates."""
    found = [Figure(charts.accuracy(results, static))]
    if len(results) == 1 and results[0].dynamic is not None:
        found.append(Figure(charts.gates(results[0]), "gates"))
    return found


def draw(results: Sequence[Evaluation], prefix: Path, static: Sequence[Evaluation] = ()) -> list[Path]:
    """PREFIX.png and PREFIX-gates.png, unless figures are switched off."""
    if not figures.enabled():
        return []
    return [
        figures.save(each.content, prefix.with_name(f"{prefix.name}{each.name and f'-{each.name}'}.png"))
        for each in figures_of(results, static)
    ]


def export_evaluations(
    results: Sequence[Evaluation], prefix: Path, *, static: Sequence[Evaluation] = (), sheet: Path | None = None
) -> list[Path]:
    """PREFIX.json, PREFIX.md and pictures. sheet: of example images, drawn before."""
    content = results[0] if len(results) == 1 else Evaluations(tuple(results))
    write(content, prefix.with_name(prefix.name + ".json"))
    pictures: list[Block] = [*figures_of(results, static)]
    if sheet is not None:
        pictures.append(Images(sheet.stem, [Picture(sheet.read_bytes())], sheet=True, name="examples"))
        pictures.append(Text(examples_note(results[-1])))
    detectors = results[0].objects is not None
    document = detectors_page(results, prefix.name, pictures) if detectors else networks_page(results, pictures)
    runs = "RUN ..." if detectors else "RUN"
    footer = made_by(results[0].made, command=f"dsnet eval {runs} --export {prefix.name}")
    last = [] if detectors else [training(result) for result in results]
    more = f"Every figure is in {prefix.name}.json."
    return write_markdown(document, prefix, footer=[*last, f"{footer} {more}"])


def networks_page(results: Sequence[Evaluation], pictures: Sequence[Block]) -> Document:
    first, sections = tables.paths_table(results[0]), []
    for result in results:
        budgets = tables.budgets_table(result)
        if budgets is not None and result.dynamic is not None:
            warnings = [Text(f"Warning: {words}") for words in result.dynamic.warnings]
            sections.append(Section(budgets.title, [Table(replace(budgets, title="")), *warnings]))
    lead = [Table(replace(first, title=""))]
    return Document(first.title, "", [Chapter("", lead=lead, sections=[*sections, Section("", pictures)])])


def detectors_page(results: Sequence[Evaluation], name: str, pictures: Sequence[Block]) -> Document:
    sections = []
    for result in results:
        paths, classes, budgets = (
            make(result) for make in (tables.paths_table, tables.classes_table, tables.budgets_table)
        )
        assert paths is not None
        blocks: list[Block] = [Table(replace(paths, title=""))]
        if classes is not None:
            blocks += [Text(f"{classes.title[0].upper()}{classes.title[1:]}:"), Table(replace(classes, title=""))]
        if budgets is not None:
            blocks += [Text("Dynamic:"), Table(replace(budgets, title=""))]
        sections.append(Section(paths.title, [*blocks, Text(training(result))]))
    title = f"{name.replace('_', ' ')}: mean average precision against MAdds"
    return Document(title, "", [Chapter("", sections=[*sections, Section("", pictures)])])


def training(result: Evaluation) -> str:
    return f"Training: {json.dumps(result.training)}."


def examples_note(result: Evaluation) -> str:
    how = "at budget M" if result.dynamic is not None else "at its widest"
    return (
        f"What {result.model} finds {how} with a confidence of {result.options['confidence']:.0%} or more in "
        f"{result.split} images; dashed are the annotated objects."
    )
