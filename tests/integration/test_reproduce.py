"""dsnet reproduce at the smoke scale: every experiment, the cache, interruptions, several workers, errors."""

from __future__ import annotations

import json
import re
import shutil
from functools import partial
from math import nan
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from dsnet.cli import main
from dsnet.experiments import EXPERIMENTS, grid
from dsnet.experiments.catalogue.slim_points import REPAIRED
from dsnet.experiments.recipe import Cell
from dsnet.hull import level
from dsnet.manifest import Policy
from dsnet.models import eager
from dsnet.paired import redraws
from dsnet.results import Chart, Experiment, Stat, read
from dsnet.routing.traces import by_path
from dsnet.runs.evaluate import EvalOptions, evaluate_traced
from dsnet.runs.folder import RunFolder
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.training import Interrupted
from support.grid import broken_cell, copied_cell, copy_run, counted_cell
from support.runs import SMOKE


@pytest.fixture
def out(reproduced: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of some experiments, to write into."""
    return Path(shutil.copytree(reproduced, tmp_path_factory.mktemp("copy") / "smoke"))


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(grid, "train", refuse)


@pytest.fixture
def copied(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings take no time: these tests are about the grid."""
    monkeypatch.setattr(grid, "train", lambda config, folder, **how: copy_run(out / "runs", folder))


@pytest.mark.slow
def test_every_experiment_runs(tmp_path: Path) -> None:
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    for name in EXPERIMENTS:
        check_result(tmp_path, name)


@pytest.mark.slow
def test_rows_without_finished_runs_are_left_out_of_a_comparison(tmp_path: Path) -> None:
    words = ["reproduce", "sizes", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(words) == 0
    page = (tmp_path / "sizes.md").read_text()
    for said in (
        "widths only at 0.5",
        "static, trained for 12 px INT8",
        "dynamic at 0.35",
        "with exits at 0.45",
        "8px:exit of with exits",
        "sizes and widths, equal steps at 0.5 over sizes and widths at 0.5",
        "| 0.0001 | 0 |",
        "ms at 32 px",
        "640 x 480",
        "dynamic / static",
    ):
        assert said in page
    for gone in ("slim-*", "sizes_both*-gate-*", "sizes-gate-exit_first-*", "sizes_sweep-0-0.0001-*"):
        found = list((tmp_path / "runs").glob(gone))
        assert found
        for run in found:
            shutil.rmtree(run)
    (tmp_path / "sizes.json").unlink()
    assert main([*words, "--finished"]) == 0
    check_result(tmp_path, "sizes")
    page = (tmp_path / "sizes.md").read_text()
    assert "dynamic at 0.5" in page
    for left_out in ("widths only at", "sizes and widths at", "equal steps at", "with exits at", "| 0.0001 | 0 |"):
        assert left_out not in page


@pytest.mark.slow
def test_a_comparison_names_the_seeds_that_it_has_and_how_long_they_learned(tmp_path: Path) -> None:
    words = ["reproduce", "slim", "--scale", "smoke", "--seeds", "0", "1", "--out", str(tmp_path)]
    assert main(words) == 0
    check_result(tmp_path, "slim")
    result = read(tmp_path / "slim.json", Experiment)
    assert result.seeds == (0, 1)
    times = next(table for table in result.tables if table.title == "How long the networks learned")
    repaired = [row for row in times.rows if row[0] == REPAIRED]
    assert [row[1] for row in repaired] == ["0", "1"]
    assert [bool(row[4]) for row in times.rows] == [row[0] == REPAIRED for row in times.rows]
    kept = [name for names in result.runs.values() for name in names if "seed0" in name]
    for run in [run for run in (tmp_path / "runs").glob("slim-*seed1*") if run.name not in kept]:
        shutil.rmtree(run)
    (tmp_path / "slim.json").unlink()
    assert main([*words, "--finished"]) == 0
    assert read(tmp_path / "slim.json", Experiment).seeds == (0,)


@pytest.mark.parametrize("name", SMOKE)
def test_an_experiment_leaves_tables_verdicts_and_figures(out: Path, name: str) -> None:
    check_result(out, name)


def check_result(out: Path, name: str) -> None:
    result, page = read(out / f"{name}.json", Experiment), (out / f"{name}.md").read_text()
    assert result.experiment == name
    assert all((result.made.command, result.made.commit, result.made.machine, result.made.torch, result.made.date))
    assert result.tables
    for table in result.tables:
        assert table.rows
        for row in table.rows:
            assert len(row) == len(table.columns)
            assert "not run" not in row
            assert "| " + " | ".join(row) + " |" in page
    for claim in result.claims:
        assert claim.ours != "not run"
        assert claim.claim in page
    for number, figure in enumerate(result.figures):
        file = out / f"{name}{f'-{number + 1}' if number else ''}.svg"
        assert f"]({file.name})" in page
        groups = [one for one in ElementTree.parse(file).getroot().iter() if one.attrib.get("class")]
        drawn = sum(group.attrib["class"] in ("series", "part") for group in groups)
        if isinstance(figure, Chart):
            assert drawn == len(figure.series) > 0
            assert all(series.points for series in figure.series)
        else:
            assert drawn == sum(share > 0 for group in figure.groups for bar in group.bars for share in bar.shares) > 0


def test_a_run_keeps_its_scores_over_images_that_are_drawn_again(reproduced: Path) -> None:
    """A draw is what an evaluation of the drawn images would find, the hull of the widths included."""
    run = grid.Finished(next((reproduced / "runs").glob("resnet-gate-gate-try_best-*")), 0)
    folder = RunFolder.of(run.folder)
    config, data = folder.opened()
    again, traces = evaluate_traced(eager(folder.load()), data, folder.task, config, EvalOptions())
    assert again.rows == run.result.rows
    kept, dynamic = run.resampled, run.result.dynamic
    assert kept is not None
    assert dynamic is not None
    for number in (0, len(kept) - 1):
        images = np.repeat(np.arange(len(traces)), redraws(len(traces), len(kept))[number])
        drawn = kept.evaluation(run.result, number)
        widths = []
        for row in drawn.rows:
            assert row.score.mean == pytest.approx(traces.right(row.path)[images].mean())
            widths += [(float(row.madds), row.score.mean)] if row.uniform else []
        assert drawn.dynamic is not None
        for row, before in zip(drawn.dynamic.rows, dynamic.rows, strict=True):
            outcome = traces.at(Policy(before.lam))
            assert row.madds.mean == pytest.approx(outcome.madds[images].mean())
            assert row.score.mean == pytest.approx(traces.correct(outcome)[images].mean())
            assert [gate.shares for gate in row.gates] == [
                pytest.approx(tuple(np.bincount(outcome.paths[images, point], minlength=4) / len(images)))
                for point in range(4)
            ]
            shares = [(path, np.isin(images, rows).mean()) for path, rows in by_path(outcome.paths)]
            mixed = nan  # some paths were not run on all images
            if all(traces.known[path].all() for path, _ in shares):
                mixed = sum(share * traces.right(path)[images].mean() for path, share in shares)
            assert row.lottery == Stat(pytest.approx(mixed, nan_ok=True))
            assert row.gain.mean == pytest.approx(100 * (row.score.mean - level(widths, row.madds.mean)))


def test_finished_runs_are_not_trained_again(out: Path, no_training: None) -> None:
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")}
    assert main(["reproduce", *SMOKE, "--scale", "smoke", "--out", str(out)]) == 0
    assert {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")} == before


def test_an_interrupted_grid_goes_on(
    out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Stopped before and behind the first checkpoint of its second run; then it ends as the unbroken one did."""
    calls, begun = [], []

    def stops(config: Any, folder: Path, *, resume: bool, **how: Any) -> None:
        calls.append(folder.name)
        begun.append(resume)
        if len(calls) == 2:
            folder.mkdir()
            (folder / "config.yaml").write_text("no checkpoint yet")
            raise Interrupted(2, folder)
        assert resume or not folder.exists()  # what has no checkpoint begins anew
        copy_run(out / "runs", folder)
        if len(calls) == 3:
            assert (folder / grid.GATE / "state" / "last.pt").exists()
            (folder / "results" / "test.json").unlink()  # trained, but not evaluated
            raise Interrupted(15, folder)

    monkeypatch.setattr(grid, "train", stops)
    words = ["reproduce", "gate_distribution", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(words) == 130
    error = capsys.readouterr().err
    assert "stopped by SIGINT, state saved; run the same command to continue" in error
    assert "Traceback" not in error
    (tmp_path / "runs" / calls[0] / "kept").touch()
    assert main([*words, "--finished"]) == 0
    assert "nothing is finished" in capsys.readouterr().err  # the supernet alone is no row of the table
    assert main(words) == 143
    assert main(words) == 0
    assert calls == [calls[0], *[calls[1]] * 3, calls[4]]
    assert begun == [False, False, False, True, False]
    assert (tmp_path / "runs" / calls[0] / "kept").exists()
    ours, unbroken = (json.loads((place / "gate_distribution.json").read_text()) for place in (tmp_path, out))
    assert ours["tables"] == unbroken["tables"]


def test_what_is_missing_is_said(out: Path, no_training: None) -> None:
    shutil.rmtree(next((out / "runs").glob("resnet-gate-gate-try_best-*")))
    words = ["reproduce", "gate_distribution", "--scale", "smoke", "--out", str(out), "--finished"]
    assert main(words) == 0
    assert "not run" in (out / "gate_distribution.md").read_text()


def test_longer_trainings_lie_beside_the_others(copied: None, tmp_path: Path) -> None:
    words = ["reproduce", "temperature", "--scale", "smoke", "--out", str(tmp_path)]
    assert main(words) == 0
    check_result(tmp_path, "temperature")
    assert main([*words, "--longer", "2"]) == 0
    first, second = (json.loads((tmp_path / f"temperature{end}.json").read_text()) for end in ("", "-longer2"))
    runs = [{name for mine in result["runs"].values() for name in mine} for result in (first, second)]
    assert [len(names) for names in runs] == [2, 2]
    assert not runs[0] & runs[1]  # runs of another length are other runs
    assert second["made"]["command"].endswith("--longer 2")
    page = (tmp_path / "temperature-longer2.md").read_text()
    assert page.startswith(f"# {first['title']}, 2 times as long\n")
    assert "every training is 2 times as long" in page


def test_eval_does_not_change_what_a_table_reads(out: Path) -> None:
    run = next((out / "runs").glob("resnet-gate-gate-try_best-*"))
    before = grid.Finished(run, 0).result
    assert main(["eval", str(run), "--budgets", "0.5"]) == 0
    assert len(json.loads((run / "results" / "test.json").read_text())["dynamic"]["rows"]) == 1
    assert grid.Finished(run, 0).result == before
    assert main(["reproduce", "gate_distribution", "--scale", "smoke", "--out", str(run.parents[1]), "--finished"]) == 0


def test_what_has_not_begun_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "ieb", "latency", "--scale", "smoke", "--out", str(tmp_path / "out"), "--finished"]
    assert main(words) == 0
    assert "nothing is finished in" in (error := capsys.readouterr().err)
    assert "ieb, latency" in error
    assert not list(tmp_path.rglob("*.json"))


def test_two_commands_do_not_train_in_one_folder(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.experiments.run import locked

    with locked(out):
        assert main(["reproduce", "ieb", "--scale", "smoke", "--out", str(out)]) == 2
    assert "another `dsnet reproduce` is at work" in capsys.readouterr().err


def test_json_is_one_document_beside_what_training_prints(
    copied: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *SMOKE[:2], "--scale", "smoke", "--out", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    assert [result["experiment"] for result in json.loads(said.out)] == SMOKE[:2]
    assert "epoch 1/1" in said.err


def test_workers_train_the_same_runs(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run needs is there before it begins; what it prints is in its log."""
    monkeypatch.setattr(grid, "train_cell", partial(copied_cell, out / "runs"))
    assert main(["reproduce", "gate_distribution", "--scale", "smoke", "--out", str(tmp_path), "--workers", "2"]) == 0
    ours, alone = (json.loads((place / "gate_distribution.json").read_text()) for place in (tmp_path, out))
    assert ours["tables"] == alone["tables"]
    logs = sorted((tmp_path / "runs").glob("*.log"))
    assert len(logs) == 3
    assert all("epoch 1/1" in log.read_text() for log in logs)


@pytest.mark.parametrize(("workers", "each"), [(2, 3), (3, 2), (8, 1)])
def test_workers_share_the_cores(workers: int, each: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grid, "train_cell", counted_cell)
    before = torch.get_num_threads()
    torch.set_num_threads(6)
    try:
        grid.train_all([Cell("run", ClassificationConfig(), ())], tmp_path, workers)
    finally:
        torch.set_num_threads(before)
    assert (tmp_path / "run.log").read_text() == f"{each} threads\n"


def test_a_failed_worker_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid, "train_cell", broken_cell)
    assert main(["reproduce", "gate_distribution", "--scale", "smoke", "--out", str(tmp_path), "--workers", "2"]) == 2
    error = capfd.readouterr().err
    assert "resnet-supernet-seed0-" in error
    assert "0.png: it is truncated or no image. Its log is" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ieeb"], "ieb"),
        ([], "reproduce --list"),
        (["main", "--scale", "cpu"], "--root"),
        (["main", "--scale", "cpu", "--root", "/no/such/place"], "/no/such/place"),
        (["main", "--scale", "smoke", "--workers", "0"], "workers is 0"),
        (["main", "--scale", "smoke", "--longer", "0"], "longer is 0"),
    ],
)
def test_wrong_words_get_one_clear_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("error:") == 1
    assert "Traceback" not in error


def test_the_list_shows_what_is_finished(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "smoke", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)
    done = dict(re.findall(r"^ +(\w+) .* (\d+/\d+) ", shown, flags=re.MULTILINE))
    assert [done[name].split("/")[0] == done[name].split("/")[1] for name in SMOKE[1:]] == [True] * 2
    assert done["efficientnet"] == "0/4"
