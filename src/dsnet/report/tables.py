"""All tables of results, for the terminal, Markdown and pages, and the other output of commands."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from dsnet.advise import Option
from dsnet.results import (
    BudgetRow,
    Dynamic,
    Evaluation,
    Experiment,
    Measure,
    PathRow,
    Stat,
    Table,
)
from dsnet.routing.windows import window_text
from dsnet.schema import plain

WORDS = 80  # columns that titles and notes may take beside a narrower table
FEW = 3  # up to this many classes are columns; more classes get a separate table
RULES = {"area": "area under the curve", "11point": "VOC 2007's 11 points"}
SIZES = "S, M, L: a quarter, a half, three quarters of the way from the slimmest to the widest width's MAdds."
TO_FULL = "to full"
EQUAL = "To full: difference to the full network; equal if its 95 % paired interval includes zero."
VERDICTS = {True: "holds", False: "does not hold", None: "no verdict"}


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, note: str = "") -> None:
    """Print a table with rich; columns whose name starts with '<' are left-aligned, the others right-aligned."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table as Drawn
    from rich.text import Text

    table = Drawn(box=SIMPLE_HEAD)
    for column in columns:
        left = column.startswith("<")
        table.add_column(column.removeprefix("<"), justify="left" if left else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)
    wide = min(console.width, max(WORDS, console.measure(table).maximum))
    for part in (title, table, note):
        if part:
            console.print(part, style="italic" if part is title else None, width=wide)


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The same table as lines of Markdown."""
    head = [column.removeprefix("<") for column in columns]
    rule = [":--" if column.startswith("<") else "--:" for column in columns]
    return ["| " + " | ".join(map(str, row)) + " |" for row in (head, rule, *rows)]


def print_json(content: Any) -> None:
    """Print a record, or plain data, as JSON."""
    print(json.dumps(plain(content) if is_dataclass(content) else content, indent=1))


def human(count: float) -> str:
    """A count with a unit: 565.4M, 4.01B."""
    for size, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if count >= 0.99995 * size:  # 999,999,999 is 1.00B, not 1000.0M
            return f"{count / size:.2f}{unit}" if count < 9.995 * size else f"{count / size:.1f}{unit}"
    return str(int(count))


def shown(stat: Stat, form: str) -> str:
    """Format a number and, over several seeds, its standard deviation."""
    return format(stat.mean, form) + ("" if stat.std is None else f" ± {format(stat.std, form)}")


def filled(title: str, rows: Iterable[Any], columns: Mapping[str, Callable[[Any], str]], note: str = "") -> Table:
    """A table with a line for each row. columns: functions from a row to a cell."""
    return Table(title, tuple(columns), tuple(tuple(cell(row) for cell in columns.values()) for row in rows), note)


def show(tables: Iterable[Table]) -> None:
    for table in tables:
        print_table(table.title, table.columns, table.rows, note=table.note)


def show_evaluation(result: Evaluation, pictures: Sequence[Path] = ()) -> None:
    """Print every table of an evaluation, its warnings, and where its figures are."""
    show(evaluation_tables(result))
    for warning in (*result.warnings, *(result.dynamic.warnings if result.dynamic is not None else ())):
        print(f"warning: {warning}")
    if pictures:
        print(f"figures: {' '.join(map(str, pictures))}")


# Evaluations


def evaluation_tables(result: Evaluation) -> list[Table]:
    """The tables of an evaluation: paths, classes if there are many, budgets, windows."""
    tables = [paths_table(result), classes_table(result), budgets_table(result), windows_table(result)]
    return [table for table in tables if table is not None]


def title(result: Evaluation) -> str:
    seeds = result.seeds
    seeds_text = (
        f"{len(seeds)} seeds, mean and standard deviation" if len(seeds) > 1 else f"seed {', '.join(map(str, seeds))}"
    )
    objects = "" if result.objects is None else f"{result.objects} objects in "
    images = f"{result.images} {result.split} images"
    return f"{result.model} on {result.dataset}: {objects}{images}, {result.image_size} px, {seeds_text}"


def paths_table(result: Evaluation) -> Table:
    """Every path that was evaluated, with its cost, its score and the metric's further measures."""
    part = next(iter(result.rows[0].parts), "")  # MAdds of the first named part stand for the share of the widest
    metric, classes = result.metric, class_names(result)
    more = [*metric.more, *(Measure(name, metric.form) for name in classes if len(classes) <= FEW)]
    columns: dict[str, Callable[[PathRow], str]] = {
        "<path": lambda row: result.name_of(row),
        "MAdds": lambda row: human(row.madds),
        part or "of widest": lambda row: human(row.parts[part]) if part else f"{row.share:.1%}",
        "parameters": lambda row: human(row.params),
        metric.name: lambda row: shown(row.score, metric.form),
        **{m.name: lambda row, m=m: shown(row.more[m.name], m.form) for m in more},  # type: ignore[misc]
        TO_FULL: lambda row: to_full(row, result),
    }
    if not any(row.to_full for row in result.rows):
        del columns[TO_FULL]
    if part:
        del columns["parameters"]
    return filled(title(result), result.rows, columns, paths_note(result))


def to_full(row: PathRow | BudgetRow | Option, result: Evaluation) -> str:
    """The difference to the full network: `equal`, or in points where the metric is a percentage."""
    if row.to_full is None:
        return ""
    return "equal" if row.to_full.sign == 0 else points(result, row.to_full.mean)


def points(result: Evaluation, value: float, digits: int = 2) -> str:
    """A difference of scores as a signed number of points, or in the units of a metric that is no percentage."""
    return f"{100 * value:+.{digits}f}" if "%" in result.metric.form else f"{value:+.3f}"


def class_names(result: Evaluation) -> list[str]:
    """The classes whose scores are in the rows."""
    measures = {measure.name for measure in result.metric.more}
    return [name for name in result.rows[0].more if name not in measures]


def paths_note(result: Evaluation) -> str:
    overlap, rule = result.options.get("overlap"), result.options.get("rule")
    words = [EQUAL] if any(row.to_full for row in result.rows) else []
    if overlap is not None:
        words.append(f"Average precision at an overlap of {overlap:g}, {RULES.get(str(rule), rule)}.")
        words.append("MAdds of the detector and its backbone.")
    return " ".join(words)


def classes_table(result: Evaluation) -> Table | None:
    """The score of each class along every path; None if the classes are few enough to be columns of the paths table."""
    names = class_names(result)
    if len(names) <= FEW:
        return None
    columns = ("<class", *(result.name_of(row) for row in result.rows))
    rows = [(name, *(shown(row.more[name], result.metric.form) for row in result.rows)) for name in names]
    return Table("Every class along every path", columns, tuple(rows))


def budgets_table(result: Evaluation) -> Table | None:
    """The dynamic network at its budgets; None without a router."""
    dynamic, metric = result.dynamic, result.metric
    if dynamic is None:
        return None
    columns: dict[str, Callable[[BudgetRow], str]] = {
        "budget": lambda row: row.name or human(row.asked),
        "window": lambda row: window_text(row.window) or "all",
        "MAdds": lambda row: human(row.madds.mean),
        "p95": lambda row: human(row.p95.mean),
        metric.name: lambda row: shown(row.score, metric.form),
        TO_FULL: lambda row: to_full(row, result),
        "gain": gain,
        "exit": exit_gain,
        "uniform": lambda row: shown(row.hull, metric.form),
        f"<per {'size' if result.sized else 'width'}, %": lambda row: " ".join(
            f"{100 * share:.0f}" for share in result.spread(row.gates[0].shares)
        ),
        "exits, %": lambda row: f"{100 * row.gates[-1].exit:.0f}",
    }
    if not (result.sized and dynamic.exits):
        del columns["exits, %"]
    if not any(row.to_full for row in dynamic.rows):
        del columns[TO_FULL]
    if not dynamic.windows:
        del columns["window"]
    if not exit_gain(dynamic.middle):
        del columns["exit"]
    if dynamic.windows or dynamic.exits:
        del columns["p95"]
    del columns["uniform" if gain(dynamic.middle) else "gain"]
    learned = "" if dynamic.router == "threshold" else f", targets {dynamic.targets}"
    return filled(
        f"dynamic network: router {dynamic.router}{learned}", dynamic.rows, columns, dynamic_note(result, dynamic)
    )


def windows_table(result: Evaluation) -> Table | None:
    """The dynamic network as trained in each of its windows; None if it has no windows."""
    dynamic, metric = result.dynamic, result.metric
    if dynamic is None or not dynamic.windows:
        return None
    columns: dict[str, Callable[[BudgetRow], str]] = {
        "<window": lambda row: f"{window_text(row.window)} {row.name}".rstrip(),
        "MAdds": lambda row: human(row.madds.mean),
        metric.name: lambda row: shown(row.score, metric.form),
        "gain": gain,
        "over mix": lambda row: "" if row.lottery is None else points(result, row.score.mean - row.lottery.mean),
        "bits": lambda row: " ".join(f"{gate.entropy:.2f}" for gate in row.gates),
        "<per width, %": lambda row: " ".join(f"{100 * share:.0f}" for share in row.gates[0].shares),
    }
    note = (
        "As trained: lambda is 0, and decisions choose within the window. S, M and L are the lowest, the middle and "
        "the highest window. Over mix: points above a random choice with the same shares of widths. Bits: entropy of "
        f"the shares{', of each gate' * (len(dynamic.middle.gates) > 1)}."
    )
    return filled("windows as trained", dynamic.windows, columns, note)


def gain(row: BudgetRow) -> str:
    """Points over fixed widths, ± the standard deviation over seeds or the standard error; empty without either."""
    spread = row.gain_se if row.gain.std is None else row.gain.std
    return "" if spread is None else f"{row.gain.mean:+.2f} ± {spread:.2f}"


def exit_gain(row: BudgetRow) -> str:
    """Points over fixed widths and the exit, whose spread is that of the gain; empty without an exit."""
    return "" if row.exit_gain is None else f"{row.exit_gain.mean:+.2f}"


def router_name(dynamic: Dynamic) -> str:
    return dynamic.router + ("" if dynamic.router == "threshold" else f", {dynamic.targets}")


def dynamic_note(result: Evaluation, dynamic: Dynamic) -> str:
    several = len(result.seeds) > 1
    spread = "standard deviation over seeds" if several else "paired standard error"
    words = [SIZES] if [row.name for row in dynamic.rows] == ["S", "M", "L"] else []
    words += ["Window: positions of the widths that the budget chooses among."] if dynamic.windows else []
    gates = len(dynamic.middle.gates)
    first = "at the exit, then at each width" if dynamic.exits else "at the first gate" if gates > 1 else ""
    per_width = f"Per width: share of the images{f' {first}' * bool(first)}, slimmest first."
    words.append("Per size: share of the images, smallest first." if result.sized else per_width)
    words += ["Exits: share that an early classifier answers."] if result.sized and dynamic.exits else []
    if gain(dynamic.middle):
        words.append(
            f"Gain: points above the concave hull of the uniform sub-networks at the same average MAdds, ± {spread}."
        )
        words += ["Exit: the gain where the exit is on the hull too."] if exit_gain(dynamic.middle) else []
    else:
        words.append(f"Uniform: the {result.metric.name} of fixed widths at the same MAdds, interpolated.")
    slimmest = "the exit" if dynamic.exits else "the slimmest"
    if share := dynamic.difficulty:
        words.append(
            f"Easy {share['easy']:.1%} ({slimmest} is right), dependent {share['dependent']:.1%}, "
            f"hard {share['hard']:.1%} (no width is)."
        )
    if dynamic.auc is not None:
        words.append(f"AUC of '{slimmest} is right' {dynamic.auc.mean:.3f}.")
    if (oracle := dynamic.oracle) is not None:
        words.append(
            f"An oracle that picks the narrowest right width would reach {oracle.score.mean:.1%} at "
            f"{human(oracle.madds.mean)}."
        )
    if several:
        words.append("Shares of images are the first seed's.")
    return " ".join(words)


def routes_table(result: Evaluation) -> Table | None:
    """Average MAdds and score of every class at every budget; None if routes by class were not evaluated."""
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


def summary_table(title: str, runs: Sequence[tuple[str, Evaluation]]) -> Table:
    """One row for each run on the same data: full network, slimmest path, and the dynamic network at its best
    budget."""
    metric = runs[0][1].metric

    def cells(name: str, result: Evaluation) -> tuple[str, ...]:
        rows, dynamic = sorted(result.rows, key=lambda row: row.madds), result.dynamic
        ends = rows[-1], result.uniform[0]
        full, slimmest = (shown(row.score, metric.form).replace("%", "") for row in ends)
        if dynamic is None:
            return name, result.model, "", full, slimmest, "", "", "", ""
        row = dynamic.best_row
        score, share = shown(row.score, metric.form).replace("%", ""), f"{row.madds.mean / rows[-1].madds:.0%}"
        return name, result.model, router_name(dynamic), full, slimmest, score, share, to_full(row, result), gain(row)

    columns = ("<run", "<model", "<router", "full", "slimmest", "dynamic", "of MAdds", TO_FULL, "gain")
    note = (
        f"{metric.name}{' in %' * ('%' in metric.form)}; dynamic: at its best budget, the cheapest whose score equals "
        f"the full network's, or else the most accurate; gain: points over fixed widths at the same average MAdds."
    )
    return Table(title, columns, tuple(cells(*run) for run in runs), note)


# Experiments


def claims_table(result: Experiment, title: str = "") -> Table:
    """Claims of the paper next to our measurements."""
    columns = {
        "<claim": lambda row: row.claim,
        "paper": lambda row: row.paper,
        "ours": lambda row: row.ours,
        "<direction": lambda row: VERDICTS[row.holds] + (f" ({row.why})" if row.why else ""),
    }
    return filled(title, result.claims, columns)


def show_experiment(result: Experiment) -> None:
    title = f"{result.title}: does it hold at scale {result.scale}?"
    show([*result.tables, *([claims_table(result, title)] if result.claims else [])])
