"""dsnet advise as a user calls it: on runs, files and bundles."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from dsnet.cli import main
from dsnet.results import Evaluation, read


def told(capsys: pytest.CaptureFixture[str], *words: object) -> dict[str, object]:
    assert main(["advise", *map(str, words), "--json"]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_and_its_files_are_given_the_same_advice(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where nothing was timed; milliseconds are kept by machine."""
    monkeypatch.setenv("DSNET_CACHE", str(tmp_path))
    run = Path(shutil.copytree(trained, tmp_path / "run", ignore=shutil.ignore_patterns("bench.json", "state")))
    result = read(run / "results" / "test.json", Evaluation)
    places = ("", "model.onnx", "bundle", "path-2.onnx")
    for demand in ([], ["--accuracy", "50%"], ["--accuracy", "1"], ["--budget", "0.5"], ["--budget", "500k"]):
        found = [told(capsys, run / place, *demand) for place in places]
        assert len({json.dumps([one["choice"], one["met"], one["advice"]]) for one in found}) == 1
        assert len(found[0]["options"]) == len(result.rows) + 5  # type: ignore[arg-type]


def test_the_command_that_is_named_works(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for demand in ([], ["--budget", "0.4"]):
        words = str(told(capsys, run, *demand)["command"]).split()
        assert words[:2] == ["dsnet", "export"]
        assert main([*words[1:], "--out", str(run / "advised.onnx")]) == 0
        capsys.readouterr()


def test_the_advice_is_printed_by_advise_and_eval_and_begins_the_report(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["eval", str(run)]) == 0
    shown = capsys.readouterr().out
    advice = told(capsys, run)
    assert str(advice["command"]) in shown
    words = " ".join(shown.split())
    assert " ".join(advice["advice"]) in words  # type: ignore[arg-type]
    assert main(["advise", str(run)]) == 0
    table = capsys.readouterr().out
    assert "full network" in table
    assert max(map(len, table.splitlines())) <= 100
    assert main(["report", str(run)]) == 0
    page = (run / "report.html").read_text()
    assert page.index('class="advice"') < page.index('class="tiles"')
    assert str(advice["command"]) in page
    assert "at equal accuracy" not in page


def test_classes_are_judged(trained: Path) -> None:
    result = read(trained / "results" / "test.json", Evaluation)
    full, routed = result.answers
    assert result.dynamic is not None
    assert routed.budget == result.dynamic.best
    right = sum(round((one.recall or 0) * one.images) for one in full.classes)
    assert right / result.images == pytest.approx(result.full.score.mean)
    assert sum(images for *_, images in full.wrong) == result.images - right


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere does not exist; give a run folder"),
        (["{run}", "--accuracy", "0.9", "--budget", "0.5"], "--accuracy and --budget are two demands; give one"),
        (["{run}", "--accuracy", "90"], "--accuracy is '90'; it must be a share such as 0.9 or 90%"),
        (["{run}", "--latency", "5"], "write a time with its unit, such as 5ms"),
        (["{run}", "--budget", "2"], "budget '2' has no unit"),
        (["{unmeasured}", "--latency", "5ms"], "no milliseconds of"),
        (["{static}"], "has a single width, so there is nothing to choose"),
    ],
)
def test_what_cannot_be_advised_is_one_line(
    words: list[str],
    message: str,
    trained: Path,
    static_run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(trained / "results", tmp_path / "results", ignore=shutil.ignore_patterns("bench.json"))
    known = {"run": trained, "static": static_run, "unmeasured": tmp_path}
    assert main(["advise", *(word.format(**known) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
