"""Paired intervals, and the laws of advice: what it recommends, and what it never does."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from dsnet.advise import Advice, Demand, Measured, Option, advise, cost_in, measured_in, timed_by
from dsnet.paired import of_correct, of_samples, wilson
from dsnet.report.advice import command, key_figures, paragraph, sentences, table
from dsnet.report.seeds import combine
from dsnet.results import (
    Bench,
    DeployedTime,
    DeployedTimes,
    Difference,
    Evaluation,
    Latency,
    Made,
    PathTime,
    Setting,
    Times,
)
from support.results import compared, evaluation

SETTING = Setting("0" * 64, 32, "onnxruntime 1", 1, "cpu")
SOLVED = [(0.3, -0.001), (0.6, 0.0)]


def advised(result: Evaluation, measured: Measured | None = None, **demand: float) -> Advice:
    advice = advise(result, Demand(**demand), measured)
    assert advice is not None
    return advice


def chosen(result: Evaluation, measured: Measured | None = None, **demand: float) -> str:
    choice = advised(result, measured, **demand).choice
    assert choice is not None
    return choice.name


@pytest.mark.parametrize(("images", "better", "worse"), [(400, 0.03, 0.05), (2000, 0.02, 0.02), (200, 0.01, 0.03)])
def test_an_interval_covers_the_true_difference(images: int, better: float, worse: float) -> None:
    rng = np.random.default_rng(0)
    rounds, covered = 300, 0
    for _ in range(rounds):
        kind = rng.choice(3, images, p=[better, worse, 1 - better - worse])
        found = of_correct(kind != 1, kind != 0)
        covered += found.low[0] <= better - worse <= found.high[0]
    assert 0.92 <= covered / rounds <= 0.99  # with 300 rounds the standard error is 1.3 points


def test_few_differing_images_prove_nothing() -> None:
    right = np.ones(1000, bool)
    for worse, sign in ((0, 0), (3, 0), (12, -1)):
        other = right.copy()
        other[:worse] = False
        assert of_correct(other, right).sign == sign
        assert of_correct(right, other).sign == -sign
    assert of_correct(right, right) == of_correct(right, right)  # seeded


def test_equal_means_that_the_interval_of_some_seed_includes_zero() -> None:
    assert Difference(-0.1, (-0.2,), (-0.01,)).sign == -1
    assert Difference(0.1, (0.0,), (0.2,)).sign == 0
    assert Difference(0.1, (0.1, 0.2), (0.2, 0.3)).sign == 1
    assert Difference(-0.1, (-0.2, -0.2), (-0.01, 0.01)).sign == 0
    assert of_samples(0.5, np.linspace(0, 1, 1001)).low == (0.025,)
    low, high = wilson(0.9, 100)
    assert (round(low, 3), round(high, 3)) == (0.826, 0.945)


def test_without_a_demand_the_cheapest_equal_option() -> None:
    assert chosen(compared([-0.2, -0.1], SOLVED)) == "dynamic 0.3"
    assert chosen(compared([-0.2, -0.002], SOLVED)) == "dynamic 0.3"
    assert chosen(compared([-0.002, -0.001], SOLVED)) == "dynamic 0.3"  # width 0 costs 33 %
    assert chosen(compared([-0.001, -0.001], [(0.35, 0.0), (0.6, 0.0)])) == "width 0"
    assert chosen(compared([-0.2, -0.1], [(0.3, -0.1), (0.6, -0.05)])) == "full network"
    assert chosen(compared([-0.2, 0.1], [])) == "width 1"  # better than the full network


def test_a_fixed_width_that_costs_hardly_more_is_preferred() -> None:
    assert chosen(compared([-0.001, 0.0], [(0.33, 0.001), (0.6, 0.0)])) == "width 0"
    assert chosen(compared([-0.02, 0.0], [(0.33, 0.001), (0.6, 0.0)])) == "dynamic 0.33"


def test_a_wide_interval_does_not_win_against_a_better_and_cheaper_option() -> None:
    result = compared([-0.006, -0.1], [(0.5, -0.01), (0.9, 0.0)])
    assert result.dynamic is not None
    unsure = replace(result.dynamic.rows[0], to_paths=tuple(Difference(-0.01, (-0.05,), (0.05,)) for _ in range(3)))
    result = replace(result, dynamic=replace(result.dynamic, rows=(unsure, result.dynamic.rows[1])))
    assert chosen(result) == "dynamic 0.9"


def test_demands() -> None:
    result = compared([-0.2, -0.1], [(0.3, -0.05), (0.6, -0.02)])
    assert chosen(result, accuracy=0.7) == "dynamic 0.3"
    assert chosen(result, accuracy=0.86) == "dynamic 0.6"
    assert chosen(result, budget=0.5) == "dynamic 0.3"
    assert chosen(result, budget=0.05) == "dynamic 0.3"  # nothing is so cheap; it is the cheapest
    assert not advised(result, budget=0.05).met
    best = advised(result, accuracy=0.99)
    assert best.choice is not None
    assert (best.met, best.choice.name) == (False, "full network")
    assert sentences(best, result)[0] == "Nothing reaches top-1 99.00%."
    assert chosen(compared([-0.2, -0.052], [(0.9, -0.05)]), budget=0.95) == "width 1"  # as good as the dynamic one


def test_milliseconds_decide_where_they_are_known() -> None:
    result = compared([-0.001, 0.0], SOLVED)
    slow = measured({0: 1.0, 1: 2.0, 2: 3.0}, {0: 2.5, 1: 3.5})
    assert chosen(result) == "dynamic 0.3"
    assert chosen(result, slow) == "width 0"
    assert chosen(result, slow, latency=2.2) == "width 1"
    assert not advised(result, slow, latency=0.5).met
    assert chosen(result, slow, budget=0.31) == "dynamic 0.3"  # a budget of MAdds compares MAdds
    with pytest.raises(ValueError, match="milliseconds are not known"):
        advised(result, latency=1.0)


def measured(fixed: dict[int, float], dynamic: dict[int, float]) -> Measured:
    times = {key: Times(ms, ms, ms, 2 * ms) for key, ms in fixed.items()}
    return Measured({(key,): each for key, each in times.items()}, {k: Times(ms, ms, ms) for k, ms in dynamic.items()})


def drawn(seed: int) -> tuple[Evaluation, Measured, dict[str, float]]:
    """Any evaluation, with or without milliseconds, and any demand."""
    rng = random.Random(seed)
    widths = sorted(rng.uniform(-0.1, 0.01) for _ in range(rng.randint(1, 6)))
    routed = [(rng.uniform(0.1, 1.1), rng.uniform(-0.1, 0.01)) for _ in range(rng.randint(0, 5))]
    result = compared(widths, routed)
    times = measured(
        {number: rng.uniform(1, 5) for number in range(len(widths) + 1)},
        {number: rng.uniform(1, 5) for number in range(len(routed))},
    )
    name = rng.choice(["", "accuracy", "latency", "budget"])
    limits = {"accuracy": rng.uniform(0.78, 0.95), "latency": rng.uniform(0.5, 5), "budget": rng.uniform(0.05, 1.0)}
    timed = name == "latency" or rng.random() < 0.5
    return result, times if timed else Measured(), {name: limits[name]} if name else {}


def better(one: Option, other: Option, advice: Advice) -> bool:
    """Whether an option beats another one in both cost and score, beyond what a simpler one may cost."""
    cost, least = cost_in(advice.unit), 1.05 if other.path is not None and one.path is None else 1.0
    return cost(one) * least < cost(other) and one.score > other.score


@pytest.mark.parametrize("seed", range(200))
def test_what_is_recommended_is_never_dominated_and_meets_the_demand(seed: int) -> None:
    result, times, demand = drawn(seed)
    advice = advised(result, times, **demand)
    choice, cost = advice.choice, cost_in(advice.unit)
    assert choice is not None
    assert not any(better(option, choice, advice) for option in advice.options)
    if advice.met:
        assert demand.get("accuracy", 0) <= choice.score
        assert choice.share <= demand.get("budget", 9) * (1 + 1e-9)
        assert choice.times is None or choice.times.mean <= demand.get("latency", 9)
        if not demand:
            assert choice.full or (choice.to_full is not None and choice.to_full.sign >= 0)
    else:
        assert not any(
            option.score >= demand.get("accuracy", 0)
            and option.share <= demand.get("budget", 9)
            and (option.times is None or option.times.mean <= demand.get("latency", 9))
            for option in advice.options
        )
    if choice.path is None and not demand:  # the dynamic network only where no fixed width does as well for less
        for option in advice.options:
            equal = option.full or (option.to_full is not None and option.to_full.sign >= 0)
            assert option.path is None or not equal or cost(option) > cost(choice)
    assert sentences(advice, result)
    assert {len(row) for row in table(advice, result).rows} == {len(table(advice, result).columns)}


def test_seeds_must_agree() -> None:
    other = replace(compared([-0.2, -0.03], []), seeds=(1,))
    assert chosen(other) == "full network"
    assert chosen(combine([compared([-0.2, 0.001], []), other])) == "width 1"  # one seed shows the opposite
    assert chosen(combine([compared([-0.2, -0.001], []), other])) == "full network"
    weak = [replace(compared([-0.2, -0.004], []), seeds=(seed,)) for seed in range(3)]
    assert chosen(combine(weak)) == "width 1"  # seeds on the same images do not make the interval narrower


def test_without_intervals_there_is_no_verdict() -> None:
    advice = advised(evaluation())
    assert (advice.choice, advice.met) == (None, False)
    assert sentences(advice, evaluation())[0].startswith("There is no verdict")
    assert paragraph(evaluation(), None, "run") == ""
    assert advise(replace(evaluation(), rows=(replace(evaluation().rows[0], path=()),), dynamic=None)) is None


def test_words_and_commands() -> None:
    result = compared([-0.2, -0.1], SOLVED)
    words = paragraph(result, None, "my run")
    lead = "Deploy the dynamic network at budget 0.3: top-1 89.90%, 30% of the full network's MAdds."
    assert words.startswith(f"{lead} The full network has 90.00%;")
    assert words.endswith("\n`dsnet export 'my run' --budget 0.3`")
    assert "the difference of -0.10 points counts as equal (95 % interval -0.60 to +0.40)." in words
    fixed = compared([-0.001, 0.0], [(0.5, 0.0)])
    assert "A fixed width is as good here: deploy width 0:" in paragraph(fixed, None, "run")
    (width,) = (option for option in advised(fixed).options if option.name == "width 0")
    assert command(width, fixed, "run") == "dsnet export run --path 0"
    assert command(width, fixed, "m.onnx", "file", [(0,)]) == "dsnet predict m.onnx PHOTOS --path 0"
    assert command(width, fixed, "m.onnx", "file", [(1,)]) == "dsnet export RUN --path 0"
    lossy = compared([-0.2, -0.1], [(0.3, -0.008)])
    assert "At a loss of 0.80 points: the dynamic network at budget 0.3" in paragraph(lossy, None, "r")


def test_a_cap_that_was_evaluated_is_in_the_command() -> None:
    result = compared([-0.2, -0.1], SOLVED)
    assert result.dynamic is not None
    capped = replace(result, dynamic=replace(result.dynamic, max_width=1))
    assert paragraph(capped, None, "run").endswith("`dsnet export run --budget 0.3 --max_width 1`")


def test_a_benchmark_is_matched_by_path_and_budget() -> None:
    result = compared([-0.001, 0.0], SOLVED)
    rows = [DeployedTime((k,), 1, Times(k + 1, 0, 0)) for k in range(3)]
    rows += [DeployedTime(None, 1, Times(9, 0, 0), asked=asked) for asked in (901.0, 1500.0)]
    found = measured_in(Bench("", deployed=(DeployedTimes(SETTING, tuple(rows)),)), result)
    assert {path: times.mean for path, times in found.fixed.items()} == {(0,): 1, (1,): 2, (2,): 3}
    assert list(found.dynamic) == [0]  # 900; the other budget is 1,800
    assert found.about == "onnxruntime 1, 1 thread, one image at a time"
    assert measured_in(None, result) == Measured()


def test_a_latency_table_times_budgets_by_their_shares() -> None:
    result = compared([-0.001, 0.0], SOLVED)  # a quarter of the images take width 0, the others width 1
    rows = tuple(
        PathTime((k,), Times(k + 1, 0, 0, 0), Times(k + 2, 0, 0, 0), tuple(float(k + 2) for _ in range(50)))
        for k in range(3)
    )
    held = Latency(SETTING, "m", rows, 2, Made())
    found = timed_by(held, result)
    assert {path: times.mean for path, times in found.fixed.items()} == {(0,): 1, (1,): 2, (2,): 3}
    assert [found.dynamic[place].mean for place in (0, 1)] == [0.25 * 2 + 0.75 * 3] * 2
    assert found.dynamic[0].p99 == 3
    assert chosen(result, found) == "width 0"
    assert timed_by(replace(held, rows=rows[:1]), result).dynamic == {}


def test_tiles_compare_with_the_full_network_first() -> None:
    labels = [row[0] for row in key_figures(compared([-0.2, -0.1], SOLVED), None).rows]
    assert labels == ["Full network, top-1", "Recommended, top-1", "MAdds", "Slimmest width, top-1"]
    result = compared([-0.2, -0.1], [(0.3, -0.05)])  # the full network is recommended
    assert [row[0] for row in key_figures(result, None).rows][1:3] == ["Dynamic network, top-1", "MAdds"]


def test_a_file_without_the_widest_asks_for_shares_of_the_network() -> None:
    """Its own widest path has a third of the MAdds of the network that it came from."""
    result = compared([-0.2, -0.1], SOLVED)
    rows = tuple(replace(row, share=row.share / 3) for row in result.rows)
    found = advised(replace(result, rows=rows))
    assert [option.budget for option in found.options if option.path is None] == [0.1, 0.2]


def test_times_of_another_image_size_or_of_uncapped_budgets_are_not_used() -> None:
    result = compared([-0.001, 0.0], SOLVED)
    assert result.dynamic is not None
    rows = (DeployedTime((0,), 1, Times(1, 0, 0)), DeployedTime(None, 1, Times(9, 0, 0), asked=900.0))
    bench = Bench("", deployed=(DeployedTimes(SETTING, rows),))
    assert measured_in(bench, replace(result, image_size=64)) == Measured()
    capped = measured_in(bench, replace(result, dynamic=replace(result.dynamic, max_width=1)))
    assert (list(capped.fixed), dict(capped.dynamic)) == ([(0,)], {})


def test_settings_of_several_sizes_are_compared_in_milliseconds_only_if_all_were_timed() -> None:
    base = compared([-0.2, -0.1, -0.05], [])
    paths = ((0, 0), (1, 0), (2, 0), (2, 1))
    rows = tuple(replace(row, path=path, size=16 + 8 * path[0]) for row, path in zip(base.rows, paths, strict=True))
    result = replace(base, rows=rows)
    some = {path: Times(1.0, 0, 0) for path in paths[:2]}
    assert advised(result, Measured(some)).unit == "MAdds"
    assert {option.path for option in advised(result, Measured(some)).options} == set(paths)


def test_the_widest_path_of_a_file_is_not_called_the_full_network() -> None:
    result = compared([-0.2, -0.1], SOLVED)
    rows = tuple(replace(row, share=row.share / 3) for row in result.rows)
    narrow = replace(result, rows=rows)
    words = paragraph(narrow, None, "m.onnx")
    assert "budget 0.1: top-1 89.90%, 10% of the full network's MAdds" in words
    assert "The widest path of the file has 90.00%" in words
    nothing = advised(narrow, budget=0.03 / narrow.full.share)
    assert sentences(nothing, narrow)[0] == "Nothing costs 3.0% of the full network's MAdds or less."
