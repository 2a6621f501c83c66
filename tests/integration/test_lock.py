"""A folder belongs to one process at a time."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from dsnet.cli import main
from dsnet.files import LOCK, locked
from dsnet.runs.folder import new_folder

QUICK = ["--model.name", "mobilenet_v1_tiny", "--optim.epochs", "1", "--threads", "1"]


def hold(folder: Path, holds: Event) -> None:
    with locked(folder):
        holds.set()
        time.sleep(60)


def test_a_folder_is_held_by_one_process_and_freed_when_that_dies(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    holds = context.Event()
    other = context.Process(target=hold, args=(tmp_path, holds))
    other.start()
    assert holds.wait(60)
    with pytest.raises(BlockingIOError, match=f"process {other.pid} on "), locked(tmp_path):
        pass
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join()
    assert (tmp_path / LOCK).exists(), "a killed process leaves the file"
    with locked(tmp_path), pytest.raises(BlockingIOError, match=f"process {os.getpid()}"), locked(tmp_path):
        pass
    assert not (tmp_path / LOCK).exists()


def count_up(folder: Path, times: int) -> None:
    for _ in range(times):
        while True:
            try:
                with locked(folder):
                    number = folder / "number"
                    found = int(number.read_text()) if number.exists() else 0
                    number.write_text(str(found + 1))
                    break
            except BlockingIOError:
                time.sleep(0.0005)


def test_no_two_processes_ever_hold_a_folder(tmp_path: Path) -> None:
    """Holders remove the lock's file while others open it, which must not let two of them in."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=count_up, args=(tmp_path, 300)) for _ in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
        assert other.exitcode == 0
    assert (tmp_path / "number").read_text() == "600"


def test_a_name_is_given_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [new_folder("a").name for _ in range(3)] == ["a", "a-2", "a-3"]


def test_a_folder_in_use_is_refused_and_untouched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with locked(run):
        for words in (["train", "--out", str(run), *QUICK], ["train", "--resume", str(run)]):
            if words[1] == "--resume":
                (run / "config.yaml").write_text("model: {name: mobilenet_v1_tiny}\n")
            assert main(words) == 2
            captured = capsys.readouterr()
            assert captured.err.count("\n") == 1
            assert f"{run} is in use by process {os.getpid()} on " in captured.err
            assert "choose another --out" in captured.err
    assert [file.name for file in run.iterdir()] == ["config.yaml"]


def test_a_training_that_is_refused_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "--data.root", str(tmp_path / "missing")]) == 2
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False])
def test_two_trainings_started_together_never_share_a_folder(given: bool, tmp_path: Path) -> None:
    """Ten times: with --out one of two wins; without it each has a folder of its own."""
    for number in range(10):
        place = tmp_path / str(number)
        place.mkdir()
        command = [sys.executable, "-m", "dsnet", "train", *QUICK]
        command += ["--out", "run"] if given else []
        started = [subprocess.Popen([*command, "--save_steps", str(steps)], cwd=place) for steps in (11, 12)]
        codes = sorted(process.wait() for process in started)
        assert codes == ([0, 2] if given else [0, 0])
        folders = [place / "run"] if given else sorted((place / "runs").iterdir())
        assert len(folders) == (1 if given else 2)
        texts = [folder.joinpath("config.yaml").read_text() for folder in folders]
        assert len({steps for steps in (11, 12) for text in texts if f"save_steps: {steps}" in text}) == len(folders)
