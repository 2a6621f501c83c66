"""A pretrained network on photographs: `dsnet slim`, next to what its user would do instead."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dsnet.experiments.catalogue.alternatives import TOP1, judged
from dsnet.experiments.catalogue.compared import LOST, Compared, compared
from dsnet.experiments.catalogue.sizes_points import RESIZED, static_points
from dsnet.experiments.catalogue.slim_points import (
    DYNAMIC,
    INT8,
    NARROW,
    REPAIRED,
    SHORT,
    STATIC,
    Curve,
    Curves,
    Points,
    dynamic_points,
    fixed,
    narrow_points,
)
from dsnet.experiments.catalogue.starts import EVEN_FIRST, SMALL_FIRST, convert, static_rows
from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Column, Findings, Row, Runs, Table
from dsnet.experiments.measures import widest, widest_madds
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.results import Claim
from dsnet.results import Table as ResultTable

ROUTER = {"sgs.router": "margin"}
LEARNED = Recipe("slim", ROUTER, start=EVEN_FIRST)  # the dynamic network
AGAIN = Recipe("slim", ROUTER, source=Recipe("slim_repair", start=EVEN_FIRST))  # the same, repaired before
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, over {images} test images; all "
    "networks of all seeds took turns in one run. p50 and p95 are over the images, each the median of its rounds. "
    "The dynamic network is one file. Its budgets were calibrated on held-out training images. The static network is "
    "the same pretrained network, fine-tuned alone, with no less training time; of its learning rates, the best on the "
    "held-out images of each seed is shown. It also runs on smaller images, with batch-norm statistics of their size. "
    "The narrow one starts from the same sorted weights as the slimmest width. The repaired network is a dynamic one "
    "whose widths first learned the answers of the pretrained network on photographs without labels; those of the "
    "training and calibration images are among them, and no test image is. The oracle knows the narrowest width that "
    "is right, and cannot be built."
)


def slim_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    narrow = Row(NARROW, Recipe("slim_narrow", {"ieb.only": 0}, start=EVEN_FIRST))
    rows = (Row(DYNAMIC, LEARNED), Row(REPAIRED, AGAIN), *static_rows(), narrow)
    return (Table("Runs", (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)), rows),)


def prepare(scale: Scale, out: Path, root: str | None) -> None:
    """Convert the networks that the runs start from, unless they are there."""
    convert(scale, out, root, (EVEN_FIRST, SMALL_FIRST))


def points_of(runs: Mapping[str, Finished], scratch: Path) -> tuple[Points, Curves]:
    """Every operating point of one seed by label, and the dynamic networks' MAdds and accuracy over budgets."""
    found, curves = Points(), dict[str, Curve]()
    for label in filter(runs.__contains__, SHORT):
        mine, curves[label] = dynamic_points(runs[label], label, scratch / SHORT[label])
        found |= mine
    found |= static_points(runs[STATIC], scratch / STATIC)
    if NARROW in runs:
        found |= narrow_points(runs[NARROW], scratch / NARROW)
    return found, curves


def compare(scale: Scale, runs: Runs) -> Findings:
    title = "A pretrained network on photographs"
    return compared(runs, points_of, lambda found: [reached(found)], claims, title=title, note=NOTE)


def reached(found: Compared) -> ResultTable:
    """Where the dynamic networks reach the static one's accuracy less LOST, read on the test curve, by seed."""
    rows, times = [], found.times
    for network, seed in (
        (network, seed) for network in SHORT for seed in found.points if network in found.curves[seed]
    ):
        points, name = found.points[seed], SHORT[network]
        wanted = float(points[STATIC].right.mean()) - LOST
        share = next((share for share, score in found.curves[seed][network] if score >= wanted), None)
        costs = {label: point.madds for label, point in points.items() if point.group == name}
        spent = [float(times[seed, label].mean()) for label in costs]
        ms = None if share is None else np.interp(share * points[STATIC].madds, list(costs.values()), spent)
        ratio = None if ms is None else float(ms) / float(times[seed, STATIC].mean())
        widths = [point for label, point in points.items() if point.group == fixed(name)]
        rows.append(
            (
                name,
                str(seed),
                f"{100 * (widths[-1].right.mean() - points[STATIC].right.mean()):+.2f}",
                f"{100 * widths[0].right.mean():.2f}",
                "never" if share is None else f"{share:.2f}",
                "never" if ratio is None else f"{ratio:.2f}",
            )
        )
    last = ("MAdds at static minus 0.3", "ms at static minus 0.3")
    columns = ("<network", "seed", "widest minus static", "slimmest", *last)
    note = "The last two columns are shares of the static network's, read on the test curve; ms between timed budgets."
    return ResultTable("What it takes to keep the static network's accuracy", columns, tuple(rows), note)


def claims(found: Compared) -> list[Claim]:
    """Each dynamic network over each alternative, and the repaired one over the other."""
    smaller, pairs = [label for label, group in found.groups.items() if group == RESIZED], []
    for name in SHORT.values():
        widths = [label for label, group in found.groups.items() if group == fixed(name)]
        if widths:
            pairs += [(widths[-1], STATIC), (widths[0], NARROW)]
        pairs += zip((f"{name} at 0.7", f"{name} at 0.5"), smaller, strict=False)
        pairs += [(f"{name} at 0.85", STATIC), (f"{name} at 0.7{INT8}", STATIC + INT8)]
    plain, repaired = SHORT.values()
    alike = [(f"width {width} of the {repaired} network", f"width {width} of the {plain} network") for width in (0, 1)]
    alike += [(f"{repaired} at {share:g}", f"{plain} at {share:g}") for share in (0.5, 0.7)]
    judgements = [claim for pair in pairs for claim in judged(found.points, found.times, *pair)]
    return judgements + [claim for pair in alike for claim in judged(found.points, found.times, *pair)[:1]]
