"""A run that was stopped in any way goes on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import dsnet
from dsnet.cli import main
from dsnet.errors import CheckpointError
from dsnet.training.state import load_state, save_state

OPTIONS = ["--threads", "1", "--optim.epochs", "2", "--optim.batch_size", "128", "--data.augment.crop", "pad"]
OPTIONS += ["--sgs_optim.epochs", "2", "--sgs_optim.batch_size", "128"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "dsnet", "train", *words]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    first = ["--resume", str(folder)] if (folder / "config.yaml").exists() else ["--out", str(folder), *OPTIONS]
    return subprocess.Popen(
        command(*first, *words), env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


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


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unbroken") / "run"
    subprocess.run(command("--out", str(folder), *OPTIONS), env=ENVIRONMENT, check=True, capture_output=True)
    return folder


def wait_for_state(folder: Path, process: subprocess.Popen[str]) -> None:
    while not (folder / "state" / "last.pt").exists():
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.02)


def test_killed_at_random_points_and_resumed_is_bitwise_equal(unbroken: Path, tmp_path: Path) -> None:
    rng = random.Random(7)
    folder, kills = tmp_path / "run", 0
    for _ in range(12):
        process = start(folder, *([] if folder.exists() else ["--save_steps", "2"]))
        wait_for_state(folder, process)
        try:
            process.wait(timeout=rng.uniform(0.3, 2.0) + 3.0 * (kills > 0) if kills < 2 else 120)
            break
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
    assert process.returncode == 0
    assert kills >= 1
    assert_same_run(unbroken, folder)


def test_stopped_in_stage_two_and_resumed_is_bitwise_equal(unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder, "--save_steps", "2")
    wait_for_state(folder / "gate", process)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143, errors
    assert f"continue with --resume {folder}\n" in errors
    assert not (folder / "results" / "test.json").exists()
    before = (folder / "state" / "last.pt").stat().st_mtime_ns
    again = start(folder)
    again.communicate(timeout=240)
    assert again.returncode == 0
    assert (folder / "state" / "last.pt").stat().st_mtime_ns == before, "stage I is not trained again"
    assert_same_run(unbroken, folder)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signals_finish_the_step_save_and_exit(number: int, code: int, unbroken: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start(folder)
    wait_for_state(folder, process)
    time.sleep(0.5)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == code, errors
    assert f"stopped by {signal.Signals(number).name}, state saved; continue with --resume {folder}" in errors
    assert "Traceback" not in errors
    again = start(folder)
    again.communicate(timeout=120)
    assert again.returncode == 0
    assert_same_run(unbroken, folder)


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
    assert main(["train", "--out", str(folder), *OPTIONS, "--stage", "supernet", "--save_steps", "2"]) == 2
    message = capsys.readouterr().err
    assert "No space left on device" in message
    assert "what was there before is untouched" in message
    assert load_state(folder / "state" / "last.pt")["progress"]["step"] > 0
    monkeypatch.setattr(os, "fsync", real)
    assert main(["train", "--resume", str(folder)]) == 0


def test_a_run_that_never_began_can_be_started_again(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("left over by a start that failed")
    assert main(["train", "--out", str(tmp_path), *OPTIONS, "--stage", "supernet", "--optim.epochs", "1"]) == 0


def test_what_changes_under_a_run_is_refused(unbroken: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", "--resume", str(unbroken), "--optim.lr", "5"]) == 2
    assert "--resume goes on with the run's own config" in capsys.readouterr().err
    copy = tmp_path / "run"
    shutil.copytree(unbroken, copy)
    splits = json.loads((copy / "splits.json").read_text())
    (copy / "splits.json").write_text(json.dumps({**splits, "fingerprint": "of other data"}))
    for words in (["train", "--resume", str(copy)], ["eval", str(copy)], ["recalibrate", str(copy)]):
        assert main(words) == 2
        assert "the data is not the one that the run" in capsys.readouterr().err
    (copy / "splits.json").unlink()
    assert main(["eval", str(copy)]) == 2
    assert "splits.json cannot be read" in capsys.readouterr().err


def test_mistakes_are_named(unbroken: Path, tmp_path: Path, capsys) -> None:
    assert main(["train", "--out", str(unbroken), *OPTIONS]) == 2
    assert f"already holds a run; continue it with --resume {unbroken}" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "none")]) == 2
    assert "was not written by `dsnet train`" in capsys.readouterr().err
    assert dsnet.load(unbroken).card.classes == tuple("0123456789")
