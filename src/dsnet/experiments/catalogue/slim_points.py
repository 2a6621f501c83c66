"""The operating points of the experiment `slim`: what could be deployed, with answers and calls to time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsnet.bench.candidates import Artefacts
from dsnet.bench.timing import interleaved
from dsnet.data.batches import plain_batches
from dsnet.data.dataset import Data
from dsnet.data.labelled import open_dataset
from dsnet.experiments.catalogue.alternatives import IMAGES, ROUNDS, file_call, session_call, traced
from dsnet.experiments.grid import Finished
from dsnet.export.onnx import export_onnx
from dsnet.latency.timing import Call
from dsnet.manifest import Policy
from dsnet.routing.budgets import policy_for
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runs.quantise import quantised
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.space import WidthPath

DYNAMIC, STATIC, NARROW = "dynamic", "static", "narrow static"
REPAIRED = "dynamic, after repair on unlabelled photographs"
SHORT = {DYNAMIC: "dynamic", REPAIRED: "repaired"}  # how the dynamic networks are called in labels
FIXED, ORACLE, INT8 = "fixed widths", "oracle", " INT8"
SHARES = (0.35, 0.4, 0.5, 0.6, 0.7, 0.85)  # budgets, as shares of the widest path's MAdds
QUANTISED = (0.5, 0.7)


@dataclass(frozen=True)
class Point:
    """A network at one operating point. right: Which test images [N] it gets right. call: None if it cannot be built.

    size: Side of its images. shares: Of a dynamic network at a budget, the share of the test images that takes each
    path. beside: Whether it is timed for another table than that of all operating points.
    """

    group: str
    right: np.ndarray
    madds: float
    call: Call | None
    size: int
    shares: Mapping[WidthPath, float] = field(default_factory=dict)
    beside: bool = False


Points = dict[str, Point]  # by label
Times = Mapping[tuple[int, str], np.ndarray]  # milliseconds of every image [images], by seed and label
Curve = Sequence[tuple[float, float]]  # share of the MAdds, and accuracy
Curves = Mapping[str, Curve]  # of dynamic networks by label


def fixed(name: str) -> str:
    """The group of a dynamic network's widths. name: What it is called in labels."""
    return FIXED if name == SHORT[DYNAMIC] else f"{FIXED}, {name}"


def dynamic_points(run: Finished, label: str, scratch: Path) -> tuple[Points, Curve]:
    """The budgets of a dynamic network in floats and INT8, its widths alone, and the oracle among them."""
    name, (artefacts, traces) = SHORT[label], traced(run, scratch)
    size, paths, found = artefacts.size, artefacts.manifest.space.uniform, Points()
    file = FileRunner(artefacts.dynamic(), threads=1)
    for share in SHARES:
        policy = policy_for(artefacts.manifest, share)
        outcome = traces.at(policy)
        call = session_call(file.session, knobs(file.manifest, policy))
        found[f"{name} at {share:g}"] = Point(name, traces.correct(outcome), outcome.spent, call, size)
    found |= dynamic_int8(run, name, scratch / "int8.onnx")
    for path in paths:
        call = file_call(artefacts.static(path))
        point = Point(fixed(name), traces.right(path), float(traces.table.madds(path)), call, size)
        found[f"width {path[0]} of the {name} network"] = point
    found[ORACLE if label == DYNAMIC else f"{ORACLE}, {name}"] = oracle(traces, paths, size)
    return found, curve_of(traces)


def curve_of(traces: Traces) -> Curve:
    """MAdds as a share of the widest path's, and accuracy, over budgets."""
    outcomes = [traces.at(policy_for(traces.manifest, float(share))) for share in np.linspace(0.3, 1, 71)]
    return [(outcome.spent / traces.table.widest, traces.score(outcome)) for outcome in outcomes]


def oracle(traces: Traces, paths: Sequence[WidthPath], size: int) -> Point:
    """The narrowest width that is right, or the slimmest where none is."""
    right = np.stack([traces.right(path) for path in paths]).astype(bool)
    costs = np.array([float(traces.table.madds(path)) for path in paths])
    return Point(ORACLE, np.asarray(right.any(0)), float(costs[right.argmax(0)].mean()), None, size)


def dynamic_int8(run: Finished, name: str, file: Path) -> Points:
    """A dynamic network in INT8, in one file."""
    folder = RunFolder.of(run.folder)
    made = quantised(folder, folder.load().float())
    runner = FileRunner(export_onnx(made.net, file, int8=made.int8), threads=1)
    data, found = folder.opened()[1], Points()
    for share in QUANTISED:
        policy = policy_for(runner.manifest, share)
        right, spent = answers(data, lambda image, policy=policy: routed(runner, image, policy))  # type: ignore[misc]
        call = session_call(runner.session, knobs(runner.manifest, policy))
        found[f"{name} at {share:g}{INT8}"] = Point(name + INT8, right, spent, call, data.image_size)
    return found


def routed(runner: FileRunner, image: np.ndarray, policy: Policy) -> tuple[int, float]:
    """The class of an image, and the MAdds that it takes."""
    out = runner.run(image, policy)
    return int(np.asarray(out.outputs["logits"]).argmax()), float(np.mean(out.madds))


def answers(data: Data, answer: Callable[[np.ndarray], tuple[int, float]]) -> tuple[np.ndarray, float]:
    """Which test images are right, and the mean MAdds, one image at a time."""
    right, spent = [], []
    for batch in plain_batches(data.test, 256):
        for image, label in zip(batch.images.numpy(), batch.labels.tolist(), strict=True):
            found, madds = answer(image[None])
            right.append(found == label)
            spent.append(madds)
    return np.array(right), float(np.mean(spent))


def narrow_points(run: Finished, scratch: Path) -> Points:
    """A network that was trained at one width, in floats and in INT8."""
    folder = RunFolder.of(run.folder)
    net, (config, data) = folder.load().float(), folder.opened()
    path, size = (int(config.ieb.only),), data.image_size
    artefacts = Artefacts(net, scratch, size)
    made = quantised(folder, folder.load().float(), budgets=False)
    files = {"": artefacts.static(path), INT8: export_onnx(made.net, scratch / "int8.onnx", path=path, int8=made.int8)}
    madds = float(artefacts.table.madds(path))
    return {
        NARROW + precision: Point(NARROW + precision, right_of(file, data), madds, file_call(file), size)
        for precision, file in files.items()
    }


def right_of(file: Path, data: Data) -> np.ndarray:
    """Which test images a static file gets right."""
    session = open_session(file, 1)
    return np.concatenate(
        [
            session.run(None, {IMAGE: batch.images.numpy()})[0].argmax(1) == batch.labels.numpy()
            for batch in plain_batches(data.test, 64)
        ]
    )


def timed(found: Mapping[int, Points], run: Finished) -> Times:
    """Milliseconds of every image, the median over rounds."""
    folder = RunFolder.of(run.folder)
    config, data = folder.opened()
    places = torch.linspace(0, len(data.test) - 1, min(IMAGES, len(data.test))).long()
    points = {(seed, label): point for seed, mine in found.items() for label, point in mine.items() if point.call}
    inputs = {}
    for size in {point.size for point in points.values()}:
        at = data if size == data.image_size else open_dataset(replace(config.data, image_size=size))
        inputs[size] = [image.numpy() for image in at.test.load(at.test.ids[places]).images.split(1)]
    calls: dict[Any, Call] = {
        key: (lambda number, point=point: point.call(inputs[point.size][number])) for key, point in points.items()
    }
    spent = interleaved(calls, ROUNDS, inputs=[(number,) for number in range(len(places))])
    return {key: 1e3 * np.median(np.reshape(each, (ROUNDS, len(places))), 0) for key, each in spent.items()}
