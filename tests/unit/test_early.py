"""Early classifiers, the exit and bound gates: the same answers in every runtime, and what they cost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from dsnet.cost import CostTable
from dsnet.export.bundle import export_bundle
from dsnet.export.onnx import export_onnx
from dsnet.files import digest
from dsnet.manifest import Policy
from dsnet.models import DynamicRunner, Supernet, count, eager, extract, route
from dsnet.nn import RouterSpec
from dsnet.routing.budgets import policy_for
from dsnet.routing.calibration import calibrate
from dsnet.runtime.onnx import open_onnx
from dsnet.space import EXIT, WidthSpace, is_exit
from dsnet.tasks import load, save
from support.networks import EARLY, assert_close, images, router_net, side, traces_on, varied

NAMES = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "s_convnet"]
EXIT_FIRST, EARLY_GATE, BOUND = EARLY
EVERY = [(name, router) for name in NAMES for router in EARLY if name != "s_convnet" or router.early is not None]


STANDARD = ("probe.reduce.mean", "probe.reduce.std")  # what the heads of dsnet 0.1 did not have


def called(value: str | RouterSpec) -> str:
    return value if isinstance(value, str) else f"{value.kind}-{value.early}"


@pytest.mark.parametrize(("name", "router"), EVERY, ids=called)
def test_routing_a_batch_equals_running_every_sample_alone(name: str, router: RouterSpec) -> None:
    net = router_net(name, router)
    x, table = varied(net, 16), count(net, side(net))
    routed = route(net, x)
    paths = list(map(tuple, routed.paths.tolist()))
    assert len(set(paths)) > 1, "the test needs samples that take different paths"
    assert all(len(set(path)) == 1 for path in paths)
    assert len(routed.scores) == 1
    for row, path in enumerate(paths):
        assert path in net.candidates
        assert routed.madds[row] == table.madds(path, dynamic=True)
        alone = route(net, x[row : row + 1])
        assert tuple(alone.paths[0].tolist()) == path
        with torch.no_grad():
            answer = net(x[row : row + 1], path)
            if router.exits and not is_exit(path):
                exit = net(x[row : row + 1], net.space.exits[0])
                u, v = net.manifest().routers[0].combine[net.candidates.index(path) - 1]
                answer = u * exit.log_softmax(1) + v * answer.log_softmax(1)
                assert u != 0
        assert_close(routed.logits[row].log_softmax(0), answer[0].log_softmax(0))
        assert_close(alone.logits[0], routed.logits[row])


@pytest.mark.parametrize(("name", "router"), EVERY, ids=called)
def test_every_runtime_gives_the_answers_of_the_network(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = router_net(name, router).float()
    x, size = varied(net, 12), side(net)
    runners = [
        DynamicRunner(net),
        open_onnx(export_onnx(net, tmp_path / "dynamic.onnx", image_size=size), threads=1),
        open_onnx(export_bundle(net, tmp_path / "bundle", image_size=size), threads=1),
    ]
    for policy in (Policy(), Policy(0.3), Policy(0.0, 1)):
        expected = route(net, x, policy)
        for runner in runners:
            routed = runner.run(x, policy)
            assert torch.equal(routed.paths, expected.paths)
            assert torch.equal(routed.madds, expected.madds)
            assert_close(routed.logits, expected.logits, 1e-3)
            assert_close(routed.scores[0], expected.scores[0], 1e-2)
    for path in net.candidates:
        with torch.no_grad():
            answer = net(x, path)
        for runner in runners:
            pinned = runner.run_path(x, path)
            assert set(map(tuple, pinned.paths.tolist())) == {path}
            assert set(pinned.madds.tolist()) == {count(net, size).madds(path)}
            assert_close(pinned.logits, answer, 1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_the_exit_alone_is_a_network_of_its_own(name: str, tmp_path: Path) -> None:
    net = router_net(name, EXIT_FIRST).float()
    x, path = varied(net, 4), net.space.exits[0]
    with torch.no_grad():
        answer = net(x, path)
        assert_close(extract(net, path)(x), answer, 1e-5)
    runner = open_onnx(export_onnx(net, tmp_path / "exit.onnx", path=path, image_size=side(net)))
    assert runner.paths == [path]
    assert_close(runner(x, path=path).logits, answer, 1e-3)
    assert net.manifest().parse_path("exit") == path
    with pytest.raises(ValueError, match="the network has no exit"):
        router_net(name, RouterSpec("cheap_first", "correctness")).manifest().parse_path("exit")


@pytest.mark.parametrize("size", [20, 32, 36, 52])
def test_maps_that_the_grid_does_not_divide_are_pooled_alike(size: int, tmp_path: Path) -> None:
    net = router_net("s_convnet", EXIT_FIRST).float()
    x = torch.randn(4, 3, size, size, generator=torch.Generator().manual_seed(0))
    runner = open_onnx(export_onnx(net, tmp_path / "dynamic.onnx", image_size=size))
    path = net.space.exits[0]
    with torch.no_grad():
        assert_close(runner.run_path(x, path).logits, net(x, path), 1e-4)
        entered = net.enter(x)
        rows = torch.stack([entered.x[..., a, :].mean(-2) for a in bins(entered.x.shape[-2])], -2)
        grid = torch.stack([rows[..., a].mean(-1) for a in bins(entered.x.shape[-1])], -1)
        assert_close(net.pooled_early(entered), grid.flatten(1), 1e-5)


def bins(length: int) -> list[list[int]]:
    return [list(range(k * length // 4, -(-(k + 1) * length // 4))) for k in range(4)]


@pytest.mark.parametrize(("name", "router"), EVERY, ids=called)
def test_layers_cost_what_the_flop_counter_counts(name: str, router: RouterSpec) -> None:
    net = router_net(name, router)
    x, table = varied(net, 16), count(net, side(net))
    routed = route(net, x)
    rows = {tuple(path): row for row, path in enumerate(routed.paths.tolist())}
    for path, row in rows.items():
        assert layers(net, x[row : row + 1], None) == table.cost(path, dynamic=True).layers
        assert layers(net, x[row : row + 1], path) == table.cost(path).layers
    if router.exits:
        alone, spent = (table.cost(net.space.exits[0], dynamic=dynamic) for dynamic in (False, True))
        assert alone.madds < spent.madds < table.slimmest
        classifier = net.early.classifier
        *_, height, width = net.enter(x).x.shape
        own = table.exit.pools - table.front.pools
        assert own == classifier.pool.channels.max * height * width or height % 4 or width % 4
        assert alone.params == sum(p.numel() for p in extract(net, net.space.exits[0]).parameters())


def layers(net: Supernet, x: torch.Tensor, path: tuple[int, ...] | None) -> int:
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        route(net, x) if path is None else net(x, path)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(("name", "router"), EVERY[:4], ids=called)
def test_traces_tell_what_route_does_and_keep_routed_answers_apart(name: str, router: RouterSpec) -> None:
    net = router_net(name, router)
    traces = traces_on(net)
    (batch,) = traces.load([np.arange(40)])
    for policy in (Policy(), Policy(0.5), Policy(-2.0), Policy(5.0), Policy(0.2, 1), Policy(0.0, window=(1, 2))):
        outcome, routed = traces.at(policy), route(net, batch.images, policy)
        assert np.array_equal(outcome.paths, routed.paths)
        assert np.array_equal(outcome.madds, routed.madds)
        right = (routed.logits.argmax(1) == batch.labels).numpy()
        assert np.array_equal(traces.correct(outcome), right)
        assert traces.score(outcome) == pytest.approx(right.mean())
    for path in net.candidates:
        assert np.array_equal(traces.right(path), (net(batch.images, path).argmax(1) == batch.labels).numpy())
    rows = calibrate(traces)
    assert all(path in net.candidates for row in rows for path, _ in row.shares)
    assert all(sum(share for _, share in row.shares) == pytest.approx(1) for row in rows)
    net.card = replace(net.card, budgets=rows)
    for row in rows:
        assert traces.at(policy_for(net.manifest(side(net)), row.madds)).spent == pytest.approx(row.madds, rel=1e-6)


def test_every_cap_allows_the_exit() -> None:
    net = router_net("ds_resnet_tiny", EXIT_FIRST, routing=[1, 2, 3])
    x = varied(net, 8)
    wide, free, slim = (route(net, x, Policy(lam, cap)).paths for lam, cap in ((-1e3, 2), (1e3, None), (-1e3, 0)))
    assert wide.unique().tolist() == [2]
    assert free.unique().tolist() == slim.unique().tolist() == [EXIT]
    assert route(net, x, Policy(1e3, None, window=(2, 3))).paths.unique().tolist() == [2]


def test_combination_weights_are_read_anew() -> None:
    net = router_net("s_convnet", EXIT_FIRST).float()
    x, runners = varied(net, 8), [eager(net), DynamicRunner(net)]
    before = [runner.run(x, Policy(-1e3)).logits for runner in runners]
    net.early.exit_weights.zero_()
    net.early.width_weights.fill_(1)
    for runner, old in zip(runners, before, strict=True):
        routed = runner.run(x, Policy(-1e3))
        with torch.no_grad():
            assert_close(routed.logits, net(x, net.space.widest), 1e-5)
        assert not torch.allclose(routed.logits, old)


@pytest.mark.parametrize("router", EARLY, ids=called)
def test_save_and_load(router: RouterSpec, tmp_path: Path) -> None:
    net = router_net("ds_resnet_tiny", router)
    again = load(save(net, tmp_path), "classification")
    assert again.spec == net.spec
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name
    x = varied(net, 4)
    assert torch.equal(route(again, x).logits, route(net, x).logits)


def test_models_from_before_early_classifiers_load(tmp_path: Path) -> None:
    from safetensors.torch import save as packed

    net = router_net("ds_mobilenet_v1_tiny", RouterSpec("cheap_first", "correctness"))
    folder = save(net, tmp_path)
    about = json.loads((folder / "model.json").read_text())
    for key in ("early", "bound", "windows"):
        del about["spec"]["router"][key]
    del about["spec"]["gate"]["standardised"]
    tensors = {key: value for key, value in net.state_dict().items() if key not in STANDARD}
    data = packed(tensors)
    (folder / "model.safetensors").write_bytes(data)
    about["weights"] = {"sha256": digest(data), "bytes": len(data)}
    del about["digest"]
    content = json.dumps(about, sort_keys=True, separators=(",", ":")).encode()
    (folder / "model.json").write_text(json.dumps({**about, "digest": digest(content)}))
    x = images(net)
    assert torch.equal(route(load(folder), x).logits, route(net, x).logits)
    fresh = net.spec.build().to(torch.float64)
    fresh.load_state_dict(tensors)  # as a run that was interrupted before resumes
    assert torch.equal(route(fresh.eval(), x).logits, route(net, x).logits)


def test_a_standardised_head_folds_its_mean_and_std(tmp_path: Path) -> None:
    net = router_net("ds_resnet_tiny", RouterSpec("gate"))
    spec = replace(net.spec, gate=replace(net.spec.gate, standardised=True))
    for shared in (True, False):
        other = replace(spec, gate=replace(spec.gate, shared=shared)).build().eval()
        other.load_state_dict({k: v for k, v in net.state_dict().items() if "slimming" not in k}, strict=False)
        x = varied(other, 8)
        with torch.no_grad():
            _, codes = other.run_coded(other.enter(x), other.space.slimmest)
            head = other.slimming_heads()[0]
            raw = codes[0] if shared else other.chain[0].first.gate.pool(other.enter(x).x, 0)
            head.standardise(raw)
            layer = head.score if shared else head.reduce
            whitened = (raw - raw.mean(0)) / raw.std(0, correction=0).clamp_min(1e-6)
            assert_close(layer(raw, 0, 0), torch.nn.functional.linear(whitened, layer.weight, layer.bias), 1e-3)
        routed = route(other, x)
        file = open_onnx(export_onnx(other, tmp_path / f"{shared}.onnx", image_size=side(other)))
        assert_close(file.run(x).scores[0], routed.scores[0], 1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "exit_first"}, "needs an early classifier"),
        ({"kind": "cheap_first", "early": 0}, "cheap_first has no early classifier"),
        ({"kind": "gate", "early": -1}, "hidden size is -1"),
        ({"kind": "threshold", "bound": True}, "leave bound out"),
    ],
)
def test_routers_that_make_no_sense_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RouterSpec(**options)  # type: ignore[arg-type]


def test_the_exit_of_a_space() -> None:
    space = WidthSpace.full((3, 3), exit=True)
    assert (EXIT, EXIT) in space
    assert space.validate([EXIT, EXIT]) == space.exits[0]
    assert space.size == len(list(space)) == 9
    with pytest.raises(ValueError, match="must stand at every choice point"):
        space.validate((EXIT, 0))
    table: CostTable = count(router_net("ds_resnet_tiny", EXIT_FIRST))
    assert table.space.exit
