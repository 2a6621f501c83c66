"""Trainings on shards, on datasets from Python and on files that break in the middle: they resume as all others do."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from dsnet.cli import main
from dsnet.runs import train as runs_train
from dsnet.training.display import Display
from support.folders import make_folder
from support.runs import SHORT

SMALL = [*SHORT, "--data.image_size", "32", "--optim.batch_size", "8", "--optim.warmup_epochs", "0"]
SMALL += ["--sgs_optim.batch_size", "8", "--sgs.router", "slim_first", "--data.augment.flip", "true"]


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
