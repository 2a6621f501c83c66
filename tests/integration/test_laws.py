"""The laws that hold for every registered model: all ways to run a sub-network agree."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn

from dsnet.models import Supernet, create_model
from dsnet.models.build import Segment
from dsnet.models.count import clear_counts, count
from dsnet.models.extract import extract
from dsnet.nn import SliceBatchNorm2d, SliceDepthwise, SliceGroupNorm
from dsnet.space import WidthPath
from dsnet.training.complexity import expected
from support.networks import CHOOSING, MODELS, assert_close, images, quick, randomised, some_paths


def one_hot_choice(net: Supernet, paths: list[WidthPath]):
    """A `choose` that sends sample b along paths[b]."""

    def choose(point: int, logits: Tensor | None) -> Tensor:
        allowed = net.routing.choices[point]
        rows = [[float(w == path[point]) for w in allowed] for path in paths]
        return torch.tensor(rows, dtype=net.head.classifier.weight.dtype)

    return choose


def check_extracted(net: Supernet, tolerance: float = 1e-9) -> None:
    x = images(net)
    for path in some_paths(net):
        assert_close(extract(net, path)(x), net(x, path), tolerance)
        assert_close(extract(net, path, fold=True)(x), net(x, path), tolerance)


def check_mixed(net: Supernet, tolerance: float = 1e-9) -> None:
    """Mixed with one-hot mixes equals slicing, different paths in one batch."""
    rng = random.Random(3)
    routing = net.routing
    paths = [routing.slimmest, routing.widest, *(routing.sample(rng) for _ in range(3))]
    x = images(net, len(paths))
    logits, gate_logits, mixes = net.forward_mixed(x, one_hot_choice(net, paths))
    alone = torch.cat([net(x[b : b + 1], path) for b, path in enumerate(paths)])
    assert_close(logits, alone, tolerance)
    for point, (scores, mix) in enumerate(zip(gate_logits, mixes, strict=True)):
        assert mix.argmax(1).tolist() == [path[point] for path in paths]
        if net.slimming_heads():
            assert scores is not None
            assert scores.shape == (len(paths), len(routing.choices[point]))
    scored = [net.run_scored(x[b : b + 1], path)[1] for b, path in enumerate(paths)]
    for point, scores in enumerate(gate_logits):
        if scores is not None:
            assert_close(scores, torch.cat([row[point] for row in scored]), tolerance)


@pytest.mark.parametrize("name", quick(MODELS))
def test_sliced_equals_extracted(name: str) -> None:
    with torch.no_grad():
        check_extracted(randomised(name))


@pytest.mark.parametrize("name", quick(CHOOSING))
def test_mixed_one_hot_equals_sliced(name: str) -> None:
    with torch.no_grad():
        check_mixed(randomised(name))


@pytest.mark.parametrize("name", quick([name for name in CHOOSING if name.startswith("ds_")]))
def test_mixed_equals_sliced_in_a_restricted_routing_space(name: str) -> None:
    with torch.no_grad():
        check_mixed(randomised(name, routing=[1, 2]))


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "ds_efficientnet_tiny"])
def test_laws_hold_in_float32(name: str) -> None:
    net = randomised(name, dtype=torch.float32)
    with torch.no_grad():
        check_extracted(net, 1e-4)
        check_mixed(net, 1e-4)


@pytest.mark.parametrize("slimming", ["one_hot", "scalar"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"])
def test_laws_hold_for_every_gate_design(name: str, slimming: str, shared: bool) -> None:
    with torch.no_grad():
        net = randomised(name, slimming=slimming, shared=shared, routing=[0, 2, 3])
        check_extracted(net)
        check_mixed(net)


def test_a_dropped_mask_breaks_the_mixed_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SliceGroupNorm, "mixed", lambda self, x, mix: self.sliced(x, mix.widest))
    with torch.no_grad(), pytest.raises(AssertionError, match="of the spread"):
        check_mixed(randomised("ds_resnet_tiny"))


def test_statistics_of_another_width_break_the_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    net = randomised("ds_mobilenet_v1_tiny")
    right = SliceBatchNorm2d.folded
    monkeypatch.setattr(SliceBatchNorm2d, "folded", lambda self: tuple(t.roll(1, 0) for t in right(self)))
    with torch.no_grad(), pytest.raises(AssertionError, match="of the spread"):
        check_mixed(net)
    twin = SliceBatchNorm2d.materialise
    monkeypatch.setattr(
        SliceBatchNorm2d, "materialise", lambda self, w: _with_statistics_of(twin(self, w), self, max(w - 1, 0))
    )
    with torch.no_grad(), pytest.raises(AssertionError, match="of the spread"):
        check_extracted(net)


def _with_statistics_of(plain: nn.Module, norm: SliceBatchNorm2d, width: int) -> nn.Module:
    plain.running_mean.copy_(norm.running_mean[width, : len(plain.running_mean)])
    return plain


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", quick(CHOOSING))
def test_forward_paths_equals_separate_calls(name: str, training: bool) -> None:
    """In outputs and in gradients, with a duplicate path."""
    net = randomised(name).train(training)
    x = images(net, 2)
    check_forward_paths(net, x)


def test_forgotten_attention_breaks_the_law_of_forward_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    net = randomised("ds_resnet_tiny")
    monkeypatch.setattr(
        Segment, "body", lambda self, x, scaled, w_in, w_out: self.rest(self.first.body(x, x, w_in, w_out), w_out)
    )
    with pytest.raises(AssertionError):
        check_forward_paths(net, images(net, 2))


def check_forward_paths(net: Supernet, x: Tensor) -> None:
    paths = [*some_paths(net, 2), net.space.widest]
    weights = torch.randn(len(paths), 2, 7, dtype=x.dtype, generator=torch.Generator().manual_seed(5))

    def loss_of(outputs: list[Tensor]) -> Tensor:
        return sum((w * out).sum() for w, out in zip(weights, outputs, strict=True))

    together = net.forward_paths(x, paths)
    separate = [net(x, path) for path in paths]
    for a, b in zip(together, separate, strict=True):
        assert_close(a, b)
    names, params = zip(*((n, p) for n, p in net.named_parameters() if ".slimming." not in n), strict=True)
    shared = torch.autograd.grad(loss_of(together), params, allow_unused=True)
    apart = torch.autograd.grad(loss_of(separate), params, allow_unused=True)
    scale = max(g.abs().max() for g in apart if g is not None)
    for parameter, a, b in zip(names, shared, apart, strict=True):
        assert (a is None) == (b is None), parameter
        assert a is None or (a - b).abs().max() <= 1e-9 * scale, parameter


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_efficientnet_tiny", "us_mobilenet_v1"])
def test_forward_paths_updates_statistics_once_per_width(name: str) -> None:
    net, widths = randomised(name).train(), [0, 3, 5]
    x = images(net, 4)
    net.forward_paths(x, [(w,) for w in [*widths, 3]])
    alone = {w: randomised(name).train() for w in widths}
    for w, other in alone.items():
        other(x, (w,))
    untouched = dict(randomised(name).named_buffers())
    for key, buffer in net.named_buffers():
        if key.endswith(("running_mean", "running_var", "num_batches_tracked")):
            for w, row in enumerate(buffer):
                # the shared front has one row, which any of the single runs updates once
                source = alone.get(0 if len(buffer) == 1 else w)
                expected = untouched[key] if source is None else dict(source.named_buffers())[key]
                assert torch.allclose(row, expected[w], rtol=0, atol=1e-12), f"{key} of width {w}"


@pytest.mark.parametrize("name", MODELS)
def test_layers_cost_what_the_flop_counter_counts(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        net = create_model(name).eval()
    for size in (net.spec.image_size, 2 * net.spec.stride + 5):  # also sizes that no stride divides
        table = count(net, size)
        for path in some_paths(net, 2):
            with FlopCounterMode(display=False) as counter:
                net(torch.empty(1, 3, size, size, device="meta"), path)
            assert table.cost(path).layers == counter.get_total_flops() // 2


def test_a_miscounted_layer_breaks_the_law_of_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    right = SliceDepthwise.madds
    monkeypatch.setattr(SliceDepthwise, "madds", lambda self, shape, w: right(self, shape, w) + 1)
    clear_counts()
    try:
        with pytest.raises(AssertionError):
            test_layers_cost_what_the_flop_counter_counts("ds_mobilenet_v1_tiny")
    finally:
        clear_counts()


@pytest.mark.parametrize("name", MODELS)
def test_parameters_of_a_path_are_those_of_the_extracted_network(name: str) -> None:
    with torch.device("meta"):
        net = create_model(name)
    table = count(net)
    for path in some_paths(net, 2):
        assert table.params(path) == sum(p.numel() for p in extract(net, path).parameters())
    total = sum(p.numel() for p in net.parameters())
    assert table.params(net.space.widest, dynamic=True) == total


@pytest.mark.parametrize("name", CHOOSING)
def test_expected_cost_is_exact_on_one_hots_and_differentiable(name: str) -> None:
    with torch.device("meta"):
        net = create_model(name)
    table = count(net, 64)
    rng = random.Random(0)
    paths = [net.space.sample(rng) for _ in range(8)]
    mixes = [
        torch.nn.functional.one_hot(torch.tensor([path[i] for path in paths]), widths).float().requires_grad_()
        for i, widths in enumerate(net.spec.widths)
    ]
    for dynamic in (False, True):
        cost = expected(table, mixes, dynamic=dynamic)
        assert cost.tolist() == [table.madds(path, dynamic=dynamic) for path in paths]
    cost.sum().backward()
    assert all(mix.grad is not None and (mix.grad > 0).all() for mix in mixes)


@pytest.mark.parametrize("name", MODELS)
def test_wider_costs_more(name: str) -> None:
    with torch.device("meta"):
        net = create_model(name)
    table = count(net)
    costs = [table.madds(path) for path in net.space.uniform]
    assert costs == sorted(costs)
    assert table.slimmest == costs[0]
    assert table.widest == costs[-1] == max(map(table.madds, some_paths(net, 20)))


@pytest.mark.parametrize("name", MODELS)
def test_shapes_and_taps(name: str) -> None:
    """On the meta device, where full-size networks cost nothing."""
    with torch.device("meta"):
        net = create_model(name, num_classes=7).eval()
        x = torch.empty(2, 3, net.spec.image_size, net.spec.image_size)
    for path in some_paths(net, 0):
        assert net(x, path).shape == (2, 7)
        features = net.forward_features(x, path)
        assert list(features) == [stage.tap for stage in net.spec.stages if stage.tap]
        sides = [feature.shape[-1] for feature in features.values()]
        assert sides == sorted(sides, reverse=True)


@pytest.mark.parametrize("name", quick(MODELS))
def test_features_are_the_taps_of_the_forward_pass(name: str) -> None:
    net = randomised(name)
    x = images(net, 1)
    for path in some_paths(net, 1):
        with torch.no_grad():
            features = net.forward_features(x, path)
            last = list(features.values())[-1]
            assert_close(net.head(last, path[-1] if path else 0), net(x, path))
