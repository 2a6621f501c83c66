"""What exported files need: they are described and run where torch cannot be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dsnet
from dsnet.manifest import Budget, RouterSpec
from dsnet.models import count
from dsnet.training.sgs import with_fresh_router
from support.networks import randomised

REFUSING = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "onnx", "safetensors", "kornia", "sklearn", "matplotlib"):
            raise ImportError(f"{name} must not be imported")

sys.meta_path.insert(0, Refuse())
from dsnet.cli import main
sys.exit(main())
"""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    net = randomised("ds_mobilenet_v1_tiny").float()
    net = with_fresh_router(net, replace(net.spec, router=RouterSpec("slim_first", "correctness"))).eval()
    table = count(net)
    ends = ((net.candidates[0], 0.5), (net.candidates[-1], -0.5))
    budgets = tuple(Budget(table.madds(path, dynamic=True), lam, 0.5, 32) for path, lam in ends)
    net.card = replace(net.card, classes=tuple("abcdefg"), budgets=budgets)
    dsnet.save(net, folder / "run")
    dsnet.export_onnx(net, folder / "model.onnx")
    dsnet.export_bundle(net, folder / "bundle")
    rng = np.random.default_rng(0)
    for number in range(3):
        image = Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8))
        (folder / "photos").mkdir(exist_ok=True)
        image.save(folder / "photos" / f"{number}.png")
    return folder


def told(folder: Path, *words: str, program: str = REFUSING) -> object:
    done = subprocess.run([sys.executable, "-c", program, *words, "--json"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_file_and_a_bundle_predict_without_torch(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.cli import main

    assert main(["predict", str(files / "run"), str(files / "photos"), "--budget", "0.5", "--json"]) == 0
    expected = [(row["label"], row["path"], row["madds"]) for row in json.loads(capsys.readouterr().out)]
    for artefact in ("model.onnx", "bundle"):
        found = told(files, "predict", artefact, "photos", "--budget", "0.5")
        assert [(row["label"], row["path"], row["madds"]) for row in found] == expected  # type: ignore[attr-defined]


def test_a_file_tells_its_widths_without_torch(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.cli import main

    assert main(["info", str(files / "run"), "--json"]) == 0
    assert told(files, "info", "model.onnx") == json.loads(capsys.readouterr().out)
