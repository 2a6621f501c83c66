"""OpenVINO runs all files with the routes and answers of ONNX Runtime."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import onnxruntime as ort
import pytest
import torch

from dsnet import export_bundle, export_onnx, open_runner
from dsnet.cli import main
from dsnet.errors import CheckpointError, NotInstalledError, RoutingError
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


def computes_bf16() -> bool:
    return "BF16" in room.core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@needed
def test_bfloat16_is_named_and_close_to_floats(tmp_path: Path) -> None:
    """Scores differ, so some routes do, too. Everything else is as in floats."""
    if not computes_bf16():
        pytest.skip("this processor has no bfloat16")
    net = calibrated(routed_net("ds_mobilenet_v1_tiny", ROUTERS[0]))
    x, file = varied(net, 6).float(), export_onnx(net, tmp_path / "dynamic.onnx", image_size=side(net))
    floats = open_runner(file, threads=1, runtime="openvino")
    halves = open_runner(file, threads=1, runtime="openvino-bf16")
    assert halves.runtime == f"{room.engine().name} bf16, dynamic"
    assert halves.setting() != floats.setting()
    for path in floats.paths[:: len(floats.paths) - 1]:
        exact, found = floats(x, path=path).logits, halves(x, path=path).logits
        assert 0 < (found - exact).square().mean().sqrt() < 0.1 * exact.std()
    routed, table = halves(x, budget=0.6), halves.manifest.table
    taken = list(map(tuple, routed.paths.tolist()))
    assert routed.madds.tolist() == [table.madds(path, dynamic=True) for path in taken]
    for row, path in enumerate(taken):
        assert_close(halves(x[row : row + 1], path=path).logits[0], routed.logits[row], 1e-4)
    with pytest.raises(RoutingError, match=r"--threads 1 --runtimes openvino-bf16`"):
        halves(x, latency="5ms")
    with pytest.raises(RoutingError, match="not finite"):
        halves(x * float("nan"), budget=0.6)


@needed
def test_bench_compares_bfloat16_with_floats(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, kinds = ["bench", "ds_mobilenet_v1_tiny", "--paths", "0", "--repeats", "2"], ["openvino", "openvino-bf16"]
    assert main(["bench", str(trained / "model.onnx"), "--runtimes", *kinds]) == 2
    assert "name openvino or openvino-bf16" in capsys.readouterr().err
    with monkeypatch.context() as patch:
        patch.setattr(room, "core", lambda: SimpleNamespace(get_property=lambda *_: ["FP32"]))
        assert main([*words, "--runtimes", "openvino-bf16"]) == 2
    assert capsys.readouterr().err.count("this processor has no bfloat16") == 1
    if not computes_bf16():
        pytest.skip("this processor has no bfloat16")
    assert main([*words, "--json", "--runtimes", *kinds]) == 0
    rows = json.loads(capsys.readouterr().out)["widths"]["rows"]
    assert {row["runtime"] for row in rows} == {*kinds, *(f"static {kind}" for kind in kinds)}


def test_what_cannot_be_run_says_so(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ValueError, match="'tflite' is unknown; choose from onnx, openvino, openvino-bf16, tensorrt"):
        open_runner(trained / "model.onnx", runtime="tflite")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is no ONNX file and no bundle, so PyTorch runs it"):
        open_runner(trained, runtime="onnx")
    monkeypatch.setattr(room, "openvino", None)
    monkeypatch.setattr(engine.ort, "get_available_providers", lambda: [engine.CPU])
    with pytest.raises(NotInstalledError, match=r"pip install 'dsnet\[openvino\]'"):
        open_runner(trained / "model.onnx", runtime="openvino")
    assert main(["predict", str(trained / "model.onnx"), str(trained), "--runtime", "openvino"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
