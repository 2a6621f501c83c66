"""decide, prices, route, traces and budgets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dsnet.errors import RoutingError
from dsnet.manifest import Policy
from dsnet.models import Budget, route
from dsnet.models.count import count
from dsnet.nn import RouterSpec
from dsnet.routing.budgets import parse_budget, policy_for, read_latency
from dsnet.routing.calibration import calibrate, fit_threshold
from dsnet.routing.policy import decide
from dsnet.tasks import threshold_width
from dsnet.training.complexity import expected
from support.networks import (
    CHOOSING,
    ROUTERS,
    assert_close,
    images,
    prices_of,
    randomised,
    router_net,
    side,
    traces_on,
    varied,
)

GATED = [name for name in CHOOSING if name.startswith("ds_")]
TINY = [name for name in GATED if name.endswith("tiny")]
SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"]


# decide


def test_decide_takes_the_best_score_less_its_price() -> None:
    scores, prices = np.float32([[0.1, 0.5, 0.6]]), np.array([0.0, 0.5, 1.0])
    assert decide(scores, prices, Policy(0.0)).item() == 2
    assert decide(scores, prices, Policy(0.3)).item() == 1  # 0.1, 0.35, 0.3
    assert decide(scores, prices, Policy(2.0)).item() == 0
    assert decide(np.zeros((1, 3)), prices, Policy(0.0)).item() == 0  # equal: the slimmest
    assert decide(scores, prices, Policy(-5.0)).item() == 2
    assert decide(scores, prices, Policy(0.0), np.array([True, True, False])).item() == 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_not_finite_never_route(bad: float) -> None:
    with pytest.raises(RoutingError, match="scores of 1 of 2 inputs are not finite"):
        decide(np.array([[0.0, 1.0], [bad, 1.0]]), np.zeros(2), Policy())
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[1])
    x = images(net)
    x[1, 0, 0, 0] = torch.nan
    with pytest.raises(RoutingError, match="not finite"):
        route(net, x)


@pytest.mark.parametrize("name", GATED)
def test_prices_are_the_cost_of_going_on_uniformly(name: str) -> None:
    net = router_net(name, RouterSpec("gate"))
    table = count(net, side(net))
    prices = prices_of(net, side(net))
    width = net.spec.widths[0] - 1
    uniform = (width,) * len(net.space)
    start = table.madds(uniform, dynamic=True) - table.front.madds - table.routers[0][0].madds
    assert prices.at(0, 0)[width].item() == pytest.approx(start / table.widest)
    for point in range(len(net.space)):
        row = prices.at(point, 0)
        assert (row[1:] > row[:-1]).all()


# the cost of probing


@pytest.mark.parametrize("name", [*SMALL, "us_mobilenet_v1", "ds_efficientnet_tiny"])
def test_a_probe_is_always_charged_and_what_is_shared_only_once(name: str) -> None:
    net = router_net(name, RouterSpec("cheap_first", "correctness"))
    table = count(net, side(net))
    slimmest, *wider = net.candidates
    head = net.probe.madds()
    assert head == (7 + 7 + 1) * 32 + 32 * len(net.candidates)
    assert table.madds(slimmest, dynamic=True) == table.madds(slimmest) + head
    for path in wider:
        extra = table.madds(path, dynamic=True) - table.madds(slimmest, dynamic=True)
        assert extra == table.madds(path) - table.shared.madds
        mixes = [torch.eye(k)[[w]] for k, w in zip(net.spec.widths, path, strict=True)]
        assert expected(table, mixes).item() == table.madds(path, dynamic=True)
    mixes = [torch.eye(k)[[w]] for k, w in zip(net.spec.widths, slimmest, strict=True)]
    assert expected(table, mixes).item() == table.madds(slimmest, dynamic=True)
    static = count(replace(net.spec, router=None), side(net))
    assert all(table.madds(path) == static.madds(path) for path in net.candidates)


@pytest.mark.parametrize("name", [*SMALL, "ds_efficientnet_tiny"])
def test_what_all_paths_share_is_what_enter_runs(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    net = router_net(name, RouterSpec("cheap_first", "correctness"))
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net.enter(images(net, 1))
    assert count(net, side(net)).shared.layers == counter.get_total_flops() // 2


# route


@pytest.mark.parametrize("router", ROUTERS, ids=lambda r: f"{r.kind}-{r.targets}")
@pytest.mark.parametrize("name", TINY)
def test_routing_a_batch_equals_running_every_sample_alone(name: str, router: RouterSpec) -> None:
    samples = 24
    net = router_net(name, router)
    x = varied(net, samples)
    table = count(net, side(net))
    policy = Policy()
    routed = route(net, x, policy)
    assert len(routed.paths.unique(dim=0)) > 1, "the test needs samples that take different paths"
    for row in range(samples):
        path = tuple(routed.paths[row].tolist())
        assert path in net.routing
        assert routed.madds[row] == table.madds(path, dynamic=True)
        with torch.no_grad():
            assert_close(routed.logits[row], net(x[row : row + 1], path)[0])
        alone = route(net, x[row : row + 1], policy)
        assert tuple(alone.paths[0].tolist()) == path
    again = route(net, x, policy)
    assert torch.equal(again.paths, routed.paths)
    assert torch.equal(again.logits, routed.logits)


def test_gates_without_heads_can_still_probe() -> None:
    net = router_net("us_mobilenet_v1", ROUTERS[1])
    routed = route(net, varied(net, 4), Policy(0.1))
    assert routed.paths.shape == (4, 1)
    with pytest.raises(ValueError, match="has no slimming heads; use the router cheap_first"):
        replace(net.spec, router=RouterSpec("gate"))


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("router", ROUTERS[:2], ids=lambda r: r.kind)
def test_a_cap_is_never_exceeded(name: str, router: RouterSpec) -> None:
    net = router_net(name, router)
    x = varied(net, 16)
    assert route(net, x, Policy(-1e3)).paths.max() == net.spec.widths[0] - 1
    for cap in range(net.spec.widths[0]):
        assert route(net, x, Policy(-1e3, cap)).paths.max() == cap
    restricted = router_net(name, router, routing=[1, 2])
    with pytest.raises(RoutingError, match="max_width 0 is below the slimmest width"):
        route(restricted, x, Policy(0.0, 0))
    assert set(route(restricted, x).paths.flatten().tolist()) <= {1, 2}


def test_routing_in_training_mode_is_refused() -> None:
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[1])
    with pytest.raises(ValueError, match=r"call net.eval\(\) first"):
        route(net.train(), images(net))


def test_an_unrouted_network_says_so() -> None:
    net = randomised("ds_mobilenet_v1_tiny")
    with pytest.raises(ValueError, match="has not learned to route; train it with"):
        route(net, images(net))


# traces and budgets


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("router", [*ROUTERS, RouterSpec("threshold")], ids=lambda r: f"{r.kind}-{r.targets}")
def test_traces_tell_what_route_does(name: str, router: RouterSpec) -> None:
    net = router_net(name, router)
    traces = traces_on(net)
    (batch,) = traces.load([np.arange(40)])
    for policy in (Policy(), Policy(0.5), Policy(-2.0), Policy(5.0), Policy(0.2, 1)):
        outcome, routed = traces.at(policy), route(net, batch.images, policy)
        assert np.array_equal(outcome.paths, routed.paths)
        assert np.array_equal(outcome.madds, routed.madds)
        assert np.array_equal(traces.correct(outcome), routed.logits.argmax(1) == batch.labels)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("router", ROUTERS, ids=lambda r: f"{r.kind}-{r.targets}")
def test_budgets_are_met_on_the_images_they_were_calibrated_on(name: str, router: RouterSpec) -> None:
    net = router_net(name, router)
    traces = traces_on(net, 60)
    rows = calibrate(traces)
    assert len(rows) > 3
    assert [row.madds for row in rows] == sorted(row.madds for row in rows)
    net.card = replace(net.card, budgets=rows)
    for row in rows:
        policy = policy_for(net.manifest(side(net)), row.madds)
        outcome = traces.at(policy)
        assert outcome.spent == pytest.approx(row.madds, rel=1e-6)
        assert traces.score(outcome) == pytest.approx(row.accuracy)
    middle = (rows[3].madds + rows[4].madds) / 2 if len(rows) > 4 else rows[1].madds
    spent = traces.at(policy_for(net.manifest(side(net)), middle)).spent
    assert rows[2].madds <= spent <= rows[-1].madds


def test_the_threshold_router_escalates_below_one_probability_to_one_width() -> None:
    net = router_net("ds_mobilenet_v1_tiny", RouterSpec("threshold"))
    traces = traces_on(net, 60)
    fit_threshold(traces, threshold_width(net, traces))
    chosen = int(net.probe.width)
    for lam in (-2e5, -1.0, 2e5):
        assert set(traces.at(Policy(lam)).paths[:, 0].tolist()) <= {0, chosen}
    assert calibrate(traces)[-1].madds <= traces.table.madds((chosen,), dynamic=True)
    tops = traces.scores[()][:, 0]
    for lam in (0.1, 0.4, 0.8):
        outcome = traces.at(Policy(lam))
        escalated = outcome.paths[:, 0] > 0
        assert set(outcome.paths[:, 0].tolist()) <= {0, chosen}
        if escalated.any() and (~escalated).any():
            assert tops[escalated].max() < tops[~escalated].min()


def test_budgets_are_understood_clamped_and_interpolated() -> None:
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[1])
    table = count(net)
    assert parse_budget("1.5M", table) == 1.5e6
    assert parse_budget("300k", table) == 3e5
    assert parse_budget("0.002B", table) == 2e6
    assert parse_budget(0.5, table) == table.widest / 2
    assert parse_budget("0.5", table) == table.widest / 2
    assert parse_budget(2_000_000, table) == 2e6
    assert parse_budget("50 %", table) == parse_budget("50%", table) == table.widest / 2
    assert parse_budget("100%", table) == parse_budget(1, table) == table.widest
    for bad in ("fast", "", "-3M", "0", "0%", "1.2.3M", "nan", "inf", "1e999"):
        with pytest.raises(RoutingError, match="is not understood; write MAdds such as 150M"):
            parse_budget(bad, table)
    for bare, ways in ((50, "50% or 0.5 for a share of the widest path, 50M"), ("700", "700M"), (1.5, "1.5%")):
        with pytest.raises(RoutingError, match=f"has no unit; write .*{ways}.*--latency {float(bare):g}ms"):
            parse_budget(bare, table)
    with pytest.raises(RoutingError, match="'150%' is more than the widest path"):
        parse_budget("150%", table)
    with pytest.raises(RoutingError, match="'5ms' is a latency"):
        parse_budget("5ms", table)
    with pytest.raises(RoutingError, match="has no calibrated budgets"):
        policy_for(net.manifest(), "1M")
    rows = [Budget(1e6 + 1e5 * step, 2.0 - 0.1 * step, 0.5, 32) for step in range(11) if step not in (7, 8)]
    net.card = replace(net.card, budgets=tuple(rows))
    assert policy_for(net.manifest(), "1.25M").lam == pytest.approx(1.75)
    share = float(np.float32(1.25e6 / table.widest))
    capped = policy_for(net.manifest(), "1.25M", max_width=3)
    assert capped == Policy(capped.lam, 3, share=share)
    assert policy_for(net.manifest(), "1.85M").lam == rows[6].lam  # in a gap: the cheaper neighbour
    assert policy_for(net.manifest(), "1.9M").lam == rows[7].lam
    low, high = policy_for(net.manifest(), "10k"), policy_for(net.manifest(), "3M")
    assert (low.lam, high.lam) == (rows[0].lam, rows[-1].lam)
    assert "budget 3M is out of reach: on average this router spends 1M to 2M MAdds; taking 2M" in high.note
    with pytest.raises(RoutingError, match=r"calibrated for image sizes \[32\] but not for 64"):
        policy_for(net.manifest(), "1M", image_size=64)
    for cap in (-1, 99):
        with pytest.raises(RoutingError, match=f"max_width is {cap}; .* from 0 .slimmest. to 5 .widest."):
            policy_for(net.manifest(), max_width=cap)


def test_latencies_have_a_unit() -> None:
    assert [read_latency(text) for text in ("5ms", "0.2 s", "800us", "5MS")] == [5, 200, 0.8, 5]
    for bad, hint in (("5", "such as 5ms"), ("0ms", "5ms or 0.2s"), ("fast", "5ms or 0.2s"), ("-1ms", "5ms or 0.2s")):
        with pytest.raises(RoutingError, match=hint):
            read_latency(bad)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decisions_are_those_of_torch_bit_for_bit(dtype: type) -> None:
    rng = np.random.default_rng(0)
    scores = np.round(rng.normal(size=(100_000, 6)), 1).astype(dtype)  # coarse, so that many are equal
    prices, allowed = np.linspace(0, 1, 6).round(1), np.array([True, True, False, True, True, False])
    for lam in (0.0, 0.1, -0.3, 2.0):
        values = torch.from_numpy(scores).double() - lam * torch.from_numpy(prices)
        assert np.array_equal(decide(scores, prices, Policy(lam)), values.argmax(1))
        masked = values.masked_fill(~torch.from_numpy(allowed), -torch.inf)
        assert np.array_equal(decide(scores, prices, Policy(lam), allowed), masked.argmax(1))
