"""From a trained run to ONNX files and milliseconds, as a user goes."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import dsnet
from dsnet import latency, open_runner
from dsnet.bench.runs import climbing, equal_accuracy
from dsnet.cli import main
from dsnet.config import CONFIG
from dsnet.latency import timing
from dsnet.models import eager
from dsnet.pictures import as_batch
from dsnet.report.bench import bench_tables
from dsnet.report.tables import show
from dsnet.results import Bench, Evaluation, Latency, Made, PathTime, RoutedTime, Times, read
from dsnet.schema import plain
from dsnet.tasks import read_config
from dsnet.tasks.classification.task import task
from support.runs import saved_images

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def photos(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_images(trained, tmp_path_factory.mktemp("photos"), 12)


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> object:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_artefact_predicts_the_same(run: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = printed(capsys, "predict", str(run), str(photos), "--budget", "0.4")
    assert len({tuple(row["path"]) for row in expected}) > 1  # type: ignore[attr-defined]
    for name in ("model.onnx", "bundle"):
        rows = printed(capsys, "predict", str(run / name), str(photos), "--budget", "0.4")
        for row, other in zip(rows, expected, strict=True):  # type: ignore[call-overload]
            assert row.pop("confidence") == pytest.approx(other["confidence"], abs=1e-4)
            assert row == {key: value for key, value in other.items() if key != "confidence"}
    assert main(["predict", str(run / "path-2.onnx"), str(photos)]) == 0
    assert "holds a single path: path 2 runs" in capsys.readouterr().err
    assert main(["predict", str(run / "path-2.onnx"), str(photos), "--budget", "0.4"]) == 2
    assert "holds a single path, so it has no budgets and no cap" in capsys.readouterr().err


def test_a_raw_file_predicts_the_same_and_says_what_it_is(
    run: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = printed(capsys, "predict", str(run / "model.onnx"), str(photos), "--budget", "0.4")
    for name, words in (("model-raw.onnx", []), ("simple.onnx", ["--simple", "--out", str(run / "simple.onnx")])):
        assert main(["export", str(run), "--raw", *words]) == 0
        assert "takes pictures of any size, uint8 [height, width, 3], one at a time" in capsys.readouterr().out
        assert printed(capsys, "predict", str(run / name), str(photos), "--budget", "0.4") == expected
    assert main(["export", str(run), "--raw", "--path", "2"]) == 0
    capsys.readouterr()
    fixed = [printed(capsys, "predict", str(run / f"path-2{end}.onnx"), str(photos)) for end in ("", "-raw")]
    assert fixed[0] == fixed[1]
    raw = str(run / "model-raw.onnx")
    assert main(["info", raw]) == 0
    assert "It takes raw pictures of any size" in capsys.readouterr().out
    refused = [["export", str(run), "--raw", "--bundle"], ["eval", raw], ["bench", raw]]
    refused.append(["predict", raw, str(photos), "--latency", "5ms"])
    for words, why in zip(refused, ("a bundle takes batches", "takes raw pictures", "is raw", "is raw"), strict=True):
        assert main(words) == 2
        told = capsys.readouterr().err
        assert why in told
        assert "without --raw" in told or "leave --raw out" in told


def test_every_artefact_is_evaluated_alike(run: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    expected = printed(capsys, "eval", str(run))
    for name in ("model.onnx", "bundle"):
        result = printed(capsys, "eval", str(run / name))
        for row, other in zip(result["rows"], expected["rows"], strict=True):  # type: ignore[index]
            assert row["path"] == other["path"]
            assert row["score"]["mean"] == pytest.approx(other["score"]["mean"], abs=0.003)
        for row, other in zip(result["dynamic"]["rows"], expected["dynamic"]["rows"], strict=True):  # type: ignore[index]
            assert row["score"]["mean"] == pytest.approx(other["score"]["mean"], abs=0.006)
            assert row["madds"]["mean"] == pytest.approx(other["madds"]["mean"], rel=0.01)
        assert "onnxruntime" in result["made"]["runtime"]  # type: ignore[index]
    assert (run / "results" / "test-model.json").exists()
    (one,) = printed(capsys, "eval", str(run / "path-2.onnx"))["rows"]  # type: ignore[index]
    assert one["path"] == [2]
    moved = tmp_path / "moved.onnx"
    moved.write_bytes((run / "model.onnx").read_bytes())
    assert main(["eval", str(moved)]) == 2
    assert "is not the run that" in capsys.readouterr().err
    assert main(["eval", str(moved), "--run", str(run)]) == 0


def test_info_tells_the_same_of_every_artefact(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed(capsys, "info", str(run))
    assert all(printed(capsys, "info", str(run / name)) == told for name in ("model.onnx", "bundle", "path-2.onnx"))


@pytest.mark.parametrize(
    "words", [["predict", "PHOTOS", "--confidence", "0.3"], ["eval", "--overlap", "0.4"], ["eval", "--rule", "area"]]
)
def test_options_of_detectors_are_refused(
    run: Path, photos: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    command, *rest = (str(photos) if word == "PHOTOS" else word for word in words)
    assert main([command, str(run), *rest]) == 2
    assert f"{words[-2]} is for detectors" in capsys.readouterr().err


def test_a_trained_network_routes_alike_everywhere(run: Path) -> None:
    net = dsnet.load(run)
    data = task.open_data(read_config(run / CONFIG))
    x = data.test.load(data.test.ids[:64]).images
    expected = dsnet.route(net, x, eager(net).policy(0.4))
    assert len(expected.paths.unique()) > 1
    for name in ("", "model.onnx", "bundle"):
        routed = dsnet.open_runner(run / name)(x, budget=0.4)
        assert torch.equal(routed.paths, expected.paths)
        assert torch.equal(routed.madds, expected.madds)
        assert ((routed.logits - expected.logits).abs().max() / expected.logits.std()) < 1e-4
        with pytest.warns(UserWarning, match="budget 0.002M is out of reach"):
            dsnet.open_runner(run / name)(x, budget="2k")


def test_the_page_about_deployment_is_true(
    run: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, runner = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "deploy.md").read_text(), flags=re.DOTALL)
    assert "dsnet" not in plain
    monkeypatch.chdir(tmp_path)
    for name, source in (("model.onnx", run / "model.onnx"), ("photo.png", photos / "03.png")):
        Path(name).write_bytes(source.read_bytes())
    assert main(["export", str(run), "--raw", "--simple", "--out", "model-raw.onnx"]) == 0
    there: dict[str, Any] = {}
    exec(plain, there)
    exec(runner, {})
    manifest = dsnet.open_runner("model-raw.onnx").manifest
    awkward(tmp_path / "awkward")
    answers = dsnet.predict([photos, tmp_path / "awkward"], "model-raw.onnx", budget=0.4)
    assert len(answers) == 12 + 32
    for answer in answers:
        (picture,) = as_batch(answer.file, manifest)
        assert np.array_equal(there["read"](answer.file), picture), answer.file
        assert there["classify"](answer.file, 0.4) == (answer.name, list(answer.path), answer.madds)
    for budget in (0, -0.5, 1.5, 50):
        with pytest.raises(ValueError, match=f"budget is {budget}; it must lie in"):
            there["classify"](answer.file, budget)
        with pytest.raises(ValueError, match=f"budget {budget} "):
            dsnet.predict(answer.file, "model.onnx", budget=budget)


def awkward(folder: Path) -> None:
    """Pictures that are read wrongly if their orientation, depth or transparency is not heeded."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    smooth = Image.fromarray(rng.integers(0, 255, (6, 8, 3), np.uint8))
    for width, height in ((24, 32), (640, 480), (333, 499)):
        picture = smooth.resize((width, height), Image.Resampling.BICUBIC)
        for orientation in range(1, 9):
            exif = Image.Exif()
            exif[274] = orientation
            picture.save(folder / f"turned-{width}-{orientation}.jpg", exif=exif, quality=95)
    ramp = np.linspace(0, 65535, 40 * 60).reshape(40, 60)
    Image.fromarray(ramp.astype(np.uint16)).save(folder / "deep.png")
    Image.fromarray((ramp / 300).astype(np.uint16)).save(folder / "shallow.png")
    Image.fromarray(ramp.astype(np.int32)).save(folder / "deep.tiff")
    clear = smooth.resize((60, 40)).convert("RGBA")
    clear.putalpha(Image.fromarray((ramp / 257).astype(np.uint8)))
    clear.save(folder / "clear.png")
    clear.convert("LA").save(folder / "clear-grey.png")
    clear.convert("RGB").convert("P").save(folder / "palette.png", transparency=3)
    clear.convert("RGB").save(folder / "colour-key.png", transparency=clear.convert("RGB").getpixel((3, 3)))
    clear.convert("CMYK").save(folder / "print.jpg")


def test_the_commands_of_the_page_exist() -> None:
    from dsnet.cli import COMMANDS

    text = (ROOT / "docs" / "deploy.md").read_text()
    assert set(re.findall(r"dsnet ([a-z]+) (?:RUN|run|--)", text)) <= set(COMMANDS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "net.pt"], "net.pt does not end in .onnx"),
        (["--path", "9"], "9"),
        (["--bundle", "--path", "1"], "a bundle takes its budget, cap, window and path when it runs"),
        (["--budget", "none"], "budget 'none' is not understood"),
        (["--image_size", "1"], "image size 1 is too small"),
        (["--image_size", "24", "--budget", "0.5"], "budgets calibrated for image sizes \\[16\\] but not for 24"),
    ],
)
def test_export_refuses_what_it_cannot_do(
    run: Path,
    words: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), *words]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error), error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_export_says_what_it_wrote(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "cheap.onnx"
    assert main(["export", str(run), "--out", str(file), "--budget", "1G"]) == 0
    captured = capsys.readouterr()
    assert "is out of reach" in captured.err
    assert "takes 16 px images, one at a time" in captured.out
    about = printed(capsys, "export", str(run), "--out", str(file))
    assert about["kind"] == "dynamic"  # type: ignore[index]
    assert about["off"] < 1e-4  # type: ignore[index]


@pytest.mark.parametrize("int8", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_file_of_some_widths_has_budgets_of_its_own(
    run: Path, int8: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = (run / "model.onnx").read_bytes()
    about = printed(capsys, "export", str(run), "--widths", "0,5", *["--int8"] * int8)
    few = run / f"model-widths-0-5{'-int8' * int8}.onnx"
    assert about["out"] == str(few)  # type: ignore[index]
    assert (run / "model.onnx").read_bytes() == kept
    assert about["paths"] == 2  # type: ignore[index]
    manifest, whole = (open_runner(file).manifest for file in (few, run / "model.onnx"))
    assert manifest.router is not None
    assert whole.router is not None
    assert manifest.space.choices == ((0, 5),)
    assert {path for row in manifest.router.budgets for path, _ in row.shares} <= {(0,), (5,)}
    assert manifest.router.budgets != whole.router.budgets
    assert manifest.evaluation is None
    found = printed(capsys, "eval", str(few))
    assert [row["path"] for row in found["rows"]] == [[0], [5]]  # type: ignore[index]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--widths", "0;5"], "widths '0;5' are not understood; write a list of indices such as 0,4,9,13"),
        (["--widths", "0,6"], "width 6 is not among those that the router may choose: [0, 1, 2, 3, 4, 5]"),
        (["--widths", "0,5", "--path", "5"], "--path exports one path alone; leave --widths out"),
    ],
)
def test_widths_that_a_file_cannot_hold_are_refused(
    run: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), *options, "--out", str(run / "few.onnx")]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert not (run / "few.onnx").exists()


# bench


def test_bench_measures_widths_and_budgets(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", str(run), "--repeats", "3", "--batch_sizes", "1", "4", "--against", "mobilenet_v1_tiny:0.5"]
    result = printed(capsys, *words, "--export", str(tmp_path / "bench"), "--runtimes", "eager", "runner", "onnx")
    rows = result["widths"]["rows"]  # type: ignore[index]
    assert {(row["runtime"], row["batch"]) for row in rows} == {
        (name, batch) for name in ("static", "eager", "runner", "static onnx", "onnx") for batch in (1, 4)
    }
    for row in rows:
        assert 0 < row["times"]["p50"] <= row["times"]["p95"] <= row["times"]["p99"]
        assert row["images_per_second"] == pytest.approx(row["batch"] / row["times"]["p50"] * 1e3)
        assert (row["ratio"] is None) == row["runtime"].startswith("static")
    files = result["widths"]["files"]  # type: ignore[index]
    assert files["dynamic"] > 1000
    memory = {held["artefact"]: held["memory"] for held in files["artefacts"]}
    floats = ["dynamic file", "widest path", "bundle", "file of widths 0,2,3,5"]
    assert list(memory) == [*floats, "INT8 dynamic file", "INT8 widest path"]
    if sys.platform == "linux":
        assert all(taken > 1e6 for taken in memory.values())
    assert {row["model"] for row in result["widths"]["against"]} == {"mobilenet_v1_tiny:0.5"}  # type: ignore[index]
    routed = result["routed"]["rows"]  # type: ignore[index]
    assert all(row["ideal"] > 0 for row in routed)
    assert json.loads((run / "results" / "bench.json").read_text()) == result
    for suffix in (".json", ".md", ".png"):
        assert (tmp_path / f"bench{suffix}").stat().st_size > 100


def test_bench_has_the_paths_budgets_and_accuracies_of_eval(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = read(trained / "results" / "bench.json", Bench)
    result = read(trained / "results" / "test.json", Evaluation)
    (deployed,) = bench.deployed
    fixed = [row for row in deployed.rows if row.path is not None]
    assert {row.path: (row.madds, row.score) for row in fixed} == {
        row.path: (row.madds, row.score.mean) for row in result.rows
    }
    routed = [row for row in deployed.rows if row.path is None]
    assert [(row.asked, row.madds, row.score) for row in routed] == [
        (row.asked, row.madds.mean, row.score.mean) for row in result.dynamic.rows
    ]
    assert not any(row.computed for row in routed)
    show(bench_tables(bench))
    for line in capsys.readouterr().out.splitlines():
        assert len(line.rstrip()) <= 80, line


def test_bench_of_a_file_fills_the_same_table_and_compares_routers(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = printed(capsys, "bench", str(run / "model.onnx"), "--repeats", "3", "--paths", "all")
    assert [row["path"] for row in result["widths"]["rows"]] == [[k] for k in range(6)]  # type: ignore[index]
    (deployed,) = result["deployed"]  # type: ignore[index]
    assert deployed["images"] == 64
    assert all(row["score"] is not None and not row["computed"] for row in deployed["rows"])
    held = result["widths"]["file"]  # type: ignore[index]
    assert (held["artefact"], held["size"]) == ("dynamic file", (run / "model.onnx").stat().st_size)
    assert held["memory"] > 1e6 or sys.platform != "linux"
    alone = Path(shutil.copy(run / "model.onnx", tmp_path / "alone.onnx"))
    assert main(["bench", str(alone), "--repeats", "3"]) == 0  # there are no images beside it
    text = f"{' '.join(capsys.readouterr().out.split())} "  # notes wrap
    assert text.count(" * ") == 5 + 1
    assert " * computed" in text
    assert re.search(r"Dynamic file: [0-9.]+k bytes, [0-9.]+M bytes of memory \([0-9.]+x\) once every path", text)
    runner = open_runner(alone, threads=1)
    held = latency.find(runner.setting())
    assert held is not None
    assert {row.path for row in held.rows if row.routed is not None} == {(k,) for k in range(6)}
    assert main(["bench", str(run), "--repeats", "2", "--routers", str(run), "--runtimes", "onnx"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "2 interleaved rounds" in text
    compared = json.loads((run / "results" / "bench.json").read_text())
    assert all(0 <= row["score"] <= 1 for row in compared["routed"]["rows"])  # type: ignore[index]


# milliseconds


@pytest.fixture
def clocked(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Latency:
    """A latency table of model.onnx with one thread in which width k takes k + 1 ms, and 0.4 ms more now and then."""
    monkeypatch.setenv(latency.FOLDER, str(tmp_path / "cache"))
    runner = open_runner(trained / "model.onnx", threads=1)
    times = [Times(1.0 + k, 1.0 + k, 1.4 + k, 1.4 + k) for k in range(6)]
    rows = tuple(PathTime((k,), one, one, (one.mean,) * latency.SPREAD) for k, one in enumerate(times))
    table = Latency(runner.setting(), runner.manifest.model, rows, 30, Made())
    latency.keep(table)
    return table


def test_a_latency_sets_the_defaults_of_a_file(
    trained: Path, clocked: Latency, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "timed.onnx"
    words = ["export", str(trained), "--out", str(out), "--latency", "2.5ms", "--latency-cap", "4ms"]
    assert main(words) == 0
    assert "defaults of the file: a budget of " in capsys.readouterr().err
    runner = open_runner(out)
    policy = runner.policy()
    assert policy.max_width == 2  # width 3 takes 4.4 ms now and then
    times = latency.expected(runner.manifest, clocked, policy)
    assert times is not None
    assert times.mean == pytest.approx(2.5, abs=0.01)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--latency", "5"], "latency '5' is not understood; write a time with its unit, such as 5ms"),
        (["--latency", "5ms", "--budget", "0.5"], "latency 5ms and budget 0.5 both set what is spent"),
        (["--latency-cap", "0.5ms"], "a latency cap of 0.5 ms cannot be kept: the slimmest path takes 1.4 ms"),
        (["--latency", "5ms", "--path", "2"], "--path pins the widths; leave --latency out"),
        (["--latency", "5ms", "--bundle"], "a bundle takes its budget, cap, window and path when it runs"),
    ],
)
def test_latencies_that_cannot_be_met_are_refused(
    words: list[str], message: str, trained: Path, clocked: Latency, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(trained), "--out", str(tmp_path / "never.onnx"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1
    assert not list(tmp_path.glob("never*"))


def test_eval_takes_latencies(run: Path, clocked: Latency, capsys: pytest.CaptureFixture[str]) -> None:
    file = run / "model.onnx"
    assert main(["eval", str(file), "--latency", "1.5ms", "3ms", "--latency-cap", "4ms"]) == 0
    error = capsys.readouterr().err
    assert "1.5ms: " in error
    assert "at most 4ms: widths up to 2" in error
    rows = read(run / "results" / "test-model.json", Evaluation).dynamic.rows  # type: ignore[union-attr]
    manifest = open_runner(file).manifest
    assert [row.asked for row in rows] == [latency.budget_for(manifest, clocked, ms)[0] for ms in (1.5, 3.0)]
    assert all(sum(row.gates[0].shares[3:]) == 0 for row in rows)
    assert main(["eval", str(run), "--latency", "3ms"]) == 2  # PyTorch was not measured
    assert "there is no latency table of" in capsys.readouterr().err


def test_predict_keeps_a_latency_and_tells_what_it_spent(
    trained: Path, clocked: Latency, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(trained / "model.onnx")
    assert main(["predict", file, str(photos), "--latency", "1.5ms", "--latency-cap", "4ms"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(r"MAdds per image on average \(asked: 1.5ms, [\d.]+k MAdds, at most 4ms: widths up to 2\)", text)
    assert re.search(r"[\d.]+ ms in the network, [\d.]+ ms at most", text)
    rows = printed(capsys, "predict", file, str(photos), "--latency", "9s", "--latency_cap", "2.2ms")
    assert all(row["path"][0] == 0 and row["ms"] > 0 for row in rows)  # type: ignore[attr-defined]
    for words, message in (
        (["--latency", "5ms", "--batch_size", "8"], "--batch_size is 8, but a latency is of one image at a time"),
        (["--latency", "5ms", "--path", "2"], "--path pins the widths; leave --latency out"),
        (["--latency", "5ms", "--threads", "7"], r"7 threads, 16 px on this processor (there is one for 1 thread)"),
        (["--latency_cap", "5"], "write a time with its unit, such as 5ms"),
    ):
        assert main(["predict", file, str(photos), *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["predict", str(trained / "path-2.onnx"), str(photos), "--latency", "5ms"]) == 2
    assert "so it has no budgets and no cap" in capsys.readouterr().err


def test_python_takes_a_latency(trained: Path, clocked: Latency, photos: Path) -> None:
    files = sorted(photos.iterdir())
    found = dsnet.predict(files, trained / "model.onnx", latency_cap="3.5ms", latency="5ms")
    assert max(answer.path for answer in found) <= (2,)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ds_mobilenet_v1_tiny", "--runtimes", "tensorrt"], "runtime 'tensorrt' is unknown; choose from eager"),
        (["ds_mobilenet_v1_tiny", "--threads", "0"], "threads are"),
        (["ds_mobilenet_v1_tiny", "--repeats", "1"], "repeats is 1; a median needs at least 2"),
        (["ds_mobilenet_v1_tiny", "--against", "ds_resnet_tiny"], "has several widths; name a static network"),
        (["ds_mobilenet_v1_tiny", "--paths", "77"], "77"),
        (["ds_mobilenet_v1_tiny", "--routers", "x"], "--routers compares routers of runs, but ds_mobilenet_v1_tiny is"),
        (["RUN", "--routers", "RUN", "--runtimes", "runner"], "and --runtimes are runner; leave it out"),
        (["RUN", "--routers", "RUN", "--image_size", "32"], "it takes images of the run's own size"),
        (["RUN/model.onnx", "--image_size", "32"], "which has one image size; leave --image_size out"),
        (["RUN/model.onnx", "--runtimes", "eager"], "is a file, which eager does not run; leave eager out"),
        (["nowhere.onnx"], "nowhere.onnx does not exist"),
        (["nowhere"], "nowhere"),
    ],
)
def test_bench_refuses_what_it_cannot_measure(
    trained: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *(word.replace("RUN", str(trained)) for word in words)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("other", "message"), [("nowhere", "nowhere/config.yaml does not exist"), ("STATIC", "has no calibrated router")]
)
def test_bench_refuses_other_routers_before_it_measures(
    trained: Path,
    static_run: Path,
    other: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    measured: list[object] = []
    monkeypatch.setattr("dsnet.bench.widths.bench_widths", lambda *args: measured.append(args))
    assert main(["bench", str(trained), "--routers", other.replace("STATIC", str(static_run))]) == 2
    assert message in capsys.readouterr().err
    assert not measured


def test_table1_runs_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.bench.table1 import table1

    result = table1("ds_mobilenet_v1_tiny", repeats=2, image_size=32)
    ways = {row.way: row for row in result.rows}
    assert set(ways) == {"full", "masking", "indexing", "slicing", "cached slicing", "ideal", "ideal again"}
    assert ways["ideal"].ratio == 1
    assert ways["slicing"].paper == pytest.approx(7.9 / 7.2)


def test_all_ways_of_table1_compute_the_same() -> None:
    from dsnet.bench.candidates import eager_call, static_call
    from dsnet.bench.table1 import indexed, masking_call

    net = dsnet.create_model("s_resnet50").eval()
    x = torch.randn(1, 3, 64, 64)
    path = net.space.slimmest
    with torch.no_grad():
        expected = net(x, path)
    for call in (
        masking_call(net, x),
        eager_call(indexed(net), x, path),
        static_call(dsnet.extract(net, path, fold=True), x),
    ):
        assert ((call() - expected).abs().max() / expected.std()) < 1e-4


def test_equal_accuracy_is_interpolated_between_operating_points() -> None:
    def rows(name: str, points: list[tuple[float, float]]) -> list[RoutedTime]:
        return [
            RoutedTime(
                name, "gate", "", "onnx", 1, 0, 0, 0, 1, Times(ms, ms, ms), 1, 1, score=top1, madds_split=10 * ms
            )
            for ms, top1 in points
        ]

    one = rows("one", [(1.0, 0.5), (2.0, 0.6), (2.5, 0.55), (3.0, 0.7)])
    two = rows("two", [(2.0, 0.5), (4.0, 0.7)])
    assert [row.times.mean for row in climbing(one)] == [1.0, 2.0, 3.0]  # what is slower and worse does not count
    levels = equal_accuracy([*one, *two], levels=3)
    assert [level.score for level in levels] == pytest.approx([0.5, 0.6, 0.7])
    assert [level.runs["two"].ratio for level in levels] == pytest.approx([2.0, 1.5, 4 / 3])
    assert levels[1].runs["one"].madds == pytest.approx(20.0)
    assert equal_accuracy([*one, *rows("worse", [(1.0, 0.2), (2.0, 0.4)])]) == ()


def test_candidates_take_turns_each_after_untimed_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    from dsnet.latency.timing import LEAD, STREAM, interleaved, summary

    monkeypatch.setattr("dsnet.latency.timing.interruptions", lambda: 0)  # interrupted calls are timed again
    calls: list[str] = []
    times = interleaved({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, 20, warmup=1)
    assert {name: len(found) for name, found in times.items()} == {"a": 20, "b": 20}
    turn = LEAD + 1
    rounds = ["".join(calls[k : k + 2 * turn]) for k in range(2, len(calls), 2 * turn)]
    assert set(rounds) == {turn * "a" + turn * "b", turn * "b" + turn * "a"}

    given: list[int] = []
    timed: list[int] = []

    def clock(call: Any, number: int) -> float:
        timed.append(number)
        return float(number)

    count = STREAM + 3  # in two turns, each behind the inputs before it
    inputs = [(number,) for number in range(count)]
    times = interleaved({"a": given.append}, 2, warmup=0, inputs=inputs, clock=clock)
    assert times["a"] == 2 * list(range(count)) == timed
    before = [count - back for back in range(LEAD, 0, -1)], [STREAM - back for back in range(LEAD, 0, -1)]
    assert given == 2 * [*before[0], *before[1]]
    begun = iter([0.0, 0.0, 1.0, 2.0, 3.0, 4.0])  # of slow calls, one is enough
    monkeypatch.setattr("time.perf_counter", lambda: next(begun))
    given.clear()
    interleaved({"a": given.append}, 1, warmup=0, inputs=[(7,)], clock=clock)
    assert given == [7, 7]
    expected = {"mean": 4.0, "p50": 2.0, "p95": float(np.quantile([1, 2, 9], 0.95)), "p99": 8.86}
    assert plain(summary([0.001, 0.002, 0.009])) == pytest.approx(expected)


def test_interrupted_calls_are_timed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 1, 1, 1, *(0, 1) * 9])  # interrupted, quiet; then always interrupted
    monkeypatch.setattr(timing, "interruptions", lambda: next(counts))
    took = iter(range(10))
    assert timing.undisturbed(lambda call: next(took), lambda: None) == 1
    assert timing.undisturbed(lambda call: next(took), lambda: None) == 1 + timing.TRIES


def test_other_sizes_and_simple_files_are_used_like_any_file(
    run: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    large, simple = tmp_path / "large.onnx", tmp_path / "simple.onnx"
    assert main(["export", str(run), "--image_size", "24", "--out", str(large)]) == 0
    assert main(["predict", str(large), str(photos)]) == 0
    assert main(["eval", str(large), "--run", str(run)]) == 2
    assert "takes 24-pixel images but the run" in capsys.readouterr().err
    assert main(["export", str(run), "--image_size", "24", "--simple", "--out", str(simple)]) == 2
    assert "has no calibrated budgets at 24 px, so a simple file would have nothing to" in capsys.readouterr().err
    assert main(["export", str(run), "--simple", "--out", str(simple)]) == 0
    assert "at the lowest and highest budget differ from PyTorch by" in capsys.readouterr().out
    expected = printed(capsys, "predict", str(run / "model.onnx"), str(photos), "--budget", "0.4")
    assert printed(capsys, "predict", str(simple), str(photos), "--budget", "0.4") == expected
    for words in (["predict", str(simple), str(photos), "--path", "2"], ["eval", str(simple), "--run", str(run)]):
        assert main(words) == 2
        assert "was exported with --simple and runs no chosen path" in capsys.readouterr().err
    assert main(["export", str(simple)]) == 2
    assert "is exported already; give its run folder" in capsys.readouterr().err
