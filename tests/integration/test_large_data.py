"""Trainings on shards, on datasets from Python and on files that break in the middle: they resume as all others do."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.data.labelled import open_dataset
from dsnet.errors import CheckpointError
from dsnet.runs import dry
from dsnet.runs import train as runs_train
from dsnet.tasks import config_from, read_config
from dsnet.tasks.classification.task import new_network
from dsnet.training import Interrupted
from dsnet.training.display import Display
from support.folders import make_folder
from support.runs import SHORT

SMALL = [*SHORT, "--data.image_size", "32", "--optim.batch_size", "8", "--optim.warmup_epochs", "0"]
SMALL += ["--stage", "supernet", "--data.augment.flip", "true"]


class Stopping(Display):
    """Sends the process SIGTERM behind a batch of stage I."""

    def __init__(self, folder: Path, behind: int) -> None:
        self.here, self.behind = folder.name != "gate", behind

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None:
        if self.here and batch == self.behind:
            signal.raise_signal(signal.SIGTERM)


def stopped(monkeypatch: pytest.MonkeyPatch, words: list[str], behind: int = 2) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(runs_train, "make_display", lambda place, rank: Stopping(place, behind))
        assert main(words) == 143


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder") / "pets")


@pytest.fixture(scope="module")
def shards(folder: Path) -> Path:
    out = folder.parent / "shards"
    assert main(["shards", str(folder), str(out), "--images", "5"]) == 0
    return out


def test_a_run_on_shards_resumes_in_mid_epoch_bit_for_bit(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", *SMALL, "--data.dataset", "shards", "--data.root", str(shards)]
    assert main([*words, "--out", str(tmp_path / "a")]) == 0
    stopped(monkeypatch, [*words, "--data.workers", "2", "--out", str(tmp_path / "b")])
    moved = tmp_path / "moved"
    moved.symlink_to(shards)
    assert main(["train", "--resume", str(tmp_path / "b"), "--data.root", str(moved)]) == 0
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "b" / "model.safetensors").read_bytes()
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "a")]) == 0
    assert "on shards: 36 test images" in capsys.readouterr().out


def test_a_run_on_datasets_of_torch_resumes_and_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pixels = np.random.default_rng(0).integers(0, 80, (90, 32, 32), np.uint8)
    items = [(image + np.uint8(80 * (number % 3)), number % 3) for number, image in enumerate(pixels)]
    keys: dict[str, Any] = {"threads": 1, "stage": "supernet"}
    keys |= {"optim": {"epochs": 1, "batch_size": 8, "warmup_epochs": 0}}
    whole = dsnet.train(items, out=tmp_path / "a", **keys)
    with monkeypatch.context() as patch:
        patch.setattr(runs_train, "make_display", lambda place, rank: Stopping(place, 3))
        with pytest.raises(Interrupted):
            dsnet.train(items, out=tmp_path / "b", **keys)
    broken = dsnet.train(items, resume=tmp_path / "b")
    assert (whole.folder / "model.safetensors").read_bytes() == (broken.folder / "model.safetensors").read_bytes()
    assert whole.evaluation is not None
    assert dsnet.evaluate(whole, data=items).rows == whole.evaluation.rows
    with pytest.raises(CheckpointError, match="the data is not the one that the run"):
        dsnet.evaluate(whole, data=items[:-3])
    assert main(["eval", str(whole.folder)]) == 2
    assert "datasets from Python, which only Python can give" in capsys.readouterr().err


@pytest.mark.parametrize("split", ["train", pytest.param("val", marks=pytest.mark.slow)])
def test_an_image_that_breaks_in_mid_run_is_passed_over(
    split: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run equals one that passed over the image from its beginning."""
    root = make_folder(tmp_path / "pets")
    bad = root / split / "dog" / "03.jpg"
    monkeypatch.setattr(runs_train, "check_files", lambda data, options: [])  # it breaks behind the check
    bad.write_bytes(bad.read_bytes()[:300])
    words = ["train", *SMALL, "--data.root", str(root), "--save_steps", "1", "--data.max_skipped", "0.05"]
    assert main([*words, "--data.workers", "2" if split == "train" else "0", "--out", str(tmp_path / "a")]) == 2
    more = f"--resume {tmp_path / 'a'} --data.on_corrupt skip"
    error = capsys.readouterr().err
    assert f"{bad} cannot be read as an image" in error
    assert error.endswith(f"leave it there and pass over it with {more}\n")
    assert main(["train", *more.split(" ")]) == 0
    assert main([*words, "--data.on_corrupt", "skip", "--out", str(tmp_path / "b")]) == 0
    a, b = tmp_path / "a", tmp_path / "b"
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    if split == "train":
        assert (a / "skipped.txt").read_text() == (b / "skipped.txt").read_text() == f"{bad}\n"
    assert main(["eval", str(a)]) == 0, "later commands pass over it too"


def test_resume_auto_begins_goes_on_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    words = ["train", *SHORT, "--stage", "supernet", "--resume", "auto", "--out", str(out)]
    stopped(monkeypatch, words)
    assert main(words) == 0
    assert "resumed at step 2" in capsys.readouterr().out
    done = (out / "model.safetensors").read_bytes()
    assert main(words) == 0, "a finished run ends at once"
    assert (out / "model.safetensors").read_bytes() == done
    for more, message in (
        (["--optim.lr", "0.5"], "--resume goes on with the run's own config"),
        (["--overwrite"], "--resume auto continues the run in the folder of --out, or begins it; --overwrite would"),
    ):
        assert main([*words, *more]) == 2
        assert message in capsys.readouterr().err
    assert main(["train", "--resume", "auto"]) == 2
    assert "it needs --out FOLDER" in capsys.readouterr().err


def test_a_dry_run_measures_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dry, "STEPS", 2)
    monkeypatch.chdir(tmp_path)
    words = ["train", "--dry_run", "--threads", "1", "--sgs.router", "gate", "--sgs.cache", "0"]
    assert main([*words, "--optim.batch_size", "16", "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("dry run of ds_mobilenet_v1_tiny on digits: 10 classes")
    assert [line.partition(":")[0].strip() for line in lines[1:6]] == [
        "stage I",
        "a step",
        "memory",
        "loader alone",
        "training",
    ]
    assert "  a step: 16 images over 1 process, " in lines[2]
    assert lines[6].startswith("stage II: ")
    assert re.search(r"training: [\d,]+ images/s, 2,000 steps, [\d.]+ hours", lines[5])
    assert not list(tmp_path.iterdir())
    assert main(["train", "--dry_run", "--resume", str(tmp_path)]) == 2
    assert "--dry_run is for a training that has not begun" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sgs", "said"),
    [
        (["--sgs.router", "gate", "--sgs.cache", "0"], "training: "),
        (["--sgs.router", "gate", "--sgs.cache", "1"], "stage II: "),
        (["--sgs.router", "cheap_first", "--sgs.held_out", "true", "--sgs.cache", "1"], "stage II: "),
    ],
)
def test_a_dry_run_of_stage_two_alone(
    trained: Path, sgs: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dry, "STEPS", 1)
    words = ["train", "--dry_run", "--stage", "gate", "--from", str(trained), "--sgs_optim.batch_size", "16"]
    assert main([*words, "--sgs_optim.epochs", "3", *sgs]) == 0
    data = open_dataset(read_config(trained / "config.yaml").data)
    images = len(data.calibration if "true" in sgs else data.train)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.strip().startswith(said))
    assert f" {3 * (images // 16):,} steps" in line
    assert ("not measured" in line) == (sgs[-1] == "1")


def test_a_job_that_torchrun_starts_again_keeps_its_options(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that was refused at first."""
    before = (run / "model.safetensors").read_bytes()
    words = ["train", *SHORT, "--optim.lr", "0.3", "--out", str(run)]
    for count in "01":
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
        assert main(words) == 2
        error = capsys.readouterr().err
        assert ("already holds a run" if count == "0" else "goes on with the run's own config") in error
    assert (run / "model.safetensors").read_bytes() == before


def test_a_training_gives_the_threads_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    words = ["train", *SHORT, "--threads", str(before + 1), "--out", str(tmp_path / "run")]
    assert main([*words, "--optim.batch_size", "100000"]) == 2
    assert torch.get_num_threads() == before


def test_the_madds_of_a_dry_run_are_those_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A static network has no teacher; pooling is not counted."""
    monkeypatch.setattr(dry, "STEPS", 1)
    keys = {"stage": "supernet", "threads": 1, "model": {"name": "mobilenet_v1_tiny"}, "optim": {"batch_size": 4}}
    config = config_from(keys)
    (found,) = dry.dry_run(config).stages
    net = new_network(config, open_dataset(config.data))
    assert found.madds == pytest.approx(4 * dsnet.count(net).widest, rel=0.01)
    assert found.parameters == sum(parameter.numel() for parameter in net.parameters())
    assert found.hours == pytest.approx(found.steps * 4 / found.trained / 3600)
