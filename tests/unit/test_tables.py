"""Tables of evaluations, for both tasks by the same functions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dsnet.report.export import export
from dsnet.report.seeds import combine
from dsnet.report.tables import (
    budgets_table,
    classes_table,
    human,
    paths_table,
    print_table,
    routes_table,
    show_evaluation,
    summary_table,
    title,
)
from dsnet.results import BudgetRow, Dynamic, Evaluation, Evaluations, Gate, Stat, read
from support.results import compared, detection, evaluation

ROOT = Path(__file__).parents[2]
PUBLISHED = ["cifar10_ds_mobilenet_v1_tiny", "cifar10_ds_resnet_tiny", "demo", "bccd", "voc_subset", "drift"]


def routed() -> Evaluation:
    """A dynamic detector."""
    spent = Stat(80.0)
    row = BudgetRow(
        "S", 80.0, 0.1, "", spent, spent, spent, Stat(0.41), Stat(0.4), Stat(1.0), None, (Gate((0.4, 0.6)),)
    )
    rows = tuple(replace(row, name=name) for name in "SML")
    return replace(detection(), dynamic=Dynamic("gate", "kl", (), rows, warnings=("too little",)))


@pytest.mark.parametrize(
    ("count", "words"), [(7, "7"), (1500, "1.50k"), (999_999_999, "1.00B"), (565_400_000, "565.4M"), (0, "0")]
)
def test_counts_have_units(count: int, words: str) -> None:
    assert human(count) == words


def test_the_metric_and_its_measures_are_columns() -> None:
    table = paths_table(evaluation())
    assert table.columns == ("<path", "MAdds", "of widest", "parameters", "top-1", "top-5", "loss")
    assert table.rows[3] == ("3", "400", "100.0%", "10", "30.00%", "90.00%", "2.000")
    assert table.title == "ds_tiny on digits: 10 test images, 32 px, seed 0"
    assert table.note == ""


def test_parts_and_classes_are_columns_of_a_detector() -> None:
    table = paths_table(detection())
    assert table.columns == ("<path", "MAdds", "backbone", "mAP", "cat", "top-5")
    assert table.rows == (("-", "100", "60", "0.500", "0.400", "inf"),)
    assert table.title == "fssd on voc: 9 objects in 5 test images, 300 px, seed 1"
    assert "at an overlap of 0.5, area under the curve" in table.note
    assert classes_table(detection()) is None


def test_many_classes_have_a_table_of_their_own() -> None:
    row = detection().rows[0]
    names = [f"class {number}" for number in range(7)]
    many = replace(detection(), rows=(replace(row, more={name: Stat(0.25) for name in names}),))
    assert paths_table(many).columns == ("<path", "MAdds", "backbone", "mAP")
    table = classes_table(many)
    assert table is not None
    assert table.columns == ("<class", "-")
    assert table.rows == tuple((name, "0.250") for name in names)


def test_seeds_have_deviations_and_say_so() -> None:
    both = combine([evaluation(0), evaluation(1, 0.1)])
    assert title(both).endswith("2 seeds, mean and standard deviation")
    assert paths_table(both).rows[0][4] == "5.00% ± 7.07%"
    table = budgets_table(both)
    assert table is not None
    assert table.rows[0][3:5] == ("55.00% ± 7.07%", "+5.00 ± 7.07")
    assert "± standard deviation over seeds" in table.note
    assert table.note.endswith("Shares of images are the first seed's.")


def test_differences_to_the_full_network_are_a_column_where_they_are_known() -> None:
    result = compared([-0.2, 0.0])
    table = paths_table(result)
    assert (table.columns[-1], [row[-1] for row in table.rows]) == ("to full", ["-20.00", "equal", ""])
    budgets = budgets_table(result)
    assert budgets is not None
    assert [row[budgets.columns.index("to full")] for row in budgets.rows] == ["-1.00", "equal"]
    two = replace(compared([-0.2, -0.1]), seeds=(1,))
    both = paths_table(combine([compared([-0.2, 0.003]), two]))
    assert [row[-1] for row in both.rows] == ["-20.00", "equal", ""]  # -10 points in one seed, better in the other


def test_budgets_by_cost_and_by_name() -> None:
    table = budgets_table(evaluation())
    assert table is not None
    assert table.columns == ("budget", "MAdds", "p95", "top-1", "gain", "<per width, %")
    assert table.rows[1] == ("250", "252", "252", "60.00%", "+10.00 ± 0.20", "25 75")
    assert "Gain: points above the concave hull of the uniform sub-networks" in table.note
    assert "An oracle that picks the narrowest right width would reach 80.0% at 120." in table.note
    named = budgets_table(routed())
    assert named is not None
    assert named.columns == ("budget", "MAdds", "p95", "mAP", "uniform", "<per width, %")
    assert named.rows[0] == ("S", "80", "80", "0.410", "0.400", "40 60")
    assert named.note.startswith("S, M, L: a quarter")
    assert budgets_table(detection()) is None


def test_a_threshold_has_no_targets() -> None:
    result = evaluation()
    assert result.dynamic is not None
    table = budgets_table(replace(result, dynamic=replace(result.dynamic, router="threshold")))
    assert table is not None
    assert table.title == "dynamic network: router threshold"


def test_routes_of_classes() -> None:
    table = routes_table(evaluation())
    assert table is not None
    assert table.rows == (("cat", "3", "150", "50.0%", "250", "60.0%"), ("dog", "0", "", "", "", ""))
    assert routes_table(routed()) is None


def test_a_run_is_one_row_of_an_overview() -> None:
    for result in (evaluation(), replace(evaluation(), dynamic=None), detection(), routed()):
        table = summary_table("digits", [("run", result), ("another", result)])
        assert {len(row) for row in table.rows} == {len(table.columns)}
    (row,) = summary_table("digits", [("run", evaluation())]).rows
    assert row == ("run", "ds_tiny", "gate, try_best", "30.00", "0.00", "60.00", "63%", "", "+10.00 ± 0.20")
    (row,) = summary_table("voc", [("run", routed())]).rows
    assert row == ("run", "fssd", "gate, kl", "0.500", "0.500", "0.410", "80%", "", "")


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    for result in (evaluation(), routed()):
        show_evaluation(result, [Path("a.png")])
        shown = " ".join(capsys.readouterr().out.split())
        assert result.dynamic is not None
        for words in (title(result), result.metric.name, "warning: " + result.dynamic.warnings[0], "figures: a.png"):
            assert words in shown


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_pages_are_written_from_their_json(name: str, tmp_path: Path) -> None:
    """A page in docs/results is what `--export` writes, down to the last line."""
    file = ROOT / "docs" / "results" / f"{name}.json"
    result = read(file, Evaluations) if name == "bccd" else read(file, Evaluation)
    sheet = file.with_name(f"{name}-examples.png")
    export(result, tmp_path / name, sheet=sheet if sheet.exists() else None)
    assert (tmp_path / f"{name}.md").read_text() == file.with_suffix(".md").read_text()
    assert (tmp_path / f"{name}.json").read_bytes() == file.read_bytes()


def test_titles_and_notes_may_be_wider_than_their_table(capsys: pytest.CaptureFixture[str]) -> None:
    title, note = "A title that is longer than its table is wide", "A note that is longer than its table is wide."
    print_table(title, ["<a", "b"], [[1, 2]], note=note)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].strip() == title
    assert lines[-1].strip() == note
