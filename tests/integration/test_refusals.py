"""Wrong input of any command ends with one line and code 2, and Ctrl-C with code 130."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dsnet.cli
from dsnet.checkpoint import MODEL
from dsnet.cli import main
from dsnet.files import with_digest
from support.counted import Counted

NINES = "9" * 5000
TRIALS = 20


def described(spec: object) -> str:
    """A model.json with the right digest and this spec."""
    body = {"format": 1, "dsnet": "0", "spec": spec, "card": {}, "weights": {"sha256": "0", "bytes": 1}}
    return json.dumps(with_digest(body))


def bundle(text: str) -> dict[str, str]:
    return {"bundle/manifest.json": text, "bundle/weights.bin": "x"}


def run(config: str, model: str = "{}") -> dict[str, str]:
    return {"run/config.yaml": config, f"run/{MODEL}": model}


DEEP = '{"a":' * 100_000
CASES: dict[str, tuple[dict[str, str], list[str]]] = {
    "a manifest that is a list": (bundle("[1, 2]"), ["info", "bundle"]),
    "a manifest without keys": (bundle('{"dsnet.format": "3"}'), ["info", "bundle"]),
    "a manifest of numbers": (bundle('{"dsnet.format": "3", "dsnet.manifest": 7}'), ["advise", "bundle"]),
    "a manifest of lists": (bundle('{"dsnet.format": "3", "dsnet.manifest": "[[]]"}'), ["info", "bundle"]),
    "a deep manifest": (bundle(DEEP), ["info", "bundle"]),
    "a deep inner manifest": (bundle(json.dumps({"dsnet.format": "3", "dsnet.manifest": DEEP})), ["info", "bundle"]),
    "a format of 5,000 digits": (bundle(f'{{"dsnet.format": {NINES}}}'), ["info", "bundle"]),
    "a deep model": (run("{}", DEEP), ["info", "run"]),
    "a model of another shape": (run("{}", described([1])), ["info", "run"]),
    "a number of 5,000 digits in a model": (run("{}", f'{{"format": {NINES}}}'), ["info", "run"]),
    "--from a config that is no YAML": (run("a: [1"), ["train", "--from", "run", "--out", "new"]),
    "--from a config of wrong types": (run("model: 3"), ["train", "--from", "run", "--out", "new"]),
    "--from a config that is a list": (run("[1]"), ["train", "--stage", "gate", "--from", "run", "--out", "new"]),
    "--from a config of an unknown task": (run("task: {a: 1}"), ["eval", "run"]),
    "--from a deep config": (run("a: " + "[" * 1000), ["train", "--from", "run", "--out", "new"]),
    "--from a model without a name": ({f"run/{MODEL}": described([1])}, ["train", "--from", "run", "--out", "new"]),
    "a seed of 5,000 digits": ({}, ["train", "--seed", NINES, "--out", "new"]),
    "a rate of 5,000 digits": ({}, ["train", "--optim.lr", NINES, "--out", "new"]),
    "a rate that is no number": ({}, ["train", "--optim.lr", ".nan", "--out", "new"]),
    "a budget of 5,000 digits": ({}, ["predict", "model.onnx", "x.png", "--budget", NINES]),
    "a budget that is no number": ({}, ["predict", "model.onnx", "x.png", "--budget", "nan"]),
    "a path of 5,000 digits": ({}, ["info", "ds_mobilenet_v1_tiny", "--path", NINES]),
    "an image size of 12 digits": ({}, ["info", "ds_mobilenet_v1_tiny", "--image_size", "9" * 12]),
    "a result that is a list": ({"run/results/test.json": "[]", **run("{}")}, ["advise", "run"]),
    "weights that are none": ({"weights.pth": "x"}, ["import", "weights.pth", "--out", "new"]),
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_input_ends_with_one_line(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    files, words = CASES[case]
    for name, text in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    try:
        code = main(words)
    except SystemExit as stop:
        code = stop.code
    told = capsys.readouterr()
    assert code == 2
    assert told.err.startswith(f"dsnet {words[0]}: error: ")
    assert len(told.err.splitlines()) == 1
    assert len(told.err) < 1000
    assert not Path("new").exists()


@pytest.mark.parametrize("how", [KeyboardInterrupt, ImportError, RuntimeError])
def test_ctrl_c_while_a_module_is_imported(how: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:
            if how is KeyboardInterrupt:
                raise
            raise how("the module was only half imported")  # noqa: B904

    monkeypatch.setattr(dsnet.cli, "import_module", interrupt)
    assert main(["models"]) == 130


def test_too_little_memory_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(name: str) -> None:
        raise MemoryError("Unable to allocate 9 TiB")

    monkeypatch.setattr(dsnet.cli, "import_module", fail)
    assert main(["models"]) == 2
    assert "there is not enough memory (Unable to allocate 9 TiB)" in capsys.readouterr().err


PROGRAM = "import sys; from dsnet.__main__ import main; print('begins', flush=True); sys.exit(main())"
ENDED = 130, -signal.SIGINT  # the second one while Python itself ends; a shell shows both as 130


def heed_ctrl_c() -> None:
    """A test that runs in the background of a shell inherits that Ctrl-C is ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.slow
def test_ctrl_c_at_any_moment_of_the_start(counted: Counted) -> None:
    words = [sys.executable, "-c", PROGRAM, "models"]

    def start() -> subprocess.Popen[str]:
        process = subprocess.Popen(
            words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "begins\n"
        return process

    begin = time.monotonic()
    start().communicate()
    whole, broken, done = time.monotonic() - begin, [], 0
    for trial in range(TRIALS):
        process = start()
        time.sleep(whole * trial / TRIALS)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=120)
        done += process.returncode == 0  # it had ended before
        if process.returncode not in (0, *ENDED) or told:
            broken.append((trial, process.returncode, told[-300:]))
    assert done < TRIALS / 2, "the command is too quick to be interrupted"
    counted("Ctrl-C while a command starts ends it with code 130 and without a word", TRIALS, broken, had_ended=done)
