"""The code in the documentation runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["README.md", "docs/concepts.md"])
def test_python_in_the_documentation_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsnet.models import registry

    monkeypatch.setattr(registry, "_BUILDERS", dict(registry._BUILDERS))
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    for block in blocks:
        exec(block, {})


def test_the_page_on_pretrained_weights_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from unit.test_plain import mobilenet

    from dsnet.cli import main

    monkeypatch.chdir(tmp_path)
    torch.save(mobilenet(classes=1000, dtype=torch.float32), "mobilenetv1_100.pth")
    text = (ROOT / "docs/pretrained.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(block, {})
    commands = "".join(re.findall(r"```\n(.*?)```", text, flags=re.DOTALL)).splitlines()
    for command in (line for line in commands if line.startswith("dsnet ")):
        assert main(command.split()[1:]) == 0


def test_commands_in_the_readme_exist() -> None:
    from dsnet.cli import COMMANDS

    commands = "".join(re.findall(r"```\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL))
    named = set(re.findall(r"^dsnet (\w+)", commands, flags=re.MULTILINE))
    assert named
    assert named <= set(COMMANDS)
    targets = set(re.findall(r"^make ([\w-]+)", commands, flags=re.MULTILINE))
    assert targets
    makefile = (ROOT / "Makefile").read_text()
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_every_command_of_the_page_about_your_data_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import shlex

    from integration.test_train_cli import SHORT

    from dsnet.cli import main

    monkeypatch.chdir(tmp_path)
    write_digits(Path("pets"), {"train": 30, "val": 8})
    commands = "".join(re.findall(r"```\n(.*?)```", (ROOT / "docs" / "your-data.md").read_text(), flags=re.DOTALL))
    lines = [line for line in commands.splitlines() if line.startswith("dsnet")]
    assert {line.split()[1] for line in lines} == {"train", "eval", "predict", "export", "bench"}
    small = [*SHORT, "--optim.batch_size", "16", "--sgs_optim.batch_size", "16"]
    assert main(["train", "--out", "runs/source", *SHORT]) == 0
    for line in lines:
        words = shlex.split(line)[1:]
        assert main([*words, *(small if words[0] == "train" else [])]) == 0, line
    assert Path("runs/pets/model.onnx").stat().st_size > 1000
    capsys.readouterr()


def test_every_command_of_the_page_about_reports_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shlex

    from integration.test_train_cli import SHORT

    from dsnet.cli import main

    monkeypatch.chdir(tmp_path)
    commands = "".join(re.findall(r"```\n(.*?)```", (ROOT / "docs" / "report.md").read_text(), flags=re.DOTALL))
    short = {"train": SHORT, "bench": ["--repeats", "2", "--runtimes", "onnx"]}
    for line in commands.splitlines():
        words = shlex.split(line)[1:]
        assert main([*words, *short.get(words[0], [])]) == 0, line
    for name in ("runs/my-run/report.html", "overview.html", "docs/my-run.md", "docs/my-run-1.png"):
        assert Path(name).stat().st_size > 1000


def write_digits(root: Path, counts: dict[str, int]) -> None:
    """A folder of real images: handwritten digits of three classes."""
    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label, name in enumerate(("cat", "dog", "emu")):
        mine = iter(digits.images[digits.target == label])
        for split, count in counts.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = (next(mine) / 16 * 255).astype(np.uint8).repeat(5, 0).repeat(5, 1)
                Image.fromarray(pixels).save(root / split / name / f"{number:02d}.png")
