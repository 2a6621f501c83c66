"""dsnet train, eval and recalibrate as a user calls them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from unit.test_data import make_folder

import dsnet
from dsnet.cli import main
from dsnet.config import read_config

ROOT = Path(__file__).parents[2]
SHORT = ["--threads", "1", "--optim.epochs", "1", "--optim.batch_size", "256"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["train", "--out", str(folder), *SHORT, "--seed", "3"]) == 0
    return folder


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
    }
    assert any(name.startswith("tensorboard/") for name in names)
    config = read_config(run / "config.yaml")
    assert (config.seed, config.optim.batch_size) == (3, 256)
    line = json.loads((run / "metrics.jsonl").read_text())
    assert {"loss/widest", "loss/slimmest", "calibration/widest", "images_per_second", "lr"} <= set(line)
    splits = json.loads((run / "splits.json").read_text())
    assert not set(splits["calibration"]) & set(splits["test"])
    net = dsnet.load(run)
    assert net.card.preprocessing.mean == (0.305751,)
    assert net.spec.image_size == 16


def test_eval_shows_and_writes_every_width(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(run), "--split", "calibration"]) == 0
    shown = capsys.readouterr().out
    assert "top-1" in shown
    assert (run / "results" / "calibration.png").stat().st_size > 5000
    assert main(["eval", str(run), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads((run / "results" / "test.json").read_text())
    assert result["schema"] == 1
    assert [row["path"] for row in result["rows"]] == [[k] for k in range(6)]
    table = dsnet.CostTable(dsnet.load(run))
    for row in result["rows"]:
        assert row["madds"] == table.madds(row["path"])
        assert row["images"] == 359
        assert 0 <= row["top1"] <= row["top5"] <= 1


def test_several_seeds_are_combined_and_exported(run: Path, tmp_path: Path, capsys) -> None:
    other = tmp_path / "other"
    assert main(["train", "--out", str(other), *SHORT, "--seed", "4"]) == 0
    assert main(["eval", str(run), str(other), "--export", str(tmp_path / "docs" / "digits")]) == 0
    assert "2 seeds, mean and standard deviation" in capsys.readouterr().out
    result = json.loads((tmp_path / "docs" / "digits.json").read_text())
    single = [json.loads((folder / "results" / "test.json").read_text())["rows"][5]["top1"] for folder in (run, other)]
    assert result["seeds"] == [3, 4]
    assert result["rows"][5]["top1"] == pytest.approx(sum(single) / 2)
    assert result["rows"][5]["top1_std"] == pytest.approx(abs(single[0] - single[1]) / 2**0.5)
    page = (tmp_path / "docs" / "digits.md").read_text()
    assert page.count("\n| ") == 8
    assert "![accuracy against MAdds](digits.png)" in page
    static = tmp_path / "static"
    assert main(["train", "--out", str(static), *SHORT, "--model.name", "ds_resnet_tiny"]) == 0
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
    size = ["--data.image-size", "32", "--optim.batch_size", "16", "--data.workers", "2"]
    assert main(["train", "--out", str(folder), *SHORT, *words, *size]) == 0
    shown = capsys.readouterr().out
    assert "3,3,3,3" in shown
    assert dsnet.load(folder).card.classes == ("cat", "dog", "emu")
    moved = root.rename(tmp_path / "moved")
    assert main(["eval", str(folder), "--root", str(moved), "--sample", "3"]) == 0
    assert main(["recalibrate", str(folder), "--root", str(moved)]) == 0
    assert "no batch norm" in capsys.readouterr().out


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
    ]
    assert main(["train", "--out", str(tmp_path / "a"), *SHORT, *words]) == 2
    assert f"{bad} cannot be read as an image" in capsys.readouterr().err
    skip = ["--data.on_corrupt", "skip"]
    assert main(["train", "--out", str(tmp_path / "b"), *SHORT, *words, *skip]) == 2
    assert "are damaged, more than data.max_skipped allows (1.00%)" in capsys.readouterr().err
    assert main(["train", "--out", str(tmp_path / "c"), *SHORT, *words, *skip, "--data.max_skipped", "0.1"]) == 0
    assert (tmp_path / "c" / "skipped.txt").read_text() == f"{bad}\n"


def test_static_networks_train_by_the_same_command(tmp_path: Path, capsys) -> None:
    words = ["--model.name", "mobilenet_v1", "--model.width", "0.25", "--data.image_size", "32"]
    assert main(["train", "--out", str(tmp_path / "run"), *SHORT, *words]) == 0
    assert "100.0%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--optim.lrr", "3"], "'optim.lrr' is unknown; did you mean optim.lr"),
        (["--optim.lr", "fast"], 'key "optim.lr"'),
        (["--data.dataset", "cifar"], 'key "data.dataset"'),
        (["--config", "CONFIG"], "'optim.learning_rate' is unknown"),
    ],
)
def test_wrong_keys_are_refused_in_one_line(words: list[str], message: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "config.yaml").write_text("optim:\n  learning_rate: 3\n")
    with pytest.raises(SystemExit) as stop:
        main(["train", *(word.replace("CONFIG", str(tmp_path / "config.yaml")) for word in words)])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.dataset", "cifar10"], "data.root is missing"),
        (["--data.dataset", "cifar10", "--data.root", "nowhere"], "nowhere/data_batch_1.bin does not exist"),
        (["--optim.lr", "-1"], "optim.lr must be positive"),
        (["--optim.compile", "bogus"], "optim.compile 'bogus' is unknown; choose from"),
        (["--data.image_size", "0"], "data.image_size is 0"),
        (["--model.name", "ds_resnet51"], "model 'ds_resnet51' is unknown; did you mean ds_resnet50"),
        (["--optim.batch_size", "9999"], "batch size 9999 is larger than the 1295 training images"),
        (["--model.name", "ds_mobilenet_v1"], "image size 16 is too small"),
    ],
)
def test_wrong_values_are_refused_and_leave_no_run(words: list[str], message: str, tmp_path: Path, capsys) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), *words]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize("file", sorted((ROOT / "configs").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_config_in_the_repository_is_valid(file: Path) -> None:
    config = read_config(file)
    assert file.stem.endswith(config.model.name) or file.stem == "digits"
    content = yaml.safe_load(file.read_text())
    assert content["model"]["name"] == config.model.name


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_default_command_learns_the_digits(seed: int, tmp_path: Path, capsys) -> None:
    assert main(["train", "--out", str(tmp_path / "run"), "--seed", str(seed)]) == 0
    rows = json.loads((tmp_path / "run" / "results" / "test.json").read_text())["rows"]
    assert rows[-1]["top1"] >= 0.97
    assert rows[0]["top1"] >= 0.90
