"""The rooms of the package and the direction of their imports."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dsnet

PACKAGE = Path(dsnet.__file__).parent

# A room may import rooms above it; rooms on one line are siblings that do not know each other.
ROOMS = [
    ["version", "errors", "limits"],
    ["files", "decoding"],
    ["images"],
    ["space", "schema"],
    ["cost", "hull", "results", "routers"],
    ["paired", "card"],
    ["manifest"],
    ["pictures"],
    ["routing"],
    ["latency"],
    ["advise"],
    ["runtime"],
    ["prediction"],
    ["opening"],
    ["serve"],
    ["api"],
    ["nn"],
    ["models"],
    ["checkpoint"],
    ["weights"],
    ["slimming"],
    ["data"],
    ["training"],
    ["export"],
    ["report"],
    ["config"],
    ["tasks"],
    ["hub"],
    ["runs"],
    ["bench"],
    ["experiments"],
    ["cli"],
]

# Rooms that a light install has: what they import, wherever in the file, does without these packages.
LIGHT = [*(room for line in ROOMS[: ROOMS.index(["nn"])] for room in line)]
HEAVY = {"torch", "torchvision", "onnx", "safetensors", "sklearn"}


def modules_of(file: Path) -> set[str]:
    """Modules that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def imports_of(file: Path) -> set[str]:
    """Rooms of dsnet that a file imports, wherever in the file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dsnet":
            names = [node.module] if "." in node.module else [f"dsnet.{alias.name}" for alias in node.names]
            found |= {name.split(".")[1] for name in names}
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("dsnet.")}
    return found


def test_imports_point_one_way() -> None:
    level = {room: number for number, line in enumerate(ROOMS) for room in line}
    for file in PACKAGE.rglob("*.py"):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room == "data":
            assert not imports_of(file) - {"data", "decoding", "errors", "files", "images", "limits", "schema"}, (
                f"{file.name}: data stands alone"
            )
        if room in ("__init__", "__main__"):
            continue
        assert room in level, f"{room} is a new room: give it a place in ROOMS"
        for other in imports_of(file) - {room}:
            assert level[other] < level[room], f"{file.name} in {room} imports {other}"


@pytest.mark.parametrize("room", LIGHT)
def test_light_rooms_do_without_torch(room: str) -> None:
    place = PACKAGE / f"{room}.py"
    for file in [place] if place.exists() else (PACKAGE / room).rglob("*.py"):
        found = {name.split(".")[0] for name in modules_of(file)}
        assert not found & HEAVY, f"{file.name} imports {', '.join(sorted(found & HEAVY))}"
        assert imports_of(file) <= {room, *LIGHT}, f"{file.name} imports rooms that need torch"


def test_every_file_of_the_package_is_installed() -> None:
    """Configs and templates come along only where pyproject.toml names them."""
    settings = tomllib.loads((PACKAGE.parents[1] / "pyproject.toml").read_text())
    named = {
        file for pattern in settings["tool"]["setuptools"]["package-data"]["dsnet"] for file in PACKAGE.glob(pattern)
    }
    others = {file for file in PACKAGE.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert others == named


def test_every_public_name_exists() -> None:
    for name in dsnet.__all__:
        assert name == "__version__" or getattr(dsnet, name).__name__ == name


def test_help_does_not_wait_for_torch() -> None:
    """All but `dsnet train --help`, which shows the keys of configs beside the networks they configure."""
    program = """
import sys
from dsnet.cli import COMMANDS, main
for words in [[], ["--help"], *([name, "--help"] for name in COMMANDS if name != "train")]:
    try:
        assert main(words) == 0
    except SystemExit as stop:
        assert stop.code == 0
    assert "torch" not in sys.modules, words
"""
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_no_test_imports_another() -> None:
    tests = Path(__file__).parents[1]
    for file in tests.rglob("*.py"):
        assert not any(part.startswith("test_") for name in modules_of(file) for part in name.split(".")), file.name
