"""The code in the documentation runs."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from dsnet.cli import COMMANDS, main
from dsnet.experiments.digits import FOLDER, VOC
from dsnet.experiments.digits import write_digits as write_both
from dsnet.models import registry
from dsnet.runs import train
from support.folders import write_digits
from support.runs import SHORT
from support.weights import mobilenet, released_shapes, resnet50

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["docs/models.md", "docs/concepts.md"])
def test_python_in_the_documentation_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_the_page_on_pretrained_weights_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(mobilenet(classes=1000, dtype=torch.float32), "mobilenetv1_100.pth")
    text = (ROOT / "docs/pretrained.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, {})
    commands = "".join(re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    for command in (line for line in commands if line.startswith("dsnet ")):
        words = command.split()[1:]
        assert main([*words, *in_small(words)]) == 0


def test_commands_in_the_readme_exist() -> None:
    commands = "".join(re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL))
    named = set(re.findall(r"^dsnet (\w+)", commands, flags=re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)
    targets = set(re.findall(r"^make ([\w-]+)", commands, flags=re.MULTILINE))
    assert targets
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


@pytest.mark.slow
def test_every_command_of_the_page_about_your_data_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_digits(Path("pets"), {"train": 30, "val": 8})
    commands = "".join(re.findall(r"```\n(.*?)```", (ROOT / "docs" / "your-data.md").read_text(), flags=re.DOTALL))
    lines = [line for line in commands.splitlines() if line.startswith("dsnet")]
    assert {line.split()[1] for line in lines} == {"train", "eval", "advise", "predict", "export", "bench"}
    small = [*SHORT, "--optim.batch_size", "16", "--sgs_optim.batch_size", "16"]
    assert main(["train", "--out", "runs/source", *SHORT]) == 0
    for line in lines:
        words = shlex.split(line)[1:]
        assert main([*words, *(small if words[0] == "train" else [])]) == 0, line
    assert Path("runs/pets/model.onnx").stat().st_size > 1000
    capsys.readouterr()


@pytest.mark.slow
def test_everything_on_the_page_about_your_network_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the reader's module and its weights to files; the report is what the page shows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_digits(Path("pets"), {"train": 30, "val": 8})
    text = (ROOT / "docs/your-network.md").read_text()
    module, python = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    Path("mynet.py").write_text(module)
    made: dict[str, Any] = {}
    exec(module, made)
    torch.save(made["mynet"]().state_dict(), "mynet.pth")
    exec(python, {})
    said = ""
    for line in commands_of("docs/your-network.md"):
        words = shlex.split(line)[1:]
        if "efficientnet_lite0" in words and not importlib.util.find_spec("efficientnet_lite_pytorch"):
            break  # the last commands need dsnet[pretrained]
        assert main([*words, *in_small(words)]) == 0, line
        said += " ".join(capsys.readouterr().out.split())
    (shown,) = (block for block in plain_blocks("docs/your-network.md") if "of widest" in block)
    assert all(" ".join(line.split()) in said for line in shown.splitlines())
    assert all(Path("runs/mynet", name).stat().st_size > 1000 for name in ("model.onnx", "model-int8.onnx"))


@pytest.mark.slow
def test_every_command_of_the_page_about_reports_runs(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training is not done again: its command is read, and the shared run is put where it would be."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(train, "train", lambda config, folder, **_: shutil.copytree(trained, folder) and None)
    commands = "".join(re.findall(r"```\n(.*?)```", (ROOT / "docs" / "report.md").read_text(), flags=re.DOTALL))
    short = {"bench": ["--repeats", "2", "--runtimes", "onnx"]}
    for line in commands.splitlines():
        words = shlex.split(line)[1:]
        assert main([*words, *short.get(words[0], [])]) == 0, line
    for name in ("runs/my-run/report.html", "overview.html", "docs/my-run.md", "docs/my-run.png"):
        assert Path(name).stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "docs/models.md",
        "docs/training.md",
        "docs/routing.md",
        "docs/deploy.md",
        "docs/serving.md",
        "docs/reproduce.md",
    ],
)
def test_every_command_of_the_documentation_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In small: fewer epochs, digits instead of CIFAR-10 and ImageNet; what needs a cluster is left out. A server is
    made ready, but not run."""
    monkeypatch.chdir(tmp_path)
    if importlib.util.find_spec("starlette"):
        monkeypatch.setattr("dsnet.serve.server.serve", lambda _, listener: listener.close())
    write_digits(Path("pets"), {"train": 30, "val": 8})
    shutil.copytree("pets/val/cat", "photos")
    shutil.copytree("pets/val/dog", "folder")
    shutil.copy("pets/val/emu/00.png", "photo.jpg")
    if page == "docs/models.md":
        words = ["--data.root", "pets", "--data.image_size", "32", "--out", "runs/pets"]
        assert main(["train", *words, *in_small(["train", *words])]) == 0
        write_both(Path("data"))
        Path("data", VOC).rename("data/BCCD")
        words = ["--model.name", "ds_mobilenet_v1_small", "--data.dataset", "folder", "--data.root", f"data/{FOLDER}"]
        small = ["--data.image_size", "32", "--stage", "supernet", "--optim.batch_size", "32", "--optim.epochs", "1"]
        assert main(["train", *words, *small, "--out", "runs/backbone"]) == 0
        torch.save(resnet50(classes=1000, dtype=torch.float32), "resnet50.pth")
        tensors = {name: torch.rand(shape) + 0.1 for name, shape in released_shapes().items()}
        torch.save({"state_dict": tensors}, "released.pth")
    if page == "docs/training.md":
        assert main(["train", *SHORT, "--out", "runs/my-run"]) == 0
    if page == "docs/serving.md":
        assert main(["train", *SHORT, "--out", "run"]) == 0
        assert main(["export", "run"]) == 0
    lines = commands_of(page)
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)[1:]
        assert main([*words, *in_small(words)]) == 0, line
    capsys.readouterr()


def commands_of(page: str) -> list[str]:
    return [line for block in plain_blocks(page) for line in block.splitlines() if line.startswith("dsnet ")]


def plain_blocks(page: str) -> list[str]:
    """The blocks of a page that are in no language: commands, and what they print."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [block for language, block in blocks if not language]


def in_small(words: list[str]) -> list[str]:
    """What makes a command of the documentation quick."""
    if words[0] == "train" and "detection" in words:
        size = ["--data.image_size", "64", "--optim.epochs", "1", "--optim.batch_size", "4"]
        return [*size, "--gates_optim.epochs", "1", "--gates_optim.batch_size", "4", "--threads", "1"]
    if words[0] == "train":
        size = ["--optim.batch_size", "16", "--sgs_optim.batch_size", "16"] if "pets" in " ".join(words) else []
        return [
            *SHORT,
            *size,
            *(["--data.dataset", "digits", "--data.root", "null"] if "cifar10" in " ".join(words) else []),
        ]
    if words[0] == "reproduce" and "--scale" not in words:
        return ["--scale", "smoke", "--out", "runs/cpu"]
    if words[0] == "serve":
        return ["--port", "0"]
    return ["--repeats", "2", "--runtimes", "onnx"] if words[0] == "bench" else []
