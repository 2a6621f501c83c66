"""Results: what is written is what is read, damaged files are refused in words, seeds become means."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dsnet.errors import ResultError
from dsnet.report.seeds import combine
from dsnet.results import (
    Bar,
    BarGroup,
    Bars,
    Bench,
    Chart,
    Claim,
    Dot,
    Evaluation,
    Evaluations,
    Experiment,
    Made,
    RoutedTime,
    RoutedTimes,
    Series,
    Stat,
    Table,
    Table1,
    Times,
    Way,
    WidthTime,
    WidthTimes,
    kind_of,
    read,
    write,
)
from support.results import detection, evaluation

ROOT = Path(__file__).parents[2]
TIMES = Times(1.5, 1.4, 2.0)


def bench() -> Bench:
    widths = WidthTimes("ds_tiny", 32, 3, (WidthTime("onnx", (0,), 1, 1, 100, TIMES, 700.0, 1.1),), Made())
    routed = RoutedTime("run", "gate", "kl", "onnx", 1, 100.0, 0.1, 101.0, 2, TIMES, 1.2, 1.25)
    table1 = Table1("mobilenet_v1", 224, 1, 1, (Way("slicing", TIMES, 1.0, 7.9),), Made())
    return Bench("dsnet bench", widths, RoutedTimes("ds_tiny", 8, 1, (routed,), Made()), table1)


def experiment() -> Experiment:
    values: dict[str, dict[str, dict[int, float | None]]] = {"a": {"top-1": {0: 0.5, 1: None}}}
    table = Table("Gains", ("<router", "gain"), (("gate", "+0.1"),), values=values)
    chart = Chart("a chart", "x", "y", (Series("line", (Dot(1.0, 2.0, 0.1), Dot(2.0, 3.0))),), log_x=True)
    bars = Bars("shares", ("w0", "w1"), (BarGroup("", (Bar("gate 0", (0.4, 0.6), "a note"),)),))
    claims = tuple(Claim("holds", "+1", "+2", holds) for holds in (True, False, None))
    return Experiment("main", "Main", "cpu", (0, 1), ("text",), (table,), claims, (chart, bars), Made(), bench=bench())


EVERY = {
    "evaluation": evaluation(),
    "seeds": combine([evaluation(0), evaluation(1, 0.1)]),
    "detection": detection(),
    "evaluations": Evaluations((evaluation(), detection())),
    "bench": bench(),
    "experiment": experiment(),
}


@pytest.mark.parametrize("name", EVERY)
def test_what_is_written_is_read(name: str, tmp_path: Path) -> None:
    result = EVERY[name]
    file = write(result, tmp_path / "below" / "result.json")
    assert read(file, type(result)) == result
    assert kind_of(file) == json.loads(file.read_text())["dsnet"] == type(result).__name__.lower()
    before = file.read_bytes()
    assert write(read(file, type(result)), file).read_bytes() == before


def test_a_loss_that_is_no_number_survives(tmp_path: Path) -> None:
    result = evaluation()
    row = replace(result.rows[0], more={"top-5": Stat(1.0), "loss": Stat(math.nan)})
    file = write(replace(result, rows=(row,)), tmp_path / "result.json")
    assert math.isnan(read(file, Evaluation).rows[0].more["loss"].mean)


def changed(place: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set what lies at a dotted place, list entries by number; ... removes it."""

    def change(content: Any) -> None:
        *steps, last = (int(step) if step.isdigit() else step for step in place.split("."))
        for step in steps:
            content = content[step]
        if value is ...:
            del content[last]
        else:
            content[last] = value

    return change


DAMAGED = {
    "a word": (changed("rows.3.madds", "x"), "rows[3].madds is 'x'; it must be a whole number"),
    "a fraction": (changed("rows.0.params", 1.5), "rows[0].params is 1.5; it must be a whole number"),
    "no number": (changed("rows.1.score.mean", None), "rows[1].score.mean is None; it must be a number"),
    "a bare number": (changed("rows.1.score", 0.5), "rows[1].score is 0.5; it must be a group of keys"),
    "a gap": (changed("rows.2.share", ...), "'rows[2].share' is missing"),
    "no rows": (changed("rows", ...), "'rows' is missing"),
    "rows that are none": (changed("rows", 3), "rows is 3; it must be a list"),
    "another key": (changed("rows.0.top1", 0.5), "'rows[0].top1' is unknown"),
    "near": (changed("image_sizes", 3), "'image_sizes' is unknown; did you mean image_size"),
    "deep": (changed("dynamic.rows.1.gates.0.shares.0", "half"), "dynamic.rows[1].gates[0].shares[0] is 'half'"),
    "an odd path": (changed("rows.0.path", "0,1"), "rows[0].path is '0,1'; it must be a list"),
    "a short box": (
        changed("examples.0.objects", [{"name": "cat", "box": [1, 2]}]),
        "'examples[0].objects[0].box[2]' is missing",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_one_line_that_names_file_field_value_and_remedy(name: str, tmp_path: Path) -> None:
    change, words = DAMAGED[name]
    file = write(evaluation(), tmp_path / "runs" / "a.json")
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(ResultError) as found:
        read(file, Evaluation)
    said = str(found.value)
    assert said.startswith(f"{file}: {words}")
    assert said.endswith("; run `dsnet eval` again")
    assert "\n" not in said
    with pytest.raises(ResultError, match=r"; look elsewhere$"):
        read(file, Evaluation, remedy="look elsewhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"rows": [', "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("\xff", "cannot be read"),
        ("[1, 2]", "does not hold a result"),
        ("{}", "holds something else, not one of kind 'evaluation'"),
        ('{"dsnet": "bench", "version": 3}', "holds the result of kind 'bench', not one of kind 'evaluation'"),
        ('{"dsnet": "evaluation", "version": 4}', "has version 4 of results but this dsnet reads 3"),
        ('{"dsnet": "0.1.0", "schema": 2, "rows": []}', "has version 2 of results but this dsnet reads 3"),
        ('{"dsnet": "0.1.0", "schema": 1, "task": "detection"}', "has version 1 of results but this dsnet reads 3"),
    ],
)
def test_other_files_are_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "test.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(ResultError) as found:
        read(file, Evaluation)
    assert str(found.value).startswith(f"{file} {words}")
    assert str(found.value).endswith("; run `dsnet eval` again")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none.json cannot be read .*; run `dsnet bench` again"):
        read(tmp_path / "none.json", Bench)
    assert kind_of(tmp_path / "none.json") is None


@pytest.mark.parametrize("file", sorted((ROOT / "docs" / "results").glob("*.json")), ids=lambda file: file.stem)
def test_published_evaluations_are_of_this_version(file: Path) -> None:
    found = kind_of(file)
    assert (
        found is not None
        or not file.with_suffix(".md").exists()
        or "dsnet eval" not in file.with_suffix(".md").read_text()
    )
    if found in ("evaluation", "evaluations"):
        result = read(file, Evaluation if found == "evaluation" else Evaluations)
        for one in result.results if isinstance(result, Evaluations) else (result,):
            assert list(one.rows) == sorted(one.rows, key=lambda row: row.madds)


# Several seeds.


def test_seeds_become_means_and_deviations() -> None:
    both = combine([evaluation(0), evaluation(1, 0.1)])
    assert both.seeds == (0, 1)
    assert both.rows[2].score == Stat(pytest.approx(0.25), pytest.approx(0.1 / 2**0.5))
    assert both.rows[2].more["loss"] == Stat(2.0, 0.0)
    assert both.rows[2].madds == 300
    assert both.dynamic is not None
    assert both.dynamic.rows[1].score == Stat(pytest.approx(0.65), pytest.approx(0.1 / 2**0.5))
    assert both.dynamic.rows[1].gain == Stat(pytest.approx(15), pytest.approx(10 / 2**0.5))
    assert both.dynamic.as_trained is not None
    assert both.dynamic.as_trained.score.mean == pytest.approx(0.75)
    assert both.dynamic.auc == Stat(pytest.approx(0.65), pytest.approx(0.1 / 2**0.5))
    assert both.dynamic.oracle is not None
    assert both.dynamic.oracle.score.mean == pytest.approx(0.85)
    assert both.dynamic.warnings == ("of seed 0", "of seed 1")
    first = evaluation(0)
    assert first.dynamic is not None
    assert (both.examples, both.training, both.skipped) == (first.examples, first.training, first.skipped)
    assert both.dynamic.rows[0].gates == first.dynamic.rows[0].gates
    assert both.dynamic.classes == first.dynamic.classes


def test_one_run_stays_as_it_is() -> None:
    assert combine([evaluation(3)]) == evaluation(3)
    assert evaluation(3).rows[0].score.std is None


def test_examples_need_not_be_alike() -> None:
    other = replace(evaluation(1), examples=evaluation(1).examples[:1])
    assert combine([evaluation(0), other]).examples == evaluation(0).examples
    still = replace(evaluation(0), dynamic=None), replace(evaluation(1, 0.2), dynamic=None)
    assert combine(still).rows[0].score.mean == pytest.approx(0.1)
    assert combine(still).dynamic is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "other"}, "runs of different kinds cannot be shown as one"),
        ({"dataset": "cifar10"}, "runs of different kinds cannot be shown as one"),
        ({"split": "train"}, "runs of different kinds cannot be shown as one"),
        ({"task": "detection"}, "runs of different kinds cannot be shown as one"),
        ({"image_size": 16}, "runs of different kinds cannot be shown as one"),
        ({"training": {"epochs": 3}}, "runs of different kinds cannot be shown as one"),
        ({"dynamic": None}, "runs of different kinds cannot be shown as one"),
        ({"seeds": (0,)}, r"runs with seeds \[0, 0\] were given; each must have its own"),
        ({"rows": evaluation().rows[:3]}, "results with different rows cannot be shown as one"),
        ({"rows": evaluation().rows[::-1]}, "results with different rows cannot be shown as one"),
    ],
)
def test_what_cannot_be_one_result_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        combine([evaluation(0), replace(evaluation(1), **change)])


def test_other_budgets_are_other_rows() -> None:
    other = evaluation(1)
    assert other.dynamic is not None
    for rows in (other.dynamic.rows[:1], (other.dynamic.rows[0], replace(other.dynamic.rows[1], asked=999.0))):
        with pytest.raises(ValueError, match="evaluate the runs with the same paths and budgets"):
            combine([evaluation(0), replace(other, dynamic=replace(other.dynamic, rows=rows))])


def test_a_source_of_its_own_makes_no_other_kind() -> None:
    assert evaluation(0).training["source"] != evaluation(1).training["source"]
    assert combine([evaluation(0), evaluation(1)]).training == evaluation(0).training


def test_properties_of_an_evaluation() -> None:
    result = evaluation()
    assert not result.static
    assert detection().static
    mixed = replace(result.rows[0], path=(0, 1), madds=1)
    assert [row.path for row in replace(result, rows=(mixed, *result.rows[::-1])).uniform] == [(k,) for k in range(4)]
    assert result.dynamic is not None
    assert result.dynamic.middle.asked == 250
