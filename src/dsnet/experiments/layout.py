"""From finished runs to the result of an experiment: tables beside the paper's figures, verdicts, figures."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev
from typing import Any

from dsnet.experiments.declare import Claim, Column, Experiment, Form, Row, Runs, Table
from dsnet.experiments.recipe import Scale
from dsnet.reports.tables import human


def result_of(experiment: Experiment, scale: Scale, runs: Runs, seeds: Sequence[int]) -> dict[str, Any]:
    """The result of an experiment whose runs are there; rows without runs are said to be missing."""
    tables, claims = [], []
    for table in experiment.tables(scale):
        tables.append(laid_out(table, runs))
        claims += [judged(claim, table, runs, compared=scale.name) for claim in table.claims]
    return {
        "experiment": experiment.name,
        "title": experiment.title,
        "scale": scale.name,
        "seeds": list(seeds),
        "text": [experiment.about, scale.about],
        "tables": tables,
        "claims": claims,
        "figures": [plot(runs) for plot in experiment.plots(scale)],
        "runs": {label: [run.folder.name for run in mine] for label, mine in runs.items()},
    }


def laid_out(table: Table, runs: Runs) -> dict[str, Any]:
    """Every measured column, and the paper's figure beside it where it has one."""
    columns, cells = ["<"], [[row.label] for row in table.rows]
    values = {row.label: {column.name: values_of(row, column, runs) for column in table.columns} for row in table.rows}
    for column in table.columns:
        columns.append(column.name)
        for row, line in zip(table.rows, cells, strict=True):
            line.append(shown(values[row.label][column.name], column.form))
        if any(column.name in row.paper for row in table.rows):
            columns.append("paper")
            for row, line in zip(table.rows, cells, strict=True):
                line.append(row.paper.get(column.name, ""))
    return {"title": table.title, "columns": columns, "rows": cells, "note": table.note, "values": values}


def values_of(row: Row, column: Column, runs: Runs) -> list[float]:
    """One value per seed."""
    measure = row.measures.get(column.name, column.measure)
    return [measure(run) for run in runs.get(row.label, ())]


def judged(claim: Claim, table: Table, runs: Runs, *, compared: str) -> dict[str, Any]:
    """Whether the direction of a claim shows: in every seed (holds), in none (does not), or in some (no verdict)."""
    column = next(column for column in table.columns if column.name == claim.column)
    rows = {row.label: values_of(row, column, runs) for row in table.rows}
    differences = [a - b for a, b in zip(rows[claim.row], rows[claim.over], strict=False)]
    signs = {sign(-difference if claim.less else difference) for difference in differences}
    unit = {"percent": 100.0}.get(column.form, 1.0)
    word = " points" if column.form in ("percent", "points") else ""
    return {
        "claim": claim.text,
        "paper": "" if claim.paper is None else f"{claim.paper:+.1f}{word}",
        "ours": " ".join(f"{unit * difference:+.2f}" for difference in differences) + word
        if differences
        else "not run",
        "holds": True if signs == {1} else False if signs == {-1} else None,
        "scale": compared,
    }


def sign(value: float) -> int:
    return (value > 1e-9) - (value < -1e-9)


def shown(values: Sequence[float], form: Form) -> str:
    """Mean and, over several seeds, standard deviation."""
    if not values:
        return "not run"
    spread = stdev(values) if len(values) > 1 else None
    if form == "madds":
        return human(mean(values))
    scale, digits = {"percent": (100.0, 2), "points": (1.0, 2), "ratio": (1.0, 2), "number": (1.0, 3)}[form]
    sign = "+" if form == "points" else ""
    text = f"{scale * mean(values):{sign}.{digits}f}"
    return text if spread is None else f"{text} ± {scale * spread:.{digits}f}"
