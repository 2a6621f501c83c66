"""`dsnet export --triton`: what Triton would read is what the files are. Its own schema reads the configs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

import dsnet
from dsnet import export_onnx
from dsnet.cli import main
from dsnet.export.triton import for_batches, model_file, write_config
from dsnet.routers import RouterSpec
from support.detectors import random_detector
from support.networks import calibrated

text_format = pytest.importorskip("google.protobuf.text_format", reason="protobuf is not installed")
schema = pytest.importorskip("tritonclient.grpc.model_config_pb2", reason="tritonclient or grpcio is not installed")

KINDS = {"TYPE_FP32": "tensor(float)", "TYPE_INT64": "tensor(int64)", "TYPE_UINT8": "tensor(uint8)"}
OTHERS = ("detector", "raw", "exit")
NUMPY = {"TYPE_FP32": np.float32, "TYPE_INT64": np.int64, "TYPE_UINT8": np.uint8}


def read(config: Path) -> Any:
    return text_format.Parse(config.read_text(), schema.ModelConfig())


def sides(shape: list[object]) -> list[int]:
    return [side if isinstance(side, int) else -1 for side in shape]


def check(folder: Path) -> Any:
    """A model of a repository loads as Triton's backend for ONNX would load it: the rules are those of its source."""
    config = read(folder / "config.pbtxt")
    assert (config.name, config.backend) == (folder.name, "onnxruntime")
    file = folder / "1" / "model.onnx"
    session = onnxruntime.InferenceSession(file)
    assert set(dsnet.open_runner(file).manifest.inputs) == {slot.name for slot in config.input}
    for said, real in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [slot.name for slot in said] == [slot.name for slot in real]
        for one, slot in zip(said, real, strict=True):
            assert KINDS[schema.DataType.Name(one.data_type)] == slot.type
            full = [-1] * (config.max_batch_size > 0) + list(one.dims)
            assert full == (sides(slot.shape) or [1])  # a scalar is one number to Triton
            assert config.max_batch_size == 0 or slot.shape[0] == "batch"
    assert config.HasField("dynamic_batching") == (config.max_batch_size > 1)
    return config


def asked(folder: Path, batch: int = 1) -> dict[str, np.ndarray]:
    """What a model answers to a request as its config says it."""
    config, rng = read(folder / "config.pbtxt"), np.random.default_rng(0)
    feed = {}
    for slot in config.input:
        shape = [batch] * (config.max_batch_size > 0) + [20 if side < 0 else side for side in slot.dims]
        kind = NUMPY[schema.DataType.Name(slot.data_type)]
        noise = rng.integers(0, 256, shape) if kind is np.uint8 else rng.normal(size=shape)
        feed[slot.name] = (noise if slot.name == "image" else np.full(shape, -1)).astype(kind)
    session = onnxruntime.InferenceSession(folder / "1" / "model.onnx")
    return dict(zip((slot.name for slot in config.output), session.run(None, feed), strict=True))


@pytest.mark.parametrize("kind", ["routed", *(pytest.param(kind, marks=pytest.mark.slow) for kind in OTHERS)])
def test_configs_are_those_of_the_files(kind: str, tmp_path: Path) -> None:
    router = RouterSpec("exit_first", "correctness", early=0) if kind == "exit" else RouterSpec("gate", "correctness")
    net = random_detector().float() if kind == "detector" else calibrated("ds_mobilenet_v1_tiny", router).float()
    raw = kind == "raw"
    whole = export_onnx(net, model_file(tmp_path, "net work"), raw=raw)
    write_config(whole)
    assert check(tmp_path / "net-work").max_batch_size == 0
    paths, space = for_batches(dsnet.open_runner(whole).manifest), net.manifest().space
    assert len(paths) == (0 if raw else len(space.uniform) + (kind == "exit"))
    write_config(export_onnx(net, model_file(tmp_path, "one"), path=space.widest if raw else paths[-1], raw=raw))
    one = check(tmp_path / "one")
    assert one.max_batch_size == (0 if raw else 64)
    assert set(asked(tmp_path / "net-work")) > set(asked(tmp_path / "one"))
    if not raw:
        assert all(len(output) == 3 for output in asked(tmp_path / "one", 3).values())


def test_a_wrong_config_is_noticed(tmp_path: Path) -> None:
    net = calibrated("ds_mobilenet_v1_tiny", RouterSpec("gate", "correctness")).float()
    config = write_config(export_onnx(net, model_file(tmp_path, "net")))
    good = config.read_text()
    for old, new in (("FP32", "FP16"), ("size: 0", "size: 4"), ('"pin"', '"cost"'), ("[ 1, 3,", "[ 3,")):
        assert old in good
        config.write_text(good.replace(old, new, 1))
        with pytest.raises((AssertionError, KeyError)):
            check(tmp_path / "net")


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["--int8"], ["--simple"], ["--widths", "0,2"], ["--budget", "0.5"]], ids=str)
def test_a_repository_holds_the_dynamic_network_and_its_widths(
    run: Path, tmp_path: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "repository"
    assert main(["export", str(run), "--triton", str(out), *words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert sorted(said["models"]) == sorted(folder.name for folder in out.iterdir())
    whole, *paths = (out / name for name in said["models"])
    assert len(paths) == (2 if "--widths" in words else len(dsnet.open_runner(run).manifest.space.uniform))
    assert check(whole).max_batch_size == 0
    for path in paths:
        assert check(path).max_batch_size > 1
    if "--simple" not in words:  # a pinned path is the path's own file
        runner = dsnet.open_runner(whole / "1" / "model.onnx")
        for path, pin in zip(paths, runner.manifest.space.uniform, strict=True):
            alone = dsnet.open_runner(path / "1" / "model.onnx")
            shape = (3, alone.manifest.in_channels, *[alone.manifest.image_size] * 2)
            x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
            tolerance = 0.2 if "--int8" in words else 1e-4
            expected = runner(x, path=pin).logits
            np.testing.assert_allclose(alone(x, path=pin).logits, expected, atol=tolerance * np.abs(expected).max())


@pytest.mark.slow
def test_one_path_and_raw_files_are_repositories_of_one_model(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, name, batch in (
        (["--path", "2"], f"{run.name}-path-2", 64),
        (["--raw"], f"{run.name}-raw", 0),
        (["--raw", "--path", "2"], f"{run.name}-path-2-raw", 0),
    ):
        assert main(["export", str(run), "--triton", str(tmp_path), *words]) == 0
        assert f"tritonserver --model-repository={tmp_path}" in capsys.readouterr().out
        assert check(tmp_path / name).max_batch_size == batch
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
def test_what_makes_no_repository_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    taken = tmp_path / "file"
    taken.write_text("")
    wrong = [
        ([str(tmp_path / "x"), "--bundle"], "Triton runs ONNX files; leave --bundle out"),
        ([str(tmp_path / "x"), "--out", "a.onnx"], "--triton says where to write; leave --out out"),
        ([str(taken)], "cannot be written"),
        ([str(tmp_path / "x"), "--path", "2", "--budget", "0.5"], "--path pins the widths; leave --budget out"),
    ]
    for words, text in wrong:
        assert main(["export", str(run), "--triton", *words]) == 2
        error = capsys.readouterr().err
        assert text in error
        assert error.count("\n") == 1
    assert not (tmp_path / "x").exists()
