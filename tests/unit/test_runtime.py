"""Runners: every way to run a network gives the network's own answers."""

from __future__ import annotations

import copy
import json
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor

from dsnet import DynamicRunner, export_bundle, export_onnx, open_runner, route, save
from dsnet.errors import CheckpointError, RoutingError
from dsnet.manifest import Policy
from dsnet.models import Budget, Card, Preprocessing, Supernet, count
from dsnet.nn import RouterSpec, ThresholdHead
from dsnet.pictures import as_batch
from dsnet.results import Evaluation, Made, Metric, PathRow, Stat
from dsnet.routing.parts import Routed
from dsnet.runtime.onnx import open_onnx
from dsnet.runtime.runner import Runner
from dsnet.runtime.seal import BLANK, seal
from support.faults import flipped
from support.networks import (
    MODELS,
    assert_close,
    kinds_of,
    prices_of,
    quick,
    randomised,
    routed_net,
    side,
    some_paths,
    varied,
)
from support.pictures import snapshots

SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"]
GATE, CHEAP_FIRST = RouterSpec("gate", "correctness"), RouterSpec("cheap_first", "correctness")
EVERY = [
    *((name, router) for name in SMALL for router in (GATE, CHEAP_FIRST, RouterSpec("cheap_first", "kl"))),
    *((name, RouterSpec("threshold")) for name in SMALL),
    ("ds_efficientnet_tiny", GATE),
    *(
        pytest.param(name, GATE, marks=pytest.mark.slow)
        for name in ("ds_mobilenet_v1", "ds_resnet50", "ds_efficientnet_b0")
    ),
    pytest.param("ds_mobilenet_v1_18", CHEAP_FIRST, marks=pytest.mark.slow),
]


def called(value: str | RouterSpec) -> str:
    return value if isinstance(value, str) else f"{value.kind}-{value.targets}"


def runners(net: Supernet, folder: Path) -> Iterator[Runner]:
    size = side(net)
    yield DynamicRunner(net)
    yield open_onnx(export_onnx(net, folder / "dynamic.onnx", image_size=size), threads=1)
    yield open_onnx(export_bundle(net, folder / "bundle", image_size=size), threads=1)


def clear(net: Supernet, routed: Routed, policy: Policy, margin: float = 1e-5) -> Tensor:
    """Samples whose decisions are not close: the best two values differ by more than rounding can."""
    prices = prices_of(net, side(net))
    clear = torch.ones(len(routed.logits), dtype=torch.bool)
    for point, scores in enumerate(routed.scores):
        for row, path in enumerate(routed.paths.tolist()):
            at = torch.from_numpy(prices.at(point, path[point - 1] if point else 0))
            values = scores[row].double() - policy.lam * at
            best = values.topk(2).values
            clear[row] &= bool(best[0] - best[1] > margin)
    return clear


def lambdas(net: Supernet, x: Tensor) -> list[float]:
    """Two prices, exact in single precision: those that spread the images over most paths without ties."""
    if isinstance(net.probe, ThresholdHead):
        top, price = route(net, x).scores[0][:, 0], prices_of(net, side(net)).at(0, 0)[2]
        return [float(np.float32((1 - top.quantile(share)) / price)) for share in (0.3, 0.6)]
    sizes = (0.05, 0.1, 0.2, 0.4, 0.6, 0.9, 1.5)
    found = [0.0, *(float(np.float32(sign * size)) for sign in (-1, 1) for size in sizes)]

    def spread(lam: float) -> tuple[float, int]:
        routed = route(net, x, Policy(lam))
        return min(0.9, clear(net, routed, Policy(lam)).float().mean().item()), len(routed.paths.unique(dim=0))

    return sorted(found, key=spread)[-2:]


@pytest.mark.parametrize(("name", "router"), EVERY, ids=called)
def test_all_runners_agree_with_the_network(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = routed_net(name, router)
    x = varied(net, 12).float()
    net = priced(net, lambdas(net, x))
    found = list(runners(net, tmp_path))
    taken = set()
    for row in net.card.budgets:
        policy = found[1].policy(row.madds)  # a lambda that the file computes from a budget
        assert policy.lam == row.lam
        expected = route(net, x, policy)
        sure = clear(net, expected, policy)
        assert sure.float().mean() > 0.8
        taken |= set(map(tuple, expected.paths.tolist()))
        for runner, asked in [*((runner, policy) for runner in found), (found[1], Policy(row.lam))]:
            actual = runner.run(x, asked)
            assert torch.equal(actual.paths[sure], expected.paths[sure]), runner.runtime
            assert torch.equal(actual.madds[sure], expected.madds[sure]), runner.runtime
            assert_close(actual.logits[sure], expected.logits[sure], 1e-4)
            for mine, theirs in zip(actual.scores, expected.scores, strict=True):
                assert_close(mine[sure], theirs[sure], 1e-4)
    assert len(taken) > 1
    for path in pinned_paths(found[1]):
        with torch.no_grad():
            logits = net(x[:2], path)
        for runner in found:
            pinned = runner(x[:2], path=path)
            assert_close(pinned.logits, logits, 1e-4)
            assert pinned.paths.tolist() == [list(path)] * 2


def pinned_paths(runner: Runner) -> list[tuple[int, ...]]:
    """Paths that reach every width of every choice point."""
    held = list(runner.paths)
    uniform = [path for path in runner.manifest.space.uniform if path in held]
    return uniform + [path for path in held if path not in uniform][:: max(1, len(held) // 4)]


@pytest.mark.parametrize(
    ("name", "router"),
    [
        *zip(SMALL, (CHEAP_FIRST, GATE), strict=True),
        *(pytest.param(*pair, marks=pytest.mark.slow) for pair in zip(SMALL, (GATE, CHEAP_FIRST), strict=True)),
    ],
    ids=called,
)
def test_order_and_batch_size_change_nothing(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = routed_net(name, router)
    x = varied(net, 9).float()
    policy = Policy(lambdas(net, x)[0])
    order = torch.randperm(9, generator=torch.Generator().manual_seed(0))
    for runner in runners(net, tmp_path):
        whole = runner.run(x, policy)
        parts = [runner.run(part, policy) for part in x[order].split(4)]
        for key in ("logits", "paths", "madds"):
            joined = torch.cat([getattr(part, key) for part in parts])
            assert_close(joined.double(), getattr(whole, key)[order].double(), 1e-5)


@pytest.mark.parametrize("name", quick(MODELS, "mobilenet_v1", "resnet50", "efficientnet_b0"))
def test_a_static_file_is_its_path_for_any_batch(name: str, tmp_path: Path) -> None:
    net = randomised(name).float()
    x = varied(net, 3).float()
    for path in some_paths(net, 1):
        file = export_onnx(net, tmp_path / "static.onnx", path=path, image_size=side(net))
        runner = open_onnx(file, threads=1)
        assert runner.manifest.kind == "static"
        for batch in (1, 3):
            with torch.no_grad():
                assert_close(runner(x[:batch], path=path).logits, net(x[:batch], path), 1e-4)


@pytest.mark.parametrize("name", ["us_mobilenet_v1", "ds_resnet_tiny"])
def test_a_network_without_a_router_becomes_a_file_of_widths(name: str, tmp_path: Path) -> None:
    net = randomised(name).float()
    x = varied(net, 1).float()
    file = export_onnx(net, tmp_path / "widths.onnx", image_size=side(net))
    runner = open_onnx(file, threads=1)
    assert not runner.manifest.routes
    for path in (net.space.slimmest, net.space.widest):
        assert_close(runner(x, path=path).logits, net(x, path).detach(), 1e-4)
    path, madds = session(file).run(["path", "madds"], plain_feed(x, session(file)))
    assert tuple(path) == net.space.widest
    assert int(madds) == count(net, side(net)).madds(net.space.widest)
    with pytest.raises(ValueError, match="has not learned to route"):
        runner(x)


def session(file: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(file))


def plain_feed(image: Tensor, opened: onnxruntime.InferenceSession, **given: float) -> dict[str, object]:
    """What a caller without dsnet feeds a file: -1 for everything that is not given."""
    kinds = {"budget": np.float32, "max_width": np.int64, "pin": np.int64}
    feed: dict[str, object] = {"image": image.numpy()}
    for slot in opened.get_inputs()[1:]:
        feed[slot.name] = np.full(slot.shape, given.get(slot.name, -1), kinds[slot.name])
    return feed


def priced(net: Supernet, lams: list[float]) -> Supernet:
    """The network with a calibrated budget for each lambda."""
    size = side(net)
    low, high = (count(net, size).madds(net.candidates[end], dynamic=True) for end in (0, -1))
    places = np.linspace(low, high, len(lams)).tolist()
    rows = [Budget(madds, lam, 0.5, size) for madds, lam in zip(places, sorted(lams, reverse=True), strict=True)]
    net.card = replace(net.card, budgets=tuple(rows))
    return net


def with_budgets(net: Supernet, size: int) -> Supernet:
    table = count(net, size)
    ends = ((net.candidates[0], 0.5), (net.candidates[-1], -0.5))
    budgets = tuple(Budget(table.madds(path, dynamic=True), lam, 0.5, size) for path, lam in ends)
    net.card = Card(tuple("abcdefg"), Preprocessing(crop=0.9, interpolation="bicubic"), budgets)
    return net


@pytest.mark.parametrize("router", [GATE, CHEAP_FIRST], ids=["gate", "cheap_first"])
def test_budgets_and_caps_mean_the_same_to_all(router: RouterSpec, tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", router)
    size = side(net)
    net = with_budgets(net, size)
    x = varied(net, 8).float()
    reference, *others = runners(net, tmp_path)
    for knobs in ({"budget": 0.3}, {"budget": 0.3, "max_width": 2}, {"max_width": 1}, {}):
        expected = reference(x, **knobs)  # type: ignore[arg-type]
        assert expected.paths.max() <= knobs.get("max_width", 99)
        for runner in others:
            actual = runner(x, **knobs)  # type: ignore[arg-type]
            assert torch.equal(actual.paths, expected.paths)
    defaults = export_onnx(net, tmp_path / "cheap.onnx", image_size=size, budget=0.3, max_width=2)
    expected = reference(x, budget=0.3, max_width=2)
    opened = session(defaults)
    for image, path in zip(x.split(1), expected.paths.tolist(), strict=True):
        assert opened.run(["path"], plain_feed(image, opened))[0].tolist() == path


def test_a_restricted_routing_space_is_all_that_a_file_holds(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE, routing=[1, 3, 4])
    x = varied(net, 6).float()
    whole = export_onnx(routed_net("ds_mobilenet_v1_tiny", GATE), tmp_path / "whole.onnx", image_size=side(net))
    for runner in runners(net, tmp_path):
        assert {path[0] for path in runner.run(x, Policy(lambdas(net, x)[0])).paths.tolist()} <= {1, 3, 4}
        if runner.manifest.kind != "live":
            assert list(runner.paths) == [(1,), (3,), (4,)]
            with pytest.raises(ValueError, match=r"path \(0,\) is not in this file, which holds 3 paths"):
                runner(x, path=(0,))
        with pytest.raises(RoutingError, match="max_width 0 is below the slimmest"):
            runner(x, max_width=0)
    assert (tmp_path / "dynamic.onnx").stat().st_size < whole.stat().st_size


def test_the_model_card_is_inside(tmp_path: Path) -> None:
    net = with_budgets(routed_net("ds_resnet_tiny", GATE), 32)
    for where in (
        export_onnx(net, tmp_path / "a.onnx", image_size=32),
        export_onnx(net, tmp_path / "b.onnx", path=(0, 1, 2, 3), image_size=32),
        export_bundle(net, tmp_path / "bundle", image_size=32),
    ):
        runner = open_runner(where)
        live, held = net.manifest(32), runner.manifest
        assert (held.costs, held.routers, held.widths) == (live.costs, live.routers, live.widths)
        assert (held.classes, held.preprocessing) == (net.card.classes, net.card.preprocessing)
        assert held.routers[0].budgets == net.card.budgets
    about = session(tmp_path / "a.onnx").get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == list("abcdefg")
    widest = json.loads(about["dsnet.manifest"])["widths"][-1]
    assert (widest["path"], widest["madds"]) == ([3, 3, 3, 3], prices_of(net, 32).table.widest)
    assert json.loads(about["budgets"])[0]["lam"] == 0.5
    assert about["image_size"] == "32"


def test_figures_travel_with_the_file(tmp_path: Path) -> None:
    net = with_budgets(routed_net("ds_mobilenet_v1_tiny", GATE), 32)
    row = PathRow(32, (0,), 1, 1, 0.1, Stat(0.5))
    metric = Metric("top-1", ".2%")
    known = Evaluation(
        "classification", metric, "net", "digits", "test", 9, 32, (0,), (row,), Made(), training={"lr": 1}
    )
    for where in (
        export_onnx(net, tmp_path / "a.onnx", image_size=32, evaluation=known),
        export_bundle(net, tmp_path / "bundle", image_size=32, evaluation=known),
    ):
        held = open_runner(where).manifest.evaluation
        assert held == replace(known, training={})


def test_many_widths_in_one_file_cost_little_more_than_the_widest(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1", GATE)
    whole = export_onnx(net, tmp_path / "dynamic.onnx").stat().st_size
    assert whole <= 1.15 * export_onnx(net, tmp_path / "widest.onnx", path=net.space.widest).stat().st_size
    bundle = export_bundle(net, tmp_path / "bundle")
    assert sum(file.stat().st_size for file in bundle.iterdir()) <= 1.15 * whole


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("router", [GATE, CHEAP_FIRST], ids=called)
def test_all_widths_of_a_file_share_one_classifier(name: str, router: RouterSpec, tmp_path: Path) -> None:
    """ONNX Runtime keeps a packed copy of every matrix, so a classifier for each width would take much memory."""
    net = routed_net(name, router)
    kinds = kinds_of(onnx.load(export_onnx(net, tmp_path / "dynamic.onnx")).graph)
    widths = [len(choices) for choices in net.space.choices[:-1]]
    fronts = 1 if len(net.space.choices) == 1 else 2  # see GateWriter.front_apart
    heads = fronts + sum(widths) if router == GATE else 3  # slimming heads; a probe's two layers and its classifier
    assert kinds.count("Gemm") == 2 + heads  # columns that all widths read, and those that only wider ones do
    assert kinds.count("If") >= len(net.space.uniform) - 1


# the cache of the PyTorch runner


def changed_in_place(net: Supernet) -> None:
    with torch.no_grad():
        net.head.classifier.weight.mul_(2)


def changed_by_loading(net: Supernet) -> None:
    state = net.state_dict()
    net.load_state_dict({key: 0.9 * held if held.is_floating_point() else held for key, held in state.items()})


def changed_statistics(net: Supernet) -> None:
    net.segments[0].rest.blocks[0].norm1.running_var.add_(1)  # type: ignore[union-attr]


def changed_parameter(net: Supernet) -> None:
    net.head.classifier.weight = torch.nn.Parameter(torch.randn_like(net.head.classifier.weight))


def changed_memory(net: Supernet) -> None:
    net.head.classifier.weight.data = torch.randn_like(net.head.classifier.weight)


def changed_module(net: Supernet) -> None:
    net.head.classifier = copy.deepcopy(net.head.classifier)
    changed_in_place(net)


def changed_by_assignment(net: Supernet) -> None:
    state = net.state_dict()
    net.load_state_dict(
        {key: torch.rand_like(held) if held.is_floating_point() else held for key, held in state.items()}, assign=True
    )


CHANGES = [changed_in_place, changed_by_loading, changed_statistics, changed_parameter, changed_memory]


@pytest.mark.parametrize("change", [*CHANGES, changed_module, changed_by_assignment])
def test_a_stale_part_is_never_used(change: object) -> None:
    net = randomised("ds_mobilenet_v1_tiny").float()
    x = varied(net, 2).float()
    runner = DynamicRunner(net)
    before = runner(x, path=(3,)).logits
    change(net)  # type: ignore[operator]
    after = runner(x, path=(3,)).logits
    assert not torch.allclose(before, after)
    assert_close(after, net(x, (3,)).detach(), 1e-4)


def test_memory_is_bounded_and_parts_are_built_once() -> None:
    net = randomised("ds_mobilenet_v1_tiny").float()
    x = varied(net, 2).float()
    free = DynamicRunner(net)
    for path in net.space:
        free(x, path=path)
    assert len(free.parts.kept) == 1 + 2 * 6
    kept = dict(free.parts.kept)
    free(x, path=(0,))
    assert all(free.parts.kept[key][0] is kept[key][0] for key in kept)
    bound = free.parts.held // 2
    tight = DynamicRunner(net, max_memory=bound)
    for path in [*net.space, *net.space]:
        assert_close(tight(x, path=path).logits, net(x, path).detach(), 1e-4)
        assert 0 < tight.parts.held <= bound
    nothing = DynamicRunner(net, max_memory=0)
    assert_close(nothing(x, path=(2,)).logits, net(x, (2,)).detach(), 1e-4)
    assert nothing.parts.held == 0


@pytest.mark.parametrize("kind", ["torch", "dynamic", "bundle"])
def test_threads_may_share_a_runner(kind: str, tmp_path: Path) -> None:
    net = routed_net("ds_resnet_tiny", GATE)
    x = varied(net, 8).float()
    policy = Policy(lambdas(net, x)[0])
    expected = route(net, x, policy)
    runner = next(runner for runner in runners(net, tmp_path) if kind in runner.runtime)
    found: list[Routed] = []

    def work(number: int) -> None:
        for k in range(3):
            if (number + k) % 3 == 0:
                runner(x, path=(0, 1, 2, 3))
            found.append(runner.run(x, policy))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(found) == 18
    for routed in found:
        assert torch.equal(routed.paths, expected.paths)
        assert_close(routed.logits, expected.logits, 1e-4)


@pytest.mark.slow
def test_compiled_parts_agree() -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 6).float()
    policy = Policy(lambdas(net, x)[0])
    runner = DynamicRunner(net, compile=True)
    for part in (x, x[:1], x[:3]):
        assert_close(runner.run(part, policy).logits, route(net, part, policy).logits, 1e-4)


# OpenVINO


@pytest.mark.parametrize("router", [GATE, CHEAP_FIRST], ids=["gate", "cheap_first"])
def test_openvino_reads_raw_files(router: RouterSpec, tmp_path: Path) -> None:
    """It computes the weights of pixels in single precision, so a few pixels are one level off."""
    openvino = pytest.importorskip("openvino", reason="openvino is optional and not installed")
    net = routed_net("ds_mobilenet_v1_tiny", router)
    net = priced(net, lambdas(net, varied(net, 8).float()))
    pictures, plain = snapshots(8), net.manifest(side(net))
    x = torch.from_numpy(as_batch(pictures, plain))
    file = export_onnx(net, tmp_path / "raw.onnx", image_size=side(net), raw=True)
    dynamic = openvino.Core().compile_model(str(file), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    policy = DynamicRunner(net).policy(net.card.budgets[0].madds, image_size=side(net))
    expected = route(net, x, policy)
    sure = clear(net, expected, policy, 1e-2).nonzero().flatten().tolist()
    assert len(sure) > 4
    for row in sure:
        feed = plain_feed(x[row : row + 1], session(file), budget=policy.share)
        found = dynamic({**feed, "image": pictures[row]})
        assert found["path"].tolist() == expected.paths[row].tolist()
        assert_close(torch.from_numpy(found["logits"][0]), expected.logits[row], 1e-2)


# errors


def test_wrong_inputs_get_one_clear_error(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    size = side(net)
    x = varied(net, 2).float()
    holed = x.clone()
    holed[1, 0, 0, 0] = torch.nan
    static = open_onnx(export_onnx(net, tmp_path / "static.onnx", path=(2,), image_size=size))
    for runner in runners(net, tmp_path):
        for bad, message in (
            (x[0], "takes \\[batch, 3, height, width\\]"),
            (x[:, :2], "takes \\[batch, 3, height, width\\]"),
            (x.double(), "input is float64 but"),
            ((255 * x).to(torch.uint8), "normalise it as the model's card says"),
            (holed, "1 of 2 inputs are not finite"),
        ):
            with pytest.raises(ValueError, match=message):
                runner(bad)
        with pytest.raises(ValueError, match="a path pins the widths"):
            runner(x, path=(1,), budget=0.5)
        with pytest.raises(RoutingError, match="no calibrated budgets"):
            runner(x, budget=0.5)
        with pytest.raises(ValueError, match="9"):
            runner(x, path=(9,))
        if runner.manifest.kind != "live":
            larger = torch.zeros(1, 3, 2 * size, 2 * size)
            with pytest.raises(ValueError, match=f"takes {size}; resize it, or export again"):
                runner(larger)
    with pytest.raises(ValueError, match="holds one path and cannot route"):
        static(x)
    with pytest.raises(ValueError, match=r"path \(3,\) is not in this file"):
        static(x, path=(3,))


def test_wrong_files_get_one_clear_error(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    good = export_onnx(net, tmp_path / "good.onnx", image_size=32)
    truncated = tmp_path / "truncated.onnx"
    truncated.write_bytes(good.read_bytes()[:1000])
    text = tmp_path / "text.onnx"
    text.write_text("this is not a network")
    foreign, newer, damaged = (onnx.load(good) for _ in range(3))
    del foreign.metadata_props[:]
    for prop in newer.metadata_props:
        prop.value = "99" if prop.key == "dsnet.format" else prop.value
    for prop in damaged.metadata_props:
        prop.value = "[" if prop.key == "dsnet.manifest" else prop.value
    for name, proto in (("foreign", foreign), ("newer", newer), ("damaged", damaged)):
        onnx.save(proto, tmp_path / f"{name}.onnx")
        seal(tmp_path / f"{name}.onnx")
    onnx.save(newer, tmp_path / "edited.onnx")
    (tmp_path / "flipped.onnx").write_bytes(flipped(good.read_bytes(), 8 * 5000))
    (tmp_path / "cut.onnx").write_bytes(good.read_bytes()[: -len(BLANK)])
    for file, message in (
        ("missing.onnx", "missing.onnx does not exist"),
        ("truncated.onnx", "cannot be read as an ONNX file"),
        ("text.onnx", "cannot be read as an ONNX file"),
        ("foreign.onnx", "was not written by dsnet"),
        ("newer.onnx", "is of format 99, this dsnet reads 3; export it again"),
        ("damaged.onnx", "damaged model card"),
        ("edited.onnx", "edited.onnx does not match its digest, it was damaged or edited"),
        ("flipped.onnx", "flipped.onnx does not match its digest"),
        ("cut.onnx", "cut.onnx has no digest"),
    ):
        with pytest.raises(CheckpointError, match=message):
            open_onnx(tmp_path / file)


def test_a_damaged_bundle_gets_one_clear_error(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 1).float()
    bundle = export_bundle(net, tmp_path / "bundle", image_size=side(net))
    (part,), (weights,) = bundle.glob("*/rest.0.2.onnx"), bundle.glob("*/weights.bin")
    runner = open_onnx(bundle)
    part.rename(bundle / "hidden")
    for use in (lambda: runner(x, path=(2,)), lambda: open_onnx(bundle)):
        with pytest.raises(CheckpointError, match=r"rest\.0\.2\.onnx does not exist"):
            use()
    (bundle / "hidden").rename(part)
    with weights.open("r+b") as stream:
        stream.truncate(5000)
    with pytest.raises(CheckpointError, match=r"weights\.bin does not match its digest"):
        open_onnx(bundle)
    head = json.loads((bundle / "manifest.json").read_text())
    for broken, message in (({"image_size": "64"}, "match its digest"), ({"dsnet.format": "2"}, "is of format 2")):
        (bundle / "manifest.json").write_text(json.dumps(head | broken))
        with pytest.raises(CheckpointError, match=message):
            open_onnx(bundle)
    (bundle / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match="is not a bundle"):
        open_onnx(bundle)
    other = tmp_path / "photos"
    other.mkdir()
    (other / "cat.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="holds other files"):
        export_bundle(net, other)
    shutil.rmtree(bundle)


def test_what_cannot_be_exported_says_so(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    file = tmp_path / "net.onnx"
    with pytest.raises(ValueError, match="in eval mode only"):
        export_onnx(net.train(), file)
    with pytest.raises(ValueError, match="in eval mode only"):
        DynamicRunner(net)
    net.eval()
    with pytest.raises(ValueError, match="a path pins the widths"):
        export_onnx(net, file, path=(1,), budget=0.5)
    with pytest.raises(ValueError, match="has not learned to route, so it has no budgets"):
        export_onnx(randomised("ds_mobilenet_v1_tiny").float(), file, max_width=2)
    with torch.no_grad():
        net.head.classifier.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"head\.classifier\.weight holds NaN"):
        export_onnx(net, file)
    assert not file.exists()


def test_a_run_folder_opens_as_a_runner(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    net = with_budgets(net, 32)
    save(net, tmp_path / "run")
    runner = open_runner(tmp_path / "run")
    assert isinstance(runner, DynamicRunner)
    x = varied(net, 2).float()
    assert_close(runner(x, path=(1,)).logits, net(x, (1,)).detach(), 1e-4)
    assert runner.manifest.classes == net.card.classes


def test_a_file_keeps_to_what_it_was_exported_with(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    size = side(net)
    net = with_budgets(net, size)
    x = varied(net, 6).float()
    reference = DynamicRunner(net)
    cheap = open_onnx(export_onnx(net, tmp_path / "cheap.onnx", image_size=size, budget=0.3, max_width=2))
    assert torch.equal(cheap(x).paths, reference(x, budget=0.3, max_width=2).paths)
    assert torch.equal(cheap(x, budget=0.8).paths, reference(x, budget=0.8, max_width=2).paths)
    x = x[:2]
    assert_close(cheap(x, path=(5,)).logits, net(x, (5,)).detach(), 1e-4)


def test_caps_and_pins_that_a_file_lacks_fail(tmp_path: Path) -> None:
    net = routed_net("ds_resnet_tiny", GATE, routing=[[0, 1], [2, 3], [0, 1], [0, 1]])
    x = varied(net, 2).float()
    for runner in runners(net, tmp_path):
        with pytest.raises(RoutingError, match="max_width 1 is below the slimmest width"):
            runner(x, max_width=1)
    with pytest.raises(RoutingError, match="max_width 1 is below the slimmest width"):
        export_onnx(net, tmp_path / "capped.onnx", max_width=1)
    opened = session(tmp_path / "dynamic.onnx")
    with pytest.raises(Exception, match=r"(?i)out of.*(range|bounds)|indices"):
        opened.run(None, plain_feed(x[:1], opened, pin=0))


def test_empty_batches_and_oblong_images(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 2).float()
    for runner in runners(net, tmp_path):
        assert runner(x[:0], path=(1,)).logits.shape == (0, 7)
        empty = runner.run(x[:0])
        assert (empty.logits.shape, empty.paths.shape, empty.madds.shape) == ((0, 7), (0, 1), (0,))
        with pytest.raises(ValueError, match="only square ones can be routed"):
            runner(torch.zeros(1, 3, 32, 64))


def test_networks_that_cannot_be_watched_are_refused() -> None:
    with pytest.raises(ValueError, match=r"call net\.float\(\) first"):
        DynamicRunner(randomised("ds_mobilenet_v1_tiny"))
    with torch.inference_mode():
        net = randomised("ds_mobilenet_v1_tiny").float()
    with pytest.raises(ValueError, match="made in inference mode"):
        DynamicRunner(net)


def test_a_bundle_that_was_exported_anew_is_not_mixed_with_the_old_one(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 1).float()
    runner = open_onnx(export_bundle(net, tmp_path / "bundle", image_size=side(net)))
    runner(x, path=(2,))
    export_bundle(net, tmp_path / "bundle", image_size=side(net))
    with pytest.raises(CheckpointError, match="exported anew since it was opened"):
        runner(x, path=(4,))


def test_an_export_that_fails_leaves_the_old_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    x = varied(net, 1).float()
    bundle = export_bundle(net, tmp_path / "bundle", image_size=side(net))
    before = {file: file.read_bytes() for file in bundle.rglob("*.*") if file.is_file()}

    def full(proto: object, file: Path) -> None:
        if file.name.startswith("rest"):
            raise OSError("no space left on device")

    monkeypatch.setattr("dsnet.export.bundle.write_model", full)
    with pytest.raises(OSError, match="no space"):
        export_bundle(net, bundle, image_size=side(net))
    assert {file: file.read_bytes() for file in bundle.rglob("*.*") if file.is_file()} == before
    open_onnx(bundle)(x, path=(2,))
