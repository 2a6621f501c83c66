"""OpenVINO runs all files with the routes and answers of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime as ort
import pytest
import torch

from dsnet import export_bundle, export_onnx, open_runner
from dsnet.cli import main
from dsnet.errors import CheckpointError, NotInstalledError
from dsnet.manifest import Policy
from dsnet.models import Supernet, count, eager
from dsnet.routers import Budget, RouterSpec
from dsnet.runtime import engine
from dsnet.runtime import openvino as room
from support.networks import EARLY, ROUTERS, assert_close, routed_net, side, varied

PROVIDER = "OpenVINOExecutionProvider"
needed = pytest.mark.skipif(room.openvino is None, reason="openvino is optional and not installed")
NETS = [
    *(("ds_mobilenet_v1_tiny", router) for router in (ROUTERS[0], EARLY[0])),
    pytest.param("ds_mobilenet_v1_tiny", ROUTERS[1], marks=pytest.mark.slow),
    *(pytest.param("ds_resnet_tiny", router, marks=pytest.mark.slow) for router in (*ROUTERS, EARLY[2])),
    pytest.param("ds_efficientnet_tiny", ROUTERS[0], marks=pytest.mark.slow),
]


def called(value: str | RouterSpec) -> str:
    return value if isinstance(value, str) else f"{value.kind}-{value.targets}{'-bound' * value.bound}"


def calibrated(net: Supernet) -> Supernet:
    """The network with two budgets, whose lambdas send images different ways."""
    table, size = count(net, side(net)), side(net)
    ends = ((net.candidates[0], 0.3), (net.candidates[-1], -0.3))
    budgets = tuple(Budget(table.madds(path, dynamic=True), lam, 0.5, size) for path, lam in ends)
    net.card = net.card.__class__(budgets=budgets)
    return net


def names(runner: Any) -> list[str]:
    """The outputs of a runner's session."""
    return [slot.name for slot in runner.session.get_outputs()]


@needed
@pytest.mark.parametrize(("name", "router"), NETS, ids=called)
def test_routes_and_answers_are_those_of_onnx_runtime(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = calibrated(routed_net(name, router))
    x, size = varied(net, 6).float(), side(net)
    dynamic = export_onnx(net, tmp_path / "dynamic.onnx", image_size=size)
    places = [dynamic, export_onnx(net, tmp_path / "simple.onnx", image_size=size, simple=True)]
    places.append(export_bundle(net, tmp_path / "bundle", image_size=size))
    taken = set()
    for place in places:
        expected, actual = open_runner(place, threads=1), open_runner(place, threads=1, runtime="openvino")
        assert actual.runtime == expected.runtime.replace(expected.runtime.split(",")[0], room.engine().name)
        assert actual.setting().runtime != expected.setting().runtime  # so that their latency tables are kept apart
        assert actual.manifest == expected.manifest
        if not place.is_dir():
            assert names(actual) == names(expected)
        policies = [expected.policy(row.madds) for row in net.card.budgets]
        policies += [Policy(0.05)] if expected.manifest.pins else []  # a lambda that the file does not hold
        for policy in policies:
            wanted, found = expected.run(x, policy), actual.run(x, policy)
            assert torch.equal(found.paths, wanted.paths)
            assert torch.equal(found.madds, wanted.madds)
            assert_close(found.logits, wanted.logits, 1e-4)
            for mine, theirs in zip(found.scores, wanted.scores, strict=True):
                assert_close(mine, theirs, 1e-4)
            taken |= set(map(tuple, wanted.paths.tolist()))
        for path in expected.paths[:: max(1, len(expected.paths) - 1)] if expected.manifest.pins else ():
            assert_close(actual(x[:2], path=path).logits, expected(x[:2], path=path).logits, 1e-4)
    assert len(taken) > 1
    alone = export_onnx(net, tmp_path / "static.onnx", path=net.space.widest, image_size=size)
    static = open_runner(alone, runtime="openvino")
    for number in (1, 5):
        logits = eager(net)(x[:number], path=net.space.widest).logits
        assert_close(static(x[:number], path=net.space.widest).logits, logits, 1e-4)


@pytest.mark.skipif(PROVIDER not in ort.get_available_providers(), reason="needs the package onnxruntime-openvino")
@pytest.mark.parametrize(("name", "router"), NETS, ids=called)
@pytest.mark.filterwarnings("ignore:OpenVINOExecutionProvider cannot run")  # the CPU then runs the file
def test_the_provider_of_onnx_runtime_gives_the_same_routes(
    name: str, router: RouterSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "openvino", None)
    net = calibrated(routed_net(name, router))
    x, size = varied(net, 6).float(), side(net)
    for place in (
        export_onnx(net, tmp_path / "dynamic.onnx", image_size=size),
        export_bundle(net, tmp_path / "bundle", image_size=size),
    ):
        expected, actual = open_runner(place, threads=1), open_runner(place, threads=1, runtime="openvino")
        assert actual.runtime == expected.runtime.replace(",", " OpenVINO,", 1)
        for row in net.card.budgets:
            wanted, found = (runner.run(x, runner.policy(row.madds)) for runner in (expected, actual))
            assert torch.equal(found.paths, wanted.paths)
            assert_close(found.logits, wanted.logits, 1e-4)


def test_the_provider_stands_in_for_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "openvino", None)
    monkeypatch.setattr(engine.ort, "get_available_providers", lambda: [PROVIDER, engine.CPU])
    opened: list[Any] = []
    monkeypatch.setattr(engine, "open_session", lambda file, threads, *, providers: opened.append((threads, providers)))
    made = room.engine()
    assert made.name == f"onnxruntime {ort.__version__} OpenVINO"
    made.open(tmp_path / "model.onnx", 3)
    told = {"device_type": "CPU", "precision": "FP32", "num_of_threads": "3"}
    assert opened == [(3, [(PROVIDER, told), (engine.CPU, {})])]


@needed
def test_files_that_cannot_be_read_get_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "text.onnx").write_text("this is not a network")
    for file, message in (("missing.onnx", "does not exist"), ("text.onnx", "cannot be read as an ONNX file")):
        with pytest.raises(CheckpointError, match=message):
            open_runner(tmp_path / file, runtime="openvino")


def test_what_cannot_be_run_says_so(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="runtime 'tflite' is unknown; choose from onnx, openvino, tensorrt"):
        open_runner(trained / "model.onnx", runtime="tflite")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no ONNX file and no bundle, so PyTorch runs it"):
        open_runner(trained, runtime="onnx")
    monkeypatch.setattr(room, "openvino", None)
    monkeypatch.setattr(engine.ort, "get_available_providers", lambda: [engine.CPU])
    with pytest.raises(NotInstalledError, match=r"pip install 'dsnet\[openvino\]'"):
        open_runner(trained / "model.onnx", runtime="openvino")
    assert main(["predict", str(trained / "model.onnx"), str(trained), "--runtime", "openvino"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
