"""The benchmark that runs training steps of two versions beside each other."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from support.benchmarks import benchmark

ROOT = Path(__file__).parents[2]
FILE = ROOT / "benchmarks" / "versions.py"
MODEL = "ds_mobilenet_v1_tiny"


@pytest.fixture(scope="module")
def versions() -> ModuleType:
    return benchmark("versions")


@pytest.fixture
def steps(versions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, str]]:
    """Processes that take steps of known length; the candidate `now` takes half of it."""
    begun: list[tuple[Path, str]] = []

    class Process:
        def communicate(self) -> None:
            pass

    def started(checkout: Path, stage: str, model: str, name: str) -> Any:
        begun.append((checkout, name))
        process: Any = Process()
        process.name, process.taken = name, 0
        return process

    def asked(process: Any) -> dict[str, Any]:
        process.taken += 1
        slow = 100.0 if process.taken <= versions.WARM else 1.0
        other = process.name == "now" and process.taken == 3
        return {"ms": slow * (5 if process.name == "now" else 10), "losses": {"widest": "2" if other else "1"}}

    monkeypatch.setattr(versions, "started", started)
    monkeypatch.setattr(versions, "asked", asked)
    return begun


def test_ratios_are_of_the_steps_behind_the_first(versions: ModuleType, steps: list[tuple[Path, str]]) -> None:
    found = versions.compared(Path("older"), "stage I", MODEL, 3)
    assert found == {
        "older, ms": 10.0,
        "now / older": 0.5,
        "now, memory given back / older": 1.0,
        "older again / older": 1.0,
        "same losses": False,  # one loss of one step differs
    }
    assert {name: place for place, name in steps} == {
        "older": Path("older"),
        "older again": Path("older"),
        "now": ROOT,
        "now, memory given back": ROOT,
    }


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(FILE), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not a checkout of dsnet: it has no folder src/dsnet" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["stage I", "stage II, gate"])
def test_a_version_has_the_losses_of_itself(versions: ModuleType, stage: str) -> None:
    assert versions.compared(ROOT, stage, MODEL, 1)["same losses"]


def test_operators_are_counted_in_both_versions(versions: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """The older version is asked in its own checkout."""
    calls = {Path("older"): 200, ROOT: 150}
    monkeypatch.setattr(
        versions, "said", lambda place, *words: f'{{"whole step": {calls[place]}}}' if "--count" in words else ""
    )
    expected = {"whole step": {"older": 200, "now": 150, "now / older": 0.75}}
    assert versions.counted(Path("older"), MODEL) == expected


@pytest.mark.slow
def test_a_step_as_on_a_gpu_has_fewer_operators_than_in_the_first_version(versions: ModuleType) -> None:
    """Those that docs/results tells of."""
    told = json.loads((ROOT / "docs" / "results" / "bench_versions.json").read_text())["operators"]
    for model in versions.COUNTED:
        now = json.loads(versions.said(ROOT, str(FILE), str(ROOT), "--count", model))
        for name, found in now.items():
            assert found <= told[model][name]["now"] < told[model][name]["older"]
