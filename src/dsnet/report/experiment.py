"""The result of an experiment as tables on the terminal, and as JSON, Markdown and SVG."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dsnet.files import write_whole
from dsnet.report.svg import chart, stacked_bars, standalone
from dsnet.report.tables import markdown_table, print_table

CLAIMS = ["<claim", "paper", "ours", "<direction"]
VERDICTS = {True: "holds", False: "does not hold", None: "no verdict"}


def show_experiment(result: dict[str, Any]) -> None:
    for table in result["tables"]:
        print_table(table["title"], table["columns"], table["rows"], note=table.get("note", ""))
    if result["claims"]:
        print_table(f"{result['title']}: does it hold at scale {result['scale']}?", CLAIMS, claims_of(result))


def export_experiment(result: dict[str, Any], prefix: Path) -> None:
    """PREFIX.json, PREFIX.md and PREFIX.svg, PREFIX-2.svg, ...; nothing in them is typed by hand."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"# {result['title']}", "", *paragraphs(result)]
    for table in result["tables"]:
        lines += [f"## {table['title']}", "", *markdown_table(table["columns"], table["rows"]), ""]
        lines += [table["note"], ""] if table.get("note") else []
    if result["claims"]:
        lines += ["## Does it hold?", "", *markdown_table(CLAIMS, claims_of(result)), "", meaning(result), ""]
    for number, figure in enumerate(result["figures"]):
        picture = prefix.with_name(f"{prefix.name}{f'-{number + 1}' if number else ''}.svg")
        drawn = stacked_bars(figure) if figure.get("kind") == "shares" else chart(figure)
        write_whole(picture, standalone(drawn).encode())
        lines += [f"![{figure['title']}]({picture.name})", ""]
    lines += [*made_by(result), f"Every figure is in [{prefix.name}.json]({prefix.name}.json)."]
    write_whole(prefix.with_name(prefix.name + ".json"), (json.dumps(result, indent=1) + "\n").encode())
    write_whole(prefix.with_name(prefix.name + ".md"), ("\n".join(lines) + "\n").encode())


def made_by(result: dict[str, Any]) -> list[str]:
    made, commits = result["made_by"], result.get("trained_at") or {}
    runs = ", ".join(f"{count} at {commit}" for commit, count in commits.items())
    return [
        f"Made by `{made['command']}` at commit {made['commit']} with dsnet {made['dsnet']}, torch {made['torch']}, "
        f"{made['machine']}, {made['date']}; {minutes(made['seconds'])} by the clock.",
        *([f"Commits that its runs were trained at: {runs}."] if runs else []),
    ]


def paragraphs(result: dict[str, Any]) -> list[str]:
    seeds = result["seeds"]
    words = f"Mean ± standard deviation over seeds {', '.join(map(str, seeds))}."
    spread = words if len(seeds) > 1 and result.get("runs") else ""
    return [line for text in [*result["text"], spread] if text for line in (text, "")]


def claims_of(result: dict[str, Any]) -> list[list[str]]:
    return [[claim["claim"], claim["paper"], claim["ours"], VERDICTS[claim["holds"]]] for claim in result["claims"]]


def meaning(result: dict[str, Any]) -> str:
    if not result.get("runs"):
        return ""
    return (
        "Differences are paired by seed, in points for accuracies. A direction holds if every seed shows it; it has no "
        "verdict where seeds disagree or nothing differs. With few seeds, a small difference that holds is no proof."
    )


def minutes(seconds: float) -> str:
    return f"{seconds / 3600:.1f} hours" if seconds >= 5400 else f"{max(1, round(seconds / 60))} minutes"
