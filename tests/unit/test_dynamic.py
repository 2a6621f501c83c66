"""The judgement of a dynamic network, by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from dsnet.hull import concave
from dsnet.manifest import Policy
from dsnet.results import BudgetRow, Point, Stat
from dsnet.routers import Router, RouterSpec
from dsnet.routing.calibration import calibrate
from dsnet.routing.traces import auc
from dsnet.runs.dynamic import budget_row, evaluate_dynamic, health
from dsnet.runs.references import hull, oracle, oracle_at
from dsnet.runs.routes import difficulties, histograms
from dsnet.space import WidthSpace
from support.networks import EARLY, ROUTERS, router_net, traces_on


def fake(right: list[list[int]], madds: list[int]) -> SimpleNamespace:
    """Traces of a network with one choice point; right[k][n]: is width k right on image n?"""
    space = WidthSpace.full([len(madds)])
    table = SimpleNamespace(madds=lambda path: madds[path[0]], space=WidthSpace.full((len(madds),)))
    answers = {path: np.array(right[path[0]], bool) for path in space}
    return SimpleNamespace(
        manifest=SimpleNamespace(space=space, uniform=space.uniform),
        router=Router(RouterSpec(), space),
        table=table,
        right=lambda path, routed=False: answers[path],
        combined=[],
        scorer=SimpleNamespace(right=lambda path: answers[path]),
    )


def test_the_hull_is_concave_and_rises() -> None:
    points = [(1, 0.5, (0,)), (2, 0.52, (1,)), (3, 0.7, (2,)), (5, 0.72, (3,)), (6, 0.71, (4,))]
    assert [point[2] for point in concave(points)] == [(0,), (2,), (3,)]


def test_hull_accuracy_is_a_lottery_between_its_corners() -> None:
    traces = fake([[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 1]], [10, 20, 40])
    assert hull(traces, 10, traces.manifest.space.uniform).mean() == 0.25
    assert hull(traces, 15, traces.manifest.space.uniform).tolist() == [1, 0.5, 0.5, 0]
    assert hull(traces, 30, traces.manifest.space.uniform).mean() == pytest.approx(0.875)
    assert hull(traces, 5, traces.manifest.space.uniform).mean() == 0.25
    assert hull(traces, 99, traces.manifest.space.uniform).mean() == 1


def test_difficulty_and_oracle_by_hand() -> None:
    traces = fake([[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]], [10, 20, 40])
    found = {name: mine.tolist() for name, mine in difficulties(traces).items()}
    assert found["easy"] == [True, False, False, False]
    assert found["dependent"] == [False, True, True, False]
    assert found["hard"] == [False, False, False, True]
    assert oracle(traces) == Point(Stat((10 + 20 + 40 + 10) / 4), Stat(0.75))
    # 10: all slimmest; 12.5: one image at width 1; 20: another one at width 2; nothing is gained beyond
    wanted = {5: 0.25, 10: 0.25, 11.25: 0.375, 12.5: 0.5, 16.25: 0.625, 20: 0.75, 40: 0.75}
    assert {madds: oracle_at(traces, madds) for madds in wanted} == pytest.approx(wanted)


def test_auc_counts_pairs() -> None:
    scores = np.array([0.1, 0.4, 0.4, 0.8, 0.3])
    positive = np.array([False, True, False, True, False])
    wins = sum((p > n) + 0.5 * (p == n) for p in scores[positive].tolist() for n in scores[~positive].tolist())
    assert auc(scores, positive) == pytest.approx(wins / 6)
    assert auc(scores, np.ones(5, bool)) == 0.5


def test_histograms_and_health() -> None:
    traces = SimpleNamespace(table=SimpleNamespace(space=WidthSpace.full((3, 2))))
    gates = histograms(traces, np.array([[0, 1], [0, 1], [2, 1], [2, 1]]))
    assert [gate.shares for gate in gates] == [(0.5, 0, 0.5), (0, 1)]
    assert [gate.entropy for gate in gates] == [pytest.approx(1.0), pytest.approx(0.0)]
    none = Stat(0.0)
    row = BudgetRow("", 0.0, 0.0, "", none, none, none, none, none, none, None, gates)
    (warning,) = health(Router(RouterSpec(), WidthSpace(((0, 1, 2), (0, 1)))), row, "without a budget")
    assert "gate 1 sends 100.0% of the images to width 1" in warning
    assert "use sgs.router cheap_first" in warning
    lone = Router(RouterSpec(), WidthSpace(((0, 1, 2), (1,))))  # a gate without a choice cannot collapse
    assert not health(lone, row, "without a budget")


@pytest.mark.parametrize("router", [*ROUTERS, EARLY[0]], ids=lambda r: f"{r.kind}-{r.targets}")
@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"])
def test_a_result_is_consistent_with_its_traces(name: str, router: object) -> None:
    net = router_net(name, router)
    traces = traces_on(net, 60)
    net.card = replace(net.card, budgets=calibrate(traces))
    result = evaluate_dynamic(traces, [1.0, 0.6, 0.3])
    for row in result.rows:
        outcome = traces.at(Policy(row.lam))
        assert row.score.mean == pytest.approx(traces.score(outcome))
        assert row.madds.mean == pytest.approx(outcome.spent)
        assert row.oracle is not None
        assert row.oracle.mean >= row.hull.mean - 1e-9
        assert row.lottery is not None or net.spec.router.kind == "gate"  # behind several gates some paths are rare
        if row.lottery is not None:
            taken = [tuple(path) for path in outcome.paths.tolist()]
            assert row.lottery.mean == pytest.approx(
                np.mean([traces.right(path, routed=True).mean() for path in taken])
            )
        groups = [(result.difficulty[key], part.madds) for key, part in row.groups.items()]
        assert sum(share * (madds or 0) for share, madds in groups) == pytest.approx(row.madds.mean)
    middle = traces.at(Policy(result.rows[1].lam))
    right = traces.correct(middle)
    shown = traces.scorer.examples(traces, middle)
    for name in ("slimmest", "widest"):
        group = [example for example in shown if example.group == name]
        sign = -1 if name == "widest" else 1
        costs = sorted(sign * cost for cost in middle.madds.tolist())[: len(group)]
        assert len(group) == 12
        assert all(sign * traces.table.madds(example.path, dynamic=True) <= costs[-1] for example in group)
        turns = Counter(example.label for example in group)
        near = [row for row, cost in enumerate(middle.madds.tolist()) if sign * cost <= costs[-1]]
        held = Counter(traces.scorer.labels[near].tolist())
        assert all(turns[label] + 1 >= max(turns.values()) or turns[label] == held[label] for label in held)
        for example in group:
            place = int(np.flatnonzero(traces.ids == example.id)[0])
            assert example.path == tuple(middle.paths[place].tolist())
            assert example.label == traces.scorer.labels[place]
            assert (example.answer == example.label) == bool(right[place])
    assert sum(one.images for one in result.classes) == len(traces)
    for number, row in enumerate(result.rows):
        scores = sum(one.images * (one.scores[number] or 0) for one in result.classes) / 60
        assert scores == pytest.approx(row.score.mean, abs=1e-4)
        madds = sum(one.images * (one.madds[number] or 0) for one in result.classes) / 60
        assert madds == pytest.approx(row.madds.mean, abs=1)
    first = [sum(one.images * one.shares[k] for one in result.classes if one.images) / 60 for k in (0, 1)]
    assert first == pytest.approx(result.best_row.gates[0].shares[:2], abs=1e-3)
    assert result.as_trained is not None
    assert result.as_trained.lam == 0
    assert result == evaluate_dynamic(traces, [1.0, 0.6, 0.3])
    difference = budget_row(traces, Policy(0.1), difficulties(traces))
    assert difference.gain.mean == pytest.approx(100 * (difference.score.mean - difference.hull.mean))
