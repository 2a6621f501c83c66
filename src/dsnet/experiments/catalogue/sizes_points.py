"""The operating points of the experiment `sizes`: what could be deployed, with answers and calls to time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dsnet.bench.candidates import Artefacts
from dsnet.experiments.catalogue.alternatives import file_call, session_call, traced
from dsnet.experiments.catalogue.slim_points import (
    DYNAMIC,
    INT8,
    ORACLE,
    STATIC,
    Curve,
    Curves,
    Point,
    Points,
    answers,
    curve_of,
    oracle,
    right_of,
    routed,
)
from dsnet.experiments.grid import Finished
from dsnet.export.onnx import export_onnx
from dsnet.latency.timing import Call
from dsnet.manifest import Manifest, Policy
from dsnet.routing.budgets import policy_for
from dsnet.routing.traces import Outcome, Traces
from dsnet.runs.folder import RunFolder
from dsnet.runs.quantise import QuantisedRun, quantised
from dsnet.runtime.onnx import FileRunner, knobs
from dsnet.space import WidthPath

BOTH, WIDTHS, EXITS = "sizes and widths", "widths only", "with exits"
EQUAL_STEPS = f"{BOTH}, equal steps"  # every setting learns as often as with sizes alone
SETTINGS, RESIZED = "fixed settings", "static, smaller images"
SMALL = "static, trained for smaller images"
SHARES = (0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.85)  # budgets, as shares of the MAdds at the largest size
QUANTISED = (0.5, 0.6, 0.7)
ALONE_INT8 = (DYNAMIC, WIDTHS)  # networks whose settings are also shown alone in INT8; all files are open at once


def small_label(size: int) -> str:
    return f"static, trained for {size} px"


def setting_label(manifest: Manifest, path: WidthPath, label: str) -> str:
    """A fixed setting of a dynamic network."""
    return f"{'' if manifest.space.sized else 'width '}{manifest.name_of(path)} of {label}"


def pinned_label(setting: str) -> str:
    """The same setting, pinned in the dynamic file."""
    return f"{setting}, pinned"


def points_of(runs: Mapping[str, Finished], scratch: Path) -> tuple[Points, Curves]:
    """Every operating point of one seed by label, and the dynamic networks' MAdds and accuracy over budgets."""
    found, curves = Points(), dict[str, Curve]()
    for label in (DYNAMIC, STATIC, EXITS, BOTH, EQUAL_STEPS, WIDTHS):
        if label == STATIC:
            found |= static_points(runs[STATIC], scratch / STATIC)
        elif label in runs:
            mine, curves[label] = dynamic_points(runs[label], label, scratch / label)
            found |= mine
    for label, run in runs.items():
        if label.startswith("static, trained for"):
            found |= small_points(run, label, scratch / label)
    return found, curves


def dynamic_points(run: Finished, label: str, scratch: Path) -> tuple[Points, Curve]:
    """The budgets of a dynamic network in floats and INT8, its settings alone, and the oracle among them. Of the
    network with exits, these are shown alone: its other settings are those of the dynamic network."""
    artefacts, traces = traced(run, scratch)
    manifest, size, found = artefacts.manifest, artefacts.size, Points()
    file = FileRunner(artefacts.dynamic(), threads=1)
    for share in SHARES:
        policy = policy_for(manifest, share)
        outcome = traces.at(policy)
        call, shares = session_call(file.session, knobs(file.manifest, policy)), shares_of(outcome, manifest)
        found[f"{label} at {share:g}"] = Point(label, traces.correct(outcome), outcome.spent, call, size, shares)
    folder = RunFolder.of(run.folder)
    made = quantised(folder, folder.load().float())
    runner = FileRunner(export_onnx(made.net, scratch / "int8.onnx", int8=made.int8), threads=1)
    _, data = folder.opened()
    for share in QUANTISED:
        policy = policy_for(runner.manifest, share)
        right, spent = answers(data, lambda image, policy=policy: routed(runner, image, policy))  # type: ignore[misc]
        call = session_call(runner.session, knobs(runner.manifest, policy))
        found[f"{label} at {share:g}{INT8}"] = Point(label + INT8, right, spent, call, size)
    for path in manifest.space.exits if label == EXITS else manifest.uniform:
        name, madds = setting_label(manifest, path, label), float(traces.table.madds(path))
        call = file_call(artefacts.static(path))
        found[name] = Point(f"{SETTINGS}, {label}", traces.right(path), madds, call, size)
    if label == EXITS:
        return found, curve_of(traces)
    for path in manifest.uniform if label in ALONE_INT8 else ():
        name = setting_label(manifest, path, label)
        small = static_int8(made, path, scratch)
        group, madds = f"{SETTINGS}, {label}{INT8}", found[name].madds
        found[name + INT8] = Point(group, right_of(small, data), madds, file_call(small), size)
    found |= pinned_points(found, label, {"": file, INT8: runner})
    paths = sorted(manifest.uniform, key=traces.table.madds)
    found[f"{ORACLE}, {label}"] = oracle(traces, paths, size)
    return found, curve_of(traces)


def pinned_points(found: Points, label: str, files: Mapping[str, FileRunner]) -> Points:
    """The settings that a dynamic file holds, pinned in it: to be timed next to their static files."""
    made = Points()
    for precision, file in files.items():
        for path in file.manifest.pinnable:
            name = setting_label(file.manifest, path, label) + precision
            if (alone := found.get(name)) is None:
                continue
            call = session_call(file.session, knobs(file.manifest, Policy(), path))
            made[pinned_label(name)] = Point("pinned", alone.right, alone.madds, call, alone.size, beside=True)
    return made


def shares_of(outcome: Outcome, manifest: Manifest) -> dict[WidthPath, float]:
    """The share of the images that takes each candidate of the router, in their order: the first is looked at first."""
    assert manifest.router is not None
    return {path: float((outcome.paths == path).all(1).mean()) for path in manifest.router.candidates}


def static_int8(made: QuantisedRun, path: WidthPath, scratch: Path) -> Path:
    file = scratch / f"int8-{'-'.join(map(str, path))}.onnx"
    return export_onnx(made.net, file, path=path, int8=made.int8)


def static_points(run: Finished, scratch: Path) -> Points:
    """The network that was trained at the largest size alone: there, in INT8, and on smaller images."""
    artefacts, traces = traced(run, scratch)
    found = Points()
    for path in reversed(artefacts.manifest.uniform):
        if path == artefacts.manifest.space.widest:
            found |= dict(in_both(run, STATIC, STATIC, artefacts, traces))
            continue
        name, madds = f"static at {artefacts.manifest.size_of(path)} px", float(traces.table.madds(path))
        call = file_call(artefacts.static(path))
        found[name] = Point(RESIZED, traces.right(path), madds, call, artefacts.size)
    return found


def small_points(run: Finished, label: str, scratch: Path) -> Points:
    """A static network that was trained for smaller images, and gets them."""
    return dict(in_both(run, label, SMALL, *traced(run, scratch)))


def in_both(run: Finished, label: str, group: str, artefacts: Artefacts, traces: Traces) -> Iterator[tuple[str, Point]]:
    """A static network in floats, and in INT8."""
    path, size = artefacts.manifest.space.widest, artefacts.size
    madds = float(traces.table.madds(path))
    call: Call = file_call(artefacts.static(path))
    yield label, Point(group, np.asarray(traces.right(path)), madds, call, size)
    folder = RunFolder.of(run.folder)
    made = quantised(folder, folder.load().float(), budgets=False)
    file = static_int8(made, path, artefacts.folder)
    yield label + INT8, Point(group + INT8, right_of(file, folder.opened()[1]), madds, file_call(file), size)
