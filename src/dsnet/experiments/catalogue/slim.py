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
    FIXED,
    INT8,
    NARROW,
    STATIC,
    Curves,
    Points,
    dynamic_points,
    narrow_points,
)
from dsnet.experiments.catalogue.starts import NARROW_FIRST, SMALL_FIRST, convert, static_rows
from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Column, Findings, Row, Runs, Table
from dsnet.experiments.measures import widest, widest_madds
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.results import Claim
from dsnet.results import Table as ResultTable

LEARNED = Recipe("slim", {"sgs.router": "margin"}, start=NARROW_FIRST)  # the dynamic network
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, over {images} test images; all "
    "networks of all seeds took turns in one run. p50 and p95 are over the images, each the median of its rounds. "
    "The dynamic network is one file. Its budgets were calibrated on held-out training images. The static network is "
    "the same pretrained network, fine-tuned alone, with no less training time; of its learning rates, the best on the "
    "held-out images of each seed is shown. It also runs on smaller images, with batch-norm statistics of their size. "
    "The narrow one starts from the same sorted weights as the slimmest width. The oracle knows the narrowest width "
    "that is right, and cannot be built."
)


def slim_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    narrow = Row(NARROW, Recipe("slim_narrow", {"ieb.only": 0}, start=NARROW_FIRST))
    rows = (Row(DYNAMIC, LEARNED), *static_rows(), narrow)
    return (Table("Runs", (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)), rows),)


def prepare(scale: Scale, out: Path, root: str | None) -> None:
    """Convert the networks that the runs start from, unless they are there."""
    convert(scale, out, root, (NARROW_FIRST, SMALL_FIRST))


def points_of(runs: Mapping[str, Finished], scratch: Path) -> tuple[Points, Curves]:
    """Every operating point of one seed by label, and the dynamic network's MAdds and accuracy over budgets."""
    found, curves = dynamic_points(runs[DYNAMIC], scratch)
    found |= static_points(runs[STATIC], scratch / STATIC)
    if NARROW in runs:
        found |= narrow_points(runs[NARROW], scratch / NARROW)
    return found, curves


def compare(scale: Scale, runs: Runs) -> Findings:
    title = "A pretrained network on photographs"
    return compared(runs, points_of, lambda found: [reached(found)], claims, title=title, note=NOTE)


def reached(found: Compared) -> ResultTable:
    """Where the dynamic network reaches the static one's accuracy less LOST, read on the test curve, by seed."""
    rows, times = [], found.times
    for seed, points in found.points.items():
        wanted = float(points[STATIC].right.mean()) - LOST
        share = next((share for share, score in found.curves[seed][DYNAMIC] if score >= wanted), None)
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


def claims(found: Compared) -> list[Claim]:
    """The dynamic network over each alternative."""

    smaller = [label for label, group in found.groups.items() if group == RESIZED]
    slimmest, *_, full = [label for label, group in found.groups.items() if group == FIXED]
    pairs = [(full, STATIC), (slimmest, NARROW), *zip(("dynamic at 0.7", "dynamic at 0.5"), smaller, strict=False)]
    pairs += [("dynamic at 0.85", STATIC), (f"dynamic at 0.7{INT8}", STATIC + INT8)]
    return [claim for pair in pairs for claim in judged(found.points, found.times, *pair)]
