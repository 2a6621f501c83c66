"""Exits at several image sizes: an exit is a setting, and every law about settings and about the exit holds for it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import dsnet
from dsnet import DynamicRunner, export_onnx, open_runner, quantisation
from dsnet.errors import RoutingError
from dsnet.latency import size_for
from dsnet.manifest import Policy
from dsnet.models import Supernet, count, create_model, eager
from dsnet.results import Latency, PathTime, Setting, Times
from dsnet.routers import RouterSpec
from dsnet.space import EXIT, WidthPath, WidthSpace, path_name
from dsnet.tasks import load, save
from dsnet.tasks.classification.config import ClassificationConfig, ModelConfig
from dsnet.tasks.classification.looks import Known, chosen_settings, exit_sets_of, with_looks
from dsnet.training import SGS, SGSConfig, recalibrate
from dsnet.training.cache import compared, exit_logits, fresh_reads, read_images, unpacked
from support.networks import assert_close
from support.sizes import CONVERTED, SIZES, everywhere, exiting, pictures, routed_by, sized

SLOW = pytest.mark.slow
EXITS: list[WidthPath] = [(0, EXIT), (1, EXIT), (2, EXIT)]
SAME: tuple[WidthPath, ...] = ((0, EXIT), (0, 4), (1, EXIT), (2, 5))  # goes on from the same map, too
ROUTED = [
    ("ds_mobilenet_v1_tiny", SAME),
    ("ds_efficientnet_tiny", ((1, EXIT), (0, 0), (2, EXIT), (2, 2))),
    (CONVERTED, ((0, EXIT), (1, EXIT), (2, 0))),
    pytest.param("ds_resnet_tiny", ((0, *[EXIT] * 4), (2, *[EXIT] * 4), (2, 3, 3, 3, 3)), marks=SLOW),
]


@pytest.mark.parametrize(("name", "candidates"), ROUTED)
def test_every_runner_routes_alike(name: str, candidates: tuple[WidthPath, ...], tmp_path: Path) -> None:
    net, x = exiting(name, candidates), pictures(20, torch.float32, seed=2)
    live, table, taken = eager(net), count(net), set[WidthPath]()
    runners = [DynamicRunner(net), *everywhere(net, tmp_path)]
    for lam in (-1.0, 0.0, 0.4, 1.0):
        expected = live.run(x, Policy(lam))
        taken |= {tuple(path) for path in expected.paths.tolist()}
        for row, path in enumerate(map(tuple, expected.paths.tolist())):
            assert_close(expected.logits[row : row + 1], net(x[row : row + 1], path), 1e-4)  # the last look alone
            assert int(expected.madds[row]) == table.madds(path, dynamic=True)
        for runner in runners:
            found = runner.run(x, Policy(lam))
            assert torch.equal(found.paths, expected.paths), runner.runtime
            assert torch.equal(found.madds, expected.madds)
            assert_close(found.logits, expected.logits, 1e-4)
            assert_close(found.scores[0], expected.scores[0], 1e-4)
    assert taken == set(candidates)
    surveyed, scores = live.survey(x, list(candidates))
    for runner in runners:
        answers, seen = runner.survey(x, list(candidates)[1:])  # the first look is run for its scores
        assert_close(torch.as_tensor(seen), torch.as_tensor(scores), 1e-4)
        for answer, wanted in zip(answers, surveyed[1:], strict=True):
            assert_close(torch.as_tensor(answer["logits"]), wanted["logits"], 1e-4)
    for runner in runners[1:]:
        assert runner.paths == list(candidates)
        for path in candidates:
            pinned = runner.run_path(x, path)
            assert_close(pinned.logits, net(x, path), 1e-4)
            assert pinned.madds.tolist() == [table.madds(path)] * len(x)


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_efficientnet_tiny", CONVERTED])
def test_an_exit_is_the_early_classifier_on_the_resized_image(name: str, tmp_path: Path) -> None:
    net, x = exiting(name, ((0, EXIT), (2, 0))), pictures(3, torch.float32)
    points = len(net.space) - 1
    for size, logits in enumerate(net.forward_paths(x, net.space.exits)):
        path = (size, *[EXIT] * points)
        small = net.resize(x, size) if net.resize is not None else x
        assert_close(logits, net.early.classifier(net.chain[0].enter(net.front(small, size), size)), 1e-5)
        assert_close(dsnet.extract(net, path, fold=True)(x), logits, 1e-4)
        file = open_runner(export_onnx(net, tmp_path / "exit.onnx", path=path), threads=1)
        assert file.paths == [path]
        assert_close(file.run_path(x, path).logits, logits, 1e-4)
        assert_close(eager(net).run_path(x, path).logits, logits, 1e-5)


@pytest.mark.parametrize(("name", "candidates"), ROUTED)
def test_costs_are_what_the_flop_counter_counts(name: str, candidates: tuple[WidthPath, ...]) -> None:
    net, x = exiting(name, candidates), pictures(1, torch.float32)
    table, runner = count(net), eager(net)
    for path in [*net.space.exits, net.space.widest]:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net(x, path)
        assert counter.get_total_flops() // 2 == table.cost(path).layers, path
        assert table.params(path) == sum(p.numel() for p in dsnet.extract(net, path).parameters())
    for position, path in enumerate(candidates):
        with FlopCounterMode(display=False) as counter:
            found = runner.run_forced(x, np.full((1, len(path)), position))
        assert tuple(found.paths[0].tolist()) == path
        assert counter.get_total_flops() // 2 == table.cost(path, dynamic=True).layers, path
        assert int(found.madds[0]) == table.madds(path, dynamic=True)


def test_a_setting_of_the_same_size_does_not_pay_for_the_front_again() -> None:
    net = exiting("ds_mobilenet_v1_tiny", SAME)
    table = count(net)
    first = table.madds((0, EXIT), dynamic=True)
    assert table.madds((0, 4), dynamic=True) == first + table.madds((0, 4)) - table.tables[0].shared.madds
    assert table.madds((1, EXIT), dynamic=True) == first + table.madds((1, EXIT))
    assert table.madds((2, 5), dynamic=True) == first + table.madds((2, 5))
    router = net.early.parameters()
    assert table.params((1, EXIT), dynamic=True) == table.params((0, EXIT), dynamic=True)  # all exits share weights
    whole = table.params((2, 5)) + sum(p.numel() for p in router)
    assert table.params((2, 5), dynamic=True) == whole


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_efficientnet_tiny"])
def test_int8_exits_are_close_to_floats_in_every_file(name: str, tmp_path: Path) -> None:
    widest = create_model(name, sizes=SIZES).space.widest
    net, x = exiting(name, ((0, EXIT), (1, EXIT), widest)), pictures(12, torch.float32, seed=2)
    int8 = quantisation(net, x)
    file, bundle = everywhere(net, tmp_path, int8=int8)
    for path in net.candidates:
        static = open_runner(export_onnx(net, tmp_path / "path.onnx", path=path, int8=int8), threads=1)
        expected, floats = static.run_path(x, path).logits, net(x, path)
        assert ((expected - floats).square().mean().sqrt() / floats.std()) < 0.3
        assert_close(file.run_path(x, path).logits, expected, 1e-4)
        assert_close(bundle.run_path(x, path).logits, expected, 1e-4)


def test_caps_hold_and_the_first_look_is_within_them(tmp_path: Path) -> None:
    net, x = exiting("ds_mobilenet_v1_tiny", SAME), pictures(20, torch.float32, seed=2)
    for runner in (eager(net), *everywhere(net, tmp_path)):
        for lam in (-1.0, 0.4):
            small = {tuple(path) for path in runner.run(x, Policy(lam, max_size=20)).paths.tolist()}
            slim = {tuple(path) for path in runner.run(x, Policy(lam, max_width=0)).paths.tolist()}
            assert small <= {(0, EXIT), (0, 4), (1, EXIT)}
            assert slim <= {(0, EXIT), (1, EXIT)}  # an exit has no width
        with pytest.raises(RoutingError, match="looks at 16 px first"):
            runner.run(x, Policy(max_size=12))


def test_a_cap_on_the_time_counts_exits(tmp_path: Path) -> None:
    net = exiting("ds_mobilenet_v1_tiny", SAME)
    setting = Setting("0" * 64, 32, "torch", 1, "cpu")
    rows = tuple(
        PathTime(path, routed=Times(ms, ms, ms, ms)) for path, ms in zip(SAME, (1.0, 2.0, 3.0, 8.0), strict=True)
    )
    held = Latency(setting, net.spec.name, rows, 10, "a machine")
    assert [size_for(net.manifest(), held, ms) for ms in (2.0, 3.0, 8.0)] == [16, 20, 32]


def test_pins_of_exits_in_plain_onnx_runtime(tmp_path: Path) -> None:
    net, x = exiting("ds_mobilenet_v1_tiny", SAME), pictures(1, torch.float32)
    session = onnxruntime.InferenceSession(export_onnx(net, tmp_path / "model.onnx"))
    feed = {"image": x.numpy(), "max_width": np.array([-1]), "max_size": np.array([-1])}
    for path in SAME:
        logits, taken, *_ = session.run(None, {**feed, "pin": np.array(path)})
        assert taken.tolist() == list(path)
        assert_close(torch.from_numpy(logits), net(x, path), 1e-4)
    for pin in ([2, EXIT], [1, 5], [0, -1]):
        with pytest.raises(Exception, match=r"out of data bounds|indices"):
            session.run(None, {**feed, "pin": np.array(pin)})


def test_a_network_is_saved_and_loaded_with_its_exits(tmp_path: Path) -> None:
    net, x = exiting("ds_mobilenet_v1_tiny", SAME), pictures(4, torch.float32)
    save(net, tmp_path)
    again = load(tmp_path)
    assert again.spec == net.spec
    assert again.manifest().router == net.manifest().router
    assert again.manifest().router.combine == ()
    expected, found = (eager(one).run(x) for one in (net, again))
    assert torch.equal(found.paths, expected.paths)
    assert torch.equal(found.logits, expected.logits)


class Batch:
    def __init__(self, images: torch.Tensor, labels: torch.Tensor) -> None:
        self.images, self.labels = images, labels


def untrained() -> Supernet:
    """A network whose router has not been trained yet: it compares all exits and all settings."""
    net = sized("ds_mobilenet_v1_tiny", torch.float32)
    x = pictures(48, torch.float32)
    recalibrate(net, [x])
    with torch.no_grad():
        net.head.classifier.bias -= net(x, net.space.widest).mean(0)  # so that answers differ
    return routed_by(net, SGSConfig(router="exit_first").spec)


def test_one_early_classifier_learns_the_labels_at_every_size() -> None:
    net, x, labels = untrained(), pictures(6, torch.float32), torch.arange(6)
    assert net.candidates == EXITS + compared(net)
    assert compared(net)[-1] == net.space.widest
    seen = read_images(net, x)
    assert_close(exit_logits(net, seen), torch.stack(net.forward_paths(x, EXITS), 1), 1e-5)
    assert_close(seen.answers, torch.stack(net.forward_paths(x, compared(net)), 1), 1e-5)
    stage = SGS(net, SGSConfig(router="exit_first"))
    rng = random.Random(0)
    live, cached = (stage(given, labels, stage.draw(rng), net) for given in (x, seen.packed()))
    assert live.keys() == cached.keys() == {"early"}
    each = [F.cross_entropy(net(x, path), labels) for path in EXITS]
    for losses in (live, cached):
        assert losses["early"].item() == pytest.approx(torch.stack(each).mean().item(), rel=1e-5)
    assert_close(unpacked(net, seen.packed()).seen, seen.seen)
    cached["early"].backward()
    learned = {name for name, p in net.named_parameters() if p.grad is not None}
    assert learned == {name for name, _ in net.named_parameters() if name.startswith("early.classifier.")}


def test_candidates_are_chosen_and_the_classifier_is_kept() -> None:
    net, x = untrained(), pictures(48, torch.float32)
    labels = net(x, net.space.widest).argmax(1)  # so the widest setting is right, and the most accurate
    assert len(labels.unique()) > 1
    with torch.no_grad():
        found = with_looks(net, fresh_reads(net, [Batch(x, labels)]))  # type: ignore[list-item]
    first, *others, last = found.candidates
    assert first in EXITS
    assert last == net.space.widest
    assert len(others) <= 1
    assert torch.equal(found(x, first), net(x, first))
    assert found.early.head.score.weight.shape[0] == len(found.candidates)


def test_sets_begin_with_an_exit_and_end_with_the_most_accurate_setting() -> None:
    """Of two exits and three settings, one setting costs more than a better exit: it is never chosen."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(600) % 7
    answers = []
    for sharpness in (1.0, 2.2, 0.5, 1.5, 3.0):
        logits = torch.randn(600, 7, generator=generator)
        logits[torch.arange(600), labels] += sharpness
        answers.append(logits.log_softmax(1))
    spec = exiting("ds_mobilenet_v1_tiny", ((0, EXIT), (2, 5))).spec
    settings = [(0, EXIT), (1, EXIT), (0, 0), (1, 3), (2, 5)]
    costs = np.array([1.0, 2.0, 3.0, 4.0, 8.0])
    known = Known(settings, torch.stack(answers, 1), labels, costs, spec)
    assert sorted(exit_sets_of(known)) == [[0, 1, 4], [0, 4], [1, 4]]
    chosen = chosen_settings(known)
    assert chosen[0] in settings[:2]
    assert chosen[-1] == (2, 5)


def test_exits_are_written_with_their_size() -> None:
    manifest = exiting("ds_mobilenet_v1_tiny", SAME).manifest()
    assert manifest.parse_path("20px:exit") == (1, EXIT)
    assert manifest.name_of((1, EXIT)) == "20px:exit"
    assert [manifest.parse_path(manifest.name_of(path)) for path in SAME] == list(SAME)
    assert manifest.parse_path("1,exit") == (1, EXIT)
    assert path_name((1, EXIT)) == "1,exit"
    with pytest.raises(ValueError, match="path exit has no image size; write for example 16px:exit"):
        manifest.parse_path("exit")
    with pytest.raises(ValueError, match="the network has no exit"):
        sized("ds_mobilenet_v1_tiny").manifest().parse_path("20px:exit")
    with pytest.raises(ValueError, match="image size 3; allowed are 0, 1, 2"):
        manifest.space.validate((3, EXIT))
    with pytest.raises(ValueError, match="image size -2; allowed are"):
        manifest.space.validate((EXIT, EXIT))
    around = WidthSpace.around(SAME, sized=True)
    assert around.choices == ((0, 1, 2), (4, 5))
    assert around.exits == EXITS


def test_wrong_routers_are_refused() -> None:
    spec = create_model("ds_mobilenet_v1_tiny", sizes=SIZES).spec
    router = RouterSpec("exit_first", "correctness", hidden=0, early=8)
    for candidates in (((0, 0), (1, EXIT)), ((0, EXIT), (1, EXIT))):
        with pytest.raises(ValueError, match="the first must be an exit, such as"):
            replace(spec, router=replace(router, candidates=candidates))
    with pytest.raises(ValueError, match="image size 4"):
        replace(spec, router=replace(router, candidates=((4, EXIT), (2, 5))))
    with pytest.raises(ValueError, match="has no gate, where an early classifier could read"):
        replace(create_model("mobilenet_v1_tiny", sizes=SIZES).spec, router=router)
    with pytest.raises(ValueError, match="chooses widths at one"):
        replace(spec, router=RouterSpec("gate", "correctness", early=8))
    model = ModelConfig(sizes=[16, 32])
    assert ClassificationConfig(model=model, sgs=SGSConfig(router="exit_first")).sgs.router == "exit_first"
    with pytest.raises(ValueError, match="is fitted to the calibration images; leave both out"):
        ClassificationConfig(model=model, sgs=SGSConfig(router="exit_first", hidden=8))
    with pytest.raises(ValueError, match="leave gate_from out"):
        ClassificationConfig(model=model, sgs=SGSConfig(router="exit_first"), gate_from="runs/other")


def test_looks_cost_what_they_cost_at_run_time() -> None:
    """Also a second look at the same size, which goes on from the front."""
    net = sized("ds_mobilenet_v1_tiny")
    table = count(net.spec)
    settings: list[WidthPath] = [(0, 0), (0, 5), (1, 0), (2, 5)]
    costs = np.array([table.madds(path) for path in settings], np.float64)
    router = RouterSpec("cheap_first", "correctness", hidden=0, candidates=tuple(settings))
    known = Known(settings, torch.zeros(1, 4, 2), torch.zeros(1), costs, replace(net.spec, router=router))
    first, again, *others = known.looks([0, 1, 2, 3])
    assert first == pytest.approx(costs[0], rel=0.01)  # and the head of the router
    assert again == pytest.approx(costs[1] - table.tables[0].shared.madds, rel=0.01)
    assert others == list(costs[2:])
