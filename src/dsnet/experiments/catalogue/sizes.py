"""The image size as a second axis: a network that looks at a small image first, next to static networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from dsnet.experiments.catalogue.alternatives import TOP1, file_call, judged, session_call, traced
from dsnet.experiments.catalogue.compared import LOST, SWEEP, compared, sweep_label, tiny
from dsnet.experiments.catalogue.slim_points import (
    DYNAMIC,
    INT8,
    ORACLE,
    STATIC,
    Curve,
    Point,
    Points,
    Times,
    answers,
    oracle,
    right_of,
    routed,
)
from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Column, Findings, Row, Runs, Table
from dsnet.experiments.measures import widest, widest_madds
from dsnet.experiments.recipe import STARTS, Recipe, Scale
from dsnet.export.dynamic import export_onnx
from dsnet.results import Claim
from dsnet.results import Table as ResultTable
from dsnet.routing.budgets import policy_for
from dsnet.runs.folder import RunFolder
from dsnet.runs.quantise import quantised
from dsnet.runtime.onnx import FileRunner, knobs
from dsnet.slimming.network import slim
from dsnet.slimming.pretrained import PRETRAINED
from dsnet.tasks import save

START, BOTH = "sizes", "sizes and widths"
SETTINGS, RESIZED, SMALL = "fixed settings", "static, smaller images", "static, trained for smaller images"
SHARES = (0.4, 0.45, 0.5, 0.6, 0.7, 0.85)  # budgets, as shares of the MAdds at the largest size
QUANTISED = (0.5, 0.6, 0.7)
TRAINED = (80, 64)  # sizes that static networks are trained for
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, over {images} test images; all "
    "networks of all seeds took turns in one run. Files take the largest size and resize themselves, and MAdds contain "
    "the resizing; networks that were trained for smaller images get them in their size. The dynamic network is one "
    "file. Its settings and budgets were chosen on held-out training images. The static network is the same pretrained "
    "network, fine-tuned alone at the largest size with no less training time; of its learning rates, the best on the "
    "held-out images of each seed is shown. It also runs on smaller images, with batch-norm "
    "statistics of their size. The oracle knows the cheapest setting that is right, and cannot be built."
)


def small_label(size: int) -> str:
    return f"static, trained for {size} px"


def sizes_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    router, alone = {"sgs.router": "margin"}, {"ieb.only": 0}
    rows = [
        Row(DYNAMIC, Recipe("sizes", start=START).gates(router, start=None)),
        Row(STATIC, Recipe("sizes_static", alone, start=START)),
        *(Row(sweep_label(lr), Recipe("sizes_sweep", {**alone, "optim.lr": lr}, start=START)) for lr in SWEEP),
        Row(BOTH, Recipe("sizes_both", start=f"{START}_both").gates(router, start=None)),
    ]
    if scale.name != "smoke":
        small = [(size, Recipe("sizes_small", {**alone, "data.image_size": size}, start=START)) for size in TRAINED]
        rows += [Row(small_label(size), recipe) for size, recipe in small]
    return (Table("Runs", (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)), tuple(rows)),)


def prepare(scale: Scale, out: Path, root: str | None) -> None:
    """Convert the networks that the runs start from, unless they are there."""
    for name, widths in ((START, (1.0,)), (f"{START}_both", (0.5, 1.0))):
        folder = out / STARTS / name
        if folder.is_dir():
            continue
        sizes = scale.bases["sizes"].keys["model.sizes"]
        example = torch.zeros(1, 3, sizes[-1], sizes[-1])
        if scale.name == "smoke":
            torch.manual_seed(0)
            net = slim(tiny(), example, widths, sizes=sizes, name="tiny")
        else:
            known = PRETRAINED["efficientnet_lite0"]
            net = slim(known.model(sizes[-1]), example, widths, sizes=sizes, name="efficientnet_lite0")
            net.card = replace(net.card, preprocessing=known.preprocessing)
        save(net, folder)


def compare(scale: Scale, runs: Runs) -> Findings:
    title = "A pretrained network that looks small first"
    return compared(runs, points_of, reached, claims, title=title, note=NOTE)


def points_of(runs: Mapping[str, Finished], scratch: Path) -> tuple[Points, Curve]:
    """Every operating point of one seed by label, and the dynamic network's MAdds and accuracy over budgets."""
    found, curve = dynamic_points(runs[DYNAMIC], DYNAMIC, scratch / DYNAMIC)
    found |= static_points(runs[STATIC], scratch / STATIC)
    if BOTH in runs:
        found |= dynamic_points(runs[BOTH], BOTH, scratch / "both")[0]
    for label, run in runs.items():
        if label.startswith("static, trained for"):
            found[label] = small_point(run, scratch / label)
    return found, curve


def dynamic_points(run: Finished, label: str, scratch: Path) -> tuple[Points, Curve]:
    """The budgets of a dynamic network in floats and INT8, its settings alone, and the oracle among them."""
    artefacts, traces = traced(run, scratch)
    manifest, size, found = artefacts.manifest, artefacts.size, Points()
    file = FileRunner(artefacts.dynamic(), threads=1)
    for share in SHARES:
        policy = policy_for(manifest, share)
        outcome = traces.at(policy)
        call = session_call(file.session, knobs(file.manifest, policy))
        found[f"{label} at {share:g}"] = Point(label, traces.correct(outcome), outcome.spent, call, size)
    folder = RunFolder.of(run.folder)
    made = quantised(folder, folder.load().float())
    runner, (_, data) = (
        FileRunner(export_onnx(made.net, scratch / "int8.onnx", int8=made.int8), threads=1),
        folder.opened(),
    )
    for share in QUANTISED:
        policy = policy_for(runner.manifest, share)
        right, spent = answers(data, lambda image, policy=policy: routed(runner, image, policy))  # type: ignore[misc]
        call = session_call(runner.session, knobs(runner.manifest, policy))
        found[f"{label} at {share:g}{INT8}"] = Point(label + INT8, right, spent, call, size)
    for path in manifest.uniform:
        call, name = file_call(artefacts.static(path)), f"{manifest.name_of(path)} of {label}"
        found[name] = Point(f"{SETTINGS}, {label}", traces.right(path), float(traces.table.madds(path)), call, size)
    paths = sorted(manifest.uniform, key=traces.table.madds)
    found[f"{ORACLE}, {label}"] = oracle(traces, paths, size)
    curve = []
    for share in np.linspace(0.3, 1, 71):
        outcome = traces.at(policy_for(manifest, float(share)))
        curve.append((outcome.spent / traces.table.widest, traces.score(outcome)))
    return found, curve


def static_points(run: Finished, scratch: Path) -> Points:
    """The network that was trained at the largest size alone: there, in INT8, and on smaller images."""
    artefacts, traces = traced(run, scratch)
    folder, found = RunFolder.of(run.folder), Points()
    made, data = quantised(folder, folder.load().float(), budgets=False), folder.opened()[1]
    for path in reversed(artefacts.manifest.uniform):
        size, call, madds = (
            artefacts.manifest.size_of(path),
            file_call(artefacts.static(path)),
            traces.table.madds(path),
        )
        full = path == artefacts.manifest.space.widest
        name, group = (STATIC, STATIC) if full else (f"static at {size} px", RESIZED)
        found[name] = Point(group, traces.right(path), float(madds), call, artefacts.size)
        if full:
            file = export_onnx(made.net, scratch / "int8.onnx", path=path, int8=made.int8)
            found[STATIC + INT8] = Point(
                STATIC + INT8, right_of(file, data), float(madds), file_call(file), artefacts.size
            )
    return found


def small_point(run: Finished, scratch: Path) -> Point:
    """A static network that was trained for smaller images, and gets them."""
    artefacts, traces = traced(run, scratch)
    path = artefacts.manifest.space.widest
    call, madds = file_call(artefacts.static(path)), float(traces.table.madds(path))
    return Point(SMALL, traces.right(path), madds, call, artefacts.size)


def reached(found: Mapping[int, Points], curves: Mapping[int, Curve], times: Times) -> ResultTable:
    """What it takes to keep an accuracy less LOST, read on the test curve: that of the static network, and the dynamic
    network's own at the largest size."""
    rows = []
    for seed, points in found.items():
        own = max((point for label, point in points.items() if label.endswith(f"of {DYNAMIC}")), key=lambda p: p.madds)
        for name, theirs in ((STATIC, points[STATIC]), ("its own largest size", own)):
            wanted = float(theirs.right.mean()) - LOST
            share = next((share for share, score in curves[seed] if score >= wanted), None)
            line = [str(seed), name, f"{100 * theirs.right.mean():.2f}", "never" if share is None else f"{share:.2f}"]
            for group, base in ((DYNAMIC, STATIC), (DYNAMIC + INT8, STATIC + INT8)):
                known = [(p.madds, float(times[seed, label].mean())) for label, p in points.items() if p.group == group]
                madds, ms = zip(*known, strict=True)
                spent = None if share is None else float(np.interp(share * own.madds, madds, ms))
                ratio = None if spent is None else spent / float(times[seed, base].mean())
                line.append("never" if ratio is None else f"{ratio:.2f}")
            rows.append(tuple(line))
    columns = ("seed", "<accuracy of", "top-1", "MAdds", "ms", "INT8 ms")
    note = (
        f"Shares of the largest size's MAdds and of the static network's milliseconds at which the accuracy less "
        f"{100 * LOST:g} points is reached, read on the test curve; milliseconds between timed budgets."
    )
    return ResultTable("What it takes to keep an accuracy", columns, tuple(rows), note)


def claims(found: Mapping[int, Points], times: Times) -> list[Claim]:
    """The dynamic network over each alternative."""

    labels = list(next(iter(found.values())))
    full = [label for label in labels if label.endswith(f"of {DYNAMIC}")][-1]
    small = [label for label in labels if label.startswith("static, trained for")]
    pairs = [(full, STATIC), (f"{DYNAMIC} at 0.6", STATIC), (f"{DYNAMIC} at 0.6{INT8}", STATIC + INT8)]
    pairs += [(f"{DYNAMIC} at {share:g}", label) for share, label in zip((0.6, 0.4), small, strict=False)]
    pairs += [(f"{DYNAMIC} at 0.5", f"{BOTH} at 0.5")] if f"{BOTH} at 0.5" in labels else []
    return [claim for pair in pairs for claim in judged(found, times, *pair)]
