"""INT8 files from the command line: exported, described, evaluated and used like any other file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import dsnet
from dsnet import latency
from dsnet.cli import main
from dsnet.manifest import Policy
from dsnet.opening import Runtime
from dsnet.pictures import as_batch
from dsnet.results import Evaluation, read
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runs.quantise import spread
from dsnet.runtime import openvino
from dsnet.tasks import images_of
from support.runs import dsnet_does, saved_images

needed = pytest.mark.skipif(openvino.openvino is None, reason="openvino is optional and not installed")
RUNTIMES = ["onnx", pytest.param("openvino", marks=needed)]


def told(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    capsys.readouterr()
    dsnet_does(*words)
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def photos(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_images(trained, tmp_path_factory.mktemp("photos"), 40)


@pytest.fixture
def run(quantised: Path, tmp_path: Path) -> Path:
    """A copy of `quantised`, to write into."""
    return Path(shutil.copytree(quantised, tmp_path / "run"))


def test_a_run_is_quantised_evaluated_and_used(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said, file = (run / "said.txt").read_text(), run / "model-int8.onnx"
    assert "model-int8.onnx: dynamic, int8, 6 paths" in said
    assert "(root mean square)" in said
    assert "budgets were calibrated again" in said
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


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_predict_gives_the_answers_of_the_quantised_file(
    quantised: Path, photos: Path, runtime: Runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    file = quantised / "model-int8.onnx"
    words = ["predict", file, photos, "--budget", "0.5", "--threads", "1", "--json", "--runtime", runtime]
    rows = json.loads(told(capsys, *words))
    assert len({tuple(row["path"]) for row in rows}) > 1
    runner = dsnet.open_runner(file, threads=1, runtime=runtime)
    for row, answer in zip(rows, dsnet.predict(photos, runner, budget=0.5), strict=True):
        assert (row["label"], tuple(row["path"]), row["madds"]) == (answer.label, answer.path, answer.madds)
        assert row["confidence"] == pytest.approx(answer.confidence, abs=1e-3)
    assert {row["path"][0] for row in rows} <= set(range(6))


@needed
def test_openvino_is_as_close_to_floats_as_onnx_runtime(quantised: Path) -> None:
    """OpenVINO rounds fewer of the values between codes. The router of this run reads the logits of the slimmest width,
    so that its scores differ, too."""
    floats, ours = (dsnet.open_runner(quantised / name, threads=1) for name in ("model.onnx", "model-int8.onnx"))
    other = dsnet.open_runner(quantised / "model-int8.onnx", threads=1, runtime="openvino")
    assert "int8" in other.runtime
    _, data = RunFolder.of(quantised).opened()
    x = spread(data.test, 64)
    for path in ours.paths[::5]:
        exact, here, there = (runner.run_path(x, path).logits for runner in (floats, ours, other))
        ours_off, others_off = ((found - exact).square().mean().sqrt() for found in (here, there))
        assert 0 < others_off < 1.1 * ours_off
        assert (there - here).abs().max() < 0.3 * exact.std()
        assert (here.argmax(1) == there.argmax(1)).float().mean() > 0.9
    for row in ours.manifest.router.budgets[::2]:
        here, there = (runner(x, budget=row.madds) for runner in (ours, other))
        assert (here.paths == there.paths).float().mean() > 0.85
        assert there.madds.double().mean() == pytest.approx(here.madds.double().mean().item(), rel=0.1)


@needed
@pytest.mark.slow
def test_openvino_routes_alike_where_a_gate_decides_in_floats(trained_gate: Path, tmp_path: Path) -> None:
    """The gate of this network reads a map that is not quantised yet."""
    dsnet_does("export", trained_gate, "--int8", "--out", tmp_path / "gate.onnx")
    file = tmp_path / "gate.onnx"
    here, there = (dsnet.open_runner(file, threads=1, runtime=runtime) for runtime in ("onnx", "openvino"))
    _, data = RunFolder.of(trained_gate).opened()
    x, taken = spread(data.test, 200), set()
    for row in here.manifest.router.budgets:
        wanted, found = (runner(x, budget=row.madds) for runner in (here, there))
        assert torch.equal(found.paths, wanted.paths)
        assert (found.logits.argmax(1) == wanted.logits.argmax(1)).float().mean() > 0.9
        taken |= set(map(tuple, wanted.paths.tolist()))
    assert len(taken) > 1


@needed
@pytest.mark.slow
def test_eval_and_bench_run_the_quantised_file_in_openvino(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "model-int8.onnx"
    dsnet_does("eval", file, "--runtime", "openvino")
    dsnet_does("eval", file)
    results = (read(run / "results" / f"test-model-int8{end}.json", Evaluation) for end in ("-openvino", ""))
    there, here = (result.dynamic.rows for result in results)
    for mine, theirs in zip(there, here, strict=True):
        assert mine.score.mean == pytest.approx(theirs.score.mean, abs=0.03)
        assert mine.madds.mean == pytest.approx(theirs.madds.mean, rel=0.1)
    result = json.loads(told(capsys, "bench", file, "--runtimes", "openvino", "--repeats", "2", "--json"))
    (table,) = result["latency"]
    assert table["setting"]["runtime"].startswith("openvino")
    assert table["setting"]["runtime"].endswith("dynamic, int8")


def test_bench_keeps_the_times_of_the_quantised_file_apart(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "model-int8.onnx"
    assert main(["predict", str(file), str(photos), "--latency", "5ms"]) == 2
    assert "there is no latency table of" in capsys.readouterr().err
    result = json.loads(told(capsys, "bench", file, "--repeats", "2", "--json"))
    (deployed,) = result["deployed"]
    assert "int8" in deployed["setting"]["runtime"]
    assert deployed["images"] == 64
    assert all(row["times"]["p50"] > 0 and not row["computed"] for row in deployed["rows"])
    assert len(deployed["rows"]) == 6 + 5
    held = result["widths"]["file"]
    assert (held["artefact"], held["size"]) == ("INT8 dynamic file", file.stat().st_size)
    int8, floats = (dsnet.open_runner(run / f"{name}.onnx", threads=1) for name in ("model-int8", "model"))
    assert latency.find(int8.setting()) is not None
    assert latency.find(int8.setting()).setting.digest != floats.setting().digest
    times = [row["times"]["mean"] for row in deployed["rows"] if row["path"] is None]
    rows = json.loads(told(capsys, "predict", file, photos, "--latency", f"{times[2]}ms", "--json"))
    assert all(row["ms"] > 0 for row in rows)


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
    runner = dsnet.open_runner(out, threads=1)
    assert runner.manifest.precision == "int8"
    dsnet_does("eval", out, "--run", detector / "run")
    pictures = detector / "voc" / "JPEGImages"
    words = ["predict", out, pictures, "--confidence", "0.1", "--json"]
    found = json.loads(told(capsys, *words))
    answers = dsnet.predict(pictures, runner, confidence=0.1)
    assert [len(one["objects"]) for one in found] == [len(one.objects) for one in answers]
    if openvino.openvino is None:
        return
    other = json.loads(told(capsys, *words, "--runtime", "openvino"))
    same = [mine["path"] == theirs["path"] for mine, theirs in zip(other, found, strict=True)]
    assert np.mean(same) > 0.8  # the gate reads a map that was quantised
    floats = dsnet.open_runner(detector / "run" / "model.onnx", threads=1)
    x = as_batch([pictures], runner.manifest)
    for path in (runner.paths[0], runner.paths[-1]):
        exact, here, there = (
            one.run_path(x, path).outputs["scores"]
            for one in (floats, runner, dsnet.open_runner(out, threads=1, runtime="openvino"))
        )
        assert np.square(there - exact).mean() < 1.2 * np.square(here - exact).mean()
