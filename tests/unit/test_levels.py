"""The ways to run a model: from the cheapest to the best, and what a request may take of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsnet
from dsnet.errors import RoutingError
from dsnet.manifest import Policy
from dsnet.results import Stat
from dsnet.routers import RouterSpec
from dsnet.serve import ladder
from dsnet.serve import model as model_room
from dsnet.serve.ladder import Level, frontier, place_of
from dsnet.serve.model import Ask, Model
from support.networks import calibrated
from support.results import compared
from support.sizes import sized

SIDE = 16
TIMES = st.floats(0.1, 50)
SHARES = st.floats(0.05, 1)


@st.composite
def levels(draw: st.DrawFn) -> list[Level]:
    scored = draw(st.booleans())
    rows = draw(st.lists(st.tuples(TIMES, SHARES, st.floats(0, 1), st.booleans()), min_size=1, max_size=12))
    return [
        Level(
            ms,
            share,
            path=(number,) if fixed else None,
            policy=None if fixed else Policy(share=share),
            score=score if scored else None,
        )
        for number, (ms, share, score, fixed) in enumerate(rows)
    ]


@settings(deadline=None)
@given(levels())
def test_a_longer_time_buys_a_better_answer(known: list[Level]) -> None:
    found = frontier(known)
    times = [level.ms for level in found]
    assert times == sorted(times)
    assert {(level.path, level.policy) for level in found} <= {(level.path, level.policy) for level in known}
    scores = [level.score for level in found if level.score is not None]
    if scores:
        assert scores == sorted(set(scores))
        assert scores[-1] == max(level.score or 0 for level in known)
        for level in known:  # no level that was left out is quicker and better than all that were kept
            assert any(one.ms <= level.ms and (one.score or 0) >= (level.score or 0) for one in found)
    elif fixed := [level for level in known if level.path is not None]:
        assert found[-1].path == max(fixed, key=lambda level: level.share).path  # the widest is the best
    places = [place_of(level.ms, found) for level in found]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1) or len(set(times)) == 1


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    """A model whose times rise with MAdds; those of so small a network are noise."""
    file = tmp_path_factory.mktemp("levels") / "net.onnx"
    net = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float()
    dsnet.export_onnx(net, file, image_size=SIDE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ladder, "SECONDS", 0.02)
        for room in (ladder, model_room):
            patch.setattr(room, "time_of", lambda level, *_: 1 + 9 * level.share)
        yield Model("net", file)


def shares(model: Model, ask: Ask) -> list[float]:
    found = [setting.key for setting in model.settings(ask)]
    return [level.share for level in found if isinstance(level, Level)]


def test_a_request_takes_what_it_asked_for_and_less_under_load(model: Model) -> None:
    best = shares(model, Ask())
    assert best[-1] == 1.0
    half = shares(model, Ask(budget=0.5))
    assert half[-1] == pytest.approx(dsnet.open_runner(model.place).policy(0.5).share)
    assert half[0] == best[0]  # the cheapest
    assert max(half) == half[-1]


def test_a_least_budget_is_the_least(model: Model) -> None:
    assert min(shares(model, Ask(min_budget=0.6))) >= 0.6 * (1 - 1e-6)
    assert len(shares(model, Ask(min_budget="99.9%"))) == 1
    exactly = model.settings(Ask(budget=0.8, min_budget=0.8))
    assert len(exactly) == 1
    with pytest.raises(RoutingError, match=r"min_budget 0.9 is more than budget 0.5"):
        model.settings(Ask(budget=0.5, min_budget=0.9))


def test_a_cap_and_a_path_are_kept(model: Model) -> None:
    for setting in model.settings(Ask(max_width=2)):
        assert isinstance(setting.key, Level)
        assert setting.key.path is not None
        assert max(setting.key.path) <= 2
    (pinned,) = model.settings(Ask(path=(3,)))
    assert isinstance(pinned.key, Level)
    assert pinned.key.path == (3,)
    with pytest.raises(RoutingError, match="a path pins the widths"):
        model.settings(Ask(path=(3,), budget=0.5))
    with pytest.raises(RoutingError, match="latency_ms and budget both"):
        model.settings(Ask(latency_ms=1, budget=0.5))
    with pytest.raises(ValueError, match="allowed are 0, 1, 2, 3, 4, 5"):
        model.settings(Ask(path=(9,)))


def test_equal_wishes_run_together_and_memory_is_bounded(model: Model) -> None:
    assert model.settings(Ask()) is model.settings(Ask())
    assert model.settings(Ask())[0] is model.settings(Ask(budget=0.9))[0]
    before = len(model.runner._policies)  # a cache without a limit, which clients must not fill
    for number in range(30):
        model.settings(Ask(budget=0.5 + number / 1000))
    assert len(model.runner._policies) == before
    assert model.settings.cache_info().maxsize is not None


def test_the_evaluation_in_a_file_tells_what_is_best(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "SECONDS", 0.02)
    net = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).float()
    evaluation = compared([-0.2, -0.1, -0.05, -0.07, 0.0])
    dsnet.export_onnx(net, tmp_path / "net.onnx", image_size=evaluation.image_size, evaluation=evaluation)
    found = Model("net", tmp_path / "net.onnx")
    assert [level.path for level in found.levels] == [(0,), (1,), (2,), (4,)]  # 3 is worse than 2, 5 no better than 4


def test_settings_of_several_sizes_have_their_scores() -> None:
    net = sized("ds_mobilenet_v1_tiny")
    manifest = net.manifest()
    base = compared([-0.1])
    row = base.rows[0]
    rows = tuple(
        replace(row, path=path, size=manifest.size_of(path), score=Stat(0.5 + 0.01 * number))
        for number, path in enumerate(manifest.uniform)
    )
    held = replace(manifest, evaluation=replace(base, rows=rows, dynamic=None, image_size=manifest.image_size))
    assert [level.score for level in ladder.fixed_levels(held)] == [one.score.mean for one in rows]


def test_scores_under_a_cap_belong_to_levels_under_the_cap() -> None:
    manifest = calibrated("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness")).manifest(SIDE)
    base = compared([-0.1])
    assert base.dynamic is not None
    widest = manifest.table.widest
    rows = tuple(replace(row, asked=share * widest) for row, share in zip(base.dynamic.rows, (0.6, 0.9), strict=True))
    dynamic = replace(base.dynamic, rows=rows, max_width=2)
    held = replace(manifest, evaluation=replace(base, image_size=manifest.image_size, dynamic=dynamic))
    found = ladder.routed_levels(held)
    assert found
    assert {level.policy.max_width for level in found if level.policy is not None} == {2}
