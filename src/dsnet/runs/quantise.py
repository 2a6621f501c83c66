"""Quantises the network of a run on its calibration images, and calibrates its budgets again."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dsnet.data.dataset import Split
from dsnet.export.bundle import export_bundle
from dsnet.export.int8 import Int8, quantisation
from dsnet.routing.calibration import calibrate
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runtime.onnx import open_onnx
from dsnet.tasks import images_of

IMAGES = 256  # images on which ranges are observed


class QuantisedRun(NamedTuple):
    """A network with the budgets of its quantised form, how it is quantised, and the images that decided it."""

    net: Any
    int8: Int8
    images: Tensor


def quantised(run: RunFolder, net: Any, *, budgets: bool = True, root: str | None = None) -> QuantisedRun:
    """Quantise the network of a run. All widths are observed, also for a file of one, so that a path answers alike in
    every file.

    The scores of the router are not quite those of the network in floats. So its budgets are calibrated again, on all
    calibration images, with the parts that the quantised file is made of. budgets: Whether they are needed.
    """
    config, data = run.opened(root)
    images = spread(data.split("calibration"))
    int8 = quantisation(net, images)
    if net.spec.router is None or not budgets:
        return QuantisedRun(net, int8, images)
    with tempfile.TemporaryDirectory() as place:
        runner = open_onnx(export_bundle(net, Path(place) / "bundle", int8=int8))
        held = images_of(run.task, data, "calibration", config)
        traces = Traces(
            runner, held.batches(), run.task.scorer(runner.manifest, run.task.options(config, {})), load=held.load
        )
        net.card = replace(net.card, budgets=calibrate(traces))
    return QuantisedRun(net, int8, images)


def spread(split: Split, count: int = IMAGES) -> Tensor:
    """Some images of a split, evenly spread over it."""
    places = torch.linspace(0, len(split) - 1, min(count, len(split))).round().long()
    return split.load(split.ids[places]).images
