"""Windows: runs of adjacent widths that decisions choose within."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dsnet
from dsnet.card import Card
from dsnet.errors import RoutingError
from dsnet.export.bundle import export_bundle
from dsnet.export.onnx import export_onnx
from dsnet.manifest import Manifest, Policy, from_metadata, to_metadata
from dsnet.models import route
from dsnet.nn import RouterSpec
from dsnet.opening import open_runner
from dsnet.report.charts import accuracy
from dsnet.report.tables import budgets_table, windows_table
from dsnet.routers import Budget, Router
from dsnet.routing.budgets import policy_for
from dsnet.routing.calibration import calibrate, row_at
from dsnet.routing.windows import window_text
from dsnet.runs.dynamic import evaluate_dynamic, policy_of
from dsnet.schema import parse_json, to_json
from dsnet.space import WidthSpace
from support.networks import prices_of, router_net, side, traces_on, varied
from support.results import evaluation

GATE = RouterSpec("gate", windows=3)
SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"]


def test_the_family_is_every_run_of_adjacent_positions() -> None:
    def windows(size: int | None, *choices: tuple[int, ...]) -> list[tuple[int, int]]:
        return Router(RouterSpec("gate", windows=size), WidthSpace(choices)).windows

    assert windows(3, tuple(range(6))) == [(0, 2), (1, 3), (2, 4), (3, 5)]
    assert windows(2, (1, 3, 4)) == [(0, 1), (1, 2)], "positions in the list, not width indices"
    assert windows(9, (0, 1, 2)) == windows(None, (0, 1, 2)) == [(0, 2)]
    assert windows(2, (0, 1), (0, 1, 2)) == [(0, 1), (1, 2)], "of the longest list"
    bound = RouterSpec("gate", bound=True, windows=2)
    assert Router(bound, WidthSpace(((0, 1, 2), (0, 1, 2, 3)))).windows == [(0, 1), (1, 2)], "of uniform paths"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RouterSpec("gate", windows=1), "size of a window is 1; it must be at least 2 widths"),
        (lambda: RouterSpec("cheap_first", "correctness", windows=3), "cheap_first; it must be a gate"),
        (lambda: Policy(window=(2, 1)), r"a window is \(2, 1\); it must be two positions from 0"),
        (lambda: Budget(1e6, 0.0, 0.5, 32, window=(-1, 1)), r"a window is \(-1, 1\)"),
    ],
)
def test_impossible_windows_are_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("name", SMALL)
def test_decisions_lie_within_the_window_and_the_cap(name: str) -> None:
    net = router_net(name, GATE)
    x, last = varied(net, 8), net.spec.widths[0] - 1
    for low, high in net.manifest().routers[0].windows:
        for lam, end in ((-1e3, high), (1e3, low)):
            assert set(route(net, x, Policy(lam, window=(low, high))).paths.flatten().tolist()) == {end}
        for cap in range(last + 1):
            paths = route(net, x, Policy(0.0, cap, window=(low, high))).paths
            assert paths.min() >= min(low, cap)
            assert paths.max() <= min(high, cap)


def test_a_shorter_list_keeps_its_widest_width() -> None:
    net = router_net("ds_resnet_tiny", GATE, routing=[[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [1, 3]])
    prices = prices_of(net)
    policy = Policy(window=(2, 3))
    masks = [prices.allowed(point, policy) for point in range(4)]
    assert [None if mask is None else mask.tolist() for mask in masks] == [
        [False, True],
        [False, False, True, True],
        [False, False, True, True],
        [False, True],
    ]


def test_manifests_and_cards_keep_windows_and_older_ones_have_none() -> None:
    net = router_net("ds_mobilenet_v1_tiny", GATE)
    net.card = replace(net.card, budgets=(Budget(1e6, 0.5, 0.9, 32, window=(0, 2)), Budget(2e6, 0.1, 0.9, 32)))
    manifest = replace(net.manifest(), defaults=Policy(0.0, window=(1, 3)))
    assert from_metadata("file", to_metadata(manifest)) == manifest
    older = to_json(net.card).replace(', "window": [0, 2]', "").replace(', "window": null', "")
    assert "window" not in older
    assert {row.window for row in parse_json(Card, older, "card").budgets} == {None}
    spec = to_json(manifest).replace(', "windows": 3', "")
    router = parse_json(Manifest, spec, "manifest").router
    assert router is not None
    assert router.windows == [(0, 5)]


# calibration


@pytest.mark.parametrize("name", SMALL)
def test_a_budget_takes_the_best_window_on_the_calibration_images(name: str) -> None:
    net = router_net(name, GATE)
    traces = traces_on(net, 40)
    rows = calibrate(traces, 6)
    assert len({row.window for row in rows}) > 1
    assert [row.madds for row in rows] == sorted(row.madds for row in rows)
    net.card = replace(net.card, budgets=rows)
    manifest = net.manifest(side(net))
    for row in rows:
        policy = policy_for(manifest, row.madds)
        outcome = traces.at(policy)
        assert (policy.lam, policy.window) == (row.lam, row.window)
        assert outcome.spent == row.madds
        assert traces.score(outcome) == row.accuracy
        assert row.window is not None
        low, high = row.window
        assert outcome.paths.min() >= low
        assert outcome.paths.max() <= high
    windows, step = net.manifest().routers[0].windows, (rows[-1].madds - rows[0].madds) / 5
    assert {row.window for row in rows} <= set(windows)
    for row in rows:
        near = [other.accuracy for other in rows if abs(other.madds - row.madds) <= step]
        others = [row_at(traces, row.madds, window, 0.0) for window in windows]
        assert max(near) >= max(other.accuracy for other in others if abs(other.madds - row.madds) <= step / 9)


def test_lambdas_of_different_windows_are_not_interpolated() -> None:
    net = router_net("ds_mobilenet_v1_tiny", GATE)
    places = [
        (1.0, 2.0, (0, 2)),
        (1.2, 1.0, (0, 2)),
        (1.4, -1.0, (1, 3)),
        (1.6, -2.0, (1, 3)),
        (1.8, 0.5, None),
        (2.6, 0.4, None),
    ]
    net.card = replace(net.card, budgets=tuple(Budget(m * 1e6, lam, 0.5, 32, window=w) for m, lam, w in places))
    manifest = net.manifest()
    for asked, lam, window in (
        ("1.1M", 1.5, (0, 2)),
        ("1.3M", 1.0, (0, 2)),
        ("1.4M", -1.0, (1, 3)),
        ("1.5M", -1.5, (1, 3)),
        ("1.7M", -2.0, (1, 3)),
        ("4M", 0.4, None),
        ("0.5M", 2.0, (0, 2)),
    ):
        policy = policy_for(manifest, asked)
        assert policy.lam == pytest.approx(lam)
        assert policy.window == window
    constant = policy_for(manifest, "1.3M").share
    assert constant == pytest.approx(1.2e6 / manifest.table.widest), "what the row below spends"


# asking for a window


def test_the_papers_networks_are_the_lowest_the_middle_and_the_highest_window() -> None:
    manifest = router_net("ds_mobilenet_v1_tiny", GATE).manifest()
    asked = [policy_for(manifest, window=text) for text in ("S", "m", "L", "0:1", (2, 2))]
    assert asked == [Policy(window=window) for window in ((0, 2), (1, 3), (3, 5), (0, 1), (2, 2))]
    assert manifest.defaults == Policy(window=(1, 3)), "without a budget, the middle one as trained"
    assert policy_for(manifest, max_width=2, window="S") == Policy(max_width=2, window=(0, 2))
    whole = router_net("ds_mobilenet_v1_tiny", RouterSpec("gate")).manifest()
    assert whole.defaults == Policy()
    assert policy_for(whole, window="1:2").window == (1, 2)
    with pytest.raises(RoutingError, match="trained to choose among all widths; give positions from 0 to 5, such as 0"):
        policy_for(whole, window="S")
    with pytest.raises(RoutingError, match="window 2:9 goes beyond the router's widths, whose positions are 0 to 5"):
        policy_for(manifest, window="2:9")
    with pytest.raises(RoutingError, match="budget 1M picks its own window; leave window S out"):
        policy_for(manifest, "1M", window="S")
    for bad in ("XL", "2:1", "1:2:3", "", (1,), (-1, 2)):
        with pytest.raises(RoutingError, match="is not understood; write S, M or L, or the positions"):
            policy_for(manifest, window=bad)


@pytest.mark.parametrize(
    ("name", "router"),
    [
        (SMALL[0], GATE),
        pytest.param(SMALL[0], replace(GATE, early=8), marks=pytest.mark.slow, id="early"),
        pytest.param(SMALL[1], GATE, marks=pytest.mark.slow),
        pytest.param(SMALL[1], replace(GATE, bound=True), marks=pytest.mark.slow, id="bound"),
    ],
)
def test_every_runtime_chooses_within_the_same_windows(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = router_net(name, router).float()
    size, x = side(net), varied(net, 10).float()
    net.card = replace(net.card, budgets=tuple(calibrate(traces_on(net, 24), 5)))
    live = dsnet.models.eager(net)
    others = [
        dsnet.DynamicRunner(net),
        open_runner(export_onnx(net, tmp_path / "model.onnx", image_size=size), threads=1),
        open_runner(export_bundle(net, tmp_path / "bundle", image_size=size), threads=1),
    ]
    budgets = [row.madds for row in net.card.budgets]
    between = [float(madds) for madds in np.mean([budgets[1:], budgets[:-1]], axis=0)]
    asked: list[dict[str, object]] = [{"budget": madds} for madds in (*budgets, *between)]
    asked += [{"window": window} for window in ("S", "L", (1, 2))]
    asked += [{}, {"window": "L", "max_width": 1}, {"budget": budgets[-2], "max_width": 0}]
    for limits in asked:
        expected = live(x, **limits)  # type: ignore[arg-type]
        for runner in others:
            assert torch.equal(runner(x, **limits).paths, expected.paths), (runner.runtime, limits)  # type: ignore[arg-type]
    assert live(x, window="L", max_width=1).paths.unique().tolist() == [1], "the widest width within the cap"
    slim = export_onnx(net, tmp_path / "slim.onnx", image_size=size, window="S", simple=True)
    slimmest = open_runner(slim, threads=1)
    assert slimmest.manifest.defaults.window == (0, 2)
    assert torch.equal(slimmest(x).paths, live(x, window="S").paths)
    with pytest.raises(RoutingError, match="takes no lambda and no window; export it again without --simple"):
        slimmest(x, window="L")
    with pytest.raises(ValueError, match="leave budget, max_width, max_size and window out"):
        export_onnx(net, tmp_path / "no.onnx", path=net.space.widest, window="S")


# evaluation


@pytest.mark.parametrize("name", SMALL)
def test_every_window_is_evaluated_as_trained(name: str) -> None:
    net = router_net(name, GATE)
    traces = traces_on(net, 24)
    net.card = replace(net.card, budgets=calibrate(traces, 3))
    router = net.manifest().routers[0]
    result = evaluate_dynamic(traces, [0.4, 0.7])
    assert [row.window for row in result.windows] == router.windows
    assert [row.name for row in result.windows if row.name] == (["S", "M", "L"] if name == SMALL[0] else ["S", "L"])
    for row in (*result.rows, *result.windows):
        low, high = row.window or (0, 9)
        outcome = traces.at(policy_of(row))
        assert row.score.mean == traces.score(outcome)
        assert row.madds.mean == outcome.spent
        for gate in row.gates:
            assert sum(gate.shares[low : high + 1]) == pytest.approx(1)
    for row in result.windows:
        warned = any(f"in window {window_text(row.window)} as trained" in words for words in result.warnings)
        assert warned == any(max(gate.shares) > 0.99 for gate in row.gates)
    assert {row.lam for row in result.windows} == {0.0}
    assert result.as_trained is not None
    assert result.as_trained.window == net.manifest().defaults.window
    whole = replace(evaluation(), dynamic=result)
    table = windows_table(whole)
    assert table is not None
    assert [row[0] for row in table.rows][:: len(router.windows) - 1] == [
        "0:2 S",
        f"{router.windows[-1][0]}:{router.windows[-1][1]} L",
    ]
    assert "window" in budgets_table(whole).columns  # type: ignore[union-attr]
    assert "windows as trained" in [series.name for series in accuracy([whole]).series]
    assert windows_table(evaluation()) is None
    assert "window" not in budgets_table(evaluation()).columns  # type: ignore[union-attr]
