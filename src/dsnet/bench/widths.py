"""Latency of every width of a network in several runtimes."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from dsnet.bench.candidates import AGAIN, IDEALS, Artefacts, candidates
from dsnet.bench.timing import interleaved, machine, ratio, summary, torch_threads
from dsnet.cost import CostTable
from dsnet.export.parts import PartWriter
from dsnet.manifest import Manifest
from dsnet.models import Supernet, create_model
from dsnet.results import SpeedUp, StaticTime, WidthTime, WidthTimes
from dsnet.runtime.onnx import IMAGE, open_onnx, open_session
from dsnet.space import WidthPath


@dataclass(frozen=True)
class BenchConfig:
    """What to measure.

    Args:
        paths: Paths to time, as tuples or text. None means slimmest, middle and widest; ("all",) means every width.
        repeats: Number of rounds. Each candidate is timed once in every round.
        against: Static networks to time as ONNX files in the same rounds, such as `mobilenet_v1:0.75`.
    """

    runtimes: tuple[str, ...] = ("eager", "runner", "onnx")
    paths: tuple[WidthPath | str, ...] | None = None
    threads: tuple[int, ...] = (1,)
    batch_sizes: tuple[int, ...] = (1,)
    image_size: int | None = None
    repeats: int = 30
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [name for name in self.runtimes if name not in IDEALS]:
            raise ValueError(f"runtime {unknown[0]!r} is unknown; choose from {', '.join(IDEALS)}")
        if "openvino" in self.runtimes and importlib.util.find_spec("openvino") is None:
            raise ValueError("openvino is not installed; `pip install openvino`, or leave it out")
        for name in ("threads", "batch_sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} are {getattr(self, name)}; give numbers of at least 1")
        if self.repeats < 2:
            raise ValueError(f"repeats is {self.repeats}; a median needs at least 2")


def bench(net: Any, config: BenchConfig) -> WidthTimes:
    """Time every runtime at every path, number of threads and batch size, with ratios to the ideal."""
    manifest = net.manifest(config.image_size)
    size, router = manifest.image_size, manifest.router
    paths = paths_of(config, manifest, manifest.space.uniform if router is None else router.candidates)
    held = PartWriter(net.parts()).pinnable if manifest.points else [()]
    if missing := [path for path in paths if path not in held]:
        raise ValueError(f"path {missing[0]} is not one that the router of {manifest.model!r} can choose; leave it out")
    others = {name: static_model(name, manifest) for name in config.against}
    rows: list[WidthTime] = []
    against: list[StaticTime] = []
    with tempfile.TemporaryDirectory() as folder:
        artefacts = Artefacts(net, Path(folder), size)
        statics = {name: Artefacts(each, Path(folder) / name.replace(":", "-"), size) for name, each in others.items()}
        for threads, batch in product(config.threads, config.batch_sizes):
            with torch_threads(threads):
                x = noise(manifest, batch)
                calls = candidates(x, paths, config.runtimes, artefacts, threads)
                for name, other in statics.items():
                    calls[name, ()] = partial(open_session(other.static(()), threads).run, None, {IMAGE: x.numpy()})
                times = interleaved(calls, config.repeats)
            for name, other in statics.items():
                spent = summary(times.pop((name, ())))
                against.append(StaticTime(name, "static onnx", batch, threads, other.table.madds(()), spent))
            rows += rows_of(times, artefacts.table, batch, threads)
        files = artefacts.weigh() if "onnx" in config.runtimes and manifest.points else None
    return WidthTimes(
        model=manifest.model,
        image_size=size,
        repeats=config.repeats,
        rows=tuple(rows),
        made=machine(),
        router=None if router is None else router.spec.kind,
        against=tuple(against),
        speed_up=speed_up(rows),
        files=files,
    )


def paths_of(config: BenchConfig, manifest: Manifest, uniform: Sequence[WidthPath]) -> list[WidthPath]:
    """The paths to time; `uniform` are the runnable paths that have the same width everywhere."""
    if config.paths is None:
        return list(dict.fromkeys([uniform[0], uniform[len(uniform) // 2], uniform[-1]]))
    if config.paths == ("all",):
        return list(uniform)
    return [manifest.parse_path(path) if isinstance(path, str) else path for path in config.paths]


def noise(manifest: Manifest, batch: int) -> torch.Tensor:
    size = manifest.image_size
    return torch.randn(batch, manifest.in_channels, size, size, generator=torch.Generator().manual_seed(0))


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


def bench_file(where: str | Path, config: BenchConfig) -> WidthTimes:
    """Time an ONNX file or bundle at several paths. There is no ideal to compare with, since that needs the network."""
    rows: list[WidthTime] = []
    for threads in config.threads:
        runner = open_onnx(where, threads=threads)
        manifest, held = runner.manifest, runner.paths
        paths = paths_of(config, manifest, [path for path in manifest.space.uniform if path in held])
        for batch in config.batch_sizes:
            x = noise(manifest, batch)
            calls = {(str(manifest.kind), path): partial(runner.run_path, x, path) for path in paths}
            rows += rows_of(interleaved(calls, config.repeats), manifest.table, batch, threads)
    size, speed = manifest.image_size, speed_up(rows)
    return WidthTimes(manifest.model, size, config.repeats, tuple(rows), machine(), speed_up=speed)


def rows_of(
    times: Mapping[tuple[str, WidthPath], list[float]], table: CostTable, batch: int, threads: int
) -> list[WidthTime]:
    """One row per runtime and path: times, throughput, ratio to the ideal, and the ideal's ratio to itself."""
    rows = []
    for (runtime, path), found in times.items():
        if runtime.endswith(AGAIN):
            continue
        spent, ideal = summary(found), IDEALS.get(runtime, runtime)
        again = times.get((ideal + AGAIN, path))
        rows.append(
            WidthTime(
                runtime=runtime,
                path=path,
                batch=batch,
                threads=threads,
                madds=table.madds(path),
                times=spent,
                images_per_second=batch / spent.p50 * 1e3,
                ratio=None if ideal == runtime else ratio(found, times[ideal, path]),
                noise=None if again is None else ratio(again, times[ideal, path]),
            )
        )
    return rows


def speed_up(rows: Sequence[WidthTime]) -> tuple[SpeedUp, ...]:
    """time(widest) / time(slimmest) next to the ratio of their MAdds, for every runtime."""
    found = []
    for runtime, batch, threads in dict.fromkeys((row.runtime, row.batch, row.threads) for row in rows):
        mine = [row for row in rows if (row.runtime, row.batch, row.threads) == (runtime, batch, threads)]
        slim, wide = min(mine, key=lambda row: row.madds), max(mine, key=lambda row: row.madds)
        if slim is wide:
            continue
        realised, madds = wide.times.p50 / slim.times.p50, wide.madds / slim.madds
        found.append(SpeedUp(runtime, batch, threads, realised, madds, realised / madds))
    return tuple(found)
