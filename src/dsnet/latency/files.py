"""What `dsnet bench` measures, and its measurements of ONNX files and bundles, which need no torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import onnxruntime as ort

from dsnet.latency import threads_text
from dsnet.latency.measure import Timed, budgets_of, deployed, measure, noise, time_policies, uniform_paths
from dsnet.latency.timing import interleaved, machine, ratio, summary
from dsnet.manifest import Manifest
from dsnet.results import DeployedTimes, Evaluation, Latency, SpeedUp, Times, WidthTime, WidthTimes
from dsnet.space import WidthPath, is_exit

# The reference for each runtime: the same path as a static network in the same runtime.
IDEALS = {
    "eager": "static",
    "runner": "static",
    "compiled": "static compiled",
    "onnx": "static onnx",
    "openvino": "static openvino",
    "openvino-bf16": "static openvino-bf16",
}
AGAIN = " again"  # the ideal is timed twice; the ratio of both shows the noise
ROUNDS = 15  # each image is routed once for every so many rounds of fixed widths


@dataclass(frozen=True)
class BenchConfig:
    """What to measure.

    Args:
        paths: Paths to time in every runtime, as tuples or text. None means slimmest, middle and widest; ("all",) means
            every width.
        repeats: Number of rounds. Each candidate is timed once in every round.
        against: Static networks to time as ONNX files in the same rounds, such as `mobilenet_v1:0.75`.
    """

    runtimes: tuple[str, ...] = ("runner", "onnx")
    paths: tuple[WidthPath | str, ...] | None = None
    threads: tuple[int, ...] = (1,)
    batch_sizes: tuple[int, ...] = (1,)
    image_size: int | None = None
    repeats: int = 30
    against: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if unknown := [name for name in self.runtimes if name not in IDEALS]:
            raise ValueError(f"runtime {unknown[0]!r} is unknown; choose from {', '.join(IDEALS)}")
        kinds = {name for name in self.runtimes if name.startswith("openvino")}
        provided = kinds == {"openvino"} and "OpenVINOExecutionProvider" in ort.get_available_providers()
        if kinds and not provided and importlib.util.find_spec("openvino") is None:
            raise ValueError("openvino is not installed; run: pip install 'dsnet[openvino]', or leave it out")
        for name in ("threads", "batch_sizes"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise ValueError(f"{name} are {getattr(self, name)}; give numbers of at least 1")
        if self.repeats < 2:
            raise ValueError(f"repeats is {self.repeats}; a median needs at least 2")

    @property
    def rounds(self) -> int:
        """How often each image is routed at each budget."""
        return max(1, self.repeats // ROUNDS)


def paths_of(config: BenchConfig, manifest: Manifest, uniform: Sequence[WidthPath]) -> list[WidthPath]:
    """The paths to time; `uniform` are the runnable paths that have the same width everywhere."""
    if config.paths is None:
        widths = [path for path in uniform if not is_exit(path)] or list(uniform)
        return list(dict.fromkeys([widths[0], widths[len(widths) // 2], widths[-1]]))
    if config.paths == ("all",):
        return list(uniform)
    return [manifest.parse_path(path) if isinstance(path, str) else path for path in config.paths]


def bench_file(
    opened: Callable[[int], Timed],
    config: BenchConfig,
    *,
    images: Any = None,
    evaluation: Evaluation | None = None,
) -> tuple[WidthTimes, list[Latency], list[DeployedTimes]]:
    """Time an ONNX file or bundle. There is no ideal to compare with, since that needs the network.

    opened: opens the file with a number of threads. images: test images for the dynamic network [N, C, S, S].
    """
    rows: list[WidthTime] = []
    tables, ways = [], []
    for threads in config.threads:
        runner = opened(threads)
        manifest, uniform = runner.manifest, uniform_paths(runner.manifest)
        paths = paths_of(config, manifest, uniform) if uniform else []
        for batch in config.batch_sizes if paths else ():
            x = noise(manifest, batch)
            calls = {(str(manifest.kind), path): partial(runner.run_path, x, path) for path in paths}
            times = interleaved(calls, config.repeats, what=f"{len(paths)} paths, batch {batch}")
            rows += rows_of(times, manifest, batch, threads)
        table = measure(runner, repeats=config.repeats, images=images, what=f"every width, {threads_text(threads)}")
        tables.append(table)
        ways.append(bench_budgets(runner, table, config, images=images, evaluation=evaluation))
    size, speed = manifest.image_size, speed_up(rows)
    return WidthTimes(manifest.model, size, config.repeats, tuple(rows), machine(), speed_up=speed), tables, ways


def bench_budgets(
    runner: Timed,
    table: Latency,
    config: BenchConfig,
    *,
    images: Any = None,
    evaluation: Evaluation | None = None,
    measured: Mapping[float, Times] | None = None,
    fixed: Mapping[WidthPath, Times] | None = None,
) -> DeployedTimes:
    """Accuracy and milliseconds of a runner at every width and budget.

    Times of budgets are taken from `measured`, or measured with images, or computed without them. fixed: times of
    widths that were measured in the same rounds.
    """
    asked = [point.asked for point in budgets_of(runner.manifest, evaluation)]
    if not measured and images is not None and asked:
        policies = [runner.policy(madds) for madds in asked]
        times = time_policies(runner, policies, images, rounds=config.rounds, what=f"{len(asked)} budgets")
        measured = dict(zip(asked, times, strict=True))
    return deployed(runner, table, evaluation, measured, 0 if images is None else len(images), fixed)


def rows_of(
    times: Mapping[tuple[str, WidthPath], list[float]], manifest: Manifest, batch: int, threads: int
) -> list[WidthTime]:
    """One row per runtime and path: times, throughput, ratio to the ideal, and the ideal's ratio to itself."""
    rows, table = [], manifest.table
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
                name=manifest.name_of(path) if table.space.sized else "",
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
