"""Every table of an evaluation, for the terminal and for Markdown, and what else commands print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from dsnet.results import BudgetRow, Dynamic, Evaluation, Measure, PathRow, Stat, Table
from dsnet.schema import plain
from dsnet.space import WidthPath

FEW = 6  # classes that have columns; more of them get a table of their own
RULES = {"area": "area under the curve", "11point": "VOC 2007's 11 points"}
SIZES = "S, M, L: a quarter, a half, three quarters of the way from the slimmest to the widest width's MAdds. "


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "") -> None:
    """A rich table; columns whose name starts with '<' are left-aligned, the others right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    table = Drawn(
        title=Text(title),
        box=SIMPLE_HEAD,
        title_justify="left",
        caption=Text(note) if note else None,
        caption_justify="left",
    )
    for column in columns:
        left = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False).print(table)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The same table as lines of Markdown."""
    head = [column.removeprefix("<") for column in columns]
    rule = [":--" if column.startswith("<") else "--:" for column in columns]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows)]


def print_json(content: Any) -> None:
    """A record, or what JSON holds."""
    print(json.dumps(plain(content) if is_dataclass(content) else content, indent=1))


def human(count: float) -> str:
    """A count with a unit: 565.4M, 4.01B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.99995 * size:  # 999,999,999 is 1.00B, not 1000.0M
            return f"{count / size:.2f}{unit}" if count < 9.995 * size else f"{count / size:.1f}{unit}"
    return str(int(count))


def path_name(path: WidthPath) -> str:
    return ",".join(map(str, path)) or "-"


def shown(stat: Stat, form: str) -> str:
    """A figure and, over several seeds, its standard deviation."""
    return format(stat.mean, form) + ("" if stat.std is None else f" ± {format(stat.std, form)}")


def show_evaluation(result: Evaluation, pictures: Sequence[Path] = ()) -> None:
    """Print every table of an evaluation, its warnings, and where its figures are."""
    for table in tables_of(result):
        print_table(table.title, table.columns, table.rows, note=table.note)
    for warning in result.dynamic.warnings if result.dynamic is not None else ():
        print(f"warning: {warning}")
    if pictures:
        print(f"figures: {' '.join(map(str, pictures))}")


def tables_of(result: Evaluation) -> list[Table]:
    """Paths, classes where there are many, budgets."""
    found = [paths_table(result), classes_table(result), budgets_table(result)]
    return [table for table in found if table is not None]


def title(result: Evaluation) -> str:
    seeds = result.seeds
    told = (
        f"{len(seeds)} seeds, mean and standard deviation" if len(seeds) > 1 else f"seed {', '.join(map(str, seeds))}"
    )
    what = f"{result.model} on {result.dataset}: {result.images}"
    if result.objects is not None:
        what = f"{result.model}: {result.objects} objects in {result.images}"
    return f"{what} {result.split} images, {result.image_size} px, {told}"


def paths_table(result: Evaluation) -> Table:
    """Every path that was evaluated, with its cost, its score and the metric's further measures."""
    part = next(iter(result.rows[0].parts), None)  # MAdds of the first named part stand for the share of the widest
    more = further(result)
    columns = ["<path", "MAdds", part or "of widest", "parameters", result.metric.name, *(one.name for one in more)]
    rows = [
        (
            path_name(row.path),
            human(row.madds),
            human(row.parts[part]) if part else f"{row.share:.1%}",
            human(row.params),
            shown(row.score, result.metric.form),
            *(shown(row.more[one.name], one.form) for one in more),
        )
        for row in result.rows
    ]
    return Table(title(result), tuple(columns), tuple(rows), paths_note(result))


def further(result: Evaluation) -> list[Measure]:
    """What has a column beside the metric: its further measures, and the score of each class where these are few."""
    classes = class_names(result)
    few = [Measure(name, result.metric.form) for name in classes] if len(classes) <= FEW else []
    return [*result.metric.more, *few]


def class_names(result: Evaluation) -> list[str]:
    """Classes whose score every row has."""
    known = {one.name for one in result.metric.more}
    return [name for name in result.rows[0].more if name not in known]


def paths_note(result: Evaluation) -> str:
    overlap, rule = result.options.get("overlap"), result.options.get("rule")
    if overlap is None:
        return ""
    return (
        f"Average precision at an overlap of {overlap:g}, {RULES.get(str(rule), rule)}. "
        f"MAdds of the detector and its backbone."
    )


def classes_table(result: Evaluation) -> Table | None:
    """The score of each class along every path, where the classes are too many for columns."""
    names = class_names(result)
    if len(names) <= FEW:
        return None
    columns = ["<class", *(path_name(row.path) for row in result.rows)]
    rows = [(name, *(shown(row.more[name], result.metric.form) for row in result.rows)) for name in names]
    return Table("average precision by class and path", tuple(columns), tuple(rows))


def budgets_table(result: Evaluation) -> Table | None:
    """The dynamic network at its budgets; None where there is no router."""
    if result.dynamic is None:
        return None
    if result.objects is not None:
        return named_budgets(result, result.dynamic)
    measured = ("budget", "MAdds", "p50", "p95", result.metric.name, "uniform hull", "gain")
    rows = [
        (
            *(human(value) for value in (row.asked, row.madds.mean, row.p50.mean, row.p95.mean)),
            shown(row.score, result.metric.form),
            shown(row.hull, result.metric.form),
            gain(row),
            " ".join(f"{share:.0%}" for share in row.gates[0].shares),
        )
        for row in result.dynamic.rows
    ]
    columns = (*measured, "<images per width, first gate")
    return Table(dynamic_title(result.dynamic), columns, tuple(rows), dynamic_note(result.dynamic))


def named_budgets(result: Evaluation, dynamic: Dynamic) -> Table:
    """Budgets by name. Their gain has no standard error, so the score of fixed widths stands alone."""
    columns = ("<budget", "MAdds", result.metric.name, "uniform", "<images per width")
    rows = [
        (
            row.name,
            human(row.madds.mean),
            shown(row.score, result.metric.form),
            shown(row.hull, result.metric.form),
            " ".join(str(round(share * result.images)) for share in row.gates[0].shares),
        )
        for row in dynamic.rows
    ]
    sizes = SIZES if [row.name for row in dynamic.rows] == ["S", "M", "L"] else ""
    note = f"{sizes}Uniform: the {result.metric.name} of fixed widths at the same MAdds, interpolated."
    return Table("dynamic detector", columns, tuple(rows), note)


def gain(row: BudgetRow) -> str:
    """Points over fixed widths, with their deviation over seeds or their standard error."""
    spread = row.gain_se if row.gain.std is None else row.gain.std
    return f"{row.gain.mean:+.2f}" + ("" if spread is None else f" ± {spread:.2f}")


def router_name(dynamic: Dynamic) -> str:
    return dynamic.router + ("" if dynamic.router == "threshold" else f", {dynamic.targets}")


def dynamic_title(dynamic: Dynamic) -> str:
    learned = "" if dynamic.router == "threshold" else f", targets {dynamic.targets}"
    return f"dynamic network: router {dynamic.router}{learned}"


def dynamic_note(dynamic: Dynamic) -> str:
    several = dynamic.rows[0].gain.std is not None
    spread = "standard deviation over seeds" if several else "paired standard error"
    words = [f"Gain: points above the concave hull of the uniform sub-networks at the same average MAdds, ± {spread}."]
    if share := dynamic.difficulty:
        words.append(
            f"Easy {share['easy']:.1%} (the slimmest is right), dependent {share['dependent']:.1%}, "
            f"hard {share['hard']:.1%} (no width is)."
        )
    if dynamic.auc is not None:
        words.append(f"AUC of 'the slimmest is right' {dynamic.auc.mean:.3f}.")
    if (oracle := dynamic.oracle) is not None:
        words.append(
            f"An oracle of the narrowest right width would reach {oracle.score.mean:.1%} at {human(oracle.madds.mean)}."
        )
    if several:
        words.append("Images per width and difficulty are the first seed's.")
    return " ".join(words)


def routes_table(result: Evaluation) -> Table | None:
    """Every class at every budget: average MAdds and score; None where routes are not known by class."""
    dynamic = result.dynamic
    if dynamic is None or not dynamic.classes:
        return None
    columns = [f"{human(row.madds.mean)}: {key}" for row in dynamic.rows for key in ("MAdds", result.metric.name)]
    rows = []
    for one in dynamic.classes:
        cells = [one.name, str(one.images)]
        for madds, score in zip(one.madds, one.scores, strict=True):
            cells += ["" if madds is None else human(madds), "" if score is None else f"{score:.1%}"]
        rows.append(tuple(cells))
    return Table("Every class at every budget", ("<class", "images", *columns), tuple(rows))


def summary_columns(result: Evaluation) -> list[str]:
    """Columns of a table with a row per run."""
    if result.objects is None:
        return ["<run", "<model", "<router", "slimmest", "widest", "dynamic", "at MAdds", "gain"]
    scores = [f"{where} {result.metric.name}" for where in ("slimmest", "widest", "dynamic")]
    return ["<run", "<model", *scores, "at MAdds", "uniform"]


def summary_cells(name: str, result: Evaluation) -> list[str]:
    """A run in one row: its ends, and the dynamic network at the middle budget."""
    rows = sorted(result.rows, key=lambda row: row.madds)
    ends = [bare(row, result) for row in (rows[0], rows[-1])]
    dynamic, detector = result.dynamic, result.objects is not None
    if dynamic is None:
        return [name, result.model, *([] if detector else [""]), *ends, "", "", ""]
    best = dynamic.middle
    router = [] if detector else [router_name(dynamic)]
    last = shown(best.hull, result.metric.form) if detector else gain(best)
    return [name, result.model, *router, *ends, bare(best, result), human(best.madds.mean), last]


def bare(row: PathRow | BudgetRow, result: Evaluation) -> str:
    """A score without its sign of percent, and its deviation."""
    return shown(row.score, result.metric.form).replace("%", "")
