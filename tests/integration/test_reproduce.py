"""dsnet reproduce at the smoke scale: every experiment, the cache, interruptions, several workers, errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dsnet.cli import main
from dsnet.experiments import EXPERIMENTS, grid
from dsnet.training import Interrupted


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All experiments, once."""
    folder = tmp_path_factory.mktemp("reproduce") / "smoke"
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(folder)]) == 0
    return folder


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a finished run was trained again")

    monkeypatch.setattr(grid, "train", refuse)
    monkeypatch.setattr(grid, "train_detection", refuse)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_leaves_tables_verdicts_and_figures(out: Path, name: str) -> None:
    result, page = json.loads((out / f"{name}.json").read_text()), (out / f"{name}.md").read_text()
    assert result["experiment"] == name
    assert {"command", "commit", "machine", "seconds", "torch"} <= set(result["made_by"])
    assert result["tables"]
    for table in result["tables"]:
        assert table["rows"]
        for row in table["rows"]:
            assert len(row) == len(table["columns"])
            assert "not run" not in row
            assert "| " + " | ".join(row) + " |" in page
    for claim in result["claims"]:
        assert claim["ours"] != "not run"
        assert claim["claim"] in page
    for number, figure in enumerate(result["figures"]):
        file = out / f"{name}{f'-{number + 1}' if number else ''}.svg"
        assert f"]({file.name})" in page
        marks = ElementTree.parse(file).getroot().findall(".//{http://www.w3.org/2000/svg}path")
        bars = ElementTree.parse(file).getroot().findall(".//{http://www.w3.org/2000/svg}rect")
        assert len(marks) + len(bars) > 5
        assert all(series["points"] for series in figure.get("series", []))


def test_finished_runs_are_not_trained_again(out: Path, no_training: None) -> None:
    before = {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")}
    assert main(["reproduce", "all", "--scale", "smoke", "--out", str(out), "--finished"]) == 0
    assert main(["reproduce", "sgs", "losses", "transfer", "--scale", "smoke", "--out", str(out)]) == 0
    assert {file: file.stat().st_mtime_ns for file in (out / "runs").rglob("*")} == before


def test_an_interrupted_grid_goes_on(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped in its second run; then it ends as the unbroken one did, and the first run is left alone."""
    plain, calls = grid.train, []

    def second_stops(config: Any, folder: Path, **how: Any) -> dict[str, Any]:
        calls.append(folder)
        if len(calls) == 2:
            folder.mkdir()
            (folder / "config.yaml").write_text("begun")
            raise Interrupted(2, folder)
        return plain(config, folder, **how)

    monkeypatch.setattr(grid, "train", second_stops)
    with pytest.raises(Interrupted):
        main(["reproduce", "temperature", "--scale", "smoke", "--out", str(tmp_path)])
    first = calls[0]
    assert main(["reproduce", "temperature", "--scale", "smoke", "--out", str(tmp_path), "--finished"]) == 0
    assert "not run" in (tmp_path / "temperature.md").read_text()
    assert main(["reproduce", "temperature", "--scale", "smoke", "--out", str(tmp_path)]) == 0
    assert calls.count(first) == 1
    ours, unbroken = (json.loads((place / "temperature.json").read_text()) for place in (tmp_path, out))
    assert ours["tables"] == unbroken["tables"]


def test_workers_train_the_same_runs(out: Path, tmp_path: Path) -> None:
    assert main(["reproduce", "temperature", "--scale", "smoke", "--out", str(tmp_path), "--workers", "2"]) == 0
    ours, alone = (json.loads((place / "temperature.json").read_text()) for place in (tmp_path, out))
    assert ours["tables"] == alone["tables"]
    assert all("epoch 1/1" in log.read_text() for log in (tmp_path / "runs").glob("*.log"))


def test_a_failed_worker_is_named(out: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(out / "data", tmp_path / "data")
    for image in (tmp_path / "data" / "digits" / "train").rglob("*.png"):
        image.write_bytes(b"no image")
    assert main(["reproduce", "detection", "--scale", "smoke", "--out", str(tmp_path), "--workers", "2"]) == 2
    error = capfd.readouterr().err
    assert "backbone" in error
    assert ".png" in error
    assert "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["ieeb"], "ieb"),
        ([], "reproduce --list"),
        (["main", "--scale", "cpu"], "--root"),
        (["main", "--scale", "cpu", "--root", "/no/such/place"], "/no/such/place"),
        (["main", "--scale", "smoke", "--workers", "0"], "workers is 0"),
    ],
)
def test_wrong_words_get_one_clear_line(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_the_list_shows_what_is_finished(out: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list", "--scale", "smoke", "--out", str(out)]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in EXPERIMENTS)
    assert "4/4" in shown
    assert "0/" not in shown
