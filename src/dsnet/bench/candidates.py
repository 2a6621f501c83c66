"""What is timed: each runtime at a path, beside the same path built statically in the same runtime."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dsnet.bench.timing import Call, resident
from dsnet.export.bundle import export_bundle
from dsnet.export.dynamic import export_onnx
from dsnet.manifest import Policy
from dsnet.models import DynamicRunner, extract, route
from dsnet.results import FileSizes
from dsnet.runtime.onnx import IMAGE, knobs, open_bundle, open_session
from dsnet.runtime.runner import GroupedRunner
from dsnet.space import WidthPath

RUNTIMES = ("eager", "runner", "compiled", "onnx", "openvino")
# What each runtime is compared with: the same path, built statically in the same runtime.
IDEALS = {
    "eager": "static",
    "runner": "static",
    "compiled": "static compiled",
    "onnx": "static onnx",
    "openvino": "static openvino",
}
AGAIN = " again"  # the ideal a second time: its ratio shows the noise


class Artefacts:
    """A network in the forms that are timed; ONNX files are written when they are first needed."""

    def __init__(self, net: Any, folder: Path, size: int | None = None) -> None:
        self.net, self.folder = net, folder
        self.manifest = net.manifest(size)
        self.size, self.table = self.manifest.image_size, self.manifest.table

    def static(self, path: WidthPath) -> Path:
        file = self.folder / f"path-{'-'.join(map(str, path))}.onnx"
        return file if file.exists() else export_onnx(self.net, file, path=path, image_size=self.size)

    def dynamic(self, *, defaults: bool = True) -> Path:
        file = self.folder / ("dynamic.onnx" if defaults else "open.onnx")
        return file if file.exists() else export_onnx(self.net, file, image_size=self.size, defaults=defaults)

    def bundle(self) -> Path:
        folder = self.folder / "bundle"
        return folder if folder.exists() else export_bundle(self.net, folder, image_size=self.size)

    def chosen(self, images: Tensor, policy: Policy) -> list[WidthPath]:
        """The paths that the router picks."""
        return [tuple(path) for path in route(self.net, images, policy).paths.tolist()]

    def routed(self, policy: Policy) -> Callable[[Tensor], Any]:
        """The dynamic network in PyTorch."""
        runner = DynamicRunner(self.net)
        return lambda x: runner.run(x, policy)

    def extracted(self, x: Tensor, path: WidthPath) -> Call:
        """A path as a static network in PyTorch."""
        return static_call(extract(self.net, path, fold=True), x)

    def weigh(self) -> FileSizes:
        file = self.dynamic()
        router = self.manifest.router
        widest = self.manifest.space.widest if router is None else router.routing.widest
        before, start = resident(), time.perf_counter()
        session = open_session(file, 1)
        took, held = time.perf_counter() - start, resident() - before
        del session
        return FileSizes(file.stat().st_size, self.static(widest).stat().st_size, took, held)


def candidates(
    x: Tensor, paths: Sequence[WidthPath], runtimes: Sequence[str], artefacts: Artefacts, threads: int
) -> Iterator[tuple[tuple[str, WidthPath], Call]]:
    """Calls by (runtime, path); ideals and their repetitions are among them."""
    net = artefacts.net
    for path in paths:
        if "eager" in runtimes or "runner" in runtimes:
            static = artefacts.extracted(x, path)
            yield ("static", path), static
            yield ("static" + AGAIN, path), static
        if "eager" in runtimes:
            yield ("eager", path), eager_call(net, x, path)
        if "compiled" in runtimes:
            yield ("static compiled", path), static_call(extract(net, path, fold=True), x, compile=True)
    for name in ("runner", "compiled"):
        if name in runtimes:
            runner = DynamicRunner(net, compile=name == "compiled")
            for path in paths:
                yield (name, path), forced_call(runner, x, [path] * len(x))
    if "onnx" in runtimes:
        yield from onnx_calls(x, paths, artefacts, threads)
    if "openvino" in runtimes:
        yield from openvino_calls(x, paths, artefacts, threads)


def static_call(plain: nn.Module, x: Tensor, *, compile: bool = False) -> Call:
    """A network of its own, extracted and folded, in channels_last."""
    plain.requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    run = torch.compile(plain) if compile else plain

    @torch.inference_mode()
    def call() -> Any:
        return run(x.contiguous(memory_format=torch.channels_last))

    return call


def eager_call(net: nn.Module, x: Tensor, path: WidthPath) -> Call:
    @torch.inference_mode()
    def call() -> Any:
        return net(x, path)

    return call


def forced_call(runner: GroupedRunner, x: Tensor, paths: Sequence[WidthPath]) -> Call:
    """Images along given paths, one each, by way of the gates' own decisions, which are made and then overruled.

    A router that probes would pay for its probe as well: its paths are timed as pinned.
    """
    router = runner.manifest.router
    if router is None or router.probes:
        assert len(set(paths)) == 1, "images that differ in their paths need gates"
        return lambda: runner.run_path(x, paths[0])
    choices = router.routing.choices
    wanted = np.array([[widths.index(w) for widths, w in zip(choices, path, strict=True)] for path in paths])
    return lambda: runner.run_forced(x, wanted)


def onnx_calls(
    x: Tensor, paths: Sequence[WidthPath], artefacts: Artefacts, threads: int
) -> Iterator[tuple[tuple[str, WidthPath], Call]]:
    """The static file of each path; the dynamic file for one image, the bundle for several."""
    image = x.numpy()
    many = artefacts.manifest.points > 0
    dynamic = open_session(artefacts.dynamic(), threads) if len(x) == 1 and many else None
    bundle = open_bundle(artefacts.bundle(), threads) if len(x) > 1 and many else None
    for path in paths:
        static = open_session(artefacts.static(path), threads)
        ideal = partial(static.run, None, {IMAGE: image})
        yield ("static onnx", path), ideal
        yield ("static onnx" + AGAIN, path), ideal
        if dynamic is not None:
            pin = np.array(path, np.int64)
            yield ("onnx", path), partial(dynamic.run, None, {IMAGE: image, "pin": pin})
        elif bundle is not None:
            yield ("onnx", path), forced_call(bundle, x, [path] * len(x))


def openvino_calls(
    x: Tensor, paths: Sequence[WidthPath], artefacts: Artefacts, threads: int
) -> Iterator[tuple[tuple[str, WidthPath], Call]]:
    import openvino

    core, manifest = openvino.Core(), artefacts.manifest
    options = {"INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}

    def opened(file: Path) -> Any:
        return core.compile_model(core.read_model(str(file)), "CPU", options)

    image = x.numpy()
    dynamic = opened(artefacts.dynamic(defaults=False)) if len(x) == 1 and manifest.points else None
    for path in paths:
        static = opened(artefacts.static(path))
        ideal = partial(static, {IMAGE: image})
        yield ("static openvino", path), ideal
        yield ("static openvino" + AGAIN, path), ideal
        if dynamic is not None:
            feed = {IMAGE: image, **knobs(manifest, Policy(), path)}
            yield ("openvino", path), partial(dynamic, feed)
