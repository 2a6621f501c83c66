"""Every width of a network in several runtimes."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dsnet.bench.candidates import AGAIN, IDEALS, RUNTIMES, Artefacts, candidates
from dsnet.bench.timing import Call, interleaved, ratio, summary
from dsnet.cost import CostTable
from dsnet.export.parts import PartWriter
from dsnet.manifest import Manifest
from dsnet.models import Supernet, create_model
from dsnet.results import Made, SpeedUp, StaticTime, WidthTime, WidthTimes, made
from dsnet.runtime.onnx import IMAGE, open_onnx, open_session
from dsnet.space import WidthPath


@dataclass(frozen=True)
class BenchConfig:
    """What is measured. paths: None takes slimmest, middle and widest. repeats: rounds through all candidates.

    against: static networks to be timed as ONNX files beside it, such as `mobilenet_v1:0.75`.
    """

    runtimes: tuple[str, ...] = ("eager", "runner", "onnx")
    paths: tuple[WidthPath, ...] | None = None
    threads: tuple[int, ...] = (1,)
    batch_sizes: tuple[int, ...] = (1,)
    image_size: int | None = None
    repeats: int = 30
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [name for name in self.runtimes if name not in RUNTIMES]:
            raise ValueError(f"runtime {unknown[0]!r} is unknown; choose from {', '.join(RUNTIMES)}")
        if "openvino" in self.runtimes and importlib.util.find_spec("openvino") is None:
            raise ValueError("openvino is not installed; `pip install openvino`, or leave it out")
        for name in ("threads", "batch_sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} are {getattr(self, name)}; give numbers of at least 1")
        if self.repeats < 2:
            raise ValueError(f"repeats is {self.repeats}; a median needs at least 2")


def bench(net: Any, config: BenchConfig) -> WidthTimes:
    """Every runtime at every path, number of threads and batch size, with ratios to the ideal."""
    manifest = net.manifest(config.image_size)
    size, router = manifest.image_size, manifest.router
    paths = list(config.paths or default_paths(manifest))
    held = PartWriter(net.parts()).pinnable if manifest.points else [()]
    if missing := [path for path in paths if path not in held]:
        raise ValueError(f"path {missing[0]} is beyond what the router of {manifest.model!r} may choose; leave it out")
    others = {name: static_model(name, manifest) for name in config.against}
    rows: list[WidthTime] = []
    against: list[StaticTime] = []
    threads_before, files = torch.get_num_threads(), None
    with tempfile.TemporaryDirectory() as folder:
        artefacts = Artefacts(net, Path(folder), size)
        try:
            for threads in config.threads:
                torch.set_num_threads(threads)
                for batch in config.batch_sizes:
                    x = noise(manifest, batch)
                    calls = dict(candidates(x, paths, config.runtimes, artefacts, threads))
                    for name, other in others.items():
                        file = Artefacts(other, Path(folder) / name.replace(":", "-"), size).static(())
                        run = partial(open_session(file, threads).run, None, {IMAGE: x.numpy()})
                        calls[name, ()] = run
                    times = interleaved(calls, config.repeats)
                    for name, other in others.items():
                        cost = other.manifest(size).table.madds(())
                        spent = summary(times.pop((name, ())))
                        against.append(StaticTime(name, "static onnx", batch, threads, cost, spent))
                    rows += rows_of(times, artefacts.table, batch, threads)
            if "onnx" in config.runtimes and manifest.points:
                files = artefacts.weigh()
        finally:
            torch.set_num_threads(threads_before)
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


def noise(manifest: Manifest, batch: int) -> torch.Tensor:
    size = manifest.image_size
    return torch.randn(batch, manifest.in_channels, size, size, generator=torch.Generator().manual_seed(0))


def static_model(name: str, like: Manifest) -> Supernet:
    """A static network by name and width multiplier, such as mobilenet_v1:0.75, for the same images and classes."""
    model, _, width = name.partition(":")
    try:
        net = create_model(
            model,
            width=float(width) if width else None,
            num_classes=like.num_classes,
            in_channels=like.in_channels,
        ).eval()
    except ValueError as error:
        raise ValueError(f"{name!r} is no static network ({error}); write for example mobilenet_v1:0.75") from error
    if net.chain:
        raise ValueError(f"{name!r} has several widths; name a static network such as mobilenet_v1:0.75 or resnet50")
    return net


def bench_file(where: str | Path, config: BenchConfig, *, paths: Sequence[str] | None = None) -> WidthTimes:
    """An ONNX file or bundle at several paths; what its ideal would be is not known without the network."""
    rows: list[WidthTime] = []
    for threads in config.threads:
        runner = open_onnx(where, threads=threads)
        manifest, held = runner.manifest, runner.paths
        uniform = [path for path in manifest.space.uniform if path in held]
        chosen = list(dict.fromkeys([uniform[0], uniform[len(uniform) // 2], uniform[-1]]))
        if paths is not None:
            chosen = uniform if list(paths) == ["all"] else [manifest.parse_path(path) for path in paths]
        for batch in config.batch_sizes:
            x = noise(manifest, batch)
            calls: dict[tuple[str, WidthPath], Call] = {
                (manifest.kind, p): partial(runner.run_path, x, p) for p in chosen
            }
            times = interleaved(calls, config.repeats)
            rows += rows_of(times, manifest.table, batch, threads)
    return WidthTimes(
        manifest.model, manifest.image_size, config.repeats, tuple(rows), machine(), speed_up=speed_up(rows)
    )


def machine() -> Made:
    """What times were measured with, and on."""
    import onnxruntime

    return made(torch=str(torch.__version__), onnxruntime=onnxruntime.__version__)


def default_paths(manifest: Manifest) -> list[WidthPath]:
    uniform = manifest.space.uniform if manifest.router is None else manifest.router.candidates
    return list(dict.fromkeys([uniform[0], uniform[len(uniform) // 2], uniform[-1]]))


def rows_of(
    times: dict[tuple[str, WidthPath], list[float]], table: CostTable, batch: int, threads: int
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
    """time(widest) / time(slimmest) beside the ratio of their MAdds, for every runtime."""
    found = []
    for runtime, batch, threads in dict.fromkeys((row.runtime, row.batch, row.threads) for row in rows):
        mine = [row for row in rows if (row.runtime, row.batch, row.threads) == (runtime, batch, threads)]
        slim, wide = min(mine, key=lambda row: row.madds), max(mine, key=lambda row: row.madds)
        if slim is wide:
            continue
        realised, madds = wide.times.p50 / slim.times.p50, wide.madds / slim.madds
        found.append(SpeedUp(runtime, batch, threads, realised, madds, realised / madds))
    return tuple(found)
