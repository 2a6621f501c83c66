"""The result of an experiment as tables on the terminal, and as JSON, Markdown and SVG."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from dsnet.report.document import Block, Chapter, Document, Figure, Section, Table, Text, made_by
from dsnet.report.markdown import write_markdown
from dsnet.report.tables import print_table
from dsnet.results import Experiment, write
from dsnet.results import Table as Content

VERDICTS = {True: "holds", False: "does not hold", None: "no verdict"}
SIGNS = {True: "✓", False: "✗", None: "?"}
MEANING = (
    "Differences are paired by seed, in points for accuracies. A direction holds if every seed shows it; it has no "
    "verdict where seeds disagree or nothing differs. With few seeds, a small difference that holds is no proof."
)


def show_experiment(result: Experiment) -> None:
    for table in result.tables:
        print_table(table.title, table.columns, table.rows, note=table.note)
    if result.claims:
        title = f"{result.title}: does it hold at scale {result.scale}?"
        plain = plain_claims(result)
        print_table(title, plain.columns, plain.rows)


def plain_claims(result: Experiment) -> Content:
    rows = tuple((claim.claim, claim.paper, claim.ours, VERDICTS[claim.holds]) for claim in result.claims)
    return Content("", ("<claim", "paper", "ours", "<direction"), rows)


def claims_table(result: Experiment) -> Content:
    """Claims beside what was measured, with signs."""
    rows = tuple(
        (claim.claim, claim.paper, claim.ours, f"{SIGNS[claim.holds]} {VERDICTS[claim.holds]}")
        for claim in result.claims
    )
    return Content("", ("<claim", "<paper", "<ours", "<verdict"), rows)


def export_experiment(result: Experiment, prefix: Path) -> None:
    """PREFIX.json, PREFIX.md and PREFIX.svg, PREFIX-2.svg, ...; nothing in them is typed by hand."""
    write(result, prefix.with_name(prefix.name + ".json"))
    sections = [Section(table.title, [Table(replace(table, title=""))]) for table in result.tables]
    if result.claims:
        verdicts: list[Block] = [Table(plain_claims(result))]
        sections.append(Section("Does it hold?", [*verdicts, Text(MEANING)] if result.runs else verdicts))
    sections.append(Section("", [Figure(figure) for figure in result.figures]))
    document = Document(result.title, "", [Chapter("", lead=paragraphs(result), sections=sections)])
    trained = ", ".join(f"{count} at {commit}" for commit, count in result.trained_at.items())
    footer = [
        made_by(result.made),
        *([f"Commits that its runs were trained at: {trained}."] if trained else []),
        f"Every figure is in [{prefix.name}.json]({prefix.name}.json).",
    ]
    write_markdown(document, prefix, footer=footer, suffix=".svg")


def paragraphs(result: Experiment) -> list[Block]:
    spread = f"Mean ± standard deviation over seeds {', '.join(map(str, result.seeds))}."
    return [Text(words) for words in [*result.text, *([spread] if len(result.seeds) > 1 and result.runs else [])]]
