"""dsnet in three lines of Python: predict, evaluate and train give what the commands give."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import dsnet
from dsnet.cli import main
from dsnet.errors import DataError
from dsnet.results import Evaluation, read
from dsnet.runs import train as training
from support.runs import SHORT

ROOT = Path(__file__).parents[2]
PHOTO = object()  # stands for a picture


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pictures of several kinds, in a folder with a folder inside."""
    folder, rng = tmp_path_factory.mktemp("photos"), np.random.default_rng(0)
    (folder / "more").mkdir()
    for name, shape in (("a.png", (40, 50, 3)), ("b.png", (31, 20)), ("more/c.png", (24, 24, 4))):
        Image.fromarray(rng.integers(0, 255, shape, np.uint8)).save(folder / name)
    exif = Image.Exif()
    exif[274] = 6  # turned by 90 degrees
    Image.fromarray(rng.integers(0, 255, (30, 60, 3), np.uint8)).save(folder / "d.jpg", exif=exif)
    return folder


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    assert main([*map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def told(answers: list[Any]) -> list[Any]:
    return [(one.label, one.name, list(one.path), one.madds) for one in answers]


@pytest.mark.parametrize("name", ["", "model.onnx", "bundle"])
def test_predict_gives_what_the_command_prints(
    trained: Path, photos: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = printed(capsys, "predict", trained / name, photos, "--budget", "0.4")
    expected = [(row["label"], row["name"], row["path"], row["madds"]) for row in rows]
    files = [Path(row["file"]) for row in rows]
    runner = dsnet.open_runner(trained / name)
    assert told(dsnet.predict(photos, str(trained / name), budget=0.4)) == expected
    assert told(dsnet.predict(files, runner, budget="40%")) == expected
    assert told([dsnet.predict(file, runner, budget=0.4) for file in files]) == expected
    opened = [Image.open(file) for file in files]
    assert told(dsnet.predict(opened, runner, budget=0.4, batch_size=2)) == expected
    pixels = [np.asarray(image) for image in opened if image.format == "PNG"]  # arrays have no orientation
    assert told(dsnet.predict(pixels, runner, budget=0.4)) == [
        row for row, file in zip(expected, files, strict=True) if file.suffix == ".png"
    ]


@pytest.mark.parametrize("name", ["", "model.onnx", "bundle"])
def test_runners_take_image_files(trained: Path, photos: Path, name: str) -> None:
    runner = dsnet.open_runner(trained / name)
    answers = dsnet.predict(photos, runner, budget=0.4)
    routed = runner(photos, budget=0.4)
    assert routed.logits.argmax(1).tolist() == [answer.label for answer in answers]
    assert routed.madds.tolist() == [answer.madds for answer in answers]
    (path,) = runner(str(photos / "a.png"), path=(1,)).paths.tolist()
    assert path == [1]
    assert len(runner([], path=(1,)).logits) == 0
    with pytest.raises(ValueError, match=r"input is uint8 .* or give files or PIL images"):
        runner(np.zeros((1, 1, 16, 16), np.uint8))


def test_one_image_has_one_answer_and_many_have_a_list(trained: Path, photos: Path) -> None:
    runner, pixels = dsnet.open_runner(trained / "model.onnx"), np.zeros((20, 30, 3), np.uint8)
    one = dsnet.predict(photos / "a.png", runner)
    assert one.name in runner.manifest.classes
    assert one.file == str(photos / "a.png")
    assert dsnet.predict(pixels, runner).file == "image 0"
    assert dsnet.predict(np.stack([pixels] * 3), runner)[2].file == "image 2"
    assert len(dsnet.predict([photos, photos / "a.png", pixels], runner)) == 6
    assert dsnet.predict([], runner) == []
    assert dsnet.predict(pixels, runner, path=(1,)).path == (1,)
    assert dsnet.predict(pixels, trained / "path-2.onnx").path == (2,)


@pytest.mark.parametrize(
    ("images", "options", "words"),
    [
        (np.zeros((3, 20, 20), np.uint8), {}, r"uint8 \[3, 20, 20\] is not an image; give uint8 pixels \[H, W, 3\]"),
        (np.zeros((20, 20, 3), np.float32), {}, "float32 .* is not an image"),
        (3, {}, "images is 3; give files, folders, PIL images"),
        ("missing.png", {}, "missing.png does not exist"),
        (PHOTO, {"path": (1,), "budget": 0.5}, "a path pins the widths; leave budget out"),
        (PHOTO, {"budget": "half"}, "budget 'half' is not understood"),
        (PHOTO, {"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        (PHOTO, {"max_width": 99}, "max_width is 99; .*from 0 .* to 5"),
    ],
)
def test_what_cannot_be_predicted_is_refused(
    trained: Path, photos: Path, images: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        dsnet.predict(photos / "a.png" if images is PHOTO else images, trained / "model.onnx", **options)


def test_a_file_with_one_path_has_no_budget(trained: Path, photos: Path) -> None:
    with pytest.raises(ValueError, match="so it has no budget"):
        dsnet.predict(photos / "a.png", trained / "path-2.onnx", budget=0.5)
    with pytest.raises(DataError, match="holds no images"):
        dsnet.predict(ROOT / "benchmarks", trained / "model.onnx")


def test_evaluate_gives_what_the_command_writes(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = printed(capsys, "eval", run, "--budgets", "0.4", "--split", "calibration")
    result = dsnet.evaluate(run, budgets=[0.4], split="calibration")
    assert [row.score.mean for row in result.rows] == [row["score"]["mean"] for row in rows["rows"]]
    assert result.dynamic is not None
    assert [row.madds.mean for row in result.dynamic.rows] == [row["madds"]["mean"] for row in rows["dynamic"]["rows"]]


def test_train_reads_its_arguments_like_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(training, "train", lambda config, folder, **how: asked.append((config, folder, how)))
    monkeypatch.chdir(tmp_path)
    words = ["--data.dataset", "digits", "--model.name", "ds_resnet_tiny", "--seed", "4", "--optim.epochs", "3"]
    assert main(["train", "--config", "digits", *words, "--optim.lr", "0.3", "--print_config"]) == 0
    expected = yaml.safe_load(capsys.readouterr().out)
    groups = {"optim": {"epochs": 3}, "optim.lr": 0.3}
    run = dsnet.train("digits", "ds_resnet_tiny", config="digits", seed=4, **groups)
    (config, folder, how), *_ = asked
    assert json.loads(json.dumps(config.to_dict())) == expected
    assert (run.folder, run.evaluation, how) == (folder, None, {"resume": False, "overwrite": False, "device": "auto"})
    assert folder == Path("runs/ds_resnet_tiny-digits-seed4")
    with pytest.raises(ValueError, match="data/pets is not a folder; give a folder of images"):
        dsnet.train("data/pets")
    with pytest.raises(ValueError, match=r"'learning_rate' is unknown; did you mean optim\.lr"):
        dsnet.train("digits", learning_rate=0.1)


@pytest.mark.slow
def test_three_lines(tmp_path: Path, photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run trained in Python can be given wherever a folder can, and resumed."""
    monkeypatch.chdir(tmp_path)
    keys = {word.removeprefix("--"): int(value) for word, value in zip(SHORT[::2], SHORT[1::2], strict=True)}
    run = dsnet.train("digits", out="runs/mine", **keys)
    assert run.evaluation is not None
    assert run.evaluation.rows == dsnet.evaluate(run).rows
    assert dsnet.predict(photos / "a.png", run, budget=0.5).name in dsnet.load(run).card.classes
    assert dsnet.train(resume=run).folder == Path(run)
    tuned = dsnet.train("digits", source=run, **keys)
    assert tuned.folder.name == "ds_mobilenet_v1_tiny-digits-seed0-from-mine"


def test_the_page_about_python_runs(
    trained: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training is not done again: the shared run is put where it would be."""

    real = training.train

    def copied(config: Any, folder: Path, **how: Any) -> Evaluation | None:
        if config.data.kind == "python":
            return real(config, folder, **how)
        assert (config.data.root, config.optim.epochs) == ("pets", 30)
        return read(shutil.copytree(trained, folder) / "results" / "test.json", Evaluation)

    monkeypatch.setattr(training, "train", copied)
    monkeypatch.chdir(tmp_path)
    Path("pets").mkdir()
    shutil.copytree(photos, "photos")
    shutil.copy(photos / "d.jpg", "photo.jpg")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), flags=re.DOTALL)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert len(names["result"].dynamic.rows) == 2
    assert names["run"].evaluation.images == names["result"].images
    assert names["evaluation"].rows[-1].score == names["striped"].evaluation.rows[-1].score
    lines = capsys.readouterr().out.splitlines()
    lines = [line for line in lines if not line.startswith("ds_mobilenet")]
    assert len(lines) >= 1 + 4
    assert lines[0].startswith(f"{names['dsnet'].predict('photo.jpg', names['run'], budget=0.5).name} ")


def test_dir_lists_the_public_names() -> None:
    assert dir(dsnet) == sorted(dsnet.__all__)
    assert {"predict", "train", "evaluate", "open_runner", "Run"} <= set(dir(dsnet))
    listed = re.findall(r'^    "(\w+)": "dsnet', (ROOT / "src/dsnet/__init__.py").read_text(), flags=re.MULTILINE)
    assert {*listed, "__version__"} == set(dsnet.__all__)
