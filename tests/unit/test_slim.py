"""Conversion of CNNs: the widest path is the original, and the laws of all networks hold at every width."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dsnet.checkpoint import completed
from dsnet.errors import SlimError
from dsnet.export.bundle import export_bundle
from dsnet.export.onnx import export_onnx
from dsnet.models import DynamicRunner, Supernet, count, eager, extract
from dsnet.models.parts import without_later
from dsnet.models.sizes import at_sizes
from dsnet.models.taps import graph_taps
from dsnet.nn import Gate, SliceBatchNorm2d, SliceLayerNorm2d
from dsnet.opening import open_runner
from dsnet.routers import RouterSpec
from dsnet.schema import plain
from dsnet.slimming.convert import Affine, check_same
from dsnet.slimming.network import slim, slim_with_report
from dsnet.slimming.sort import Importance
from dsnet.tasks import load, save
from dsnet.training import IEB, recalibrate, with_fresh_router
from dsnet.training.ieb import IEBConfig
from support.cnns import CNNS, SIZE, conv, lively
from support.networks import assert_close

WIDTHS = (0.3, 0.6, 1)
OWN = ("inverted", "dense")  # networks that are converted with affine parameters for each width


def example() -> Tensor:
    return torch.zeros(1, 3, SIZE, SIZE)


def noise(count: int = 3) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(1))


@cache
def original(name: str) -> nn.Module:
    torch.manual_seed(0)
    return lively(CNNS[name]())


@cache
def converted(name: str, cuts: tuple[str, ...] = ()) -> Supernet:
    affine: Affine = "width" if name in OWN else "shared"
    return slim(original(name), example(), WIDTHS, cuts or None, sort="none", affine=affine)


@cache
def disturbed(name: str, cuts: tuple[str, ...] = ()) -> Supernet:
    """Other statistics at every width, and a gate that does something: laws on equal rows would prove nothing."""
    net = copy.deepcopy(converted(name, cuts))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for module in net.modules():
            if isinstance(module, SliceBatchNorm2d):
                module.running_mean += 0.2 * torch.randn_like(module.running_mean)
                module.running_var *= torch.rand_like(module.running_var) + 0.5
                module.weight *= torch.rand_like(module.weight) + 0.5
                module.bias += 0.2 * torch.randn_like(module.bias)
                module.num_batches_tracked.fill_(1)
            if isinstance(module, Gate):
                module.expand.weight.normal_(0, 0.3)
                module.expand.bias.normal_(0, 0.3)  # type: ignore[union-attr]
    return net


@pytest.mark.parametrize("name", CNNS)
def test_the_widest_path_is_the_original(name: str) -> None:
    """Before and after channels are sorted, which changes what slim widths keep."""
    model, nets = original(name), [converted(name), slim(original(name), example(), WIDTHS, images=noise(20))]
    with torch.no_grad():
        wanted = model(noise())
        assert wanted.std(0).min() > 1e-3  # the network tells images apart
        for net in nets:
            assert_close(net(noise(), net.space.widest), wanted, 1e-4)
        slimmest = [net(noise(), net.space.slimmest) for net in nets]
        assert (slimmest[0] - slimmest[1]).abs().max() > 1e-3


def test_a_wrong_conversion_is_refused() -> None:
    other = copy.deepcopy(original("residual"))
    with torch.no_grad():
        other.get_parameter("two.1.weight").mul_(1.01)
    with pytest.raises(SlimError, match="differs from the original"):
        check_same(other, converted("residual"), example())


@pytest.mark.parametrize("sort", ["scale", "l1"])
@pytest.mark.parametrize("name", ["residual", "grouped"])
def test_every_importance_keeps_the_function(name: str, sort: Importance) -> None:
    net = slim(original(name), example(), WIDTHS, sort=sort)
    with torch.no_grad():
        assert_close(net(noise(), net.space.widest), original(name)(noise()), 1e-4)


@pytest.mark.parametrize("name", CNNS)
def test_sliced_equals_extracted_equals_mixed(name: str) -> None:
    net = copy.deepcopy(disturbed(name)).double()
    x = noise().double()
    with torch.no_grad():
        alone = [net(x, path) for path in net.space]
        for path, wanted in zip(net.space, alone, strict=True):
            for fold in (False, True):
                assert_close(extract(net, path, fold=fold)(x), wanted)
        mixed, _, _ = net.forward_mixed(x, lambda point, scores: torch.eye(3).double())
        assert_close(mixed, torch.stack([rows[number] for number, rows in enumerate(alone)]))
        assert len({float(rows.sum()) for rows in alone}) == len(alone)  # widths differ


@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_border_reaches_no_channel_beyond_the_width(value: float) -> None:
    body = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.ConstantPad2d(1, value)]
    model = nn.Sequential(
        *body, nn.Conv2d(32, 24, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 5)
    )
    net = slim(model, example(), WIDTHS).double()
    x = noise().double()
    with torch.no_grad():
        mixed, _, _ = net.forward_mixed(x, lambda point, scores: torch.eye(3).double())
        alone = [net(x, path) for path in net.space]
    assert_close(mixed, torch.stack([rows[number] for number, rows in enumerate(alone)]))


def test_a_converted_model_keeps_its_frozen_parts() -> None:
    model = original("residual").train()
    frozen = next(module for module in model.modules() if isinstance(module, nn.BatchNorm2d)).eval()
    slim(model, example(), WIDTHS)
    assert model.training
    assert not frozen.training
    model.eval()


@pytest.mark.parametrize("name", CNNS)
def test_costs_are_those_of_the_flop_counter_and_of_extracted_networks(name: str) -> None:
    net = converted(name)
    table = count(net)
    for path in net.space:
        with FlopCounterMode(display=False) as counter:
            net(noise(1), path)
        assert table.cost(path).layers == counter.get_total_flops() // 2
        assert table.params(path) == sum(p.numel() for p in extract(net, path).parameters())
    costs = [table.madds(path) for path in net.space]
    assert costs == sorted(set(costs))


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (k % 2)) for k, n in enumerate(CNNS)])
def test_files_hold_the_whole_network(name: str, tmp_path: Path) -> None:
    """Saved and loaded, cached, one ONNX file, and a bundle."""
    net = disturbed(name)
    save(net, tmp_path)
    again = load(tmp_path)
    assert again.spec == net.spec
    export_onnx(net, tmp_path / "model.onnx")
    export_bundle(net, tmp_path / "bundle")
    runners = [DynamicRunner(net), open_runner(tmp_path / "model.onnx"), open_runner(tmp_path / "bundle")]
    x = noise(1)
    with torch.no_grad():
        for path in net.space:
            wanted = net(x, path)
            assert torch.equal(again(x, path), wanted)
            for runner in runners:
                assert_close(torch.as_tensor(runner(x, path=path).logits), wanted, 1e-4)


@pytest.mark.parametrize("name", CNNS)
def test_taps_are_the_last_maps_of_their_resolution_and_all_that_crosses(name: str) -> None:
    """The layers behind a tap read nothing else from before it, so they run from the tapped map alone."""
    net = disturbed(name)
    spec, x = net.spec, noise()
    place = {node.name: number for number, node in enumerate(spec.nodes)}
    for path in net.space:
        with torch.no_grad():
            x1, front = net.front.features(x, 0)
            assert torch.equal(x1, net.front(x, 0))
            _, behind = net.chain[0].features(x1, 0, path[0])
        assert {**front, **behind}.keys() == spec.taps.keys()
        for tap, value in {**front, **behind}.items():
            choice, channels, side = spec.taps[tap]
            assert value.shape[1:] == (channels[0 if choice is None else path[0]], side, side)
            assert (tap in front) == (choice is None)
    for node, _ in graph_taps(spec).values():
        later = {read for other in spec.nodes[place[node] + 1 :] for read in other.inputs}
        assert not {read for read in later if read != "image" and place[read] < place[node]}
    sides = [tap.side for tap in spec.taps.values()]
    assert sides == sorted(set(sides), reverse=True)


def test_a_network_has_a_tap_wherever_its_maps_become_smaller() -> None:
    assert list(converted("inverted").spec.taps) == ["stride1", "stride2"]


@pytest.mark.parametrize("name", OWN)
def test_widths_with_affine_parameters_of_their_own_begin_alike_and_learn_alone(name: str) -> None:
    shared, own = slim(original(name), example(), WIDTHS, sort="none"), copy.deepcopy(converted(name))
    with torch.no_grad():
        for path in shared.space:
            assert_close(own(noise(), path), shared(noise(), path), 1e-5)
    own(noise(), own.space.slimmest).square().sum().backward()
    norms = [norm for norm in own.chain[0].modules() if isinstance(norm, SliceBatchNorm2d)]
    assert norms
    for norm in norms:
        assert norm.own
        assert norm.weight.grad is not None
        assert norm.weight.grad[0].any()
        assert not norm.weight.grad[1:].any()
    sized = at_sizes(own, (8, SIZE))
    with torch.no_grad():
        for path in own.space:
            assert_close(sized(noise(), (1, *path)), own(noise(), path), 1e-6)


def test_convolutions_pad_by_themselves_where_both_sides_are_alike() -> None:
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = nn.Conv2d(3, 16, 3, 2), nn.BatchNorm2d(16)
            self.even, self.odd, self.twice = (
                nn.Conv2d(16, 32, 3),
                nn.Conv2d(32, 32, 3),
                nn.Conv2d(32, 32, 3, padding=1),
            )
            self.fc = nn.Linear(32, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = F.pad(self.norm(self.stem(F.pad(x, (0, 1, 0, 1)))), (1, 1, 1, 1)).relu()  # read by an activation
            x = self.odd(F.pad(self.even(F.pad(x, (1, 1, 2, 2))), (0, 1, 0, 1)))
            x = self.twice(F.pad(x, (1, 1, 0, 0))) + self.twice(F.pad(x, (1, 1, 0, 0), value=1.0))
            return self.fc(x.mean((2, 3)))

    torch.manual_seed(0)
    model = lively(Padded())
    net = slim(model, example(), (0.5, 1))
    with torch.no_grad():
        assert_close(net(noise(), net.space.widest), model(noise()), 1e-4)
    pads = [dict(node.options) for node in net.spec.nodes if node.op == "pad"]
    assert [(pad["sides"], pad["value"]) for pad in pads] == [
        ((0, 1, 0, 1), 0),
        ((1, 1, 1, 1), 0),
        ((0, 1, 0, 1), 0),
        ((1, 1, 0, 0), 1),
    ]
    paddings = [dict(node.options)["padding"] for node in net.spec.nodes if node.op == "conv"]
    assert paddings == [(0, 0), (2, 1), (0, 0), (1, 2), (1, 1)]


def test_layer_norms_of_every_form_become_the_same_layer() -> None:
    """With torch's layer on turned maps or vectors, or written out; the turns, means and variances vanish."""
    ops = [node.op for node in converted("next").spec.nodes]
    assert ops.count("layer_norm") == 6
    assert not {"permute", "mean", "sqrt", "sub", "div", "mul"} & set(ops)


def test_a_slim_width_normalises_over_its_own_channels() -> None:
    net, counts = converted("next"), set[int]()

    def check(norm: SliceLayerNorm2d, args: tuple[Tensor, ...], answer: Tensor) -> None:
        count = answer.shape[1]
        normal = (answer - norm.bias[:count, None, None]) / norm.weight[:count, None, None]
        assert normal.mean(1).abs().max() < 1e-4
        assert (normal.square().mean(1) - 1).abs().max() < 0.02  # the epsilon is at most so much of a variance
        counts.add(count)

    handles = [
        module.register_forward_hook(check) for module in net.chain[0].modules() if isinstance(module, SliceLayerNorm2d)
    ]
    with torch.no_grad():
        for path in net.space:
            net(noise(), path)
    for handle in handles:
        handle.remove()
    assert len(counts) == len(net.space.choices[0])


def test_a_layer_norm_over_whole_maps_keeps_every_channel() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.one, self.two, self.fc = conv(3, 16), conv(16, 32), conv(32, 32), nn.Linear(32, 5)
            self.norm = nn.LayerNorm([32, SIZE, SIZE], elementwise_affine=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.two(self.norm(self.one(self.stem(x)))).mean((2, 3)))

    _, report = slim_with_report(lively(Whole()), example(), (0.5, 1), cut="stem")
    rows = {row.layers: row for row in report.groups}
    assert "norm has one group" in rows[("one.0",)].fixed
    assert rows[("two.0",)].channels == (16, 32)


def test_a_repair_without_labels_keeps_the_statistics_of_the_widest() -> None:
    """Those of the images at hand would change its answers, though its weights stay. Other widths learn theirs."""
    net, images = copy.deepcopy(converted("residual")), [3 * noise(6) + 1 for _ in range(3)]
    wanted = net(noise(), net.space.widest)
    stage = IEB(net, IEBConfig("original"), original=copy.deepcopy(net), labelled=False, frozen=True)
    stage.train()
    losses = stage(images[0], torch.zeros(6, dtype=torch.long), stage.draw(random.Random(0)), net)
    sum(losses.values()).backward()  # type: ignore[union-attr]
    net.eval()
    assert torch.equal(net(noise(), net.space.widest), wanted)
    slim = net(noise(), net.space.slimmest)
    recalibrate(net, images, frozen=True)
    assert torch.equal(net(noise(), net.space.widest), wanted)
    assert (net(noise(), net.space.slimmest) - slim).abs().max() > 1e-3
    plain = copy.deepcopy(converted("residual"))
    IEB(plain, IEBConfig("inplace"), frozen=True)
    recalibrate(plain, images, frozen=True)
    assert (plain(noise(), net.space.widest) - wanted).abs().max() > 1e-3


SEVERAL = [("stages", ("norm", "one", "more")), ("stages", ("one", "mul")), ("next", ("first", "one"))]


@pytest.mark.parametrize(("name", "cuts"), SEVERAL)
def test_a_network_without_batch_norms_may_have_several_gates(name: str, cuts: tuple[str, ...], tmp_path: Path) -> None:
    """Each chooses the width of what follows: sliced = extracted = mixed = grouped = in files, and costs are exact."""
    net = disturbed(name, cuts)
    assert len(net.chain) == len(cuts)
    assert net.space.size == len(WIDTHS) ** len(cuts)
    check_all_paths(copy.deepcopy(net).double(), noise(4).double())
    for path in (net.space.slimmest, tuple(range(len(cuts))), net.space.widest):
        with FlopCounterMode(display=False) as counter:
            net(noise(1), path)
        assert count(net).cost(path).layers == counter.get_total_flops() // 2
        assert count(net).params(path) == sum(p.numel() for p in extract(net, path).parameters())
    save(net, tmp_path)
    assert load(tmp_path).spec == net.spec
    export_onnx(net, tmp_path / "model.onnx")
    export_bundle(net, tmp_path / "bundle")
    runners = [DynamicRunner(net), open_runner(tmp_path / "model.onnx"), open_runner(tmp_path / "bundle")]
    with torch.no_grad():
        assert_close(converted(name, cuts)(noise(), net.space.widest), original(name)(noise()), 1e-4)
        for path in net.space:
            for runner in runners:
                assert_close(torch.as_tensor(runner(noise(1), path=path).logits), net(noise(1), path), 1e-4)
            features = net.forward_features(noise(1), path)
            assert features.keys() == net.spec.taps.keys()
            for tap, (choice, channels, side) in net.spec.taps.items():
                assert features[tap].shape[1:] == (channels[0 if choice is None else path[choice]], side, side)


@torch.no_grad()
def check_all_paths(net: Supernet, x: Tensor) -> None:
    """Sliced = extracted = mixed, where every sample has a path of its own; several paths at once are the same, too."""
    paths = list(net.space)
    alone = [net(x, path) for path in paths]
    assert len({float(rows.sum()) for rows in alone}) == len(alone)
    together = net.forward_paths(x, paths)
    for path, wanted, given in zip(paths, alone, together, strict=True):
        assert_close(extract(net, path, fold=True)(x), wanted)
        assert_close(given, wanted)
    for chosen in (paths[: len(x)], paths[-len(x) :], random.Random(0).sample(paths, len(x))):
        widths = torch.tensor(chosen)
        mixed, _, _ = net.forward_mixed(x, lambda point, scores, widths=widths: torch.eye(3).double()[widths[:, point]])
        for number, path in enumerate(chosen):
            assert_close(mixed[number], alone[paths.index(path)][number])


def test_routed_batches_are_grouped_at_every_gate() -> None:
    """A batch whose samples take different paths has the answers of each sample alone."""
    net, x = disturbed("stages", ("norm", "one", "more")), noise(12)
    gated = replace(net.spec, router=RouterSpec("gate"), gate=replace(net.spec.gate, standardised=True))
    net = with_fresh_router(copy.deepcopy(net), gated).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(4)
        for gate in (segment.first.gate for segment in net.chain):
            assert gate is not None
            assert gate.slimming is not None
            assert gate.reduce.bias is not None
            gate.reduce.bias.fill_(5)
            codes: list[Tensor] = []
            handle = gate.slimming.register_forward_pre_hook(lambda head, args, codes=codes: codes.append(args[0]))
            net.run_scored(x, net.space.widest)
            handle.remove()
            gate.slimming.standardise(codes[0])
            gate.slimming.score.weight.normal_(0, 3)
        routed = eager(net)(x)
        assert len({tuple(path) for path in routed.paths.tolist()}) > 3
        for image, path, logits in zip(x, routed.paths.tolist(), routed.logits, strict=True):
            assert_close(logits[None], net(image[None], tuple(path)), 1e-4)


def test_networks_of_one_gate_are_read_and_named_as_before() -> None:
    """A file and a digest of theirs do not name further gates."""
    net = converted("residual")
    written = plain(net.spec)
    before = {key: value for key, value in written.items() if key not in ("cuts", "sizes")}
    assert completed(before) == written
    assert without_later(written) == without_later(before)


@pytest.mark.parametrize(
    ("name", "cuts", "words"),
    [
        (
            "residual",
            ("stem", 0.5),
            "several cuts need group or layer norms, but batch norm 'one.0.1' .*give one --cut",
        ),
        (
            "stages",
            ("norm", "two.first"),
            "behind 'two.first': channels from before go on beside new ones; choose from",
        ),
        ("stages", ("norm", "nowhere"), "there is no such module; choose from"),
        ("stages", ("one", 1.5), "give a share between 0 and 1"),
        ("stages", ("one", "mul", 0.9), "the cut at 0.9 of the MAdds is impossible: no place is left behind"),
    ],
)
def test_cuts_that_do_not_suit(name: str, cuts: tuple[str | float, ...], words: str) -> None:
    with pytest.raises(SlimError, match=words):
        slim(original(name), example(), WIDTHS, cuts, sort="none")
