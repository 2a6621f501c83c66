"""A pretrained network on photographs: `dsnet slim`, next to what its user would do instead."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dsnet.experiments.catalogue.alternatives import TOP1, judged
from dsnet.experiments.catalogue.compared import LOST, SWEEP, Compared, compared, sweep_label, tiny
from dsnet.experiments.catalogue.slim_points import (
    DYNAMIC,
    FIXED,
    INT8,
    NARROW,
    SMALLER,
    STATIC,
    points_of,
)
from dsnet.experiments.layout import Column, Findings, Row, Runs, Table
from dsnet.experiments.measures import widest, widest_madds
from dsnet.experiments.recipe import STARTS, Recipe, Scale
from dsnet.results import Claim
from dsnet.results import Table as ResultTable
from dsnet.slimming.network import slim
from dsnet.slimming.pretrained import PRETRAINED
from dsnet.slimming.sources import read_images
from dsnet.tasks import save

START = "slim"  # the converted network
WIDTHS = ((0.35, 0.5), (0.5, 0.75), (0.75, 0.75), 1.0)  # shares of hidden and residual channels
PRE = Recipe("slim_pre", start=START, seed=0)
LEARNED = Recipe("slim", {"sgs.router": "margin"}, source=PRE)  # the dynamic network
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, over {images} test images; all "
    "networks of all seeds took turns in one run. p50 and p95 are over the images, each the median of its rounds. "
    "The dynamic network is one file. Its budgets were calibrated on held-out training images. The static network is "
    "the same pretrained network, fine-tuned alone, with no less training time; of its learning rates, the best on the "
    "held-out images of each seed is shown. The narrow one starts from the same sorted weights as the slimmest width. "
    "Smaller images: the static network with batch-norm statistics of that size. The oracle knows the narrowest width "
    "that is right, and cannot be built."
)


def slim_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    widest_only = {"ieb.only": 3 if scale.name != "smoke" else 1}
    rows = [
        Row(DYNAMIC, LEARNED),
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

    smaller = [label for label, group in found.groups.items() if group == SMALLER]
    slimmest, *_, full = [label for label, group in found.groups.items() if group == FIXED]
    pairs = [(full, STATIC), (slimmest, NARROW), *zip(("dynamic at 0.7", "dynamic at 0.5"), smaller, strict=False)]
    pairs += [("dynamic at 0.85", STATIC), (f"dynamic at 0.7{INT8}", STATIC + INT8)]
    return [claim for pair in pairs for claim in judged(found.points, found.times, *pair)]
