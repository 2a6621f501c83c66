"""A run that was stopped in any way goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.errors import CheckpointError
from dsnet.runs import train as runs_train
from dsnet.training.display import Display
from dsnet.training.state import load_state, save_state
from support.runs import DIGITS, SHORT

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    first = ["--resume", str(folder)] if (folder / "config.yaml").exists() else ["--out", str(folder), *DIGITS]
    command = [sys.executable, "-m", "dsnet", "train", *first, *words]
    return subprocess.Popen(command, env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def same_tensors(a: object, b: object) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_tensors(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return isinstance(b, list | tuple) and len(a) == len(b) and all(map(same_tensors, a, b))
    return True  # plain numbers: times differ


def assert_same_run(a: Path, b: Path) -> None:
    assert (a / "model.safetensors").read_bytes() == (b / "model.safetensors").read_bytes()
    for below, loss in ((".", "loss/widest"), ("gate", "loss/guidance")):
        first, second = (load_state(folder / below / "state" / "last.pt") for folder in (a, b))
        for key in ("net", "ema", "optimizer", "random"):
            assert same_tensors(first[key], second[key]), (below, key)
        lines = [[(line["epoch"], line[loss]) for line in s["progress"]["history"]] for s in (first, second)]
        assert lines[0] == lines[1]
    rows = [json.loads((folder / "results" / "test.json").read_text())["dynamic"]["rows"] for folder in (a, b)]
    assert rows[0] == rows[1]


def test_killed_at_a_random_point_and_resumed_is_bitwise_equal(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, "--save_steps", "2")
    while not (folder / "state" / "last.pt").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)
    time.sleep(random.uniform(0, 1))
    assert process.poll() is None
    process.kill()
    process.wait()
    assert main(["train", "--resume", str(folder)]) == 0
    assert_same_run(trained, folder)


class Stopping(Display):
    """Sends the process a signal behind a batch of one stage."""

    def __init__(self, number: int, stage: str, folder: Path) -> None:
        self.number, self.here = number, folder.name == stage

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None:
        if self.here and batch == 5:
            signal.raise_signal(self.number)


@pytest.mark.parametrize(
    ("number", "code", "stage"),
    [
        (signal.SIGTERM, 143, "run"),
        pytest.param(signal.SIGINT, 130, "run", marks=pytest.mark.slow),
        (signal.SIGTERM, 143, "gate"),
    ],
)
def test_signals_finish_the_step_save_and_exit(
    number: int, code: int, stage: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(runs_train, "make_display", lambda place, rank: Stopping(number, stage, place))
        assert main(["train", "--out", str(folder), *DIGITS]) == code
    errors = capsys.readouterr().err
    assert f"stopped by {signal.Signals(number).name}, state saved; continue with --resume {folder}\n" in errors
    assert "Traceback" not in errors
    assert not (folder / "results" / "test.json").exists()
    begun = folder / ("gate" if stage == "gate" else ".") / "state" / "last.pt"
    assert load_state(begun)["progress"]["step"] == 5
    before = (folder / "state" / "last.pt").stat().st_mtime_ns
    assert main(["train", "--resume", str(folder)]) == 0
    if stage == "gate":
        assert (folder / "state" / "last.pt").stat().st_mtime_ns == before, "stage I is not trained again"
    assert_same_run(trained, folder)


def test_killed_inside_a_save_leaves_a_state_that_loads(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    save_state(file, {"weights": torch.arange(10)})
    program = f"""
import os, torch
from pathlib import Path
from dsnet.training.state import save_state
real = os.fsync
def die(fd):
    os.kill(os.getpid(), 9)
os.fsync = die
save_state(Path({str(file)!r}), {{"weights": torch.zeros(10**6)}})
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == -9
    assert torch.equal(load_state(file)["weights"], torch.arange(10))


def test_every_damaged_state_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "last.pt"
    save_state(file, {"weights": torch.arange(1000), "step": 3})
    data = file.read_bytes()
    for position in range(0, len(data), len(data) // 60):
        damaged = bytearray(data)
        damaged[position] ^= 4
        file.write_bytes(damaged)
        with pytest.raises(CheckpointError, match=r"last.pt"):
            load_state(file)
    for length in (0, 20, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:length])
        with pytest.raises(CheckpointError, match=r"last.pt"):
            load_state(file)
    with pytest.raises(CheckpointError, match="nothing to resume"):
        load_state(tmp_path / "none.pt")


def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path: Path, monkeypatch, capsys) -> None:
    folder = tmp_path / "run"
    real, calls = os.fsync, []

    def full(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) > 12:
            raise OSError(28, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    assert main(["train", "--out", str(folder), *DIGITS, "--stage", "supernet", "--save_steps", "2"]) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "what was there before is untouched" in message
    assert load_state(folder / "state" / "last.pt")["progress"]["step"] > 0
    monkeypatch.setattr(os, "fsync", real)
    assert main(["train", "--resume", str(folder)]) == 0


def test_a_run_that_never_began_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("left over by a start that failed")
    assert main(["train", "--out", str(tmp_path), *SHORT, "--stage", "supernet"]) == 0


def test_what_changes_under_a_run_is_refused(run: Path, capsys) -> None:
    assert main(["train", "--resume", str(run), "--optim.lr", "5"]) == 2
    assert "--resume goes on with the run's own config" in capsys.readouterr().err
    splits = json.loads((run / "splits.json").read_text())
    (run / "splits.json").write_text(json.dumps({**splits, "fingerprint": "of other data"}))
    for words in (["train", "--resume", str(run)], ["eval", str(run)], ["recalibrate", str(run)]):
        assert main(words) == 2
        assert "the data is not the one that the run" in capsys.readouterr().err
    (run / "splits.json").unlink()
    assert main(["eval", str(run)]) == 2
    assert "splits.json cannot be read" in capsys.readouterr().err


def test_mistakes_are_named(run: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", "--out", str(run), *DIGITS]) == 2
    assert f"already holds a run; continue it with --resume {run}" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "none")]) == 2
    assert "was not written by `dsnet train`" in capsys.readouterr().err
    assert dsnet.load(run).card.classes == tuple("0123456789")
