"""Comparisons of deployable networks over seeds, not all of which have every network."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from dsnet.experiments import EXPERIMENTS, SCALES
from dsnet.experiments.catalogue.alternatives import judged, rule_of
from dsnet.experiments.catalogue.compared import Compared, cells, chart, figures
from dsnet.experiments.catalogue.sizes import between
from dsnet.experiments.catalogue.sizes_points import WIDTHS
from dsnet.experiments.catalogue.sizes_times import looks
from dsnet.experiments.catalogue.slim_points import DYNAMIC, STATIC, Point
from dsnet.experiments.paired import RULE
from dsnet.experiments.run import cells_of


def point(group: str, right: Any, madds: float = 1.0, **more: Any) -> Point:
    return Point(group, np.array(right, bool), madds, lambda image: None, 16, **more)


def by_seeds(points: dict[int, dict[str, Point]]) -> Compared:
    """Points that all take one millisecond, and one more for each seed."""
    times = {(seed, label): np.full(2, 1.0 + seed) for seed, mine in points.items() for label in mine}
    return Compared(points, {}, times, cast(Any, None), Path())


def test_a_row_is_the_mean_over_the_seeds_that_have_it() -> None:
    static = {STATIC: point(STATIC, [1, 1, 1, 0], 4.0)}
    found = by_seeds({0: {**static, "other": point("other", [1, 0, 0, 0], 2.0)}, 1: {**static}})
    assert found.labels == [STATIC, "other"]
    line = figures("other", found)
    assert {name: list(each) for name, each in line.items()} == {name: [0] for name in line}
    assert cells(line)[:3] == ["25.00", "0.0M", "0.500"]
    assert list(figures(STATIC, found)["top-1"]) == [0, 1]
    drawn = chart({label: figures(label, found) for label in found.labels}, found.groups, "MAdds")
    assert [(series.name, len(series.points)) for series in drawn.series] == [(STATIC, 1), ("other", 1)]


def test_a_claim_is_judged_on_the_seeds_that_both_have() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = rng.random((2, 3, 400)) < np.array([0.9, 0.5])[:, None, None]
    points: dict[int, dict[str, Point]] = {
        seed: {
            "a": point("a", ours[seed]),
            "b": point("b", theirs[seed]),
            **({"c": point("c", theirs[0])} if not seed else {}),
        }
        for seed in range(3)
    }
    found = by_seeds(points)
    better, faster = judged(found.points, found.times, "a", "b")
    assert (better.holds, faster.holds) == (True, None)
    alone, _ = judged(found.points, found.times, "a", "c")
    assert (alone.holds, alone.why) == (None, "one seed")
    assert alone.why in rule_of([alone]).lower()
    assert rule_of([better]) == RULE
    assert judged(found.points, found.times, "a", "d") == []


def test_every_image_pays_for_the_first_look() -> None:
    shares = {(1,): 0.6, (2,): 0.3, (4,): 0.1}
    assert looks(shares, {(0,): 9.0, (1,): 1.0, (2,): 2.0, (3,): 9.0, (4,): 4.0}) == pytest.approx(1 + 0.6 + 0.4)
    assert between({1.0: 0.5, 2.0: 0.9}, 0.75, 2.0) == pytest.approx(0.7)
    assert between({1.0: 0.5}, None, 2.0) is None
    assert between({}, 0.5, 2.0) is None


def test_sizes_shows_the_runs_of_slim_as_widths_only(tmp_path: Path) -> None:
    for scale in SCALES.values():
        runs = {name: cells_of(EXPERIMENTS[name], scale, tmp_path, str(tmp_path)) for name in ("slim", "sizes")}
        assert [cell.name for cell in runs["sizes"][WIDTHS]] == [cell.name for cell in runs["slim"][DYNAMIC]]
