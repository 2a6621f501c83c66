"""Experiments as data: names of cells, scales, tables, verdicts."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dsnet.config import flat, nested, packaged, read_yaml
from dsnet.experiments import EXPERIMENTS, SCALES, measures
from dsnet.experiments.catalogue.compared import SWEEP, best_static, sweep_label
from dsnet.experiments.catalogue.networks import MBNET, RESNET
from dsnet.experiments.catalogue.routers import one_by_one
from dsnet.experiments.catalogue.slim_points import STATIC
from dsnet.experiments.grid import RESULT, Finished, in_order
from dsnet.experiments.layout import Claim, Column, Row, Table, interval_of, judged, laid_out, routers
from dsnet.experiments.measures import interpolate
from dsnet.experiments.paired import interval, verdict
from dsnet.experiments.recipe import LINKS, PLACES, Cell, Keys, Recipe, cell_of
from dsnet.experiments.run import cells_of, flat_list
from dsnet.paired import resampled_means
from dsnet.results import BudgetRow, Dynamic, Evaluation, Gate, Made, PathRow, Stat, write
from dsnet.runs.resampled import Resampled
from dsnet.tasks import read_config
from dsnet.tasks.classification.accuracy import METRIC
from dsnet.tasks.classification.config import ClassificationConfig

ROOT = Path(__file__).parents[2]
GATES = one_by_one(SCALES["cpu"])


def cell(recipe: Recipe, seed: int = 0, *, runs: str = "runs", root: str = "data", scale: str = "cpu") -> Cell:
    return cell_of(recipe, SCALES[scale], seed, runs=Path(runs), root=root)


def test_a_name_stands_for_what_is_learned() -> None:
    first = cell(MBNET.gates(GATES))
    assert cell(MBNET.gates(GATES), runs="elsewhere", root="other").name == first.name
    others = [
        cell(MBNET.gates(GATES), seed=1),
        cell(MBNET.gates({**GATES, "sgs.complexity": 0.1})),
        cell(MBNET.but({"ieb.temperature": 4.0}).gates(GATES)),  # another source, the same gates
        cell(RESNET.gates(GATES)),
    ]
    assert len({first.name, *(other.name for other in others)}) == 5


@pytest.mark.parametrize("key", PLACES)
def test_places_and_threads_do_not_change_a_name(key: str) -> None:
    places: dict[str, Any] = {"data.root": "far", "data.workers": 2, "threads": 2, "timeout": 5.0, "save_steps": 7}
    places |= {"sgs.cache_folder": "far", "data.cache": "far", "data.cache_size": 3.0}
    keys: dict[str, Any] = {"stage": "supernet"}
    if key.startswith("data.cache"):
        keys |= {"data.dataset": "shards", "data.root": "near"}
    assert cell(Recipe("mbnet", keys)).name[-8:] == cell(Recipe("mbnet", {**keys, key: places[key]})).name[-8:]


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda scale: scale.name)
def test_every_experiment_is_complete_at_every_scale(scale: Any) -> None:
    """Configs are valid, labels are unique, claims speak of rows and columns that are there."""
    for experiment in EXPERIMENTS.values():
        rows = [row.label for table in experiment.tables(scale) for row in table.rows]
        assert len(rows) == len(set(rows))
        assert rows or experiment.measure is not None
        cells = cells_of(experiment, scale, Path("out"), "data")
        assert all(0 < len(mine) <= len(scale.seeds) for mine in cells.values())
        for table in experiment.tables(scale):
            labels, columns = {row.label for row in table.rows}, {column.name for column in table.columns}
            assert {claim.row for claim in table.claims} | {claim.over for claim in table.claims} <= labels
            assert {claim.column for claim in table.claims} <= columns
            assert all(set(row.paper) | set(row.measures) <= columns for row in table.rows)


def test_tables_share_runs() -> None:
    def names(experiment: str) -> set[str]:
        cells = cells_of(EXPERIMENTS[experiment], SCALES["cpu"], Path("o"), "d")
        return {found.name for mine in cells.values() for found in mine}

    shown = (
        "losses",
        "sgs",
        "gate_design",
        "gate_distribution",
        "supernet_mbnet",
        "supernet_resnet",
        "main",
        "universal",
    )
    cells = {name: names(name) for name in shown}
    assert cells["losses"] & cells["gate_design"]
    assert cells["losses"] & cells["gate_distribution"]
    assert cells["losses"] & cells["supernet_resnet"]
    assert cells["sgs"] & cells["supernet_mbnet"]
    assert cells["main"] & cells["universal"] & cells["supernet_mbnet"]


def test_what_only_rounds_differently_has_the_same_name() -> None:
    def name(**keys: object) -> str:
        return cell_of(MBNET.but(keys), SCALES["cpu"], 0, runs=Path("o"), root="d").name.rpartition("-")[2]

    assert name(**{"optim.channels_last": False}) == name(**{"optim.channels_last": True}) == name()
    assert name(**{"optim.lr": 0.02}) != name()


@pytest.mark.parametrize("name", ["main", "ieb", "detection"])
def test_longer_multiplies_every_training(name: str) -> None:
    """And nothing else; the runs have names of their own."""
    for plain in SCALES.values():
        once, twice = (
            in_order(flat_list(cells_of(EXPERIMENTS[name], replace(scale, seeds=(0,)), Path("o"), "d")))
            for scale in (plain, replace(plain, longer=2))
        )
        assert not {cell.name for cell in once} & {cell.name for cell in twice}
        for short, long in zip(once, twice, strict=True):
            before, after = flat(short.config.to_dict()), flat(long.config.to_dict())
            changed = {key for key in before if before[key] != after[key]} - set(LINKS)
            assert changed
            for key in changed:
                assert key.endswith(("optim.epochs", "optim.milestones"))
                wanted = [2 * n for n in before[key]] if "milestones" in key else 2 * before[key]
                assert after[key] == (tuple(wanted) if isinstance(wanted, list) else wanted)


def test_cells_come_behind_what_they_need() -> None:
    transfer = cells_of(EXPERIMENTS["transfer"], SCALES["cpu"], Path("o"), "d")
    order = in_order([found for mine in transfer.values() for found in mine])
    place = {found.name: number for number, found in enumerate(order)}
    assert len(place) == len(order)
    assert all(place[need.name] < place[found.name] for found in order for need in found.needs)


def bases(*, changed: bool) -> list[tuple[str, str]]:
    """By scale: those that change keys of their config, or those that are it."""
    return [
        (scale.name, name)
        for scale in SCALES.values()
        for name in scale.bases
        if bool(scale.bases[name].keys) == changed
    ]


@pytest.mark.parametrize(("scale", "base"), bases(changed=False))
def test_a_base_is_the_config_that_we_publish(scale: str, base: str) -> None:
    """But for the router, which the recipe names."""
    file = packaged()[SCALES[scale].bases[base].config]
    published = read_config(file)
    gates: Keys = {"sgs.router": "gate", "sgs.targets": "try_best"} if scale == "paper" and base != "detector" else {}
    if isinstance(published, ClassificationConfig) and published.sgs.windows is not None:
        gates["sgs.windows"] = SCALES[scale].window
    ours = cell(Recipe(base, gates), scale=scale).config
    different = {
        key: (value, flat(ours.to_dict())[key])
        for key, value in flat(published.to_dict()).items()
        if key not in (*PLACES, *LINKS, "sgs.classification", "sgs.complexity") and value != flat(ours.to_dict())[key]
    }
    assert not different
    if isinstance(ours, ClassificationConfig) and isinstance(published, ClassificationConfig):
        assert ours.sgs.weights == published.sgs.weights  # the published ones are written out, ours are defaults


@pytest.mark.parametrize(("scale", "base"), bases(changed=True))
def test_a_base_says_only_what_its_config_does_not(scale: str, base: str) -> None:
    name, keys = SCALES[scale].bases[base]
    written = flat(read_yaml(packaged()[name]))
    assert not {key: value for key, value in keys.items() if key in written and written[key] == value}


PAGES = sorted((ROOT / "docs" / "results" / "paper").glob("*.json"))
OLD = {"main-longer2", "universal", "slim"}
"""Experiments whose rows have changed since their pages were made."""
ADDED = {"sizes": {"with exits", "sizes and widths, equal steps", "static, learning rate 0.0001"}}
"""Rows that were added since, whose runs may be missing."""


@pytest.mark.parametrize(
    "file", [file for file in PAGES if not {file.stem, file.stem.partition("-")[0]} & OLD], ids=lambda file: file.stem
)
def test_runs_behind_the_published_results_keep_their_names(file: Path) -> None:
    """Finished runs are found by their names; whatever changes a digest loses all of them. Routers, which are trained
    in minutes, may change."""
    result = json.loads(file.read_text())
    longer = int(file.stem.partition("-longer")[2] or 1)
    scale = replace(SCALES[result["scale"]], seeds=tuple(result["seeds"]), few={}, longer=longer)
    cells = cells_of(EXPERIMENTS[result["experiment"]], scale, Path("o"), "d")
    known = {label: names for label, names in result["runs"].items() if names}
    assert known.keys() <= cells.keys()
    assert cells.keys() - known.keys() <= ADDED.get(result["experiment"], set())
    for label, names in known.items():
        mine = cells[label]
        assert len(names) <= len(mine)  # some rows have fewer seeds than the page
        for cell, name in zip(mine, names, strict=False):
            assert cell.name == name or getattr(cell.config, "routes", False), label


def test_keys_nest_and_flatten() -> None:
    keys = {"a": 1, "b.c": [1, 2], "b.d.e": None}
    assert nested(keys) == {"a": 1, "b": {"c": [1, 2], "d": {"e": None}}}
    assert flat(nested(keys)) == keys


def test_data_is_asked_for() -> None:
    with pytest.raises(ValueError, match="--root"):
        cell_of(MBNET, SCALES["cpu"], 0, runs=Path("runs"), root=None)


def made_up(values: dict[str, dict[int, float]]) -> dict[str, list[Finished]]:
    return {label: [Finished(Path(str(value)), seed) for seed, value in mine.items()] for label, mine in values.items()}


TABLE = Table(
    "made up",
    (Column("top-1", lambda run: float(str(run.folder))), Column("MAdds", lambda run: 2e6 * (1 + run.seed), "madds")),
    (Row("a", Recipe("mbnet"), {"top-1": "70.1"}), Row("b", Recipe("mbnet")), Row("c", Recipe("mbnet"))),
)
CLAIM = Claim("a over b", "top-1", "a", "b", 1.5)
NAN = float("nan")


@pytest.mark.parametrize(
    ("a", "b", "why", "ours"),
    [
        ({0: 0.5, 1: 0.6}, {0: 0.4, 1: 0.55}, "seeds only", "+10.00 +5.00"),
        ({1: 0.6}, {0: 0.5, 1: 0.62}, "seeds only", "-2.00"),  # only seed 1 has both
        ({1: 0.6}, {0: 0.5}, "", "not run"),
        ({}, {0: 0.5}, "", "not run"),
        ({0: 0.5, 1: NAN}, {0: 0.4, 1: 0.4}, "", "out of range"),
    ],
)
def test_without_images_there_is_no_verdict(a: dict[int, float], b: dict[int, float], why: str, ours: str) -> None:
    found = judged(CLAIM, TABLE, made_up({"a": a, "b": b}))
    assert (found.holds, found.ours, found.paper, found.why) == (None, ours, "+1.5", why)


IMAGES = 2000


def planted(folder: Path, right: np.ndarray) -> list[Finished]:
    """Finished runs of static networks that get these images right [seeds, images]."""
    runs = []
    for seed, mine in enumerate(right):
        place = folder / f"{folder.name}-{seed}"
        row = PathRow(32, (), 1, 1, 1.0, Stat(float(mine.mean())))
        images = len(mine)
        about = ("classification", METRIC, "x", "cifar10", "test", images, 32, (seed,))
        write(Evaluation(*about, rows=(row,), made=Made()), place / RESULT)
        none = np.zeros((0, 500))
        Resampled(f"of {images}", resampled_means(mine, 500)[None, 1:], none, none, none, none).write(place)
        runs.append(Finished(place, seed))
    return runs


def both_right(seeds: int, images: int, gain: float) -> tuple[np.ndarray, np.ndarray]:
    """Two networks that are right on 70 % of the images and differ on a fifth of them; the first gains some points."""
    rng = np.random.default_rng(seeds * images)
    other = rng.random((seeds, images)) < 0.7
    changed = rng.random((seeds, images)) < 0.1
    ours = other ^ (changed & np.roll(changed, 1, axis=1))
    for mine, theirs in zip(ours, other, strict=True):  # exactly this gain
        missing = round(gain * images) - (int(mine.sum()) - int(theirs.sum()))
        mine[np.flatnonzero(mine != (missing > 0))[: abs(missing)]] = missing > 0
    return ours, other


@pytest.mark.parametrize(("gain", "holds"), [(0.05, True), (-0.05, False), (0.0005, None), (0.0, None)])
@pytest.mark.parametrize("paper", [1.5, -1.5])
def test_a_planted_difference_is_found_and_a_small_one_gets_no_verdict(
    tmp_path: Path, gain: float, holds: bool | None, paper: float
) -> None:
    ours, other = both_right(3, IMAGES, gain)
    runs = {"a": planted(tmp_path / "a", ours), "b": planted(tmp_path / "b", other)}
    table = replace(TABLE, columns=(Column("top-1", measures.widest),))
    found = judged(replace(CLAIM, paper=paper), table, runs)
    assert found.holds == (holds if holds is None or paper != -1.5 else not holds)
    assert found.why == ""
    low, high = (float(end) for end in re.findall(r"\((\S+) to (\S+)\)", found.ours)[0])
    assert low <= 100 * gain + 0.01
    assert high >= 100 * gain - 0.01
    assert (low, high) == pytest.approx(
        [100 * end for end in interval(1.0 * ours - other)], abs=0.12 * (high - low) + 0.01
    )


def test_one_seed_has_an_interval_but_no_verdict(tmp_path: Path) -> None:
    ours, other = both_right(1, IMAGES, 0.1)
    table = replace(TABLE, columns=(Column("top-1", measures.widest),))
    runs = {"a": planted(tmp_path / "a", ours), "b": planted(tmp_path / "b", other)}
    found = judged(CLAIM, table, runs)
    assert (found.holds, found.why) == (None, "one seed")
    assert found.ours.startswith("+10.00 (+")


def test_seeds_that_disagree_get_no_verdict(tmp_path: Path) -> None:
    ours, other = both_right(3, IMAGES, 0.1)
    ours[2] = other[2]
    table = replace(TABLE, columns=(Column("top-1", measures.widest),))
    runs = {"a": planted(tmp_path / "a", ours), "b": planted(tmp_path / "b", other)}
    assert judged(CLAIM, table, runs).holds is None


def test_intervals_shrink_with_images(tmp_path: Path) -> None:
    spans = []
    for images in (500, IMAGES):
        ours, other = both_right(2, images, 0.02)
        pairs = zip(planted(tmp_path / f"a{images}", ours), planted(tmp_path / f"b{images}", other), strict=True)
        ends = interval_of(list(pairs), measures.widest, measures.widest)
        assert ends is not None
        spans.append(ends[1] - ends[0])
    assert spans[0] / spans[1] == pytest.approx(2, rel=0.2)
    mixed = [(planted(tmp_path / "x", ours[:1])[0], planted(tmp_path / "y", ours[:1, :500])[0])]
    assert interval_of(mixed, measures.widest, measures.widest) is None, "the runs saw other images"


def test_differences_in_cost_have_a_unit() -> None:
    claim = Claim("a costs more", "MAdds", "a", "b", 1.4e9)
    table = replace(TABLE, rows=(replace(TABLE.rows[0], measures={"MAdds": lambda run: 9e6}), *TABLE.rows[1:]))
    verdict = judged(claim, table, made_up({"a": {0: 0.5}, "b": {0: 0.5}}))
    assert (verdict.ours, verdict.paper) == ("+7.00M", "+1.40B")


def test_tables_have_mean_spread_and_the_papers_figure() -> None:
    table = laid_out(TABLE, made_up({"a": {0: 0.5, 1: 0.6}, "b": {0: 0.25}}))
    assert table.columns == ("<", "top-1", "paper", "MAdds")
    assert table.rows[0] == ("a", "55.00 ± 7.07", "70.1", "3.00M")
    assert table.rows[1] == ("b", "25.00", "", "2.00M")
    assert table.rows[2] == ("c", "not run", "", "not run")
    assert laid_out(TABLE, made_up({"a": {0: NAN}})).rows[0][1] == "out of range"


def test_interpolation_stays_between_neighbours() -> None:
    points = [(1.0, 10.0), (3.0, 30.0), (2.0, 12.0)]
    assert [interpolate(points, x) for x in (1.0, 1.5, 2.5, 3.0)] == [10.0, 11.0, 21.0, 30.0]
    assert all(math.isnan(interpolate(points, x)) for x in (0.9, 3.1))


def test_measures_read_what_they_say(tmp_path: Path) -> None:
    """On a result whose figures are all different."""

    def path_row(path: tuple[int, ...], madds: int, score: float) -> PathRow:
        return PathRow(32, path, madds, 1, 1.0, Stat(score))

    def budget_row(madds: float, score: float, hull: float, *shares: tuple[float, ...], bits: float = 1.0) -> BudgetRow:
        spent, gates = Stat(madds), tuple(Gate(each, bits) for each in shares)
        gain = Stat(100 * (score - hull))
        row = BudgetRow("", madds, 0.0, "", spent, spent, spent, Stat(score), Stat(hull), gain, 0.1, gates)
        return replace(row, lottery=Stat(score - 0.02), oracle=Stat(hull + 0.2), exit_hull=Stat(hull + 0.01))

    fixed = [path_row((k, k), 1_000_000 * (1 + 2 * k), 0.1 + 0.1 * k) for k in range(3)]
    budgets = [budget_row(1e6 * (2 + k), 0.41 + 0.01 * k, 0.40) for k in range(3)]
    trained = budget_row(3.3e6, 0.77, 0.79, (0.5, 0.2, 0.3), (0.1, 0.0, 0.9))
    dynamic = Dynamic("gate", "try_best", (), tuple(budgets), trained, Stat(0.61), auc_wider=Stat(0.57))
    result = Evaluation(
        *("classification", METRIC, "x", "cifar10", "test", 10, 32, (0,)),
        rows=(*fixed, path_row((0, 2), 2_500_000, 0.9)),
        made=Made(),
        dynamic=dynamic,
    )
    write(result, tmp_path / RESULT)
    run = Finished(tmp_path, 0)
    assert (measures.slimmest(run), measures.widest(run), measures.widest_madds(run)) == (0.1, pytest.approx(0.3), 5e6)
    assert measures.all_widths(run) == pytest.approx(0.2)
    assert [measures.as_trained(key)(run) for key in ("score", "madds", "gain")] == pytest.approx([0.77, 3.3e6, -2.0])
    assert measures.at_budget(2, "gain")(run) == pytest.approx(3.0)
    assert [measures.mean_gain(key)(run) for key in ("hull", "exit_hull")] == pytest.approx([2.0, 1.0])
    assert (measures.over_lottery(run), measures.gap_closed(run)) == pytest.approx((2.0, 0.1))
    assert (measures.router_auc(run), measures.wider_auc(run)) == (0.61, 0.57)
    assert [measures.mean_width(gate)(run) for gate in (0, 1)] == pytest.approx([0.4, 0.9])
    assert measures.share_at(1, 2)(run) == 0.9
    assert measures.uniform_at(2e6)(run) == pytest.approx(0.15)
    assert measures.dynamic_at(2.5e6)(run) == pytest.approx(0.415)  # between two budgets
    assert measures.dynamic_at(1.5e6)(run) == pytest.approx(0.255)  # between the slimmest path and a budget
    assert measures.dynamic_at(4.5e6)(run) == pytest.approx(0.365)  # between a budget and the widest path
    assert math.isnan(measures.dynamic_at(0.5e6)(run))
    early = Finished(tmp_path, 0, replace(result, rows=(path_row((-2, -2), 500_000, 0.35), *result.rows)))
    assert measures.dynamic_at(1.5e6)(early) == pytest.approx(0.39)  # between the exit and a budget
    assert measures.dynamic_at(0.5e6)(early) == pytest.approx(0.35)
    last = measures.at_budget(2, "score")(early)  # exit and width answer together, so the widest path alone is no end
    assert last != measures.widest(early)
    assert measures.dynamic_at(4.9e6)(early) == pytest.approx(last)
    windows = (
        budget_row(2e6, 0.5, 0.45, (0.5, 0.5, 0.0), bits=0.9),
        replace(budget_row(4e6, 0.6, 0.59, (0.0, 0.8, 0.2), bits=0.7), lottery=Stat(0.595)),
    )
    window_run = Finished(tmp_path, 0, replace(result, dynamic=replace(dynamic, windows=windows)))
    figures = [measures.as_trained(key)(window_run) for key in ("score", "madds", "gain")]
    assert figures == pytest.approx([0.55, 3e6, 3.0])
    assert measures.smallest_entropy(window_run) == 0.7
    assert measures.trained_over_lottery(window_run) == pytest.approx(0.5)


def routed_run(seed: int, kind: str, **spec: Any) -> Finished:
    about = ("classification", METRIC, "x", "cifar10", "test", 10, 32, (seed,))
    dynamic, training = Dynamic(kind, "correctness", (), ()), {"router": spec}
    return Finished(
        Path(f"{kind}{seed}"), seed, Evaluation(*about, rows=(), made=Made(), dynamic=dynamic, training=training)
    )


def test_pages_name_their_routers() -> None:
    first, second = (routed_run(seed, "exit_first", early=128, windows=None) for seed in (0, 1))
    assert routers({"a": [first, second], "b": [first, second]}) == "Router: exit_first (correctness, early 128)."
    other = routed_run(1, "cheap_first", hidden=0)
    said = routers({"auto": [first, other], "gates": [routed_run(0, "gate", bound=False, windows=3)]})
    assert said == (
        "Routers: exit_first (correctness, early 128) in auto (seed 0); cheap_first (correctness, hidden 0) in auto "
        "(seed 1); gate (correctness, windows 3, gates decide one by one) in gates."
    )
    assert routers({"static": planted_free()}) == ""


def planted_free() -> list[Finished]:
    about = ("classification", METRIC, "x", "cifar10", "test", 10, 32, (0,))
    return [Finished(Path("static"), 0, Evaluation(*about, rows=(), made=Made()))]


def test_a_paired_verdict_asks_for_every_seed_and_for_an_interval_without_zero() -> None:
    rng = np.random.default_rng(0)
    noise = rng.choice([-1.0, 0.0, 1.0], size=(3, 400))
    noise -= noise.mean(1, keepdims=True)
    assert verdict(noise + 0.2) is True
    assert verdict(noise - 0.2) is False
    assert verdict(noise + 0.01) is None, "every seed is positive, but the interval holds zero"
    assert verdict(noise + np.array([[0.3], [0.3], [-0.01]])) is None, "the interval is positive, but not every seed"
    low, high = interval(noise + 0.2)
    error = noise.mean(0).std() / 20
    assert (low, high) == pytest.approx((0.2 - 1.96 * error, 0.2 + 1.96 * error), abs=0.3 * error)


def test_the_static_network_is_the_one_that_calibration_images_prefer() -> None:
    """By its best epoch, which is the one that training keeps; and whichever rates are there."""

    def run(*scores: float) -> Any:
        return SimpleNamespace(history=[{"lr": 0.1}, *({"calibration/width0": score} for score in scores)])

    runs = {STATIC: run(0.8, 0.7), sweep_label(SWEEP[0]): run(0.1, 0.79), "another network": run(0.99)}
    assert best_static(runs) is runs[STATIC]
    runs[sweep_label(SWEEP[1])] = run(0.1, 0.81, 0.6)
    assert best_static(runs) is runs[sweep_label(SWEEP[1])]
