"""What exported files need: they are described and run where torch cannot be imported."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dsnet
from dsnet.errors import TRAIN
from dsnet.models import count
from dsnet.routers import Budget, RouterSpec
from dsnet.training.sgs import with_fresh_router
from support.networks import randomised
from support.results import compared

ROOT = Path(__file__).parents[2]
ABSENT = """
import sys
from dsnet.errors import TRAIN

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in TRAIN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
import dsnet
from dsnet.cli import main
"""
COMMAND = f"{ABSENT}\nsys.exit(main())"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("light")
    net = randomised("ds_mobilenet_v1_tiny").float()
    net = with_fresh_router(net, replace(net.spec, router=RouterSpec("cheap_first", "correctness"))).eval()
    table = count(net)
    ends = ((net.candidates[0], 0.5), (net.candidates[-1], -0.5))
    budgets = tuple(Budget(table.madds(path, dynamic=True), lam, 0.5, 32) for path, lam in ends)
    net.card = replace(net.card, classes=tuple("abcdefg"), budgets=budgets)
    dsnet.save(net, folder / "run")
    dsnet.export_onnx(net, folder / "model.onnx", evaluation=compared([-0.2, -0.1, -0.001, 0.0, 0.0]))
    dsnet.export_bundle(net, folder / "bundle")
    rng = np.random.default_rng(0)
    for number in range(3):
        image = Image.fromarray(rng.integers(0, 255, (40, 50, 3), np.uint8))
        (folder / "photos").mkdir(exist_ok=True)
        image.save(folder / "photos" / f"{number}.png")
    return folder


def told(folder: Path, *words: str) -> object:
    return json.loads(done(folder, [sys.executable, "-c", COMMAND, *words, "--json"]))


def done(folder: Path, command: list[str]) -> str:
    """What a program that must succeed prints."""
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_file_and_a_bundle_predict_without_torch(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.cli import main

    assert main(["predict", str(files / "run"), str(files / "photos"), "--budget", "0.5", "--json"]) == 0
    expected = [(row["label"], row["path"], row["madds"]) for row in json.loads(capsys.readouterr().out)]
    for artefact in ("model.onnx", "bundle"):
        found = told(files, "predict", artefact, "photos", "--budget", "0.5")
        assert [(row["label"], row["path"], row["madds"]) for row in found] == expected  # type: ignore[attr-defined]


def test_a_reader_that_has_read_enough_is_no_error(files: Path) -> None:
    program = [sys.executable, "-c", COMMAND, "info", "model.onnx", "--json"]
    with subprocess.Popen(program, cwd=files, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert (process.stderr.read(), process.wait()) == ("", 128 + 13)


def test_a_file_is_timed_without_torch(files: Path) -> None:
    result = told(files, "bench", "model.onnx", "--repeats", "2")
    (table,) = result["latency"]  # type: ignore[index]
    assert [row["path"] for row in table["rows"]] == [[width] for width in range(6)]


def test_a_file_tells_its_widths_without_torch(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.cli import main

    assert main(["info", str(files / "run"), "--json"]) == 0
    assert told(files, "info", "model.onnx") == json.loads(capsys.readouterr().out)


def test_a_file_is_advised_on_without_torch(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from dsnet.cli import main

    found = told(files, "advise", "model.onnx", "--budget", "0.7")
    assert main(["advise", str(files / "model.onnx"), "--budget", "0.7", "--json"]) == 0
    expected = json.loads(capsys.readouterr().out)
    assert found == {**expected, "place": "model.onnx", "command": "dsnet predict model.onnx PHOTOS --path 2"}


def test_what_needs_more_than_the_light_install_says_how_to_install_it(files: Path) -> None:
    """Every command and every public name: one line with the command that installs the rest."""
    program = f"""{ABSENT}
import contextlib, io, re
from dsnet.cli import COMMANDS
sentence = (
    r"this needs more than the light install of dsnet \\(\\w+ is missing\\); run: pip install 'dsnet\\[train\\]'"
)
more = {{"info": ["ds_mobilenet_v1"], "predict": ["run", "photos"], "import": ["x.pth", "--out", "y"],
         "slim": ["a:b", "--out", "y"], "shards": ["photos", "y"],
         "serve": ["run", "--port", "0"], "train": [], "demo": [], "models": [],
         "reproduce": ["main", "--scale", "smoke"]}}
for name in COMMANDS:
    if name == "advise":  # it reads results only
        continue
    words = [name, *more.get(name, ["run"])]
    with contextlib.redirect_stderr(io.StringIO()) as error, contextlib.redirect_stdout(io.StringIO()):
        code = main(words)
    assert code == 2, words
    assert re.fullmatch(f"dsnet {{name}}: error: {{sentence}}\\n", error.getvalue()), error.getvalue()
with contextlib.redirect_stderr(io.StringIO()) as error:  # what is written wrongly is told before torch is needed
    assert main(["eval", "run", "--budgets", "0.5x"]) == 2
assert "budget '0.5x' is not understood" in error.getvalue()
assert dir(dsnet) == sorted(dsnet.__all__)
for name in dsnet.__all__:
    try:
        getattr(dsnet, name)
        assert name not in ("create_model", "load", "export_onnx"), name
    except ImportError as error:
        assert re.fullmatch(sentence, str(error)), error
        assert name not in ("predict", "open_runner"), name
for call in (lambda: dsnet.train("digits"), lambda: dsnet.evaluate("run"), lambda: dsnet.open_runner("run")):
    try:
        call()
        raise AssertionError("torch is absent")
    except ImportError as error:
        assert re.fullmatch(sentence, str(error)), error
answers = dsnet.predict("photos", "model.onnx", budget=0.5)
assert [one.name in "abcdefg" for one in answers] == [True] * 3
import importlib.util
if importlib.util.find_spec("starlette"):
    from dsnet.serve import app, ladder
    ladder.SECONDS = 0.01
    assert len(app.application({{"net": "model.onnx"}}).state.serve.engine.models["net"].levels) > 1
"""
    done(files, [sys.executable, "-c", program])


def test_the_extra_train_brings_what_the_light_install_leaves_out() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {"PyYAML": "yaml", "scikit-learn": "sklearn"}
    brought = [re.split("[<>=]", each)[0] for each in project["optional-dependencies"]["train"]]
    assert sorted(names.get(name, name) for name in brought) == sorted(TRAIN)
