"""Honest milliseconds of a detector: every width, sliced and as ONNX, beside the same width built statically."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsnet.models import Supernet
from dsnet.results import WidthTimes
from dsnet.routing import Policy, Prices
from dsnet.runtime.bench import Artefacts, BenchConfig, bench
from dsnet.runtime.bench.candidates import AGAIN, eager_call, onnx_calls, openvino_calls, static_call
from dsnet.runtime.bench.timing import Call
from dsnet.space import WidthPath
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.detector import Detector, extract_detector
from dsnet.tasks.detection.export import export_detector
from dsnet.tasks.detection.route import route_detector

RUNTIMES = ("eager", "onnx", "openvino")


class DetectorArtefacts(Artefacts):
    """A detector in the forms that are timed."""

    bundles = False

    def __init__(self, detector: Detector, folder: Path) -> None:
        self.detector, self.net, self.folder = detector, detector.backbone, folder
        self.table, self.size = DetectorCost(detector), detector.spec.image_size

    def static(self, path: WidthPath) -> Path:
        file = self.folder / f"path-{'-'.join(map(str, path))}.onnx"
        return file if file.exists() else export_detector(self.detector, file, path=path)

    def dynamic(self, *, defaults: bool = True) -> Path:
        file = self.folder / ("dynamic.onnx" if defaults else "open.onnx")
        return file if file.exists() else export_detector(self.detector, file, defaults=defaults)

    def chosen(self, images: Tensor, policy: Policy) -> list[WidthPath]:
        return [tuple(path) for path in route_detector(self.detector, images, policy).paths.tolist()]

    def routed(self, policy: Policy) -> Callable[[Tensor], Any]:
        prices = Prices(self.table)
        return torch.inference_mode()(lambda x: route_detector(self.detector, x, policy, prices=prices))

    def extracted(self, x: Tensor, path: WidthPath) -> Call:
        return static_call(extract_detector(self.detector, path, fold=True), x)


def bench_detector(detector: Detector, config: BenchConfig) -> WidthTimes:
    """As `bench`. Answers are boxes and scores of all priors; suppression is not timed, it is the same for all."""
    if unknown := [name for name in config.runtimes if name not in RUNTIMES]:
        raise ValueError(f"detectors are not run by {unknown[0]!r}; choose from {', '.join(RUNTIMES)}")
    if config.against:
        raise ValueError("--against times networks for classification; bench another detector by itself")
    if config.image_size not in (None, detector.spec.image_size):
        raise ValueError(
            f"image_size is {config.image_size} but this detector keeps its own, {detector.spec.image_size}"
        )
    result = bench(
        detector.backbone,
        config,
        artefacts_of=lambda net, folder, size: DetectorArtefacts(detector, folder),
        calls_of=partial(candidates, detector),
    )
    return replace(result, model=detector.spec.name)


def candidates(
    detector: Detector,
    net: Supernet,
    x: Tensor,
    paths: Sequence[WidthPath],
    runtimes: Sequence[str],
    artefacts: Artefacts,
    threads: int,
) -> Iterator[tuple[tuple[str, WidthPath], Call]]:
    """Calls by (runtime, path); ideals and their repetitions are among them."""
    for path in paths if "eager" in runtimes else ():
        static = artefacts.extracted(x, path)
        yield ("static", path), static
        yield ("static" + AGAIN, path), static
        yield ("eager", path), eager_call(detector, x, path)
    if "onnx" in runtimes:
        yield from onnx_calls(x, paths, artefacts, threads)
    if "openvino" in runtimes:
        yield from openvino_calls(x, paths, artefacts, threads)
