"""dsnet train, eval and recalibrate as a user calls them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import dsnet
from dsnet.cli import main
from dsnet.config import config_file, packaged
from dsnet.results import Evaluation, read
from dsnet.runs import train
from dsnet.tasks import read_config
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.training import Loop
from support.folders import make_folder
from support.runs import SHORT, drawing

CONFIGS = Path(dsnet.__file__).parent / "configs"


def test_a_run_folder_tells_everything(run: Path) -> None:
    names = {file.relative_to(run).as_posix() for file in run.rglob("*") if file.is_file()}
    assert names >= {
        "config.yaml",
        "versions.json",
        "splits.json",
        "metrics.jsonl",
        "model.json",
        "model.safetensors",
        "results/test.json",
        "results/test.png",
        "state/last.pt",
        "state/best.pt",
        "gate/state/last.pt",
        "gate/metrics.jsonl",
        "results/test-gates.png",
        "results/test-examples.png",
    }
    assert any(name.startswith("tensorboard/") for name in names)
    config = read_config(run / "config.yaml")
    assert (config.seed, config.optim.batch_size) == (3, 128)
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[0])
    assert {"loss/widest", "loss/slimmest", "calibration/widest", "images_per_second", "lr"} <= set(line)
    splits = json.loads((run / "splits.json").read_text())
    assert not set(splits["calibration"]) & set(splits["test"])
    net = dsnet.load(run)
    assert net.card.preprocessing.mean == (0.305751,)
    assert net.spec.image_size == 16


def test_eval_shows_and_writes_every_width(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with drawing():
        assert main(["eval", str(run), "--split", "calibration"]) == 0
    shown = capsys.readouterr().out
    assert "top-1" in shown
    assert (run / "results" / "calibration.png").stat().st_size > 5000
    assert main(["eval", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    found = read(run / "results" / "test.json", Evaluation)
    assert result == json.loads((run / "results" / "test.json").read_text())
    assert [row.path for row in found.rows] == [(k,) for k in range(6)]
    assert found.images == 359
    table = dsnet.count(dsnet.load(run))
    for row in found.rows:
        assert row.madds == table.madds(row.path)
        assert 0 <= row.score.mean <= row.more["top-5"].mean <= 1


def test_several_seeds_are_combined_and_exported(run: Path, static_run: Path, tmp_path: Path, capsys) -> None:
    other = Path(shutil.copytree(run, tmp_path / "other"))
    config = (other / "config.yaml").read_text()
    (other / "config.yaml").write_text(config.replace("seed: 3\n", "seed: 4\n"))
    assert main(["recalibrate", str(other), "--images", "100", "--seed", "1"]) == 0  # other statistics: other answers
    assert main(["eval", str(run), str(other), "--export", str(tmp_path / "docs" / "digits")]) == 0
    assert "2 seeds, mean and standard deviation" in capsys.readouterr().out
    result = read(tmp_path / "docs" / "digits.json", Evaluation)
    single = [read(folder / "results" / "test.json", Evaluation).rows[5].score.mean for folder in (run, other)]
    assert result.seeds == (3, 4)
    assert single[0] != single[1]
    assert result.rows[5].score.mean == pytest.approx(sum(single) / 2)
    assert result.rows[5].score.std == pytest.approx(abs(single[0] - single[1]) / 2**0.5)
    page = (tmp_path / "docs" / "digits.md").read_text()
    assert page.count("\n| ") == 8 + 7
    assert "](digits.png)" in page
    assert "](digits-gates.png)" in page
    assert result.dynamic is not None
    assert result.dynamic.rows[2].gain.std is not None
    static = shutil.copytree(static_run, tmp_path / "static")
    assert main(["eval", str(run), str(static)]) == 2
    assert "runs of different kinds cannot be shown as one" in capsys.readouterr().err


def test_evaluating_twice_is_equal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = []
    for _ in range(2):
        assert main(["eval", str(run), "--json"]) == 0
        rows.append(json.loads(capsys.readouterr().out)["rows"])
    assert rows[0] == rows[1]


def test_recalibrating_again_changes_nothing(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = dsnet.load(run).state_dict()
    assert main(["recalibrate", str(run)]) == 0
    assert "statistics of 6 widths" in capsys.readouterr().out
    after = dsnet.load(run).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert main(["recalibrate", str(run), "--images", "300", "--seed", "1"]) == 0
    other = dsnet.load(run).state_dict()
    assert any(not torch.equal(before[name], other[name]) for name in before if "running" in name)
    assert all(torch.equal(before[name], other[name]) for name in before if name.endswith(("weight", "bias")))
    assert main(["recalibrate", str(run)]) == 0


def test_a_folder_of_images_and_a_model_with_several_gates(tmp_path: Path, capsys) -> None:
    root = make_folder(tmp_path / "pets")
    folder = tmp_path / "run"
    words = ["--data.dataset", "folder", "--data.root", str(root), "--model.name", "ds_resnet_tiny"]
    size = [
        "--data.image-size",
        "32",
        "--optim.batch_size",
        "16",
        "--sgs_optim.batch_size",
        "16",
        "--data.workers",
        "2",
    ]
    assert main(["train", "--out", str(folder), *SHORT, *words, *size]) == 0
    shown = capsys.readouterr().out
    assert "3,3,3,3" in shown
    assert dsnet.load(folder).card.classes == ("cat", "dog", "emu")
    moved = root.rename(tmp_path / "moved")
    assert main(["eval", str(folder), "--root", str(moved), "--sample", "3"]) == 0
    assert main(["recalibrate", str(folder), "--root", str(moved)]) == 0
    assert "budgets of the router recalibrated" in capsys.readouterr().out


def test_damaged_images_are_skipped_listed_and_counted(tmp_path: Path, capsys) -> None:
    root = make_folder(tmp_path / "pets")
    bad = root / "train" / "cat" / "05.jpg"
    bad.write_bytes(b"broken")
    words = [
        "--data.dataset",
        "folder",
        "--data.root",
        str(root),
        "--data.image_size",
        "32",
        "--optim.batch_size",
        "11",
        "--stage",
        "supernet",
    ]
    assert main(["train", "--out", str(tmp_path / "a"), *SHORT, *words]) == 2
    error = capsys.readouterr().err
    assert "1 of 72 images cannot be read; replace or remove them; --data.on_corrupt skip passes over" in error
    assert f"\n  {bad} (its format is unknown or its header damaged)" in error
    assert not (tmp_path / "a").exists()
    skip = ["--data.on_corrupt", "skip"]
    assert main(["train", "--out", str(tmp_path / "b"), *SHORT, *words, *skip]) == 2
    assert "1 of 33 train images are damaged, more than data.max_skipped allows (1.00%)" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()
    assert main(["train", "--out", str(tmp_path / "c"), *SHORT, *words, *skip, "--data.max_skipped", "0.1"]) == 0
    assert f"damaged files that are skipped: 1\n  {bad}\n" in capsys.readouterr().out
    assert (tmp_path / "c" / "skipped.txt").read_text() == f"{bad}\n"


@pytest.mark.parametrize("split", ["train", "val"])
def test_too_many_damaged_files_of_any_split_are_refused_before_training(
    split: str, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both stages were trained before the test split was looked at."""

    def step(*_: object) -> None:
        raise AssertionError("training has begun")

    monkeypatch.setattr(Loop, "step", step)
    root = make_folder(tmp_path / "pets")
    for number in range(3):
        (root / split / "dog" / f"{number:02d}.jpg").write_bytes(b"broken")
    words = ["--data.root", str(root), "--data.image_size", "32", "--data.on_corrupt", "skip"]
    words += ["--optim.batch_size", "11", "--sgs_optim.batch_size", "11"]
    assert main(["train", "--out", str(tmp_path / "run"), *SHORT, *words]) == 2
    name, images = ("train", 33) if split == "train" else ("test", 36)
    assert f"of {images} {name} images are damaged, more than data.max_skipped allows" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_static_networks_train_by_the_same_command(static_run: Path, tmp_path: Path, capsys) -> None:
    assert main(["eval", str(shutil.copytree(static_run, tmp_path / "run"))]) == 0
    assert "100.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optim.lrr", "3"], "'--optim.lrr' is unknown; did you mean --optim.lr"),
        (["--optim.lr", "fast"], "optim.lr is 'fast'; it must be a number"),
        (["--data.dataset", "cifar"], "data.dataset is 'cifar'; it must be one of digits, cluttered_digits, cifar10"),
        (["--config", "CONFIG"], "'optim.learning_rate' is unknown"),
    ],
)
def test_wrong_keys_are_refused_in_one_line(words: list[str], message: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "config.yaml").write_text("optim:\n  learning_rate: 3\n")
    with pytest.raises(SystemExit) as stop:
        raise SystemExit(main(["train", *(word.replace("CONFIG", str(tmp_path / "config.yaml")) for word in words)]))
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.dataset", "cifar10"], "data.root is missing"),
        (["--data.dataset", "cifar10", "--data.root", "nowhere"], "nowhere/data_batch_1.bin does not exist"),
        (["--optim.lr", "-1"], "optim.lr is -1.0; it must be positive"),
        (["--optim.compile", "bogus"], "optim.compile 'bogus' is unknown; choose from"),
        (["--data.image_size", "0"], "data.image_size is 0"),
        (["--model.name", "ds_resnet51"], "model 'ds_resnet51' is unknown; did you mean ds_resnet50"),
        (["--optim.name", "adamw", "--optim.lr", "0"], "optim.lr is 0.0; it must be positive"),
        (["--optim.steps", "9", "--optim.epochs", "2"], "optim.epochs is 2 and optim.steps is 9; give one of them"),
        (["--optim.batch_size", "Auto"], "optim.batch_size is 'Auto'; it must be a whole number or one of auto"),
        (["--optim.patience", "0"], "optim.patience is 0; it must be at least 1"),
        (["--ieb.mixup", "-0.2"], "ieb.mixup is -0.2; it must lie in [0, 10]"),
        (["--optim.batch_size", "9999"], "optim.batch_size: batch size 9999 is larger than the 1295 training images"),
        (["--sgs_optim.batch_size", "9999"], "sgs_optim.batch_size: batch size 9999 is larger than the 1295 training"),
        (["--stage", "gate"], "--stage gate needs --from RUN: a router needs a trained network"),
        (["--from", "nowhere"], "nowhere is not a model folder"),
        (["--stage", "gate", "--from", "nowhere"], "nowhere is not a model folder"),
        (["--sgs.router", "cheap_first", "--sgs.complexity", "1"], "are for router gate"),
        (["--model.name", "us_mobilenet_v1", "--sgs.router", "gate"], "has no slimming heads"),
        (["--model.routing", "[0, 9]"], "routing [0, 9] at choice point 0 goes beyond its widths"),
        (["--model.name", "ds_mobilenet_v1"], "image size 16 is too small"),
    ],
)
def test_wrong_values_are_refused_and_leave_no_run(words: list[str], message: str, tmp_path: Path, capsys) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_in_the_repository_is_valid(file: Path) -> None:
    config = read_config(file)
    content = yaml.safe_load(file.read_text())
    if file.stem in ("transfer_small", "pretrained", "distil"):  # the model is that of the source
        assert "model" not in content
        return
    assert file.stem.endswith(config.model.name) or file.stem in ("digits", "demo", "folder")
    assert content["model"]["name"] == config.model.name


def test_a_config_is_named_or_given_as_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert config_file("digits") == CONFIGS / "digits.yaml"
    Path("digits").mkdir()  # a folder of data, say
    assert config_file("digits") == CONFIGS / "digits.yaml"
    Path("mine.yaml").write_text("seed: -1\n")
    assert main(["train", "--config", "mine.yaml"]) == 2
    assert "seed is -1" in capsys.readouterr().err
    assert main(["train", "--config=smoke/digits", "--seed", "-2"]) == 2
    assert "seed is -2" in capsys.readouterr().err
    assert main(["train", "--config", "digit"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dsnet train: error: config 'digit' does not exist; did you mean digits?")
    assert "the path of a YAML file" in error
    assert all(name in error for name in packaged())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_command_learns_the_digits(seed: int, tmp_path: Path, capsys) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--seed", str(seed)]) == 0
    rows = read(tmp_path / "run" / "results" / "test.json", Evaluation).rows
    assert rows[-1].score.mean >= 0.97
    assert rows[0].score.mean >= 0.90


def test_the_dynamic_network_is_evaluated(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--json"]) == 0
    capsys.readouterr()
    result = read(run / "results" / "test.json", Evaluation)
    dynamic = result.dynamic
    assert dynamic is not None
    assert (dynamic.router, dynamic.targets) == ("cheap_first", "correctness")
    assert len(dynamic.rows) == 5
    assert sum(dynamic.difficulty.values()) == pytest.approx(1)
    assert dynamic.difficulty["easy"] == pytest.approx(result.rows[0].score.mean)
    for row in dynamic.rows:
        assert sum(row.gates[0].shares) == pytest.approx(1)
        assert row.gain.mean == pytest.approx(100 * (row.score.mean - row.hull.mean))
        assert row.p50.mean <= row.p95.mean
    assert main(["eval", str(run), "--budgets", "0.5", "400k", "9G", "--max_width", "3"]) == 0
    shown = capsys.readouterr().out
    assert "400.0k" in shown
    assert "warning: budget 9000M is out of reach" in shown
    assert main(["eval", str(run), "--budgets", "quick"]) == 2
    assert "budget 'quick' is not understood" in capsys.readouterr().err


def test_a_router_is_trained_for_a_supernet_and_by_the_papers_gate(
    trained: Path, trained_gate: Path, run: Path, tmp_path: Path, capsys
) -> None:
    gate = Path(shutil.copytree(trained_gate, tmp_path / "gate"))
    net, source = dsnet.load(gate), dsnet.load(run)
    assert net.spec.router.kind == "gate"
    assert net.spec.routing == ((0, 2, 3),)
    assert net.card.budgets
    kept = source.state_dict()
    for name, tensor in net.state_dict().items():
        assert ".slimming." in name or torch.equal(tensor, kept[name])
    config = read_config(gate / "config.yaml")
    assert (config.stage, config.source, config.seed, config.optim.batch_size) == ("gate", str(trained), 3, 128)
    assert main(["eval", str(gate)]) == 0
    assert "router gate, targets try_best" in capsys.readouterr().out
    threshold = tmp_path / "threshold"
    assert main(["train", "--out", str(threshold), "--stage=gate", f"--from={run}", "--sgs.router=threshold"]) == 0
    assert "router threshold" in capsys.readouterr().out
    assert main(["eval", str(run), str(gate)]) == 2
    assert main(["train", "--stage", "gate", "--from", str(run), "--model.name", "ds_resnet_tiny"]) == 2
    assert (
        "holds a ds_mobilenet_v1_tiny (widths [6]), not a ds_resnet_tiny; leave --model.name out"
        in capsys.readouterr().err
    )
    assert main(["train", "--stage", "gate", "--from", str(run), "--data.split_seed", "5"]) == 2
    assert "the data is not the one that the run" in capsys.readouterr().err


def test_static_networks_are_drawn_beside(run: Path, static_run: Path, tmp_path: Path, capsys) -> None:
    with drawing():
        assert main(["eval", str(run), "--static", str(static_run)]) == 0
    assert "1-seeds.png" in capsys.readouterr().out
    assert main(["eval", str(run), "--static", str(tmp_path)]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_predict_tells_class_path_and_cost(run: Path, tmp_path: Path, capsys) -> None:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number in range(4):
        Image.fromarray((digits.images[number] * 255 / 16).astype("uint8")).save(tmp_path / f"{number}.png")
    names = [str(tmp_path / f"{number}.png") for number in range(4)]
    assert main(["predict", str(run), *names, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["file"] for row in rows] == names
    net = dsnet.load(run)
    table = dsnet.count(net)
    for row in rows:
        assert row["madds"] == table.madds(row["path"], dynamic=True)
        assert 0 < row["confidence"] <= 1
        assert row["name"] == str(row["label"])
    assert main(["predict", str(run), str(tmp_path), "--json", "--batch_size", "1"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert [row["path"] for row in again] == [row["path"] for row in rows]
    for budget, wanted in (("1k", 0), ("9M", 5)):
        assert main(["predict", str(run), *names, "--json", "--budget", budget]) == 0
        found = capsys.readouterr()
        assert "is out of reach" in found.err
        assert max(row["path"][0] for row in json.loads(found.out)) <= 5 * (wanted > 0)
    assert main(["predict", str(run), *names, "--path", "2"]) == 0
    assert "MAdds per image on average" in capsys.readouterr().out
    assert main(["predict", str(run), *names, "--json", "--budget", "9M", "--max-width", "1"]) == 0
    assert max(row["path"][0] for row in json.loads(capsys.readouterr().out)) <= 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere.png"], "nowhere.png does not exist; give image files"),
        (["EMPTY"], "holds no images"),
        (["BAD"], "cannot be read as an image"),
        (["GOOD", "--budget", "lots"], "budget 'lots' is not understood"),
        (["GOOD", "--path", "7"], "path (7,) asks for width 7 at choice point 0"),
        (["GOOD", "--path", "1", "--budget", "1M"], "--path pins the widths"),
        (["GOOD", "--max_width", "-1"], "max_width is -1"),
        (["GOOD", "--batch_size", "0"], "--batch_size is 0"),
        (["GOOD", "--draw", "out"], "--draw is for detectors"),
    ],
)
def test_predict_refuses_what_it_cannot_do(words: list[str], message: str, run: Path, tmp_path: Path, capsys) -> None:
    from PIL import Image

    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.png").write_bytes(b"no image")
    Image.new("L", (20, 30)).save(tmp_path / "good.png")
    places = {"EMPTY": "empty", "BAD": "bad.png", "GOOD": "good.png"}
    filled = [str(tmp_path / places[word]) if word in places else word for word in words]
    assert main(["predict", str(run), *filled]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_predict_answers_for_the_files_that_can_be_read(run: Path, tmp_path: Path, capsys) -> None:
    from PIL import Image

    for number in range(3):
        Image.new("L", (20, 30), 80 * number).save(tmp_path / f"{number}.png")
    assert main(["predict", str(run), str(tmp_path), "--json", "--batch_size", "2"]) == 0
    whole = {Path(row["file"]).name: row for row in json.loads(capsys.readouterr().out)}
    (tmp_path / "1.png").write_bytes(b"no image")
    (tmp_path / "bad.png").write_bytes(b"")
    assert main(["predict", str(run), str(tmp_path), "--json", "--batch_size", "2"]) == 2
    printed = capsys.readouterr()
    left = {Path(row["file"]).name: row for row in json.loads(printed.out)}
    assert set(left) == {"0.png", "2.png"}
    assert all(left[name]["label"] == whole[name]["label"] for name in left)
    assert printed.err.count("cannot be read as an image") == 2


def test_a_stage_that_only_the_config_file_names_is_seen(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The router of a digits run is trained on digits, whichever way the stage is said."""
    file = tmp_path / "gate.yaml"
    file.write_text("stage: gate\nsgs: {router: gate}\n")
    found: list[ClassificationConfig] = []
    monkeypatch.setattr(train, "train", lambda config, folder, **_: found.append(config))
    assert main(["train", "--from", str(run), "--config", str(file), *SHORT, "--out", str(tmp_path / "gated")]) == 0
    (config,) = found
    assert (config.stage, config.sgs.router, config.seed) == ("gate", "gate", 3)  # the seed is the source's


@pytest.mark.parametrize("word", ["--out", "--from"])
def test_resume_takes_no_other_folder(word: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--resume", str(run), word, str(run)]) == 2
    assert "leave --out and --from out" in capsys.readouterr().err


def test_a_printed_config_is_the_config_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--model.name", "ds_resnet_tiny", "--optim.lr", "0.02", "--data.augment.flip", "true"]
    assert main([*words, "--print_config"]) == 0
    printed = capsys.readouterr().out
    (tmp_path / "all.yaml").write_text(printed)
    assert main(["train", "--config", str(tmp_path / "all.yaml"), "--print_config"]) == 0
    assert capsys.readouterr().out == printed
    assert "name: ds_resnet_tiny" in printed
    assert not Path("runs/ds_resnet_tiny-digits-seed0").exists()


def test_a_run_begins_with_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    root = make_folder(tmp_path / "pets")
    monkeypatch.setattr(train, "train_stage", lambda *args, **options: None)
    monkeypatch.setattr(train, "evaluate", lambda *args: None)
    monkeypatch.setattr(train.RunFolder, "load", lambda self: torch.nn.Identity())
    monkeypatch.setattr(train, "eager", lambda net: net)
    monkeypatch.setattr(train.RunFolder, "record", lambda *args, **options: None)
    words = ["train", "--data.root", str(root), "--data.image_size", "32"]
    words += ["--optim.batch_size", "16", "--sgs_optim.batch_size", "16"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    first, second = lines[1:3] if lines[0].startswith("recipe: ") else lines[:2]
    data = "pets: 3 classes, 33 training, 3 calibration, 36 test images, 32 px"
    assert first == f"ds_mobilenet_v1_tiny on {data}, cpu, writes to {tmp_path / 'run'}"
    assert second.startswith("warning: only 3 images calibrate")


def test_an_old_run_is_deleted_only_on_request_and_after_all_checks(run: Path, tmp_path: Path, capsys) -> None:
    (run / "old.txt").write_text("left by the old run")
    words = ["train", "--out", str(run), *SHORT, "--stage", "supernet"]
    assert main(words) == 2
    assert "already holds a run; continue it with --resume" in capsys.readouterr().err
    pets = make_folder(tmp_path / "pets")
    (pets / "val" / "cat" / "00.jpg").write_bytes(b"no image")
    for more in (["--optim.batch_size", "9999"], ["--from", str(run)], ["--data.root", str(pets)]):
        assert main([*words, "--overwrite", *more]) == 2
        assert (run / "old.txt").exists(), more
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "config.yaml").write_text("mine")
    assert main([*words[:2], str(tmp_path / "letters"), *words[3:], "--overwrite"]) == 2
    assert "holds other files than those of a run" in capsys.readouterr().err
    assert main(["train", "--overwrite"]) == 2
    assert main([*words, "--overwrite"]) == 0
    assert not (run / "old.txt").exists()
    assert not (run / "gate").exists()
    assert (run / "model.safetensors").exists()


def printed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """The config that a command would train with."""
    assert main(["train", *words, "--print_config"]) == 0
    return yaml.safe_load(capsys.readouterr().out)


def test_a_folder_has_a_recipe_that_options_override(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = yaml.safe_load((CONFIGS / "folder.yaml").read_text())
    found = printed(capsys, "--data.root", str(tmp_path))
    assert found["data"]["root"] == str(tmp_path)
    for group in ("ieb", "optim", "sgs_optim"):
        assert found[group] == {**found[group], **recipe[group]}
    assert found["data"]["augment"] == {**found["data"]["augment"], **recipe["data"]["augment"]}
    given = [
        "--optim.epochs",
        "3",
        "--data.augment.crop",
        "none",
        "--data.image_size",
        "32",
        "--ieb.class_weights",
        "none",
    ]
    found = printed(capsys, "--data.root", str(tmp_path), *given)
    assert (found["optim"]["epochs"], found["optim"]["steps"]) == (3, None)
    assert (found["data"]["augment"]["crop"], found["data"]["image_size"]) == ("none", 32)
    assert found["ieb"]["class_weights"] == "none"


def test_other_data_another_config_and_another_run_have_no_recipe(trained: Path, tmp_path: Path, capsys) -> None:
    plain = printed(capsys)
    assert plain["optim"]["epochs"] == 25
    named = printed(capsys, "--config", "smoke/digits", "--data.dataset", "folder", "--data.root", str(tmp_path))
    tuned = printed(capsys, "--from", str(trained), "--data.root", str(tmp_path))
    for other in (named, tuned):
        assert (other["optim"]["steps"], other["data"]["augment"]) == (None, plain["data"]["augment"])
