"""The calls that are timed: each runtime at a path, next to the same path as a static network in the same runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dsnet.bench.memory import loaded
from dsnet.errors import RoutingError
from dsnet.export.bundle import export_bundle
from dsnet.export.int8 import Int8, quantisation
from dsnet.export.onnx import export_onnx
from dsnet.latency.files import AGAIN, IDEALS
from dsnet.latency.measure import noise
from dsnet.latency.timing import Call
from dsnet.manifest import Policy
from dsnet.models import DynamicRunner, extract
from dsnet.models.narrow import narrowed
from dsnet.opening import engine_of
from dsnet.results import FileSizes
from dsnet.runtime.bundle import open_bundle
from dsnet.runtime.engine import Engine, open_session
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.runtime.runner import GroupedRunner
from dsnet.space import WidthPath, path_name

FEW = 4  # widths of the file that shows what fewer widths take
SEEN = 2  # images on which the ranges of INT8 files are observed
Ways = tuple[Callable[[WidthPath], Call], Callable[[WidthPath], Call] | None]


class Artefacts:
    """A network in the forms that are timed; ONNX files are written when they are first needed."""

    def __init__(self, net: Any, folder: Path, size: int | None = None) -> None:
        self.net, self.folder = net, folder
        self.manifest = net.manifest(size)
        self.size, self.table = self.manifest.image_size, self.manifest.table

    def static(self, path: WidthPath, *, int8: Int8 | None = None) -> Path:
        file = self.folder / f"path-{path_name(path).replace(',', '-')}{end_of(int8)}.onnx"
        return file if file.exists() else export_onnx(self.net, file, path=path, image_size=self.size, int8=int8)

    def dynamic(self, *, int8: Int8 | None = None) -> Path:
        file = self.folder / f"dynamic{end_of(int8)}.onnx"
        return file if file.exists() else export_onnx(self.net, file, image_size=self.size, int8=int8)

    def bundle(self) -> Path:
        folder = self.folder / "bundle"
        return folder if folder.exists() else export_bundle(self.net, folder, image_size=self.size)

    def of_few_widths(self) -> dict[str, Path]:
        """A dynamic file of some widths, by its name, if the router chooses from more and can do with fewer."""
        router = self.manifest.router
        allowed = () if router is None else router.routing.choices[0]
        if len(allowed) <= FEW:
            return {}
        widths = [allowed[round(place * (len(allowed) - 1) / (FEW - 1))] for place in range(FEW)]
        try:
            net = narrowed(self.net, widths)
        except RoutingError:
            return {}
        file = export_onnx(net, self.folder / "few.onnx", image_size=self.size)
        return {f"file of widths {','.join(map(str, widths))}": file}

    def in_int8(self, widest: WidthPath) -> dict[str, Path]:
        """The dynamic file and the widest path in INT8, by their names, if the network is wide enough for it."""
        try:
            int8 = quantisation(self.net, torch.from_numpy(noise(self.manifest, SEEN)))  # memory depends on no range
        except ValueError:
            return {}
        return {"INT8 dynamic file": self.dynamic(int8=int8), "INT8 widest path": self.static(widest, int8=int8)}

    def weigh(self) -> FileSizes:
        router = self.manifest.router
        widest = self.manifest.space.widest if router is None else router.routing.widest
        kinds = {"dynamic file": self.dynamic(), "widest path": self.static(widest), "bundle": self.bundle()}
        kinds |= self.of_few_widths() | self.in_int8(widest)
        found = {kind: loaded(kind, where) for kind, where in kinds.items()}
        dynamic, alone = found["dynamic file"], found["widest path"]
        return FileSizes(dynamic.size, alone.size, dynamic.seconds, dynamic.memory, tuple(found.values()))


def end_of(int8: Int8 | None) -> str:
    return "" if int8 is None else "-int8"


def candidates(
    x: Tensor, paths: Sequence[WidthPath], runtimes: Sequence[str], artefacts: Artefacts, threads: int
) -> dict[tuple[str, WidthPath], Call]:
    """Calls by (runtime, path), including each ideal and its repetition."""
    calls: dict[tuple[str, WidthPath], Call] = {}
    for runtime in (name for name in IDEALS if name in runtimes):
        static, dynamic = ways(runtime, x, artefacts, threads)
        for path in paths:
            ideal = IDEALS[runtime]
            if (ideal, path) not in calls:
                calls[ideal, path] = calls[ideal + AGAIN, path] = static(path)
            if dynamic is not None:
                calls[runtime, path] = dynamic(path)
    return calls


def ways(runtime: str, x: Tensor, artefacts: Artefacts, threads: int) -> Ways:
    """How a runtime runs a path as a static network, and within the dynamic network (None if it cannot)."""
    if runtime == "onnx":
        return onnx_ways(x, artefacts, threads)
    if runtime.startswith("openvino"):
        return openvino_ways(engine_of(runtime), x, artefacts, threads)
    net, compiled = artefacts.net, runtime == "compiled"

    def static(path: WidthPath) -> Call:
        return static_call(extract(net, path, fold=True), x, compile=compiled)

    if runtime == "eager":
        return static, partial(eager_call, net, x)
    runner = DynamicRunner(net, compile=compiled)
    return static, lambda path: forced_call(runner, x, [path] * len(x))


def static_call(plain: nn.Module, x: Tensor, *, compile: bool = False) -> Call:
    """A call of an extracted and folded network, in channels_last."""
    plain.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = torch.compile(plain) if compile else plain

    @torch.inference_mode()
    def call() -> Any:
        return run(x.contiguous(memory_format=torch.channels_last))

    return call


def eager_call(net: nn.Module, x: Tensor, path: WidthPath) -> Call:
    return torch.inference_mode()(lambda: net(x, path))


def forced_call(runner: GroupedRunner, x: Tensor, paths: Sequence[WidthPath], *, round_up: bool = False) -> Call:
    """A call that runs each image along a given path. The gates still decide, so their time is included.

    The paths of a probing router are timed as pinned paths, because routing would add the cost of the probe.
    """
    router = runner.manifest.router
    if router is None or router.probes:
        assert len(set(paths)) == 1, "only a network with gates can run images along different paths"
        return lambda: runner.run_path(x, paths[0])
    if router.spec.single:
        wanted = np.array([[router.candidates.index(path)] * len(path) for path in paths])
        return partial(runner.run_forced, x, wanted, round_up=round_up)
    choices = router.routing.choices
    wanted = np.array([[widths.index(w) for widths, w in zip(choices, path, strict=True)] for path in paths])
    return partial(runner.run_forced, x, wanted, round_up=round_up)


def onnx_ways(x: Tensor, artefacts: Artefacts, threads: int) -> Ways:
    """The static file of each path; the dynamic file for one image, the bundle for several."""
    feed = {IMAGE: x.numpy()}

    def static(path: WidthPath) -> Call:
        return partial(open_session(artefacts.static(path), threads).run, None, feed)

    if not artefacts.manifest.points:
        return static, None
    if len(x) > 1:
        bundle = open_bundle(artefacts.bundle(), threads)
        return static, lambda path: forced_call(bundle, x, [path] * len(x))
    dynamic = FileRunner(artefacts.dynamic(), threads=threads)
    return static, lambda path: partial(dynamic.session.run, None, {**feed, **knobs(dynamic.manifest, Policy(), path)})


def openvino_ways(engine: Engine, x: Tensor, artefacts: Artefacts, threads: int) -> Ways:
    feed = {IMAGE: x.numpy()}

    def static(path: WidthPath) -> Call:
        return partial(engine.open(artefacts.static(path), threads).run, None, feed)

    if len(x) > 1 or not artefacts.manifest.points:
        return static, None
    dynamic = FileRunner(artefacts.dynamic(), threads=threads, engine=engine)
    return static, lambda path: partial(dynamic.session.run, None, {**feed, **knobs(dynamic.manifest, Policy(), path)})
