"""Turns results into charts and bars: the content of each figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from dsnet.latency import threads_text
from dsnet.report.tables import human, router_name
from dsnet.results import (
    Bar,
    BarGroup,
    Bars,
    Bench,
    BudgetRow,
    Chart,
    DeployedTime,
    DeployedTimes,
    Dot,
    Dynamic,
    Evaluation,
    Metric,
    PathRow,
    RoutedTime,
    RoutedTimes,
    Series,
    Stat,
    WidthTime,
    WidthTimes,
)

MOST = 12  # number of the cheapest and of the most expensive classes that are drawn
SPREAD = 20  # ratio of the largest to the smallest MAdds above which the axis is logarithmic
MADDS = "MAdds, average over images"


def accuracy(results: Sequence[Evaluation], static: Sequence[Evaluation] = ()) -> Chart:
    """The score over MAdds: fixed widths, other paths, dynamic budgets, windows, and separately trained networks."""
    series = []
    for result in results:
        lead = f"{result.model}, " if len(results) > 1 else ""
        kind: Literal["line", "points"] = "points" if result.static else "line"
        series.append(Series(f"{lead}{'static' if result.static else 'fixed widths'}", fixed(result), kind))
        if result.dynamic is not None:
            series.append(Series(f"{lead}dynamic, router {router_name(result.dynamic)}", budgets(result)))
        if result.dynamic is not None and result.dynamic.windows:
            dots = tuple(dot(row, result) for row in result.dynamic.windows)
            series.append(Series(f"{lead}windows as trained", dots, kind="points"))
        if result.exits:
            series.append(Series(f"{lead}exit", tuple(dot(row, result) for row in result.exits), kind="points"))
        others = tuple(dot(row, result) for row in result.rows if row not in result.uniform and not row.exits)
        if others:
            series.append(Series(f"{lead}other paths", others, kind="points"))
    series += [Series(f"static {other.model}", fixed(other), kind="points") for other in static]
    first = results[0]
    name = first.model if len(results) == 1 else ""
    title = ", ".join(part for part in (name, f"{first.dataset} {first.split}".strip()) if part)
    return Chart(title, MADDS, score_name(first), tuple(series))


def score_name(result: Evaluation) -> str:
    """The metric as an axis names it."""
    if "%" in result.metric.form:
        return f"{result.metric.name} (%)"
    overlap = result.options.get("overlap")
    return result.metric.name if overlap is None else f"{result.metric.name} at {overlap:g}"


def dot(row: PathRow | BudgetRow, result: Evaluation) -> Dot:
    size = 100 if "%" in result.metric.form else 1
    madds = row.madds.mean if isinstance(row.madds, Stat) else row.madds
    return Dot(madds, size * row.score.mean, None if row.score.std is None else size * row.score.std)


def fixed(result: Evaluation) -> tuple[Dot, ...]:
    return tuple(dot(row, result) for row in result.uniform)


def budgets(result: Evaluation) -> tuple[Dot, ...]:
    return () if result.dynamic is None else tuple(dot(row, result) for row in result.dynamic.rows)


def widths_of(bars: Sequence[Bar], dynamic: Dynamic) -> tuple[str, ...]:
    count = max((len(bar.shares) for bar in bars), default=0)
    return ("exit",) * dynamic.exits + tuple(f"width {number}" for number in range(count - dynamic.exits))


def choices_of(bars: Sequence[Bar], result: Evaluation) -> tuple[str, ...]:
    """The names of what the bars share: image sizes, or widths."""
    assert result.dynamic is not None
    return tuple(f"{size} px" for size in result.sizes) if result.sized else widths_of(bars, result.dynamic)


def gates(result: Evaluation) -> Bars:
    """Shares of images per width, for each gate at each budget. Gates with the same shares are drawn as one bar."""
    assert result.dynamic is not None
    dynamic, groups = result.dynamic, []
    for row in dynamic.rows:
        shares = [row.gates[0].shares] if result.sized else [dynamic.spread(gate.shares) for gate in row.gates]
        alike = all(gate_shares == shares[0] for gate_shares in shares)
        named = [("", shares[0])] if alike else [(f"gate {number}", each) for number, each in enumerate(shares)]
        bars = tuple(Bar(name, gate_shares) for name, gate_shares in named)
        groups.append((row, bars))
    form, name = result.metric.form, result.metric.name
    names = choices_of([bar for _, bars in groups for bar in bars], result)
    title = f"Images per {'size' if result.sized else 'width'} at each budget"
    if all(len(bars) == 1 for _, bars in groups):
        rows = [
            Bar(row.name or human(row.asked), bars[0].shares, f"{human(row.madds.mean)}, {row.score.mean:{form}}")
            for row, bars in groups
        ]
        return Bars(title, names, (BarGroup(f"by budget: MAdds spent and {name} on the right", tuple(rows)),))
    parts = [BarGroup(f"{human(row.madds.mean)} MAdds, {name} {row.score.mean:{form}}", bars) for row, bars in groups]
    return Bars(title, names, tuple(parts))


def difficulty(result: Evaluation) -> Bars | None:
    """Widths that easy, dependent and hard images get at the first gate, at the best budget."""
    assert result.dynamic is not None
    row, share = result.dynamic.best_row, result.dynamic.difficulty
    bars = [
        Bar(name, result.spread(group.gates[0]), f"{share[name]:.1%} of images, {human(group.madds or 0)}")
        for name, group in row.groups.items()
        if group.gates
    ]
    if not bars:
        return None
    title = f"By difficulty, at {human(row.madds.mean)} MAdds" + (", first gate" if len(row.gates) > 1 else "")
    return Bars(title, choices_of(bars, result), (BarGroup("", tuple(bars)),))


def classes(result: Evaluation) -> Bars | None:
    """Classes from the cheapest to the dearest at the best budget; only the extremes if there are many."""
    assert result.dynamic is not None
    place = result.dynamic.shown
    costs = [(row.madds[place], row) for row in result.dynamic.classes]
    rows = sorted(((madds, row) for madds, row in costs if madds is not None), key=lambda pair: pair[0])
    if not rows:
        return None
    spread = result.dynamic.spread
    bars = tuple(
        Bar(row.name, spread(row.shares), f"{human(madds)}, {row.scores[place] or 0:.1%}") for madds, row in rows
    )
    words = f"average MAdds and {result.metric.name} on the right"
    groups = [BarGroup(words, bars)]
    if len(bars) > 2 * MOST:
        groups = [BarGroup(f"the cheapest classes: {words}", bars[:MOST])]
        groups.append(BarGroup("the most expensive classes", bars[-MOST:]))
    title = f"Classes at {human(result.dynamic.best_row.madds.mean)} MAdds"
    return Bars(title, choices_of(bars, result), tuple(groups))


def curves(metrics: Sequence[Mapping[str, float]], kind: str, *, title: str, y: str) -> Chart:
    """Metrics that were logged as KIND/name, over epochs."""
    names = list(dict.fromkeys(key for entry in metrics for key in entry if key.startswith(f"{kind}/")))
    series = tuple(
        Series(name.partition("/")[2], tuple(Dot(entry["epoch"], entry[name]) for entry in metrics if name in entry))
        for name in names
    )
    labels = ", ".join(part.name.replace("_", " ") for part in series)
    return Chart(title, "epoch", y or f"{labels} on calibration images", series, whole_x=True)


def overview(groups: Sequence[tuple[str, Evaluation]], title: str) -> Chart:
    """Every dynamic network, every distinct curve of fixed widths, every static network."""
    distinct: dict[tuple[tuple[float, float], ...], tuple[list[str], Evaluation]] = {}
    for name, result in groups:
        key = tuple((point.x, point.y) for point in fixed(result))
        distinct.setdefault(key, ([], result))[0].append(name)
    series = []
    for names, result in distinct.values():
        named = result.model if len(names) > 1 else names[0]
        if len(result.uniform) == 1:
            series.append(Series(f"{named}, static", fixed(result), kind="points"))
        else:
            series.append(Series(f"{named}, fixed widths", fixed(result), dashed=True))
    series += [Series(f"{name}, dynamic", budgets(result)) for name, result in groups if result.dynamic is not None]
    madds = [point.x for part in series for point in part.points]
    wide = max(madds) > SPREAD * min(madds)
    return Chart(title, MADDS, score_name(groups[0][1]), tuple(series), log_x=wide)


def latency(bench: Bench) -> list[Chart]:
    """Milliseconds over MAdds of widths and budgets, next to the ideal: the same paths as static networks."""
    charts = [] if bench.widths is None else width_charts(bench.widths)
    return [*charts, *([] if bench.routed is None else [routed_chart(bench.routed)])]


def clocks(bench: Bench) -> list[Chart]:
    """The score over milliseconds, for each number of threads."""
    return [clock(ways) for ways in bench.deployed if any(row.score is not None for row in ways.rows)]


def clock(ways: DeployedTimes) -> Chart:
    """The score over the mean milliseconds of every way to deploy a network."""
    metric = ways.metric or Metric("score", ".3f")
    percent = "%" in metric.form

    def dots(rows: Iterable[DeployedTime]) -> tuple[Dot, ...]:
        known = sorted((row.times.mean, row.score) for row in rows if row.score is not None)
        return tuple(Dot(mean, score * (100 if percent else 1)) for mean, score in known)

    fixed = dots(row for row in ways.rows if row.path is not None)
    dynamic = dots(row for row in ways.rows if row.path is None)
    series = [Series("fixed widths", fixed), *([Series("dynamic, one file", dynamic)] if dynamic else [])]
    title = f"One image at a time, {threads_text(ways.setting.threads)}"
    return Chart(title, "mean ms per image", f"{metric.name} (%)" if percent else metric.name, tuple(series))


def width_charts(widths: WidthTimes) -> list[Chart]:
    """One chart for each number of threads and batch size."""
    groups: dict[tuple[int, int], dict[str, list[WidthTime]]] = {}
    for row in widths.rows:
        groups.setdefault((row.threads, row.batch), {}).setdefault(row.runtime, []).append(row)
    charts = []
    for (threads, batch), runtimes in groups.items():
        families = list(dict.fromkeys(name.removeprefix("static ") for name in runtimes))
        series = [
            Series(
                f"ideal: {name}" if name.startswith("static") else name,
                per_image(rows),
                colour=families.index(name.removeprefix("static ")),
                dashed=name.startswith("static"),
            )
            for name, rows in runtimes.items()
        ]
        for other in widths.against:
            if (other.threads, other.batch) == (threads, batch):
                series.append(Series(other.model, (Dot(other.madds, other.times.p50 / batch),), kind="points"))
        title = f"Fixed widths: {threads} thread{'s' * (threads > 1)}, batch {batch}"
        charts.append(Chart(title, "MAdds", "median ms per image", tuple(series)))
    return charts


def per_image(rows: Sequence[WidthTime]) -> tuple[Dot, ...]:
    return tuple(Dot(row.madds, row.times.p50 / row.batch) for row in sorted(rows, key=lambda row: row.madds))


def routed_chart(routed: RoutedTimes) -> Chart:
    runs: dict[str, list[RoutedTime]] = {}
    for row in routed.rows:
        runs.setdefault(row.name, []).append(row)
    kinds = [f"{rows[0].router} {rows[0].targets}" for rows in runs.values()]
    series = []
    for number, rows in enumerate(runs.values()):
        kind = kinds[number]
        name = f"{rows[0].name}, {kind}" if kinds.count(kind) > 1 else kind
        real = tuple(Dot(row.madds, row.times.mean) for row in rows)
        ideal = tuple(Dot(row.madds, row.ideal) for row in rows)
        series += [Series(name, real, colour=number), Series(f"ideal: {name}", ideal, colour=number, dashed=True)]
    title = f"Dynamic network: {routed.images} test images one by one"
    return Chart(title, "MAdds, average over images", "mean ms per image", tuple(series))
