"""Latency of every width of a network in several runtimes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from dsnet.bench.candidates import Artefacts, candidates
from dsnet.bench.timing import interleaved
from dsnet.export.parts import PartWriter
from dsnet.latency import threads_text
from dsnet.latency.files import BenchConfig, paths_of, rows_of, speed_up
from dsnet.latency.measure import noise
from dsnet.latency.timing import machine, summary
from dsnet.manifest import Manifest
from dsnet.models import Supernet, create_model
from dsnet.models.devices import torch_threads, words_for
from dsnet.results import StaticTime, WidthTime, WidthTimes
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE


def bench(net: Any, config: BenchConfig) -> WidthTimes:
    """Time every runtime at every path, number of threads and batch size, with ratios to the ideal."""
    with tempfile.TemporaryDirectory() as folder:
        return bench_widths(Artefacts(net, Path(folder), config.image_size), config)


def bench_widths(artefacts: Artefacts, config: BenchConfig) -> WidthTimes:
    """`bench` of a network whose files may exist already."""
    net, manifest = artefacts.net, artefacts.manifest
    size, router, device = manifest.image_size, manifest.router, net.parts().device
    paths = paths_of(config, manifest, manifest.space.uniform if router is None else router.candidates)
    held = PartWriter(net.parts(), manifest).pinnable if manifest.points else [()]
    if missing := [path for path in paths if path not in held]:
        name = manifest.name_of(missing[0])
        raise ValueError(f"path {name} is not one that the router of {manifest.model!r} can choose; leave it out")
    others = {name: static_model(name, manifest) for name in config.against}
    rows: list[WidthTime] = []
    against: list[StaticTime] = []
    folder = artefacts.folder
    statics = {name: Artefacts(each, folder / name.replace(":", "-"), size) for name, each in others.items()}
    for threads, batch in product(config.threads, config.batch_sizes):
        with torch_threads(threads):
            x = torch.from_numpy(noise(manifest, batch)).to(device)
            calls = candidates(x, paths, config.runtimes, artefacts, threads)
            for name, other in statics.items():
                calls[name, ()] = partial(open_session(other.static(()), threads).run, None, {IMAGE: x.numpy()})
            what = f"{len(calls)} candidates, {threads_text(threads)}, batch {batch}"
            times = interleaved(calls, config.repeats, device=device, what=what)
        for name, other in statics.items():
            spent = summary(times.pop((name, ())))
            against.append(StaticTime(name, "static onnx", batch, threads, other.table.madds(()), spent))
        rows += rows_of(times, manifest, batch, threads)
    files = artefacts.weigh() if "onnx" in config.runtimes and manifest.points else None
    return WidthTimes(
        model=manifest.model,
        image_size=size,
        repeats=config.repeats,
        rows=tuple(rows),
        made=replace(machine(), runtime=words_for(device).strip()),
        router=None if router is None else router.spec.kind,
        against=tuple(against),
        speed_up=speed_up(rows),
        files=files,
    )


def static_model(name: str, like: Manifest) -> Supernet:
    """A static network by name and width multiplier, such as mobilenet_v1:0.75, for the same images and classes."""
    model, _, width = name.partition(":")
    try:
        times = float(width) if width else None
        net = create_model(model, width=times, num_classes=like.num_classes, in_channels=like.in_channels).eval()
    except ValueError as error:
        raise ValueError(f"{name!r} is not a static network ({error}); write for example mobilenet_v1:0.75") from error
    if net.chain:
        raise ValueError(f"{name!r} has several widths; name a static network such as mobilenet_v1:0.75 or resnet50")
    return net
