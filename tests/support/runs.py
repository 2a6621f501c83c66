"""Runs that tests share: made once in a session, on disk, for all of its processes. Tests that write take a copy."""

from __future__ import annotations

import fcntl
import io
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

import dsnet
from dsnet.cli import main
from dsnet.data.augment import to_pixels
from dsnet.report.figures import SWITCH
from dsnet.runs.folder import RunFolder
from support.folders import voc_folder
from support.networks import randomised

SHORT = ["--threads", "1", "--optim.epochs", "1", "--optim.batch_size", "256"]
SHORT += ["--sgs_optim.epochs", "1", "--sgs_optim.batch_size", "256"]
DIGITS = ["--threads", "1", "--seed", "3", "--optim.epochs", "2", "--optim.batch_size", "128"]
DIGITS += ["--sgs.router", "cheap_first"]
DIGITS += ["--data.augment.crop", "pad", "--sgs_optim.epochs", "2", "--sgs_optim.batch_size", "128"]
DETECTOR = ["--projection", "16", "--pyramid", "16", "--data.image_size", "64", "--optim.epochs", "2"]
DETECTOR += ["--optim.batch_size", "4", "--optim.warmup_epochs", "0"]
DETECTOR += ["--gates_optim.epochs", "1", "--gates_optim.batch_size", "4"]
SMOKE = ["motivation", "gate_distribution", "detection"]  # one of each kind; a slow test takes all


@contextmanager
def drawing() -> Iterator[None]:
    """Runs and evaluations draw their figures, which conftest.py switches off."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(SWITCH, raising=False)
        yield


def dsnet_does(*words: object) -> None:
    """Run a command that must succeed."""
    assert main([str(word) for word in words]) == 0, words


def made_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder that `make` fills, whichever process asks first."""
    finished = folder.with_suffix(".made")
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not finished.exists():
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            finished.touch()
    return folder


def train_digits(folder: Path) -> None:
    """A router that runs the slimmest width first, with figures, files and latencies."""
    with drawing():
        dsnet_does("train", "--out", folder, *DIGITS)
    dsnet_does("export", folder)
    dsnet_does("export", folder, "--bundle")
    dsnet_does("export", folder, "--path", "2")
    dsnet_does("bench", folder, "--repeats", "2", "--runtimes", "onnx")


def train_gate(source: Path, folder: Path) -> None:
    """The paper's gate for the network in `source`."""
    words = ["--sgs.router", "gate", "--model.routing", "[0, 2, 3]", "--sgs_optim.epochs", "1", "--threads", "1"]
    dsnet_does("train", "--stage", "gate", "--from", source, *words, "--out", folder)


def quantise(source: Path, folder: Path) -> None:
    """The network in `source` as model-int8.onnx, and in said.txt what `dsnet export` said."""
    shutil.copytree(source, folder)
    with redirect_stdout(io.StringIO()) as said:
        dsnet_does("export", folder, "--int8")
    (folder / "said.txt").write_text(said.getvalue())


def saved_images(run: Path, folder: Path, count: int) -> Path:
    """A folder, filled with some test images of a run on digits."""
    _, data = RunFolder.of(run).opened()
    images = data.test.load(data.test.ids[:count]).images
    for number, pixels in enumerate(to_pixels(images, data.mean, data.std)):
        Image.fromarray(pixels[0].numpy()).save(folder / f"{number:02d}.png")
    return folder


def train_static(folder: Path) -> None:
    words = ["--model.name", "mobilenet_v1", "--model.width", "0.25", "--data.image_size", "32"]
    dsnet_does("train", "--out", folder, *SHORT, *words)


def train_detector(root: Path, out: Path | str, *more: str, backbone: str = "ds_mobilenet_v1_small") -> int:
    """Train on the images and a backbone of the folder that make_detector fills."""
    words = ["train", "--task", "detection", "--backbone", str(root / backbone), "--data.root", str(root / "voc")]
    return main([*words, *DETECTOR, "--out", str(root / out), *more])


def make_detector(root: Path) -> None:
    """Images with objects, backbones, and a trained run with its files."""
    voc_folder(root / "voc", {"train": 10, "test": 6})
    for name in ("ds_mobilenet_v1_small", "mobilenet_v1"):
        net = randomised(name, dtype=torch.float32)
        net.card = replace(net.card, classes=tuple("abcdefg"))
        dsnet.save(net, root / name)
    assert train_detector(root, "run") == 0
    dsnet_does("export", root / "run")
    dsnet_does("export", root / "run", "--path", "3")


def reproduce(folder: Path) -> None:
    dsnet_does("reproduce", *SMOKE, "--scale", "smoke", "--out", folder)
