"""Latency tables: milliseconds of every path on one machine. `dsnet bench` measures them, this module keeps them.

A table belongs to one setting: the digest of the weights, the runtime with its version, the image size, the number of
threads and the processor. It turns a latency into a budget, and a cap on the latency into one on the width, or
on the image size.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from dsnet.cost import PathCosts
from dsnet.errors import ResultError, RoutingError
from dsnet.files import digest, write_whole
from dsnet.manifest import Caps, Manifest, Policy
from dsnet.results import Latency, PathTime, Setting, Times
from dsnet.routers import Budget
from dsnet.routing.budgets import GAP, policy_for, read_latency
from dsnet.schema import parse_json, to_json
from dsnet.space import WidthPath, is_exit

FOLDER = "DSNET_CACHE"  # environment variable
SPREAD = 50  # number of quantiles that a table keeps of each path's times
Shares = Mapping[WidthPath, float]


# Where tables are kept


def folder() -> Path:
    """The folder of latency tables: below $DSNET_CACHE, or else below the user's cache."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen) / "latency"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsnet" / "latency"


def file_of(setting: Setting) -> Path:
    return folder() / f"{setting.digest[:16]}-{digest(to_json(setting).encode())[:16]}.json"


def keep(latency: Latency) -> Path:
    """Write a table into the cache, atomically. It replaces an older one of the same setting."""
    file = file_of(latency.setting)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, (to_json(latency, indent=1) + "\n").encode())
    except OSError as error:
        raise OSError(
            error.errno, f"the latency table cannot be kept in {file.parent} ({error.strerror}); set {FOLDER}"
        ) from error
    return file


def find(setting: Setting) -> Latency | None:
    """The table of a setting; None if it was not measured."""
    return next((held for held in tables(setting.digest) if held.setting == setting), None)


def tables(weights: str) -> Iterator[Latency]:
    """All tables of a network on any machine, the newest first. Unreadable files are skipped."""
    files = [(file.stat().st_mtime, file) for file in folder().glob(f"{weights[:16]}-*.json")]
    for _, file in sorted(files, reverse=True):
        try:
            held = parse_json(Latency, file.read_text(), str(file), error=ResultError)
        except (OSError, ResultError):
            continue
        if held.setting.digest == weights:
            yield held


def measured_threads(setting: Setting) -> list[int]:
    """The numbers of threads for which a table exists, in a setting that is otherwise the same; the newest first."""
    found = (held.setting for held in tables(setting.digest))
    return [held.threads for held in found if replace(held, threads=setting.threads) == setting]


def require_any(setting: Setting, place: str) -> Latency:
    """The table of a setting, or else the newest one that differs in the number of threads only."""
    others = (held for held in tables(setting.digest) if replace(held.setting, threads=setting.threads) == setting)
    return find(setting) or next(others, None) or require(setting, place)


def require(setting: Setting, place: str) -> Latency:
    """The table of a setting; the error names the command that measures it. place: what to bench."""
    if (found := find(setting)) is not None:
        return found
    others = measured_threads(setting)
    name = setting.runtime.partition(",")[0].lower()  # onnxruntime 1.31.1, openvino 2026.4.1 bf16
    openvino = "openvino-bf16" if name.endswith("bf16") else "openvino"
    other = f" --runtimes {openvino}" if "openvino" in setting.runtime.lower() else ""
    known = f" (there is one for {' and '.join(map(threads_text, sorted(others)))})" if others else ""
    raise RoutingError(
        f"there is no latency table of {place} for {setting.runtime}, {threads_text(setting.threads)}, "
        f"{setting.image_size} px on this processor{known}; measure it with "
        f"`dsnet bench {place} --threads {setting.threads}{other}`"
    )


def threads_text(number: int) -> str:
    return f"{number} thread{'s' * (number != 1)}"


@cache
def cpu() -> str:
    """The model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    names = [found[key] for key in ("model name", "Model", "CPU implementer", "CPU part") if key in found]
    return f"{platform.machine()} {' '.join(names[:2]) or platform.processor() or 'unknown'}"


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# Milliseconds of paths and budgets


def times_of(latency: Latency, table: PathCosts | None, path: WidthPath) -> PathTime:
    """The time of a routed path. A path that was not measured is interpolated by MAdds between those that were, for
    which `table` is needed."""
    rows = {row.path: row for row in latency.rows if row.routed is not None}
    if path in rows:
        return rows[path]
    if not rows or table is None:
        raise RoutingError(f"the latency table of {latency.model} has no routed paths; run `dsnet bench` again")
    cost = {held: table.madds(held, dynamic=True) for held in rows}
    ordered, wanted = sorted(cost, key=lambda held: cost[held]), table.madds(path, dynamic=True)
    below = next((held for held in reversed(ordered) if cost[held] <= wanted), ordered[0])
    above = next((held for held in ordered if cost[held] >= wanted), ordered[-1])
    part = (wanted - cost[below]) / (cost[above] - cost[below]) if cost[above] != cost[below] else 0.0

    def mixed(a: Sequence[float], b: Sequence[float]) -> list[float]:
        return [(1 - part) * x + part * y for x, y in zip(a, b, strict=True)]

    slim, wide = (numbers(rows[held].routed) for held in (below, above))
    times = Times(*mixed(slim, wide))
    return PathTime(path, times, times, tuple(mixed(rows[below].spread, rows[above].spread)))


def numbers(times: Times | None) -> list[float]:
    assert times is not None
    return [times.mean, times.p50, times.p95, times.p95 if times.p99 is None else times.p99]


def times_at(latency: Latency, table: PathCosts | None, shares: Shares) -> Times:
    """Times of the dynamic network if these shares of the images take these paths: shares times table."""
    rows = {path: times_of(latency, table, path) for path in shares}
    mean = sum(share * numbers(rows[path].routed)[0] for path, share in shares.items())
    values = np.concatenate([rows[path].spread for path in shares])
    weights = np.concatenate([np.full(len(rows[path].spread), share) for path, share in shares.items()])
    order = values.argsort()
    reached = weights[order].cumsum() / weights.sum()
    places = [int(np.searchsorted(reached, quantile - 1e-9)) for quantile in (0.5, 0.95, 0.99)]
    return Times(mean, *(float(values[order][place]) for place in places))


def spread_of(ms: np.ndarray) -> tuple[float, ...]:
    """The quantiles of times that a table keeps."""
    return tuple(round(float(value), 5) for value in np.quantile(ms, (np.arange(SPREAD) + 0.5) / SPREAD))


def shares_at(manifest: Manifest, madds: float, image_size: int | None = None) -> Shares:
    """The expected share of the images along each path at a budget, interpolated between calibrated budgets."""
    rows = calibrated(manifest, image_size)
    if madds <= rows[0].madds:
        return dict(rows[0].shares)
    for a, b in pairwise(rows):
        if madds < b.madds * (1 - 1e-6):  # a policy's share is in single precision
            part = 0.0 if is_gap(rows, a, b) else (madds - a.madds) / (b.madds - a.madds)
            first, second = dict(a.shares), dict(b.shares)
            mixed = {
                path: (1 - part) * first.get(path, 0.0) + part * second.get(path, 0.0) for path in {**first, **second}
            }
            return {path: share for path, share in mixed.items() if share > 0}
    return dict(rows[-1].shares)


def is_gap(rows: Sequence[Budget], a: Budget, b: Budget) -> bool:
    """Whether no budget between two neighbouring rows can be met, so that the lower one is taken."""
    return a.window != b.window or b.madds - a.madds > GAP * (rows[-1].madds - rows[0].madds)


def calibrated(manifest: Manifest, image_size: int | None = None) -> list[Budget]:
    """The calibrated budgets of an image size, with the shares of their paths."""
    size = image_size or manifest.image_size
    rows = [row for row in (manifest.router.budgets if manifest.router else ()) if row.image_size == size]
    if not rows:
        raise RoutingError(f"this {manifest.model} has no calibrated budgets at {size} px, so no latency can be met")
    if not all(row.shares for row in rows):
        raise RoutingError(
            f"the budgets of this {manifest.model} do not say which paths the images take, because an older dsnet "
            f"calibrated them; run `dsnet recalibrate` on its run folder, and export it again"
        )
    return rows


# From milliseconds to a policy


def budget_for(manifest: Manifest, latency: Latency, ms: float, image_size: int | None = None) -> tuple[float, str]:
    """The largest budget in MAdds whose mean time is at most `ms`, and a note if no budget takes that time."""
    rows = calibrated(manifest, image_size)
    times = [times_at(latency, manifest.table, dict(row.shares)).mean for row in rows]
    low, high = min(times), max(times)
    if not low <= ms <= high:
        place = times.index(low) if ms < low else len(rows) - 1
        return rows[place].madds, (
            f"a mean of {ms:.4g} ms is out of reach: this router takes {low:.4g} to {high:.4g} ms on average; "
            f"taking {times[place]:.4g} ms"
        )
    if times[-1] <= ms:
        return rows[-1].madds, ""
    for place in reversed(range(len(rows) - 1)):
        a, b = rows[place], rows[place + 1]
        if times[place] <= ms:
            part = 0.0 if is_gap(rows, a, b) else (ms - times[place]) / (times[place + 1] - times[place])
            return a.madds + part * (b.madds - a.madds), ""
    raise AssertionError("a time between the lowest and the highest lies between two rows")


def width_for(manifest: Manifest, latency: Latency, ms: float) -> int:
    """The largest width such that each routed path up to it takes at most `ms` in 99 of 100 calls.

    A router that runs the slimmest path first pays for both, and both are in the table. The exit has no width.
    """
    rows = [row for row in latency.rows if not is_exit(row.path)]
    return limit_for(rows, ms, lambda path: max(path, default=0), max(manifest.table.space.widest, default=0))


def size_for(manifest: Manifest, latency: Latency, ms: float) -> int:
    """The largest image size such that each routed setting up to it takes at most `ms` in 99 of 100 calls. Its first
    look is in the table."""
    return limit_for(latency.rows, ms, manifest.size_of, manifest.image_size)


def limit_for(times: Iterable[PathTime], ms: float, level: Callable[[WidthPath], int], most: int) -> int:
    """The largest level below which every routed path takes at most `ms`; `most` if all of them do."""
    rows = sorted((row for row in times if row.routed is not None), key=lambda row: level(row.path))
    slow = [row for row in rows if numbers(row.routed)[3] > ms]
    if not slow:
        return most
    limit = level(slow[0].path)
    allowed = [level(row.path) for row in rows if level(row.path) < limit]
    if not allowed:
        raise RoutingError(
            f"a latency cap of {ms:.4g} ms cannot be kept: the slimmest path takes {numbers(slow[0].routed)[3]:.4g} ms "
            f"(99th percentile); raise the cap"
        )
    return allowed[-1]


def policy_in(
    manifest: Manifest,
    held: Latency,
    *,
    latency: str | None = None,
    latency_cap: str | None = None,
    budget: str | float | None = None,
    max_width: int | None = None,
    image_size: int | None = None,
    table: PathCosts | None = None,
    window: str | Sequence[int] | None = None,
    max_size: int | None = None,
) -> Policy:
    """The policy that meets a mean latency and keeps a cap on the latency of every image, from a latency table. With
    several image sizes, the cap is one on the size."""
    if latency is not None and budget is not None:
        raise RoutingError(f"latency {latency} and budget {budget} both set what is spent; give one of them")
    note = ""
    if latency is not None:
        budget, note = budget_for(manifest, held, read_latency(latency), image_size)
    if latency_cap is not None:
        ms = read_latency(latency_cap)
        if manifest.table.space.sized:
            size = size_for(manifest, held, ms)
            max_size = size if max_size is None else min(size, max_size)
        else:
            width = width_for(manifest, held, ms)
            max_width = width if max_width is None else min(width, max_width)
    caps: Caps = {"max_width": max_width, "max_size": max_size}
    policy = policy_for(manifest, budget, image_size=image_size, table=table, window=window, **caps)
    return replace(policy, note=note or policy.note)


def expected(manifest: Manifest, held: Latency, policy: Policy, image_size: int | None = None) -> Times | None:
    """The times that a policy is expected to take, without its cap; None if it was not made from a budget."""
    if policy.share is None:
        return None
    table = manifest.table
    return times_at(held, table, shares_at(manifest, policy.share * table.widest, image_size))
