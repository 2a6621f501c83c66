"""Every export is verified when it is opened: a flipped bit is refused, or changes nothing."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import dsnet
from dsnet.cli import main
from dsnet.errors import CheckpointError
from dsnet.export.bundle import export_bundle
from dsnet.export.int8 import quantisation
from dsnet.export.onnx import export_onnx
from dsnet.manifest import Policy
from dsnet.models.narrow import narrowed
from dsnet.routers import RouterSpec
from dsnet.runtime import seal
from support.counted import Counted
from support.detectors import random_detector
from support.faults import flipped
from support.networks import calibrated, side, varied

IMAGES, BUDGETS = 24, (0.3, 0.45, 0.6, 0.8, 1.0)
GATE, CHEAP_FIRST = RouterSpec("gate", "correctness"), RouterSpec("cheap_first", "correctness")
TAIL = 20_000  # bytes at the end of a file, with its metadata and its digest


def answers(place: Path, runtime: Any = None) -> list[Any]:
    """All that a user sees of an export: its manifest, its answers and its routes."""
    runner = dsnet.open_runner(place, threads=1, runtime=runtime)
    manifest, dice = runner.manifest, np.random.default_rng(0)
    shape = (IMAGES, manifest.in_channels, manifest.image_size, manifest.image_size)
    x: Any = dice.standard_normal(shape).astype(np.float32)
    if manifest.raw:
        x = [dice.integers(0, 256, (40, 50, 3), np.uint8) for _ in range(IMAGES)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # budgets out of reach
        if not manifest.routes:
            routed = [runner.run_path(x, runner.paths[0])]
        elif manifest.router is not None and manifest.router.budgets:
            routed = [runner(x, budget=budget) for budget in BUDGETS]
        else:
            routed = [runner.run(x, Policy(budget - BUDGETS[2])) for budget in BUDGETS]
    arrays = [array for one in routed for array in (*one.outputs.values(), one.paths, one.madds)]
    return [manifest, *(np.asarray(array).tobytes() for array in arrays)]


@contextmanager
def flipping(file: Path, bit: int) -> Iterator[None]:
    """Flip a bit of a file for a moment."""
    good = file.read_bytes()
    file.write_bytes(flipped(good, bit))
    try:
        yield
    finally:
        file.write_bytes(good)


def flip(place: Path, trials: int, runtime: Any = None) -> tuple[Counter[str], list[str]]:
    """Flip random bits, one at a time: in all files of a bundle, and half of them at the end of a file."""
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    expected, dice = answers(place, runtime), random.Random(str(place.name))
    found, broken = Counter[str](), list[str]()
    for trial in range(trials):
        file = dice.choice(files)
        size = file.stat().st_size
        bit = dice.randrange(8 * max(0, size - TAIL) if trial % 2 else 0, 8 * size)
        with flipping(file, bit):
            try:
                same = answers(place, runtime) == expected
            except CheckpointError:
                found["refused"] += 1
                continue
            except Exception as error:
                same = False
                broken.append(f"{file.name} bit {bit}: {error!r}")
        found["harmless"] += same
        broken += [] if same else [f"{file.name} bit {bit}: another answer"]
    return found, broken


@pytest.mark.parametrize("name", ["model.onnx", "bundle", "path-2.onnx"])
def test_a_flipped_bit_is_refused_or_harmless(name: str, run: Path) -> None:
    found, broken = flip(run / name, 30)
    assert not broken
    assert found["refused"] >= 20


def exports(folder: Path) -> Iterator[tuple[str, Path]]:
    """An export of every kind, by name."""
    net, several = calibrated("ds_mobilenet_v1_tiny", CHEAP_FIRST), calibrated("ds_resnet_tiny", GATE)
    detector = random_detector("ds_mobilenet_v1_small", router=GATE).float()
    size = {"image_size": side(net)}
    int8 = quantisation(net, varied(net, 8).float())
    files: dict[str, tuple[Any, dict[str, Any]]] = {
        "dynamic": (net, size),
        "static": (net, size | {"path": (2,)}),
        "int8": (net, size | {"int8": int8}),
        "raw": (net, size | {"raw": True}),
        "simple": (net, size | {"simple": True}),
        "widths": (narrowed(net, (0, 3)), size),
        "gates": (several, {"image_size": side(several)}),
        "detector": (detector, {}),
        "static-detector": (detector, {"path": detector.space.widest}),
    }
    bundles = {name: files[name] for name in ("dynamic", "int8", "gates", "detector")}
    for name, (owner, options) in files.items():
        yield name, export_onnx(owner, folder / f"{name}.onnx", **options)
    for name, (owner, options) in bundles.items():
        yield f"{name}-bundle", export_bundle(owner, folder / f"{name}-bundle", **options)


@pytest.mark.slow
def test_flipped_bits_are_refused_or_harmless(tmp_path: Path, counted: Counted) -> None:
    """All kinds of exports in ONNX Runtime, and some of them in OpenVINO."""
    total, broken, trials, kinds = Counter[str](), list[str](), 0, list(exports(tmp_path))
    tried = [(name, place, None) for name, place in kinds]
    tried += [(name, place, "openvino") for name, place in kinds if openvino() and name.startswith("dynamic")]
    for name, place, runtime in tried:
        count = -(-1000 // len(tried))
        found, more = flip(place, count, runtime)
        total, trials = total + found, trials + count
        broken += [f"{name} {line}" for line in more]
    law = f"A flipped bit in an export is refused, or nothing changes on {IMAGES} images at {len(BUDGETS)} budgets"
    counted(law, trials, broken, kinds_of_exports=len(kinds), **total)


def openvino() -> bool:
    try:
        import openvino  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def test_openvino_refuses_a_flipped_bit(run: Path) -> None:
    pytest.importorskip("openvino", reason="OpenVINO is not installed")
    (weights,) = (run / "bundle").glob("*/weights.bin")
    for place, file in ((run / "model.onnx", run / "model.onnx"), (run / "bundle", weights)):
        with flipping(file, 8 * 40_000), pytest.raises(CheckpointError, match="does not match its digest"):
            dsnet.open_runner(place, runtime="openvino")


def test_every_command_refuses_a_flipped_bit(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (weights,) = (run / "bundle").glob("*/weights.bin")
    for place, file in ((run / "model.onnx", run / "model.onnx"), (run / "bundle", weights)):
        with flipping(file, 8 * 40_000):
            for command in (["info"], ["eval"], ["bench"], ["advise"], ["predict", run / "results"]):
                words = [command[0], place, *command[1:]]
                assert main([str(word) for word in words]) == 2, words
                error = capsys.readouterr().err
                assert f"{file.name} does not match its digest" in error, words
                assert error.count("\n") == 1


def test_without_the_digest_a_flipped_bit_would_change_answers(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The law above can break: so it was in dsnet 0.1."""
    place = run / "model.onnx"
    expected, weights = answers(place), max((one.raw_data for one in onnx.load(place).graph.initializer), key=len)

    def trusting(file: Path) -> str:
        return file.read_bytes()[-seal.HEX :].decode()

    monkeypatch.setattr(seal, "checked", trusting)
    with flipping(place, 8 * (place.read_bytes().index(weights) + 2) + 7):  # a weight becomes half or twice as large
        assert answers(place) != expected


def test_a_file_can_be_verified_by_its_last_bytes(trained: Path) -> None:
    """As the documentation says, without dsnet."""
    data = (trained / "model.onnx").read_bytes()
    assert hashlib.sha256(data[:-82]).hexdigest().encode() == data[-64:]
    held = onnxruntime.InferenceSession(data).get_modelmeta().custom_metadata_map
    assert held["dsnet.sha256"].encode() == data[-64:]
    assert seal.sealed(data) == data == seal.sealed(data[:-82])
