"""Latency tables: how they are kept, and what they make of a latency."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from dsnet import export_onnx, latency, open_runner
from dsnet.errors import RoutingError
from dsnet.latency.measure import deployed, measure, noise, routed_calls
from dsnet.manifest import Manifest, Policy
from dsnet.models import DynamicRunner, Supernet, eager
from dsnet.models.parts import weights_digest
from dsnet.nn import RouterSpec
from dsnet.results import Latency, Made, PathTime, Setting, Times
from dsnet.routers import Budget
from dsnet.routing.calibration import calibrate
from dsnet.space import WidthPath
from support.networks import router_net, side, traces_on, varied

SETTING = Setting("a" * 64, 32, "torch 2", 2, "x86 Test")
ROUTERS = [RouterSpec("cheap_first", "correctness"), RouterSpec("gate"), RouterSpec("threshold")]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(latency.FOLDER, str(tmp_path / "cache"))


def times(mean: float, noise: float = 0.1) -> tuple[Times, tuple[float, ...]]:
    spread = tuple(mean + noise * (place - 24.5) / 50 for place in range(latency.SPREAD))
    return Times(mean, mean, mean + 0.45 * noise, mean + 0.49 * noise), spread


def table_of(manifest: Manifest, ms: Callable[[WidthPath], float], setting: Setting = SETTING) -> Latency:
    """A table in which the candidates of the router take the given times."""
    assert manifest.router is not None
    rows = [(path, *times(ms(path))) for path in manifest.router.candidates]
    return Latency(setting, manifest.model, tuple(PathTime(p, t, t, s) for p, t, s in rows), 30, Made())


@cache
def calibrated_net(router: RouterSpec = ROUTERS[0], name: str = "ds_mobilenet_v1_tiny") -> Supernet:
    net = router_net(name, router).float()
    traces = traces_on(net, 60)
    net.card = replace(net.card, budgets=calibrate(traces))
    return net


def proportional(manifest: Manifest) -> Latency:
    return table_of(manifest, lambda path: manifest.table.madds(path, dynamic=True) / 1e6)


# the cache


def test_a_table_is_found_in_its_own_setting_only() -> None:
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[0])
    held = table_of(net.manifest(), lambda path: 1.0 + path[0])
    assert latency.find(SETTING) is None
    latency.keep(held)
    assert latency.find(SETTING) == held
    others = {"digest": "b" * 64, "image_size": 64, "runtime": "torch 3", "threads": 1, "cpu": "x86 Other"}
    for name, value in others.items():
        other = replace(SETTING, **{name: value})
        assert latency.find(other) is None, name
        with pytest.raises(RoutingError, match=f"no latency table of run .*dsnet bench run --threads {other.threads}"):
            latency.require(other, "run")
    with pytest.raises(RoutingError, match=r"1 thread, 32 px on this processor \(there is one for 2 threads\)"):
        latency.require(replace(SETTING, threads=1), "run")
    latency.file_of(SETTING).write_text("torn")
    assert latency.find(SETTING) is None


def test_a_cache_that_cannot_be_written_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setenv(latency.FOLDER, str(tmp_path / "taken"))
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[0])
    with pytest.raises(OSError, match=r"cannot be kept in .*; set DSNET_CACHE"):
        latency.keep(table_of(net.manifest(), lambda path: 1.0))


def test_the_digest_follows_weights_and_not_the_card() -> None:
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[0])
    before = weights_digest(net)
    net.card = replace(net.card, classes=tuple("abcdefg"))
    assert weights_digest(net) == before
    net.head.classifier.bias.data[0] += 1
    assert weights_digest(net) != before


# budgets


@pytest.mark.parametrize("router", ROUTERS, ids=lambda router: router.kind)
def test_the_mean_at_a_budget_is_shares_times_table(router: RouterSpec) -> None:
    """If milliseconds are MAdds, the mean time of a calibrated budget is its MAdds."""
    manifest = calibrated_net(router).manifest(16)
    held = proportional(manifest)
    for row in latency.calibrated(manifest):
        assert sum(share for _, share in row.shares) == pytest.approx(1)
        found = latency.times_at(held, manifest.table, dict(row.shares))
        assert found.mean == pytest.approx(row.madds / 1e6)
        fixed = [held_row.routed.mean for held_row in held.rows if held_row.path in dict(row.shares)]
        assert min(fixed) - 0.1 <= found.p50 <= found.p95 <= found.p99 <= max(fixed) + 0.1


def test_a_path_that_was_not_measured_is_interpolated_by_its_cost() -> None:
    net = calibrated_net(ROUTERS[1], "ds_resnet_tiny")
    manifest = net.manifest(side(net))
    held = proportional(manifest)
    rows = latency.calibrated(manifest)
    assert any(len(set(path)) > 1 for row in rows for path, _ in row.shares)
    for row in rows:
        assert len(row.shares) <= 32
        found = latency.times_at(held, manifest.table, dict(row.shares)).mean
        assert found == pytest.approx(row.madds / 1e6, rel=0.02)  # rare paths count for others of similar cost


def test_one_path_alone_has_its_own_percentiles() -> None:
    manifest = router_net("ds_mobilenet_v1_tiny", ROUTERS[0]).manifest()
    held = table_of(manifest, lambda path: 1.0 + path[0])
    for row in held.rows:
        found = latency.times_at(held, manifest.table, {row.path: 1.0})
        assert [found.mean, found.p95, found.p99] == pytest.approx([row.routed.mean, row.routed.p95, row.routed.p99])
    mixed = latency.times_at(held, manifest.table, {(0,): 0.97, (5,): 0.03})
    assert mixed.p95 < 1.2
    assert mixed.p99 > 5.9  # three of a hundred images pay for the widest


@pytest.mark.parametrize("router", ROUTERS, ids=lambda router: router.kind)
def test_a_latency_becomes_a_budget_that_takes_this_latency(router: RouterSpec) -> None:
    manifest = calibrated_net(router).manifest(16)
    held = table_of(manifest, lambda path: 0.5 + 0.7 * path[0])
    rows = latency.calibrated(manifest)
    ends = [latency.times_at(held, manifest.table, dict(row.shares)).mean for row in (rows[0], rows[-1])]
    gaps = any(latency.is_gap(rows, a, b) for a, b in pairwise(rows))
    for ms in np.linspace(*ends, 9).tolist():
        policy = latency.policy_in(manifest, held, latency=f"{ms:.9f}ms")
        found = latency.expected(manifest, held, policy)
        assert found is not None
        if not gaps:
            assert found.mean == pytest.approx(ms, rel=1e-3)
        assert found.mean <= ms * 1.001 or ms <= ends[0]
    for ms, end in ((0.01, rows[0]), (100, rows[-1])):
        policy = latency.policy_in(manifest, held, latency=f"{ms}ms")
        assert policy.share == pytest.approx(end.madds / manifest.table.widest)
        assert f"a mean of {ms} ms is out of reach: this router takes" in policy.note


def test_models_without_shares_are_told_to_recalibrate() -> None:
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[0])
    net.card = replace(net.card, budgets=(Budget(1e6, 0.5, 0.5, 32), Budget(2e6, 0.1, 0.6, 32)))
    held = table_of(net.manifest(), lambda path: 1.0 + path[0])
    with pytest.raises(RoutingError, match="older dsnet calibrated them; run `dsnet recalibrate`"):
        latency.policy_in(net.manifest(), held, latency="2ms")
    with pytest.raises(RoutingError, match="both set what is spent"):
        latency.policy_in(net.manifest(), held, latency="2ms", budget=0.5)


# caps


@pytest.mark.parametrize("router", ROUTERS, ids=lambda router: router.kind)
@pytest.mark.parametrize("runner", [eager, DynamicRunner])
def test_no_image_takes_a_path_beyond_the_cap(router: RouterSpec, runner: Callable[[Supernet], DynamicRunner]) -> None:
    net = calibrated_net(router)
    running = runner(net)
    size = side(net)
    held = table_of(net.manifest(size), lambda path: 0.5 + 0.7 * path[0], running.setting(size))
    latency.keep(held)
    rows = {row.path: row.routed for row in held.rows}
    for cap in (0.6, 1.3, 2.2, 9.0):
        for latency_asked in (None, "3ms"):
            routed = running(varied(net, 12), latency=latency_asked, latency_cap=f"{cap}ms")
            assert all(rows[tuple(path)].p99 <= cap for path in routed.paths.tolist())
    policy = running.policy(None, 1, size, None, "9ms")
    assert policy.max_width == 1  # the tighter of both caps
    with pytest.raises(RoutingError, match=r"cap of 0.1 ms cannot be kept: the slimmest path takes 0.549 ms"):
        running(varied(net, 2), latency_cap="0.1ms")
    with pytest.raises(ValueError, match="a path pins the widths"):
        running(varied(net, 2), latency_cap="9ms", path=(0,))


def test_a_runner_without_a_table_names_the_command() -> None:
    running = DynamicRunner(calibrated_net())
    with pytest.raises(RoutingError, match=rf"dsnet bench RUN --threads {running.threads}"):
        running(varied(running.net, 2), latency="5ms")


def test_an_unreachable_width_does_not_count() -> None:
    """A threshold router escalates to one width only; the table has no routed time for the others."""
    manifest = router_net("ds_mobilenet_v1_tiny", ROUTERS[2]).manifest()
    held = table_of(manifest, lambda path: 1.0 + path[0])
    rows = [row if row.path in ((0,), (4,)) else replace(row, routed=None, spread=()) for row in held.rows]
    held = replace(held, rows=tuple(rows))
    assert [latency.width_for(manifest, held, ms) for ms in (2.0, 4.9, 5.2)] == [0, 0, 5]
    assert latency.policy_in(manifest, held, latency_cap="2ms") == Policy(manifest.defaults.lam, 0)


# measuring


@pytest.mark.parametrize("router", ROUTERS, ids=lambda router: router.kind)
def test_every_path_is_measured_as_the_router_runs_it(router: RouterSpec, tmp_path: Path) -> None:
    net = calibrated_net(router)
    runner = open_runner(export_onnx(net, tmp_path / "model.onnx", image_size=side(net)), threads=1)
    held = measure(runner, repeats=2)
    assert held.setting == runner.setting()
    assert held.setting.digest == weights_digest(net)
    assert [row.path for row in held.rows] == net.space.uniform
    assert all(row.fixed is not None for row in held.rows)
    taken = {row.path for row in held.rows if row.routed is not None}
    reachable = {(0,), (int(net.probe.width),)} if router.kind == "threshold" else set(net.space.uniform)
    assert taken == reachable
    calls = routed_calls(runner, noise(runner.manifest, 16))
    for path, call in calls.items():
        if (routed := call()) is not None:  # else no image of noise takes it, and the slimmest path is added
            assert routed.paths.tolist() == [list(path)]
    ways = deployed(runner, held, None)
    assert [row.path for row in ways.rows if row.path is not None] == net.space.uniform
    dynamic = [row for row in ways.rows if row.path is None]
    assert len(dynamic) == 5
    assert all(row.computed for row in dynamic)
