"""What dsnet is built on: bounds of versions, the lock file, the bill of materials, and what its sources never do."""

from __future__ import annotations

import ast
import re
import runpy
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import dsnet

ROOT = Path(__file__).parents[2]
SOURCES = Path(dsnet.__file__).parent
LOCKED = re.compile(r"(\S+)==(\S+) --hash=sha256:[0-9a-f]{64}")


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    return [found for line in lines if (found := Requirement(line)).name not in ("dsnet", "types-PyYAML")]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_every_dependency_has_a_lower_and_an_upper_bound() -> None:
    for requirement in requirements():
        assert sorted(bound.operator for bound in requirement.specifier) == ["<", ">="], str(requirement)


def test_the_lock_has_exact_versions_within_the_bounds() -> None:
    lines = [line for line in (ROOT / "lock.txt").read_text().splitlines() if not line.startswith("#")]
    locked = {match[1]: match[2] for line in lines if (match := LOCKED.fullmatch(line))}
    assert len(locked) == len(lines), "every line is a name, a version and a digest"
    for requirement in requirements():
        if requirement.name != "torch":
            assert Version(locked[canonical(requirement.name)]) in requirement.specifier, str(requirement)


def test_the_lowest_versions_are_those_of_the_bounds() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "lowest.py"))
    found = tool["lowest"](tomllib.loads((ROOT / "pyproject.toml").read_text())["project"])
    for requirement in requirements():
        low = next(bound.version for bound in requirement.specifier if bound.operator == ">=")
        assert found.get(requirement.name, low) == low
        assert (requirement.name in found) == (requirement.name not in tool["LEFT_OUT"])


def test_the_bill_of_materials_is_whole() -> None:
    try:
        bill = runpy.run_path(str(ROOT / "tools" / "sbom.py"))["bill"]([])
    except ModuleNotFoundError as error:
        pytest.skip(f"dsnet is not installed: {error}")
    components = {one["bom-ref"]: one for one in bill["components"]}
    assert len(components) == len(bill["components"])
    root = bill["metadata"]["component"]["bom-ref"]
    edges = {one["ref"]: one["dependsOn"] for one in bill["dependencies"]}
    assert set(edges) == {root, *components} == {root, *(ref for refs in edges.values() for ref in refs)}
    names = {canonical(one["name"]) for one in components.values()}
    assert {"numpy", "pillow", "onnxruntime", "pydantic", "pydantic-core", "rich"} <= names
    assert not {"torch", "openvino", "pytest"} & names


FORBIDDEN = {"eval", "exec", "pickle.load", "pickle.loads", "yaml.unsafe_load", "yaml.full_load", "marshal.loads"}


def unsafe_calls(source: str) -> list[str]:
    """Calls that would run code out of a file."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = ast.unparse(node.func) if isinstance(getattr(node.func, "value", node.func), ast.Name) else ""
        words = {word.arg: getattr(word.value, "value", None) for word in node.keywords}
        unsafe = name in FORBIDDEN or (name == "torch.load" and words.get("weights_only") is not True)
        if unsafe or (name in ("np.load", "numpy.load") and words.get("allow_pickle", False) is not False):
            found.append(ast.unparse(node))
    return found


def test_no_file_is_read_in_a_way_that_runs_its_code() -> None:
    calls = {file.name: unsafe_calls(file.read_text()) for file in SOURCES.rglob("*.py")}
    assert not {name: found for name, found in calls.items() if found}
    assert not [file for file in SOURCES.rglob("*.py") if re.search(r"yaml\.(Unsafe|Full)?Loader", file.read_text())]
    for bad in ("torch.load(f)", "torch.load(f, weights_only=False)", "pickle.load(f)", "eval(text)"):
        assert unsafe_calls(bad) == [bad]  # the law would catch it
    assert not unsafe_calls("net.eval(); torch.load(f, weights_only=True)")
