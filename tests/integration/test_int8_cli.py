"""INT8 files from the command line: exported, described, evaluated and used like any other file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.manifest import Policy
from dsnet.results import Evaluation, read
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runs.quantise import spread
from dsnet.tasks import images_of
from support.runs import dsnet_does


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    dsnet_does(*words)
    return capsys.readouterr().out


def test_a_run_is_quantised_evaluated_and_used(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = told(capsys, "export", run, "--int8")
    assert "model-int8.onnx: dynamic, int8, 6 paths" in said
    assert "(root mean square)" in said
    assert "budgets were calibrated again" in said
    file = run / "model-int8.onnx"
    assert file.stat().st_size < 0.7 * (run / "model.onnx").stat().st_size
    runner, floats = dsnet.open_runner(file), dsnet.open_runner(run / "model.onnx")
    assert runner.manifest.precision == "int8"
    assert runner.digest != floats.digest  # a latency table of one does not count for the other
    assert runner.manifest.table == floats.manifest.table
    dsnet_does("eval", file)
    dsnet_does("eval", run / "model.onnx")
    int8, fp32 = (read(run / "results" / f"test-{name}.json", Evaluation) for name in ("model-int8", "model"))
    assert "int8" in str(int8.made.runtime)
    for mine, theirs in zip(int8.rows, fp32.rows, strict=True):
        assert mine.madds == theirs.madds
        assert mine.score.mean == pytest.approx(theirs.score.mean, abs=0.02)
    assert int8.dynamic is not None
    assert fp32.dynamic is not None
    for mine, theirs in zip(int8.dynamic.rows, fp32.dynamic.rows, strict=True):
        assert mine.score.mean == pytest.approx(theirs.score.mean, abs=0.03)
    about = json.loads(told(capsys, "info", file, "--json"))
    assert about["precision"] == "int8"
    assert "int8" in told(capsys, "info", file)
    assert main(["advise", str(file)]) == 2
    assert "`dsnet eval" in capsys.readouterr().err
    check_budgets(run)


def check_budgets(run: Path) -> None:
    """The budgets of the quantised file are those that it meets itself on the calibration images."""
    folder = RunFolder.of(run)
    config, data = folder.opened()
    runner, images = dsnet.open_runner(run / "model-int8.onnx"), images_of(folder.task, data, "calibration", config)
    traces = Traces(runner, images.batches(), folder.task.scorer(runner.manifest, {}), load=images.load)
    router = runner.manifest.router
    assert router is not None
    for row in router.budgets:
        assert traces.at(Policy(row.lam, window=row.window)).spent == pytest.approx(row.madds, rel=0.01)
    assert [row.lam for row in router.budgets] != [row.lam for row in dsnet.load(run).card.budgets]


@pytest.mark.slow
def test_a_path_and_a_bundle_are_the_file(run: Path) -> None:
    dsnet_does("export", run, "--int8")
    dsnet_does("export", run, "--int8", "--bundle")
    dsnet_does("export", run, "--int8", "--path", "2")
    dsnet_does("export", run, "--int8", "--simple", "--out", run / "simple.onnx")
    dsnet_does("export", run, "--int8", "--raw")  # compares the file with the network
    names = ("model-int8.onnx", "bundle-int8", "path-2-int8.onnx", "simple.onnx")
    file, bundle, path, simple = (dsnet.open_runner(run / name) for name in names)
    _, data = RunFolder.of(run).opened()
    x = spread(data.test, 8)
    expected = file.run_path(x, (2,)).logits
    for other in (bundle, path):
        torch.testing.assert_close(other.run_path(x, (2,)).logits, expected, atol=1e-4, rtol=1e-4)
    assert file.manifest.routers == bundle.manifest.routers == simple.manifest.routers
    assert torch.equal(file(x, budget=0.5).paths, bundle(x, budget=0.5).paths)
    assert torch.equal(file(x, budget=0.5).paths, simple(x, budget=0.5).paths)


def test_what_cannot_be_quantised_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(run), "--int8", "--image_size", "48"]) == 2
    assert "leave --image_size out" in capsys.readouterr().err
    dsnet.save(dsnet.load(run), tmp_path / "bare")
    assert main(["export", str(tmp_path / "bare"), "--int8"]) == 2
    assert "--int8 needs a run of `dsnet train`" in capsys.readouterr().err


@pytest.mark.slow
def test_a_detector_is_quantised(detector: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = detector / "int8.onnx"
    said = told(capsys, "export", detector / "run", "--int8", "--out", out)
    assert "dynamic, int8" in said
    assert dsnet.open_runner(out).manifest.precision == "int8"
    dsnet_does("eval", out, "--run", detector / "run")
