"""Budgets on other images, as a user meets them: eval --drift, predict --budget_tracking, --top and --csv."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dsnet
from dsnet.cli import main
from dsnet.data.augment import to_pixels
from dsnet.data.corrupt import Corruption, corrupted
from dsnet.report.drift import drift_tables
from dsnet.results import Evaluation, read
from dsnet.routing.parts import as_array
from dsnet.runs import drift
from dsnet.runs.folder import RunFolder

NOISE = Corruption("noise", 0.15)


@pytest.fixture(scope="module")
def photos(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noisy test images as files."""
    folder = tmp_path_factory.mktemp("photos")
    _, data = RunFolder.of(trained).opened()
    images = corrupted(data, "test", NOISE).test.load(data.test.ids[:24]).images
    for number, pixels in enumerate(to_pixels(images, data.mean, data.std)):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{number:02d}, noisy.png")
    return folder


def test_eval_shows_what_budgets_spend_on_other_images(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(drift, "CORRUPTIONS", (NOISE,))
    words = ["eval", str(run), "--drift", "--budgets", "0.3", "0.5"]
    assert main([*words, "--export", str(tmp_path / "page")]) == 0
    shown = capsys.readouterr().out
    result = read(run / "results" / "test.json", Evaluation)
    assert result.dynamic is not None
    clean, noisy = result.drift
    assert [clean.images, noisy.images] == ["unchanged", "noise 15%"]
    assert clean.widest == result.rows[-1].score
    assert noisy.widest.mean < clean.widest.mean
    for row, plain in zip(clean.budgets, result.dynamic.rows, strict=True):
        assert (row.asked, row.spent, row.score) == (plain.asked, plain.madds, plain.score)
    for row in noisy.budgets:
        missed, left = (abs(spent.mean / row.asked - 1) for spent in (row.spent, row.tracked_spent))
        assert left < max(missed, 0.1)
    for table in drift_tables(result):
        assert table.title.partition(" on ")[0] in shown  # a title is as wide as its table
        assert table.title in (tmp_path / "page.md").read_text()
    assert main(["report", str(run)]) == 0
    assert "Budgets on other images" in (run / "report.html").read_text()


def test_a_file_drifts_like_its_run(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drift, "CORRUPTIONS", ())
    results = []
    for place in (run, run / "bundle"):
        assert main(["eval", str(place), "--drift", "--budgets", "0.5", "--json"]) == 0
        results.append(json.loads(capsys.readouterr().out)["drift"][0]["budgets"][0])
    assert results[0]["tracked_spent"]["mean"] == pytest.approx(results[1]["tracked_spent"]["mean"], rel=0.02)
    assert main(["eval", str(run / "path-2.onnx"), "--drift"]) == 2
    assert "holds a single path, so its budgets cannot drift" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "model.onnx", "bundle"])
def test_every_runner_can_be_tracked(name: str, trained: Path) -> None:
    """On noisy images the average comes back to the budget, and an image costs what the runner says."""
    runner = dsnet.open_runner(trained / name)
    _, data = RunFolder.of(trained).opened()
    images = corrupted(data, "test", NOISE).test.load(data.test.ids).images.numpy()
    tracker = dsnet.BudgetTracker(runner, budget=0.3, span=32)
    untracked = as_array(runner(images, budget=0.3).madds).mean()
    spent = np.concatenate([tracker(part).madds for part in np.array_split(images, 24)])
    assert abs(spent.mean() / tracker.asked - 1) < max(0.05, abs(untracked / tracker.asked - 1) / 2)
    assert tracker.spent == pytest.approx(spent.mean())
    if hasattr(runner, "_computes"):
        assert runner._computes(tracker.policy())  # the file itself looks the budget up


def test_predict_tracks_ranks_and_writes_csv(
    trained: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["predict", str(trained / "model.onnx"), str(photos), "--budget", "0.3", "--top", "3", "--batch_size", "4"]
    assert main([*words, "--budget_tracking", "--csv"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head[-4:] == ["label_2", "confidence_2", "label_3", "confidence_3"]
    assert [Path(row[0]).name for row in rows] == [f"{number:02d}, noisy.png" for number in range(24)]
    assert main([*words, "--budget_tracking", "--csv", str(tmp_path / "a.csv"), "--json"]) == 0
    out, error = capsys.readouterr()
    assert list(csv.reader(io.StringIO((tmp_path / "a.csv").read_text()))) == [head, *rows]
    assert "answers for 24 images in" in error
    answers = json.loads(out)
    assert [answer["name"] for answer in answers] == [row[1] for row in rows]
    assert all(len(answer["top"]) == 3 for answer in answers)
    assert main(words) == 0
    assert "(asked: " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--csv", "--json"], "would both be printed"),
        (["--csv", "photo.jpg"], "--csv is 'photo.jpg'; it must be a file that ends in .csv"),
        (["--csv", "nowhere/answers.csv"], "--csv nowhere/answers.csv cannot be written: its folder must exist"),
        (["--top", "0"], "--top is 0; it must lie in 1 to 10, the number of classes"),
        (["--top", "11"], "--top is 11; it must lie in 1 to 10, the number of classes"),
        (["--budget_tracking", "--path", "2"], "--path pins the widths"),
    ],
)
def test_predict_refuses_what_it_cannot_write(
    more: list[str], message: str, trained: Path, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(trained / "model.onnx"), str(photos), *more]) == 2
    assert message in capsys.readouterr().err


def test_a_detector_writes_a_row_for_each_object(detector: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = str(next((detector / "voc" / "JPEGImages").iterdir()))
    words = ["predict", str(detector / "run" / "model.onnx"), image, "--confidence", "0.05"]
    assert main([*words, "--csv"]) == 0
    head, *rows = csv.reader(io.StringIO(capsys.readouterr().out))
    assert head[-4:] == ["left", "top", "right", "bottom"]
    assert rows
    assert {row[0] for row in rows} == {image}
    assert main([*words, "--top", "3"]) == 2
    assert "--top is for classifiers" in capsys.readouterr().err


def test_a_detector_drifts(
    detector: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(drift, "CORRUPTIONS", (NOISE,))
    run = shutil.copytree(detector / "run", tmp_path / "run")
    assert main(["eval", str(run), "--drift"]) == 0
    out, error = capsys.readouterr()
    assert "mAP on other images" in out
    assert error.splitlines()[-1] == "budgets on other images, 2 of 2: noise 15%"
    clean, _ = read(run / "results" / "test.json", Evaluation).drift
    assert [row.name for row in clean.budgets] == ["S", "M", "L"]
