"""Results as charts and bars."""

from __future__ import annotations

from collections.abc import Sequence

from dsnet.results import Bench, Chart, Dot, RoutedTime, RoutedTimes, Series, WidthTime, WidthTimes


def latency(bench: Bench) -> list[Chart]:
    """Milliseconds over MAdds: every runtime beside its ideal, the same path built statically; and budgets."""
    found = [] if bench.widths is None else width_charts(bench.widths)
    return [*found, *([] if bench.routed is None else [routed_chart(bench.routed)])]


def width_charts(widths: WidthTimes) -> list[Chart]:
    """One for each number of threads and batch size."""
    groups: dict[tuple[int, int], dict[str, list[WidthTime]]] = {}
    for row in widths.rows:
        groups.setdefault((row.threads, row.batch), {}).setdefault(row.runtime, []).append(row)
    found = []
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
        found.append(Chart(title, "MAdds", "median ms per image", tuple(series)))
    return found


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
