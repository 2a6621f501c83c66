"""Budget tracking: a running correction that keeps the average."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
import torch

from dsnet.errors import RoutingError
from dsnet.manifest import Policy
from dsnet.models import create_model, eager
from dsnet.nn import RouterSpec
from dsnet.routing.calibration import calibrate
from dsnet.routing.traces import Traces
from dsnet.routing.tracking import BudgetTracker
from dsnet.runtime.runner import Runner
from support.networks import ROUTERS, randomised, router_net, traces_on, varied

STEP = 16
SHARES = [0.3, 0.5, 0.7]


def calibrated(router: RouterSpec, count: int = 96) -> Traces:
    """Traces of images on which the budgets of a random router were calibrated."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = router_net("ds_mobilenet_v1_tiny", router)
    traces = traces_on(net, count)
    net.card = replace(net.card, budgets=calibrate(traces))
    traces.runner = eager(net)
    return traces


@pytest.fixture(scope="module", params=[ROUTERS[0], ROUTERS[1]], ids=["gate", "cheap_first"])
def traces(request: pytest.FixtureRequest) -> Traces:
    return calibrated(request.param)


def asked_of(traces: Traces, share: float) -> float:
    """A budget a share of the way from the lowest to the highest that was calibrated."""
    rows = traces.router.budgets if traces.router else ()
    return rows[0].madds + share * (rows[-1].madds - rows[0].madds)


def drifting(traces: Traces, shift: float) -> Traces:
    """The same images to a router that trusts wide candidates more by `shift` standard deviations."""
    shifted = object.__new__(Traces)
    shifted.__dict__.update(traces.__dict__)
    scores = traces.scores[()]
    shifted.scores = {(): scores + shift * scores.std() * np.linspace(0, 1, scores.shape[1])}
    return shifted


def stream(traces: Traces, tracker: BudgetTracker, images: int, seed: int = 0) -> np.ndarray:
    """MAdds of images that are drawn at random and given to the tracker a few at a time."""
    rng, spent = np.random.default_rng(seed), []
    for _ in range(images // STEP):
        outcome = traces.at(tracker.policy(), rng.integers(len(traces), size=STEP))
        tracker.add(outcome.madds)
        spent.append(outcome.madds)
    return np.concatenate(spent).astype(np.float64)


def runner_of(traces: Traces) -> Runner:
    assert isinstance(traces.runner, Runner)
    return traces.runner


def tracker_of(traces: Traces, asked: float, **options: int) -> BudgetTracker:
    return BudgetTracker(runner_of(traces), budget=asked, image_size=traces.image_size, **options)


@pytest.mark.parametrize(("share", "shift"), [(0.3, 1.0), (0.5, 1.0), (0.7, -1.0)])
def test_the_average_returns_to_what_was_asked(traces: Traces, share: float, shift: float) -> None:
    other, asked = drifting(traces, shift), asked_of(traces, share)
    untracked = other.at(tracker_of(traces, asked).policy()).spent
    tracker = tracker_of(traces, asked)
    spent = stream(other, tracker, 6000)
    assert abs(untracked / asked - 1) > 0.05
    assert abs(tracker.spent / asked - 1) < 0.04
    assert abs(spent[2000:].mean() / asked - 1) < 0.02
    assert tracker.images == len(spent)
    assert tracker.spent == pytest.approx(spent.mean())


def test_the_error_is_bounded_by_the_change_of_the_effective_budget(traces: Traces) -> None:
    asked = asked_of(traces, 0.5)
    tracker = tracker_of(traces, asked, span=100)
    spent = stream(drifting(traces, 1.0), tracker, 800)
    assert tracker.range[0] < tracker.effective < tracker.range[1]
    assert spent.mean() - asked == pytest.approx(100 * (asked - tracker.effective) / len(spent))


@pytest.mark.parametrize("share", SHARES)
def test_images_like_those_of_the_calibration_change_next_to_nothing(traces: Traces, share: float) -> None:
    asked = asked_of(traces, share)
    tracker, budgets = tracker_of(traces, asked), []
    for number in range(30):
        stream(traces, tracker, 64, seed=number)
        budgets.append(tracker.effective)
    low, high = tracker.range
    assert abs(np.mean(budgets) - asked) < 0.03 * (high - low)
    assert np.std(budgets) < 0.05 * (high - low)


def test_nothing_is_accumulated_that_no_budget_could_correct(traces: Traces) -> None:
    """After a long stretch of images that cost too much at any budget, the next images pay for a few spans only."""
    asked = asked_of(traces, 0.3)
    tracker = tracker_of(traces, asked, span=64)
    for _ in range(500):
        tracker.add(np.full(STEP, traces.table.widest))
    assert tracker.effective == tracker.range[0]
    assert tracker.policy().note == ""
    spent = stream(traces, tracker, 12 * tracker.span)
    assert abs(spent[-6 * tracker.span :].mean() / asked - 1) < 0.1


def test_a_large_batch_does_not_overshoot(traces: Traces) -> None:
    other, asked = drifting(traces, 1.0), asked_of(traces, 0.5)
    tracker, spent = tracker_of(traces, asked, span=8), []
    for _ in range(40):
        outcome = other.at(tracker.policy())
        tracker.add(outcome.madds)
        spent.append(outcome.spent)
    assert np.ptp(spent[20:]) < 0.1 * asked
    assert abs(np.mean(spent[20:]) / asked - 1) < 0.05


def test_a_cap_is_never_exceeded(traces: Traces) -> None:
    tracker = tracker_of(traces, asked_of(traces, 0.9), max_width=2)
    for _ in range(100):
        outcome = traces.at(tracker.policy(), np.arange(STEP))
        tracker.add(outcome.madds)
        assert outcome.paths.max() <= 2
    assert tracker.effective == tracker.range[1]


def test_it_runs_like_the_runner_and_is_deterministic(traces: Traces) -> None:
    runner, asked = runner_of(traces), asked_of(traces, 0.5)
    images = varied(create_model("ds_mobilenet_v1_tiny").double(), 48)
    routes = []
    for _ in range(2):
        tracker = tracker_of(traces, asked, span=16)
        runs = [(tracker.policy(), tracker(part), part) for part in images.split(16)]
        for policy, routed, part in runs:
            assert routed.paths.tolist() == runner.run(part, policy).paths.tolist()
        routes.append([routed.paths.tolist() for _, routed, _ in runs])
        assert runs[0][0].lam != runs[2][0].lam
    assert routes[0] == routes[1]
    with pytest.raises(ValueError, match="images have 64 pixels but the tracker follows a budget at"):
        tracker(np.zeros((1, 3, 64, 64), np.float32))


def test_threads_may_share_it(traces: Traces) -> None:
    tracker = tracker_of(traces, asked_of(traces, 0.5))

    def work(number: int) -> None:
        for _ in range(200):
            tracker.policy()
            tracker.add(np.full(3, number))

    threads = [threading.Thread(target=work, args=(number,)) for number in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tracker.images == 2400
    assert tracker.spent == 2.5


def test_what_cannot_be_tracked_is_refused(traces: Traces) -> None:
    size, plain = traces.image_size, eager(router_net("ds_mobilenet_v1_tiny", ROUTERS[1]))
    with pytest.raises(RoutingError, match="not understood"):
        BudgetTracker(runner_of(traces), budget="much", image_size=size)
    with pytest.raises(ValueError, match="span is 0; it must be at least 1 image"):
        BudgetTracker(runner_of(traces), budget=0.5, image_size=size, span=0)
    with pytest.raises(RoutingError, match="ask for a budget or a latency"):
        BudgetTracker(plain, image_size=size)
    with pytest.raises(RoutingError, match="no calibrated budgets"):
        BudgetTracker(plain, budget=0.5, image_size=size)
    with pytest.raises(RoutingError, match="has not learned to route"):
        BudgetTracker(eager(randomised("mobilenet_v1_tiny")), budget=0.5)


def test_a_budget_out_of_reach_is_noted_once(traces: Traces) -> None:
    tracker = BudgetTracker(runner_of(traces), budget=1001, image_size=traces.image_size)
    assert "out of reach" in tracker.policy().note
    assert tracker.asked == pytest.approx(tracker.range[0])
    tracker.add(np.array([10 * tracker.asked]))
    tracker.add(np.array([0]))
    assert tracker.range[0] < tracker.effective
    assert not tracker.policy().note


@pytest.mark.parametrize("router", ROUTERS[:2], ids=["gate", "cheap_first"])
def test_some_rows_of_traces_are_routed_like_all(router: RouterSpec) -> None:
    traces, rows = traces_on(router_net("ds_resnet_tiny", router), 24), np.array([5, 2, 17])
    for policy in (Policy(0.1), Policy(0.5, 2)):
        some = traces.at(policy, rows)
        whole = traces.at(policy)
        assert some.paths.tolist() == whole.paths[rows].tolist()
        assert some.madds.tolist() == whole.madds[rows].tolist()
