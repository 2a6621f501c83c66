"""A pretrained network on photographs: `dsnet slim`, next to what its user would do instead."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from dsnet.experiments.catalogue.alternatives import TOP1, claim
from dsnet.experiments.catalogue.slim_points import (
    DYNAMIC,
    FIXED,
    INT8,
    NARROW,
    SMALLER,
    STATIC,
    Curve,
    Points,
    Times,
    points_of,
    timed,
)
from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Column, Findings, Row, Runs, Table
from dsnet.experiments.measures import series, widest, widest_madds
from dsnet.experiments.paired import RULE
from dsnet.experiments.recipe import STARTS, Recipe, Scale
from dsnet.results import Chart, Claim
from dsnet.results import Table as ResultTable
from dsnet.runs.folder import RunFolder
from dsnet.slimming.network import slim
from dsnet.slimming.pretrained import PRETRAINED
from dsnet.slimming.sources import read_images
from dsnet.tasks import save

START = "slim"  # the converted network
WIDTHS = ((0.35, 0.5), (0.5, 0.75), (0.75, 0.75), 1.0)  # shares of hidden and residual channels
PRE = Recipe("slim_pre", start=START, seed=0)
SWEEP = (2e-4, 2e-3)  # learning rates of the static network besides that of the recipe
LOST = 0.003  # of the static network's accuracy, which may be given up
COLUMNS = ("top-1", "MAdds", "of static", "p50 ms", "p95 ms", "of static's ms")
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, over {images} test images; all "
    "networks of all seeds took turns in one run. p50 and p95 are over the images, each the median of its rounds. "
    "The dynamic network is one file. Its budgets were calibrated on held-out training images. The static network is "
    "the same pretrained network, fine-tuned alone, with no less training time; of its learning rates, the best on the "
    "held-out images is shown. The narrow one starts from the same sorted weights as the slimmest width. Smaller "
    "images: the static network with batch-norm statistics of that size. The oracle knows the narrowest width that is "
    "right, and cannot be built."
)


Line = dict[str, dict[int, float | None]]  # values of a row by column and seed


def sweep_label(lr: float) -> str:
    return f"static, learning rate {lr:g}"


def slim_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    widest_only = {"ieb.only": 3 if scale.name != "smoke" else 1}
    rows = [
        Row(DYNAMIC, Recipe("slim", {"sgs.router": "margin"}, source=PRE)),
        Row(STATIC, Recipe("slim_static", widest_only, start=START)),
        *(Row(sweep_label(lr), Recipe("slim_sweep", {**widest_only, "optim.lr": lr}, start=START)) for lr in SWEEP),
        Row(NARROW, Recipe("slim_static", {"ieb.only": 0}, start=START)),
    ]
    return (Table("Runs", (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)), tuple(rows)),)


def prepare(scale: Scale, out: Path, root: str | None) -> None:
    """Convert the network that the runs start from, unless it is there."""
    folder = out / STARTS / START
    if folder.is_dir():
        return
    if scale.name == "smoke":
        torch.manual_seed(0)
        net = slim(tiny(), torch.zeros(1, 3, 16, 16), (0.5, 1.0), name="tiny")
    else:
        known, size = PRETRAINED["efficientnet_lite0"], int(scale.bases["slim"].keys["model.image_size"])
        images = read_images(Path(root or "") / scale.folders["slim"] / "train", 3, size, known.preprocessing)
        net = slim(known.model(size), images[:1], WIDTHS, images=images, name="efficientnet_lite0")
        net.card = replace(net.card, preprocessing=known.preprocessing)
    save(net, folder)


def tiny() -> torch.nn.Module:
    def conv(cin: int, cout: int, stride: int) -> list[torch.nn.Module]:
        layer = torch.nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        return [layer, torch.nn.BatchNorm2d(cout), torch.nn.ReLU()]

    body = [*conv(3, 16, 2), *conv(16, 64, 2), *conv(64, 64, 1)]
    return torch.nn.Sequential(*body, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))


def compare(scale: Scale, runs: Runs) -> Findings:
    """Accuracy, MAdds and milliseconds of everything that could be deployed, over the seeds whose runs are finished."""
    by_seed = {label: {run.seed: run for run in mine} for label, mine in runs.items()}
    seeds = sorted(set(by_seed[DYNAMIC]) & set(by_seed[STATIC]))
    if not seeds:
        return Findings(("No seed is finished yet.",), (), (), ())
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[int, Points] = {}
        curves: dict[int, Curve] = {}
        for seed in seeds:
            mine = {label: each[seed] for label, each in by_seed.items() if seed in each}
            found[seed], curves[seed] = points_of(mine, Path(scratch) / str(seed))
        common = [label for label in found[seeds[0]] if all(label in points for points in found.values())]
        found = {seed: {label: points[label] for label in common} for seed, points in found.items()}
        times = timed(found, by_seed[DYNAMIC][seeds[0]])
    values = {label: figures(label, found, times) for label in common}
    rows = tuple((label, *cells(line)) for label, line in values.items())
    kept = {label: {name: dict(mine.items()) for name, mine in line.items()} for label, line in values.items()}
    count = len(next(iter(times.values())))
    table = ResultTable(
        "A pretrained network on photographs", ("<network", *COLUMNS), rows, NOTE.format(images=count), kept
    )
    return Findings(
        text=(),
        tables=(table, reached(found, curves, times), *sweep(by_seed)),
        claims=tuple(claims(found, times)),
        figures=tuple(chart(values, found[seeds[0]], over) for over in ("p50 ms", "MAdds")),
        rule=RULE,
    )


def figures(label: str, found: Mapping[int, Points], times: Times) -> Line:
    """The columns of a row by seed."""
    line: Line = {name: {} for name in COLUMNS}
    for seed, points in found.items():
        spent, whole = times.get((seed, label)), times[seed, STATIC]
        mine = (
            float(points[label].right.mean()),
            points[label].madds,
            points[label].madds / points[STATIC].madds,
            None if spent is None else float(np.median(spent)),
            None if spent is None else float(np.quantile(spent, 0.95)),
            None if spent is None else float(spent.mean() / whole.mean()),
        )
        for name, value in zip(COLUMNS, mine, strict=True):
            line[name][seed] = value
    return line


def cells(line: Line) -> list[str]:
    """The figures of a row as text: means over seeds."""
    forms = ("{:.2%}", "{:.1f}M", "{:.3f}", "{:.2f}", "{:.2f}", "{:.2f}")
    found = []
    for name, form in zip(COLUMNS, forms, strict=True):
        known = [value for value in line[name].values() if value is not None]
        unit = 1e-6 if name == "MAdds" else 1.0
        found.append(form.format(unit * mean(known)).replace("%", "") if known else "")
    return found


def reached(
    found: Mapping[int, Points],
    curves: Mapping[int, Curve],
    times: Times,
) -> ResultTable:
    """Where the dynamic network reaches the static one's accuracy less LOST, read on the test curve, by seed."""
    rows = []
    for seed, points in found.items():
        wanted = float(points[STATIC].right.mean()) - LOST
        share = next((share for share, score in curves[seed] if score >= wanted), None)
        costs = {label: point.madds for label, point in points.items() if point.group == DYNAMIC}
        spent = [float(times[seed, label].mean()) for label in costs]
        ms = None if share is None else np.interp(share * points[STATIC].madds, list(costs.values()), spent)
        ratio = None if ms is None else float(ms) / float(times[seed, STATIC].mean())
        widths = [point for label, point in points.items() if point.group == FIXED]
        rows.append(
            (
                str(seed),
                f"{100 * (widths[-1].right.mean() - points[STATIC].right.mean()):+.2f}",
                f"{100 * widths[0].right.mean():.2f}",
                "never" if share is None else f"{share:.2f}",
                "never" if ratio is None else f"{ratio:.2f}",
            )
        )
    columns = ("seed", "widest minus static", "slimmest", "MAdds at static minus 0.3", "ms at static minus 0.3")
    note = "The last two columns are shares of the static network's, read on the test curve; ms between timed budgets."
    return ResultTable("What it takes to keep the static network's accuracy", columns, tuple(rows), note)


def sweep(runs: Mapping[str, Mapping[int, Finished]]) -> Iterator[ResultTable]:
    """The learning rates of the static network: accuracy on the calibration images, which chose among them."""
    rows = []
    for label in (STATIC, *map(sweep_label, SWEEP)):
        for seed, run in sorted(runs.get(label, {}).items()):
            scores = [line[key] for line in run.history for key in line if key.startswith("calibration/")]
            rate = RunFolder.of(run.folder).config().optim.lr
            rows.append((f"{rate:g}", str(seed), f"{100 * max(scores):.2f}"))
    if rows:
        columns = ("learning rate", "seed", "calibration top-1")
        yield ResultTable("Learning rates of the static network", columns, tuple(rows))


def claims(found: Mapping[int, Points], times: Times) -> list[Claim]:
    """The dynamic network over each alternative."""

    def better(ours: str, theirs: str) -> Claim:
        gains = [1.0 * points[ours].right - points[theirs].right for points in found.values()]
        return claim(f"{ours} over {theirs}, {TOP1}", 100 * np.stack(gains))

    def faster(ours: str, theirs: str) -> Claim:
        saved = [times[seed, theirs] - times[seed, ours] for seed in found]
        return claim(f"{ours}: ms saved over {theirs}", np.stack(saved), 3)

    points = next(iter(found.values()))
    smaller = [label for label, point in points.items() if point.group == SMALLER]
    slimmest, *_, full = [label for label, point in points.items() if point.group == FIXED]
    pairs = [(full, STATIC), (slimmest, NARROW), *zip(("dynamic at 0.7", "dynamic at 0.5"), smaller, strict=False)]
    pairs += [("dynamic at 0.85", STATIC), (f"dynamic at 0.7{INT8}", STATIC + INT8)]
    known = [pair for pair in pairs if set(pair) <= points.keys()]
    return [judge(*pair) for pair in known for judge in (better, faster)]


def chart(values: Mapping[str, Line], points: Points, over: str) -> Chart:
    """Accuracy over milliseconds or MAdds, one line per kind of network."""
    unit = 1e-6 if over == "MAdds" else 1.0
    lines = []
    for group in dict.fromkeys(point.group for point in points.values() if over == "MAdds" or point.call):
        mine = [line for label, line in values.items() if points[label].group == group]
        curves = [
            sorted((unit * (line[over][seed] or 0.0), 100 * (line["top-1"][seed] or 0.0)) for line in mine)
            for seed in mine[0]["top-1"]
        ]
        lines.append(series(group, curves, "line" if len(mine) > 1 else "points"))
    axis = (
        "milliseconds per image, p50 (ONNX Runtime, one thread)"
        if over != "MAdds"
        else "MAdds (M), average over images"
    )
    return Chart(f"Accuracy against {over}", axis, "top-1 accuracy (%)", tuple(lines))
