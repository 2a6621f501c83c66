"""Artefacts of one or several files survive kills at any moment, and readers that come while they are replaced."""

from __future__ import annotations

import copy
import errno
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dsnet
from dsnet import checkpoint
from dsnet.card import Card
from dsnet.checkpoint import read_model
from dsnet.errors import CheckpointError
from dsnet.export.bundle import export_bundle
from dsnet.export.onnx import export_onnx
from dsnet.files import contents, locked, write_whole
from dsnet.models import Supernet
from dsnet.routers import RouterSpec
from dsnet.runs.folder import MARKS, empty, is_run
from support.counted import Counted
from support.faults import killed_at
from support.networks import routed_net, side, varied

ENDLESS = 10**9  # more operations than any writer needs


@pytest.fixture(scope="module")
def networks() -> list[Supernet]:
    """Four networks of one kind with other weights and other class names."""
    first = routed_net("ds_mobilenet_v1_tiny", RouterSpec("gate", "correctness"), routing=(0, 3)).float()
    return [changed(first, number) for number in range(4)]


def changed(net: Supernet, number: int) -> Supernet:
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1 + number / 50)
    classes = tuple(f"{number}-{index}" for index in range(net.spec.num_classes))
    other.card = replace(other.card or Card(), classes=classes)
    return other


@dataclass
class Artefact:
    """A kind of artefact: how a network is written to a place, and what a reader finds there."""

    name: str
    write: Callable[[Supernet, Path], Any]
    read: Callable[[Path, torch.Tensor], Any]
    files: int  # that it has when nothing is left over

    def place(self, folder: Path) -> Path:
        return folder / self.name


def read_weights(place: Path, x: torch.Tensor) -> Any:
    content, tensors = read_model(place)
    return content["card"]["classes"][0], float(tensors["head.classifier.weight"].sum())


def run_it(place: Path, x: torch.Tensor) -> Any:
    """The class names, the answers of all paths and the routes, rounded, for comparison."""
    runner = dsnet.open_runner(place, threads=1)
    logits = [runner(x, path=path).logits for path in runner.paths]
    routed = runner(x)
    answers = np.concatenate([*map(np.asarray, logits), np.asarray(routed.logits)])
    return runner.manifest.classes[0], answers.round(3).tobytes(), np.asarray(routed.paths).tobytes()


def export_small(export: Callable[..., Any]) -> Callable[[Supernet, Path], Any]:
    return lambda net, place: export(net, place, image_size=side(net))


ARTEFACTS = [
    Artefact("model", dsnet.save, read_weights, 2),
    Artefact("file.onnx", export_small(export_onnx), run_it, 1),
    Artefact("bundle", export_small(export_bundle), run_it, 5),
]


def files_below(place: Path) -> int:
    return len([file for file in place.parent.rglob("*") if file.is_file()])


class Kills:
    """Saves that are killed one after another over a finished one, and what is found afterwards."""

    def __init__(self, artefact: Artefact, networks: list[Supernet], folder: Path) -> None:
        self.artefact, self.networks, self.folder = artefact, networks, folder
        self.x = varied(networks[0], 2).float()
        self.expected, self.broken = [], list[str]()
        for net in networks:
            artefact.write(net, artefact.place(folder))
            self.expected.append(artefact.read(artefact.place(folder), self.x))
        assert len(set(self.expected)) == len(networks)
        artefact.write(networks[0], artefact.place(folder))
        self.template = shutil.copytree(folder, folder.with_name(f"{folder.name}-first"))
        with killed_at(ENDLESS) as asked:
            artefact.write(networks[1], artefact.place(folder))
        self.operations = len(asked)

    def kill(self, *numbers: int, fault: BaseException | None = None) -> None:
        """Kill the saves of the second, third... network at these operations, and judge what is there."""
        artefact, place = self.artefact, self.artefact.place(self.folder)
        shutil.rmtree(self.folder)
        shutil.copytree(self.template, self.folder)
        held = [self.expected[0]]
        for net, answer, number in zip(self.networks[1:], self.expected[1:], numbers, strict=False):
            with killed_at(number, fault):
                artefact.write(net, place)
            held.append(answer)
            try:
                seen = artefact.read(place, self.x)
            except Exception as error:
                self.broken.append(f"{numbers}: {error}")
                return
            if seen not in held:
                self.broken.append(f"{numbers}: neither an old one nor the new one")
                return
            held = held[held.index(seen) :]  # from then on an older one must not come back
        self.save_again(numbers)

    def kill_first(self, number: int) -> None:
        """Kill the first save into an empty folder."""
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        with killed_at(number):
            self.artefact.write(self.networks[0], self.artefact.place(self.folder))
        self.save_again(number)

    def save_again(self, numbers: object) -> None:
        """Whatever was killed, the next save counts and leaves nothing else."""
        artefact, place = self.artefact, self.artefact.place(self.folder)
        try:
            artefact.write(self.networks[-1], place)
            if artefact.read(place, self.x) != self.expected[-1]:
                self.broken.append(f"{numbers}: the next save does not count")
        except Exception as error:
            self.broken.append(f"{numbers}: {error}")
        if files_below(place) != artefact.files:
            self.broken.append(f"{numbers}: {files_below(place)} files are left")


@pytest.mark.parametrize("artefact", [ARTEFACTS[0], ARTEFACTS[2]], ids=lambda artefact: artefact.name)
def test_a_save_that_is_killed_twice_loses_nothing(
    artefact: Artefact, networks: list[Supernet], tmp_path: Path
) -> None:
    kills = Kills(artefact, networks, tmp_path / "here")
    every = range(kills.operations + 1)
    for numbers in ((every[-4], every[-2]), (every[-2], every[4])):
        kills.kill(*numbers)
    for number in (every[len(every) // 2], every[-2]):
        kills.kill_first(number)
    assert not kills.broken


def test_without_completing_a_killed_save_its_model_would_be_lost(
    networks: list[Supernet], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law above can break: so it was in dsnet 0.1."""
    kills = Kills(ARTEFACTS[0], networks, tmp_path / "here")
    monkeypatch.setattr(checkpoint, "_complete", lambda folder: None)
    kills.kill(kills.operations - 1, kills.operations // 2)  # before the last rename, before the new description
    assert "does not match its digest" in kills.broken[0]


@pytest.mark.slow
def test_double_kills_lose_nothing(networks: list[Supernet], tmp_path: Path, counted: Counted) -> None:
    """A sample of all pairs of operations."""
    dice, tried, broken = random.Random(0), Counter[str](), list[str]()
    for artefact, share in zip(ARTEFACTS, (160, 60, 80), strict=True):
        kills = Kills(artefact, networks, tmp_path / artefact.name)
        count = kills.operations + 2  # a save that completes another one needs more operations
        pairs = [(first, second) for first in range(count) for second in range(count)]
        for pair in dice.sample(pairs, share):
            kills.kill(*pair)
            tried[artefact.name] += 1
        broken += [f"{artefact.name} {line}" for line in kills.broken]
    law = "A save or an export that is killed at any file operation, twice in a row, loses nothing and leaves nothing"
    found = {"of models": tried["model"], "of ONNX files": tried["file.onnx"], "of bundles": tried["bundle"]}
    counted(law, tried.total(), broken, **found)


@pytest.mark.slow
def test_first_saves_that_are_killed_are_repeated(networks: list[Supernet], tmp_path: Path, counted: Counted) -> None:
    trials, broken = 0, list[str]()
    for artefact in ARTEFACTS:
        kills = Kills(artefact, networks, tmp_path / artefact.name)
        for number in range(kills.operations):
            kills.kill_first(number)
        trials += kills.operations
        broken += [f"{artefact.name} {line}" for line in kills.broken]
    law = "The first save or export into a folder can be killed at any file operation and repeated"
    counted(law, trials, broken)


@pytest.mark.parametrize("artefact", [ARTEFACTS[0], ARTEFACTS[2]], ids=lambda artefact: artefact.name)
def test_an_interrupted_save_leaves_the_old_one_or_the_new_one(
    artefact: Artefact, networks: list[Supernet], tmp_path: Path
) -> None:
    kills = Kills(artefact, networks, tmp_path / "here")
    for number in range(kills.operations - 8, kills.operations, 3):  # around the switch
        kills.kill(number, fault=KeyboardInterrupt())
    assert not kills.broken


@pytest.mark.slow
def test_interrupts_and_full_disks_lose_nothing(networks: list[Supernet], tmp_path: Path, counted: Counted) -> None:
    trials, broken = 0, list[str]()
    for artefact in ARTEFACTS:
        kills = Kills(artefact, networks, tmp_path / artefact.name)
        for fault in (KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")):
            for number in range(kills.operations):
                kills.kill(number, fault=fault)
            trials += kills.operations
        broken += [f"{artefact.name} {line}" for line in kills.broken]
    law = "A save or an export that is interrupted, or finds the disk full, at any file operation loses nothing"
    counted(law, trials, broken)


def test_two_exports_into_one_bundle_are_refused(networks: list[Supernet], tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(ValueError, match=f"is being written by process {os.getpid()} on"):
        export_bundle(networks[0], tmp_path, image_size=side(networks[0]))
    assert not contents(tmp_path)


@contextmanager
def writing(artefact: Artefact, networks: list[Supernet], place: Path) -> Iterator[int]:
    """Another process that writes one network after another to the place."""
    child = os.fork()
    if not child:
        try:
            while True:
                for net in networks:
                    artefact.write(net, place)
        finally:
            os._exit(1)
    try:
        yield child
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def raced(artefact: Artefact, networks: list[Supernet], folder: Path, trials: int) -> tuple[Counter[str], list[str]]:
    """Read an artefact again and again while another process replaces it."""
    place, x = artefact.place(folder), varied(networks[0], 2).float()
    expected = []
    for net in networks:
        artefact.write(net, place)
        expected.append(artefact.read(place, x))
    found, broken, last = Counter[str](), list[str](), None
    with writing(artefact, networks, place):
        for trial in range(trials):
            try:
                seen = artefact.read(place, x)
            except CheckpointError as error:
                if "exported anew since it was opened; open it again" in str(error):
                    found["opened_too_late"] += 1
                else:
                    broken.append(f"{trial}: {error}")
                continue
            found["whole"] += 1
            found["changes_seen"] += seen != last
            last = seen
            if seen not in expected:
                broken.append(f"{trial}: an answer that no network gives")
    return found, broken


def test_a_reader_never_mixes_two_exports(networks: list[Supernet], tmp_path: Path) -> None:
    found, broken = raced(ARTEFACTS[2], networks[:2], tmp_path, 10)
    assert not broken
    assert found["whole"]


def test_a_model_loads_while_another_process_saves_it(networks: list[Supernet], tmp_path: Path) -> None:
    found, broken = raced(ARTEFACTS[0], networks[:2], tmp_path, 60)
    assert not broken
    assert found["whole"] == 60


@pytest.mark.slow
def test_readers_never_mix_two_exports(networks: list[Supernet], tmp_path: Path, counted: Counted) -> None:
    total, broken = Counter[str](), list[str]()
    for artefact in ARTEFACTS[1:]:
        found, more = raced(artefact, networks[:2], tmp_path, 500)
        total, broken = total + found, broken + more
    law = "A runner that is opened and run during an export answers as the old network or as the new one"
    counted(law, 1000, broken, **total)


@pytest.mark.slow
def test_models_load_while_another_process_saves(networks: list[Supernet], tmp_path: Path, counted: Counted) -> None:
    found, broken = raced(ARTEFACTS[0], networks[:2], tmp_path, 5000)
    counted("A model loads while another process saves it", 5000, broken, **found)


@pytest.mark.slow
def test_killed_processes_lose_nothing(networks: list[Supernet], tmp_path: Path, counted: Counted) -> None:
    """SIGKILL at random moments of processes that write again and again."""
    dice, broken, found = random.Random(0), list[str](), Counter[str]()
    for artefact in ARTEFACTS:
        folder = tmp_path / artefact.name
        place, x = artefact.place(folder), varied(networks[0], 2).float()
        expected, begun = [], time.monotonic()
        for net in networks:
            artefact.write(net, place)
            expected.append(artefact.read(place, x))
        took, last = (time.monotonic() - begun) / len(networks), expected[-1]
        for trial in range(20):
            with writing(artefact, networks, place):
                time.sleep(dice.uniform(0, 3 * took))
            seen = artefact.read(place, x)
            if seen not in expected:
                broken.append(f"{artefact.name} {trial}")
            found["kills"] += 1
            found["replaced_before"] += seen != last
            last = seen
        artefact.write(networks[0], place)
        if files_below(place) != artefact.files:
            broken.append(f"{artefact.name}: {files_below(place)} files are left")
    law = "A process that writes again and again and gets a SIGKILL loses nothing, and the next one leaves nothing"
    counted(law, found.pop("kills"), broken, **found)


def test_what_killed_writers_left_is_removed_and_what_others_write_is_not(tmp_path: Path) -> None:
    for number in range(8):
        with killed_at(number):
            write_whole(tmp_path / "file", b"data")
    left = {file.name for file in tmp_path.iterdir()} - {"file"}
    assert left  # some of them could not clean up
    with killed_at(ENDLESS):  # another writer, in the middle of its work
        from dsnet.files import _temporary

        mine, stream = _temporary(tmp_path / "file")
        write_whole(tmp_path / "file", b"new")
        assert {file.name for file in tmp_path.iterdir()} == {"file", mine.name}
        stream.close()
    write_whole(tmp_path / "file", b"newer")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_a_run_that_is_half_deleted_can_be_overwritten(tmp_path: Path) -> None:
    for number in range(20):
        folder = tmp_path / str(number)
        (folder / "state").mkdir(parents=True)
        for name in (*MARKS, "model.json", "state/last.pt"):
            (folder / name).touch()
        with killed_at(number):
            empty(folder)
        assert not contents(folder) or is_run(folder)
        empty(folder)
        assert not contents(folder)
    assert not is_run(tmp_path)
