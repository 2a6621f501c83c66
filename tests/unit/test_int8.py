"""INT8: one quantised network, whichever file holds it, close to the network in floats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch

from dsnet import export_bundle, export_onnx, open_runner, quantisation
from dsnet.export import int8 as room
from dsnet.export.int8 import Int8, with_bias
from dsnet.export.ranges import covering, steps_of
from dsnet.manifest import Policy
from dsnet.models import Supernet, eager
from dsnet.nn import SliceBatchNorm2d
from dsnet.routers import RouterSpec
from dsnet.routing.policy import decide
from dsnet.runtime.onnx import knobs
from dsnet.space import WidthSpace
from support.detectors import pictures, random_detector
from support.networks import EARLY, randomised, router_net, side, some_paths, varied

QUICK = ["ds_mobilenet_v1_tiny", "ds_efficientnet_tiny", "resnet_tiny"]
SLOW = ["ds_resnet_tiny", "us_mobilenet_v1_tiny", "ds_mobilenet_v1"]
ROUTERS = [RouterSpec("gate"), EARLY[0]]  # they decide before the first quantised layer
OTHERS = [EARLY[1], RouterSpec("cheap_first", "correctness"), RouterSpec("threshold")]
SAME = 1e-5  # of the spread: the same codes, and floats in another order


def slow(*cases: object) -> list[Any]:
    return [pytest.param(case, marks=pytest.mark.slow) for case in cases]


def quantised(net: Supernet, count: int = 16) -> tuple[torch.Tensor, Int8]:
    x = varied(net, count).float()
    return x, quantisation(net, x)


def with_negative_norms(net: Supernet) -> Supernet:
    """The network with norms of both signs, as training makes them."""
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, SliceBatchNorm2d):
                norm.weight[::2] *= -1
    return net


def with_own_norms(net: Supernet) -> Supernet:
    """The network with a scale and a shift for each width, whose signs differ at the slimmest."""
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, SliceBatchNorm2d):
                norm.own, rows = True, len(norm.channels)
                norm.weight = torch.nn.Parameter(norm.weight.repeat(rows, 1) * torch.linspace(0.8, 1.2, rows)[:, None])
                norm.bias = torch.nn.Parameter(norm.bias.repeat(rows, 1))
                if rows > 1:
                    norm.weight[0, ::3] *= -1
    return net


def off(actual: Any, expected: Any) -> float:
    """The largest difference, as a share of the spread."""
    wanted = torch.as_tensor(expected)
    return float((torch.as_tensor(actual) - wanted).abs().max() / wanted.std())


def convolutions(graph: onnx.GraphProto) -> Iterator[tuple[bool, onnx.NodeProto]]:
    """The convolutions of a graph and of its branches, and whether they are quantised."""
    decoded = {output for node in graph.node if node.op_type == "DequantizeLinear" for output in node.output}
    for node in graph.node:
        if node.op_type == "Conv":
            yield node.input[1] in decoded, node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from convolutions(attribute.g)


@pytest.mark.parametrize("norms", [with_negative_norms, with_own_norms])
@pytest.mark.parametrize("name", [*QUICK, *slow(*SLOW)])
def test_a_pinned_path_is_the_file_of_that_path_and_close_to_floats(
    name: str, norms: Callable[[Supernet], Supernet], tmp_path: Path
) -> None:
    net = norms(randomised(name)).float()
    (x, int8), size = quantised(net), side(net)
    runners = [open_runner(export_onnx(net, tmp_path / "model.onnx", image_size=size, int8=int8), threads=1)]
    if net.space.size > 1:
        runners.append(open_runner(export_bundle(net, tmp_path / "bundle", image_size=size, int8=int8), threads=1))
    for path in some_paths(net, 1):
        file = export_onnx(net, tmp_path / "path.onnx", path=path, image_size=size, int8=int8)
        expected, floats = open_runner(file, threads=1).run_path(x, path), eager(net).run_path(x, path)
        for runner in runners:
            found = runner.run_path(x, path)
            assert runner.manifest.precision == "int8"
            assert off(found.logits, expected.logits) <= SAME, runner.runtime
            assert torch.equal(found.madds, floats.madds)
        error = (expected.logits - floats.logits).square().mean().sqrt() / floats.logits.std()
        assert 0 < error < 0.1, path


def kinds_of(graph: onnx.GraphProto) -> Counter[str]:
    return Counter(node.op_type for node in graph.node)


@pytest.mark.parametrize("push", [0.0, 3.0, -4.0])
def test_hard_swish_of_codes_is_a_clip_and_a_product(push: float, tmp_path: Path) -> None:
    """push: Where the norms put the maps: on both sides of the bend at -3 and the one at 3, above, or below."""
    other = randomised("ds_mobilenet_v1_tiny").float()
    net = Supernet(replace(other.spec, activation="hardswish")).eval()
    net.load_state_dict(other.state_dict())
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, SliceBatchNorm2d):
                norm.weight.mul_(2)
                norm.bias.add_(push)
    (x, int8), size, path = quantised(net), side(net), net.space.widest
    file = export_onnx(net, tmp_path / "path.onnx", path=path, image_size=size, int8=int8)
    found, floats = (runner.run_path(x, path).logits for runner in (open_runner(file, threads=1), eager(net)))
    assert (found - floats).square().mean().sqrt() / floats.std() < 0.1
    kinds, before = kinds_of(onnx.load(file).graph), sum(name not in int8.layers for name in convolution_names(net))
    assert kinds["HardSwish"] == before  # those of the beginning, which stays in floats
    assert 0 < kinds["Clip"] <= len(convolution_names(net)) - before or push < 0
    dynamic = open_runner(export_onnx(net, tmp_path / "model.onnx", image_size=size, int8=int8), threads=1)
    assert off(dynamic.run_path(x, path).logits, found) <= SAME


def convolution_names(net: Supernet) -> list[str]:
    return [name for name, module in net.named_modules() if hasattr(module, "kernel")]


@pytest.mark.parametrize("router", [*ROUTERS, *slow(*OTHERS)], ids=lambda router: f"{router.kind}-{router.early}")
def test_routes_are_the_decisions_of_the_files_own_scores(router: RouterSpec, tmp_path: Path) -> None:
    net = router_net("ds_mobilenet_v1_tiny", router).float()
    (x, int8), size = quantised(net), side(net)
    file = open_runner(export_onnx(net, tmp_path / "model.onnx", image_size=size, int8=int8), threads=1)
    bundle = open_runner(export_bundle(net, tmp_path / "bundle", image_size=size, int8=int8), threads=1)
    prices = file.prices(size)
    widths = [path[0] for path in (prices.router.candidates if router.single else prices.router.routing.uniform)]
    taken = set()
    for lam in (-1.0, -0.2, 0.0, 0.2, 1.0):
        policy = Policy(lam)
        routed, other = file.run(x, policy), bundle.run(x, policy)
        chosen = decide(routed.scores[0].numpy(), prices.at(0, 0), policy, prices.allowed(0, policy))
        assert routed.paths[:, 0].tolist() == [widths[position] for position in chosen]
        assert torch.equal(routed.paths, other.paths)
        assert torch.equal(routed.madds, other.madds)
        assert off(routed.logits, other.logits) <= SAME
        if not router.probes:
            assert torch.equal(routed.paths, eager(net).run(x, policy).paths)
        taken |= set(routed.paths[:, 0].tolist())
    assert len(taken) > 1


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_small", *slow("ds_resnet_tiny")])
def test_a_detector_is_quantised_too(name: str, tmp_path: Path) -> None:
    detector, x = random_detector(name).float(), pictures(8).float()
    int8 = quantisation(detector, x)
    file = open_runner(export_onnx(detector, tmp_path / "model.onnx", int8=int8), threads=1)
    bundle = open_runner(export_bundle(detector, tmp_path / "bundle", int8=int8), threads=1)
    for path in (detector.space.slimmest, detector.space.widest):
        static = open_runner(export_onnx(detector, tmp_path / "path.onnx", path=path, int8=int8), threads=1)
        found, floats = static.run_path(x, path).outputs, eager(detector).run_path(x, path).outputs
        for key, wanted in floats.items():
            assert off(file.run_path(x, path).outputs[key], found[key]) <= 1e-4
            assert off(bundle.run_path(x, path).outputs[key], found[key]) <= 1e-4
            assert (found[key] - wanted).square().mean().sqrt() < 0.1 * wanted.std()


def test_all_widths_share_weights_of_int8_and_no_float_convolution_lies_between(tmp_path: Path) -> None:
    net = randomised("ds_mobilenet_v1_tiny").float()
    _, int8 = quantised(net, 2)
    proto = onnx.load(export_onnx(net, tmp_path / "model.onnx", int8=int8))
    kinds = {tensor.name: tensor.data_type for tensor in proto.graph.initializer if tensor.name.endswith(".weight")}
    for name in int8.layers:
        assert kinds.get(f"{name}.weight", onnx.TensorProto.INT8) == onnx.TensorProto.INT8
    order = convolution_names(net)
    inner = [name for name in order if name not in int8.layers]
    assert order[: len(inner)] == inner  # only the beginning of the network stays in floats
    found = list(convolutions(proto.graph))
    assert sum(is_quantised for is_quantised, _ in found) > 6 * 10
    path = onnx.load(export_onnx(net, tmp_path / "path.onnx", path=net.space.widest, int8=int8))
    gates = 2 * sum(name.endswith("gate.pool") for name in int8.layers)
    layers = sum(name.rpartition(".")[2] in ("depthwise", "pointwise") for name in int8.layers)
    assert sum(is_quantised for is_quantised, _ in convolutions(path.graph)) == layers + gates
    floats = export_onnx(net, tmp_path / "floats.onnx", path=net.space.widest)
    assert (tmp_path / "path.onnx").stat().st_size < 0.45 * floats.stat().st_size


def test_a_filter_that_its_norm_switches_off_does_not_overflow(tmp_path: Path) -> None:
    """Its bias is far more than 2^31 of its steps, which are as small as the scale of the norm."""
    net = randomised("mobilenet_v1_tiny").float()
    with torch.no_grad():
        for norm in net.modules():
            if isinstance(norm, SliceBatchNorm2d):
                norm.weight[::3] = 1e-9
                norm.bias[::3] = norm.bias[::3].sign() + 0.5
    x, int8 = quantised(net)
    file = open_runner(export_onnx(net, tmp_path / "path.onnx", image_size=side(net), int8=int8), threads=1)
    expected = eager(net).run_path(x, ())
    error = (file.run_path(x, ()).logits - expected.logits).square().mean().sqrt() / expected.logits.std()
    assert error < 0.1


def test_a_bias_and_the_largest_sum_fit_into_int32() -> None:
    rng = np.random.default_rng(0)
    scales = (10.0 ** rng.uniform(-38, 0, 200)).astype(np.float32)
    shifts = rng.normal(size=200).astype(np.float32)
    scales[:3], shifts[2] = 0, 0
    raised, biases = with_bias(scales, shifts, 0.02, terms=9 * 512)
    assert (raised >= scales).all()
    assert (raised > 0).all()
    assert np.abs(biases.astype(np.int64)).max() + 9 * 512 * 127 * 255 < 2**31
    np.testing.assert_allclose(biases * (raised.astype(np.float64) * 0.02), shifts, atol=0.011)
    plain = scales > 1e-3
    assert (raised[plain] == scales[plain]).all()


def test_paths_that_are_observed_take_every_step() -> None:
    space = WidthSpace(((0, 1, 2, 3),) * 4)
    chosen = covering(list(space))
    assert {step for path in chosen for step in steps_of(path)} == {step for path in space for step in steps_of(path)}
    assert len(chosen) < 0.2 * space.size
    assert covering([(-2,)]) == []
    assert covering([()]) == [()]


def test_a_network_without_wide_convolutions_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    net = randomised("mobilenet_v1_tiny").float()
    monkeypatch.setattr(room, "LEAST", 1000)
    with pytest.raises(ValueError, match=r"no convolution of mobilenet_v1_tiny reads 1000 channels .* in floats"):
        quantised(net)


def test_openvino_reads_the_quantised_file(tmp_path: Path) -> None:
    openvino = pytest.importorskip("openvino", reason="openvino is optional and not installed")
    net = with_negative_norms(randomised("ds_mobilenet_v1_tiny")).float()
    x, int8 = quantised(net)
    file = export_onnx(net, tmp_path / "model.onnx", image_size=side(net), int8=int8)
    runner = open_runner(file, threads=1)
    compiled = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for path in (net.space.slimmest, net.space.widest):
        feeds = ({"image": image.numpy(), **knobs(runner.manifest, Policy(), path)} for image in x.split(1))
        found = np.concatenate([compiled(feed)[compiled.output("logits")] for feed in feeds])
        assert off(found, runner.run_path(x, path).logits) < 0.1
