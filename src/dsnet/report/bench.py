"""Benchmarks as tables and a figure: latency against MAdds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dsnet.report.figures import BLUE, GREEN, GREY, RED, new_figure, saved
from dsnet.report.tables import human, markdown_table, print_table

COLUMNS = ["<runtime", "<path", "threads", "batch", "MAdds", "mean ms", "p50", "p95", "images/s", "to ideal", "A/A"]
ROUTED_COLUMNS = ["<run", "<router", "budget", "MAdds", "top-1", "mean ms", "p50", "p95", "ideal ms", "to ideal"]
TABLE1_COLUMNS = ["<way", "mean ms", "p50", "p95", "to ideal", "paper, to ideal"]
EQUAL_COLUMNS = ["top-1", "<run", "ms", "MAdds", "time to first"]


def sections(result: dict[str, Any]) -> list[tuple[str, list[str], list[list[str]], str]]:
    """(title, columns, cells, note) of everything that was measured."""
    found = []
    if widths := result.get("widths"):
        where = f"{widths['model']}, {widths['image_size']} px, {widths['repeats']} interleaved rounds"
        found.append((where, COLUMNS, width_cells(widths), width_note(widths)))
        if widths["against"]:
            columns = ["<static network", "threads", "batch", "MAdds", "mean ms", "p50", "p95"]
            cells = [
                [row["model"], str(row["threads"]), str(row["batch"]), human(row["madds"]), *ms(row)]
                for row in widths["against"]
            ]
            found.append(("what one could run instead, as static ONNX files", columns, cells, ""))
    if routed := result.get("routed"):
        where = f"dynamic {routed['model']}, {routed['images']} test images one by one, {routed['rounds']} times"
        note = "Ideal: what the chosen paths take as static networks of the same runtime, were they known beforehand."
        found.append((where, ROUTED_COLUMNS, routed_cells(routed), note))
        if routed["equal"]:
            found.append(("at equal accuracy", EQUAL_COLUMNS, equal_cells(routed), "Interpolated between budgets."))
    if table := result.get("table1"):
        where = f"{table['model']} at its slimmest, {table['image_size']} px, batch {table['batch']}"
        note = "The paper's figures are milliseconds on a GPU, relative to its ideal. Ideal here: extracted and folded."
        found.append((f"Table 1: {where}, {table['threads']} threads", TABLE1_COLUMNS, table1_cells(table), note))
    return found


def show_bench(result: dict[str, Any]) -> None:
    for title, columns, cells, note in sections(result):
        print_table(title, columns, cells, note=note)


def export_bench(result: dict[str, Any], file: Path) -> None:
    """The same as a Markdown page; the figure is beside it."""
    lines = [f"# Latency of {file.stem}", ""]
    for title, columns, cells, note in sections(result):
        lines += [f"## {title}", "", *markdown_table(columns, cells), "", note, ""]
    if result.get("widths"):
        lines += [f"![latency against MAdds]({file.with_suffix('.png').name})", ""]
    any_part = next(part for part in result.values() if isinstance(part, dict) and "machine" in part)
    lines += [
        f"Made by `{result['command']}` with dsnet {any_part['dsnet']}, torch {any_part['torch']}, onnxruntime "
        f"{any_part['onnxruntime']} on {any_part['machine']}. Times are noise, ratios are what counts.",
    ]
    file.write_text("\n".join(lines) + "\n")


def dotted(path: list[int]) -> str:
    return ",".join(map(str, path)) or "-"


def ratio(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def ms(row: dict[str, Any]) -> list[str]:
    return [f"{row[key]:.2f}" for key in ("mean", "p50", "p95")]


def width_cells(widths: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["runtime"],
            dotted(row["path"]),
            str(row["threads"]),
            str(row["batch"]),
            human(row["madds"]),
            *ms(row),
            f"{row['images_per_second']:.1f}",
            ratio(row["ratio"]),
            ratio(row["noise"]),
        ]
        for row in widths["rows"]
    ]


def width_note(widths: dict[str, Any]) -> str:
    parts = [
        "To ideal: time relative to the same path built statically in the same runtime (extracted, folded), median of "
        "rounds. A/A: that ideal measured twice."
    ]
    for row in widths["speed_up"]:
        where = f"{row['runtime']}, {row['threads']} threads, batch {row['batch']}"
        gain = f"slimmest {row['realised']:.2f}x as fast as widest, MAdds {row['madds']:.2f}x"
        parts.append(f"{where}: {gain} ({row['share']:.0%}).")
    if files := widths["files"]:
        parts.append(
            f"Dynamic file: {human(files['dynamic'])} bytes, {files['dynamic'] / files['widest']:.3f}x the widest's; "
            f"loaded in {files['load_seconds']:.2f} s, taking {human(files['load_bytes'])} bytes of memory "
            f"({files['load_bytes'] / files['dynamic']:.1f}x the file)."
        )
    return "\n".join(parts)


def routed_cells(routed: dict[str, Any]) -> list[list[str]]:
    return [
        [
            row["name"],
            f"{row['router']} {row['targets']}",
            human(row["asked"]),
            human(row["madds"]),
            f"{row['top1']:.2%}" if "top1" in row else "",
            *ms(row),
            f"{row['ideal']:.2f}",
            ratio(row["ratio"]),
        ]
        for row in routed["rows"]
    ]


def equal_cells(routed: dict[str, Any]) -> list[list[str]]:
    return [
        [f"{level['top1']:.2%}", name, f"{run['ms']:.3f}", human(run["madds"]), ratio(run["ratio"])]
        for level in routed["equal"]
        for name, run in level["runs"].items()
    ]


def table1_cells(table: dict[str, Any]) -> list[list[str]]:
    return [[row["way"], *ms(row), ratio(row["ratio"]), ratio(row["paper"])] for row in table["rows"]]


def latency_figure(widths: dict[str, Any], file: Path) -> Path:
    """Median latency per image against MAdds, one line per runtime."""
    figure = new_figure(6, 4)
    axes = figure.add_subplot()
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for row in widths["rows"]:
        groups.setdefault((row["runtime"], row["threads"], row["batch"]), []).append(row)
    many = len({key[1:] for key in groups}) > 1
    colours = [BLUE, RED, GREEN, "#8a5fb0", "#c98a1b", "#444444"]
    families = list(dict.fromkeys(runtime.removeprefix("static ") for runtime, *_ in groups))
    for (runtime, threads, batch), rows in groups.items():
        rows = sorted(rows, key=lambda row: row["madds"])
        static = runtime.startswith("static")
        family = families.index(runtime.removeprefix("static "))
        colour = GREY if runtime == "static" else colours[family % len(colours)]
        label = runtime + (f", {threads} threads, batch {batch}" if many else "")
        style = "--" if static else "-"
        times = [row["p50"] / batch for row in rows]
        axes.plot([row["madds"] / 1e6 for row in rows], times, style, marker="o", ms=4, color=colour, label=label)
    for row in widths.get("against", []):
        axes.scatter([row["madds"] / 1e6], [row["p50"] / row["batch"]], marker="^", color="black", zorder=3)
        axes.annotate(row["model"], (row["madds"] / 1e6, row["p50"] / row["batch"]), fontsize=7)
    axes.set_xlabel("MAdds (M)")
    axes.set_ylabel("median ms per image")
    axes.set_title(f"{widths['model']}, {widths['image_size']} px", fontsize=10)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=7)
    return saved(figure, file)
