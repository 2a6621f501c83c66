"""Evaluations as a page of documentation: PREFIX.json, PREFIX.md and pictures; nothing in them is typed by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dsnet.report.tables import budgets_table, classes_table, markdown_table, paths_table
from dsnet.results import Evaluation, Evaluations, Table, write


def export_evaluations(results: Sequence[Evaluation], prefix: Path, pictures: Sequence[Path]) -> None:
    """Write one or several evaluations; pictures: drawn before, in the folder of the prefix."""
    content = results[0] if len(results) == 1 else Evaluations(tuple(results))
    write(content, prefix.with_name(prefix.name + ".json"))
    page = detectors_page if results[0].objects is not None else networks_page
    prefix.with_name(prefix.name + ".md").write_text("\n".join(page(results, prefix.name, pictures)) + "\n")


def networks_page(results: Sequence[Evaluation], name: str, pictures: Sequence[Path]) -> list[str]:
    lines: list[str] = []
    for result in results:
        paths, budgets = paths_table(result), budgets_table(result)
        lines += [f"# {paths.title}", "", *markdown(paths), ""]
        if budgets is not None and result.dynamic is not None:
            lines += [f"## {budgets.title}", "", *markdown(budgets), "", budgets.note, ""]
            lines += [*(f"Warning: {text}" for text in result.dynamic.warnings), ""]
    lines += [f"![{picture.stem}]({picture.name})" for picture in pictures]
    return [*lines, "", *(training(result) for result in results), made_by(results, name, "RUN")]


def detectors_page(results: Sequence[Evaluation], name: str, pictures: Sequence[Path]) -> list[str]:
    lines = [f"# {name.replace('_', ' ')}: mean average precision against MAdds", ""]
    for result in results:
        paths, classes, budgets = paths_table(result), classes_table(result), budgets_table(result)
        lines += [f"## {paths.title}", "", *markdown(paths), "", paths.note, ""]
        if classes is not None:
            lines += [f"{classes.title[0].upper()}{classes.title[1:]}:", "", *markdown(classes), ""]
        if budgets is not None:
            lines += ["Dynamic:", "", *markdown(budgets), "", budgets.note, ""]
        lines += [training(result), ""]
    for picture in pictures:
        lines += [f"![{picture.stem}]({picture.name})", ""]
    return [*lines, examples_note(results[-1]), "", made_by(results, name, "RUN ...")]


def markdown(table: Table) -> list[str]:
    return markdown_table(table.columns, table.rows)


def training(result: Evaluation) -> str:
    return f"Training: {json.dumps(result.training)}."


def examples_note(result: Evaluation) -> str:
    how = "at budget M" if result.dynamic is not None else "at its widest"
    return (
        f"What {result.model} finds {how} with a confidence of {result.options['confidence']:.0%} or more in "
        f"{result.split} images; dashed are the annotated objects."
    )


def made_by(results: Sequence[Evaluation], name: str, runs: str) -> str:
    made = results[0].made
    return (
        f"Made by `dsnet eval {runs} --export {name}` with dsnet {made.dsnet}, torch {made.torch}, "
        f"{made.machine}; every figure is in {name}.json."
    )
