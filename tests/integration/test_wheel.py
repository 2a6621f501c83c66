"""The wheel in fresh environments: alone, as those who deploy install it, and beside what training needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import dsnet
from dsnet.cli import main

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of these sources, built from a copy so that nothing is left beside them."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "src" / "dsnet", folder / "sources" / "src" / "dsnet")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / "sources")
    pip(Path(sys.executable), "wheel", "--no-deps", str(folder / "sources"), "--wheel-dir", str(folder))
    (file,) = folder.glob("*.whl")
    return file


def environment(folder: Path) -> Path:
    """The interpreter of a new virtual environment."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder / "bin" / "python"


def clean() -> dict[str, str]:
    """The environment of this process without PYTHONPATH, which would lead to the sources."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def pip(python: Path, *words: str) -> None:
    """Run pip; skip the test where it finds no packages to install."""
    result = subprocess.run([str(python), "-m", "pip", *words, "--quiet"], capture_output=True, text=True, env=clean())
    if re.search("No matching distribution|Could not find a version|No module named pip", result.stderr):
        pytest.skip(f"pip cannot install: {result.stderr.strip().splitlines()[-1]}")
    assert result.returncode == 0, result.stderr


def told(*command: object) -> str:
    """What a program that must succeed prints."""
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=clean())
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_light_install_is_small_and_gives_the_same_answers(
    wheel: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    python = environment(tmp_path / "light")
    pip(python, "install", str(wheel))
    assert "torch" not in told(python, "-m", "pip", "list")
    size = sum(file.lstat().st_size for file in (tmp_path / "light").rglob("*"))
    assert size < 250e6, f"{size / 1e6:.0f} MB"
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / f"{number}.png")
    images = [tmp_path / f"{number}.png" for number in range(3)]
    command, file = python.with_name("dsnet"), trained / "model.onnx"
    assert told(command, "--version") == f"dsnet {dsnet.__version__}\n"
    for words in (["predict", file, *images, "--budget", "0.5"], ["info", file], ["advise", file, "--budget", "0.5"]):
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == 0
        assert json.loads(told(command, *words, "--json")) == json.loads(capsys.readouterr().out)
    program = "import dsnet, sys; print(dsnet.predict(sys.argv[1], sys.argv[2], budget=0.5).name)"
    assert told(python, "-c", program, images[0], file).strip() == dsnet.predict(images[0], file, budget=0.5).name
    refused = subprocess.run([str(command), "models"], capture_output=True, text=True, env=clean())
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "pip install 'dsnet[train]'" in refused.stderr


def test_the_wheel_holds_the_whole_package(wheel: Path, tmp_path: Path) -> None:
    """Beside the packages of this environment it lists the models, and reads the configs that come with it."""
    python = environment(tmp_path / "whole")
    pip(python, "install", "--no-deps", str(wheel))
    (site,) = (tmp_path / "whole").glob("lib/python*/site-packages")
    (site / "others.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    assert Path(told(python, "-c", "import dsnet; print(dsnet.__file__)").strip()).parent == site / "dsnet"
    assert names_in(site / "dsnet") == names_in(ROOT / "src" / "dsnet")
    command = python.with_name("dsnet")
    models: list[Any] = json.loads(told(command, "models", "--json"))
    assert [row["name"] for row in models] == dsnet.list_models()
    assert "epochs" in told(command, "train", "--config", "digits", "--print_config")


def names_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*.*") if file.suffix != ".pyc"}
