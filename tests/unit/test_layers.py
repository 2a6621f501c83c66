"""Layers one by one, over random shapes, widths and batch sizes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from dsnet.nn import (
    Gate,
    GateSpec,
    GlobalPool,
    Mix,
    SliceBatchNorm2d,
    SliceConv2d,
    SliceDepthwise,
    SliceGroupNorm,
    SliceLayerNorm2d,
    SliceLinear,
    SliceNorm,
)
from dsnet.nn.norm import counted_at_once
from dsnet.nn.slicing import corner
from dsnet.space import Channels
from support.networks import assert_close

rungs = st.lists(st.integers(1, 6), min_size=1, max_size=4, unique=True).map(
    lambda steps: Channels(tuple(4 * n for n in sorted(steps)))
)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9))  # batch, height, width
seeds = st.integers(0, 2**31)
fast = settings(max_examples=25, deadline=None)


def tensor(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def scrambled(module: nn.Module) -> nn.Module:
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if value.is_floating_point() and not name.endswith("prefix"):
            value.data = torch.rand_like(value) + 0.5 if "var" in name else torch.randn_like(value)
    return module.double().eval()


@fast
@given(rungs, rungs, st.sampled_from([1, 3, 5]), st.sampled_from([1, 2]), sizes, seeds, st.data())
def test_convolution(cin, cout, kernel, stride, size, seed, data) -> None:
    torch.manual_seed(seed)
    w_in, w_out = (data.draw(st.integers(0, len(c) - 1)) for c in (cin, cout))
    layer = scrambled(SliceConv2d(cin, cout, kernel, stride=stride))
    x = tensor(size[0], cin[w_in], *size[1:])
    out = layer(x, w_in, w_out)
    plain = layer.materialise(w_in, w_out)
    assert torch.equal(plain(x), out)
    assert plain.weight.is_contiguous()
    assert plain.weight.data_ptr() != layer.weight.data_ptr()
    assert out.shape[1] == cout[w_out]
    assert layer.out_shape(x.shape, w_in, w_out) == out.shape
    assert layer.madds(x.shape, w_in, w_out) == out[0, 0].numel() * cout[w_out] * cin[w_in] * kernel**2
    assert layer.params(w_in, w_out) == plain.weight.numel()


@fast
@given(rungs, st.sampled_from([3, 5]), st.sampled_from([1, 2]), sizes, seeds, st.data())
def test_depthwise(channels, kernel, stride, size, seed, data) -> None:
    torch.manual_seed(seed)
    w = data.draw(st.integers(0, len(channels) - 1))
    layer = scrambled(SliceDepthwise(channels, kernel, stride=stride))
    x = tensor(size[0], channels[w], *size[1:])
    out, plain = layer(x, w), layer.materialise(w)
    assert torch.equal(plain(x), out)
    assert layer.out_shape(x.shape, w) == out.shape
    assert layer.madds(x.shape, w) == out[0].numel() * kernel**2
    assert layer.params(w) == plain.weight.numel()


@fast
@given(rungs, rungs, st.booleans(), st.integers(1, 4), seeds, st.data())
def test_linear(cin, cout, bias, batch, seed, data) -> None:
    torch.manual_seed(seed)
    w_in, w_out = (data.draw(st.integers(0, len(c) - 1)) for c in (cin, cout))
    layer = scrambled(SliceLinear(cin, cout, bias=bias))
    x = tensor(batch, cin[w_in])
    plain = layer.materialise(w_in, w_out)
    out = layer(x, w_in, w_out)
    assert torch.equal(plain(x), out)
    assert layer.out_shape(x.shape, w_in, w_out) == out.shape
    assert layer.madds(x.shape, w_in, w_out) == plain.weight.numel()
    assert layer.params(w_in, w_out) == sum(p.numel() for p in plain.parameters())


@fast
@given(rungs, sizes, seeds, st.sampled_from(["batch", "group", "layer"]), st.data())
def test_norms(channels, size, seed, kind, data) -> None:
    """Twin equals slice; a one-hot mix equals each sample at its own width, with zeros beyond it."""
    torch.manual_seed(seed)
    layer: SliceNorm = {
        "batch": SliceBatchNorm2d(channels),
        "group": SliceGroupNorm(channels, 4),
        "layer": SliceLayerNorm2d(channels),
    }[kind]
    scrambled(layer)
    widths = [data.draw(st.integers(0, len(channels) - 1)) for _ in range(size[0])]
    x = tensor(size[0], channels.max, *size[1:])
    mix = Mix(nn.functional.one_hot(torch.tensor(widths), len(channels)).double(), len(channels) - 1)
    mixed = layer(x, mix)
    for sample, w in enumerate(widths):
        one = x[sample : sample + 1, : channels[w]]
        sliced = layer(one, w)
        assert torch.equal(layer.materialise(w)(one), sliced)
        assert layer.out_shape(one.shape, w) == sliced.shape
        assert torch.allclose(mixed[sample : sample + 1, : channels[w]], sliced, rtol=1e-9, atol=1e-9)
        assert mixed[sample, channels[w] :].abs().sum() == 0


@pytest.mark.parametrize("attention", ["tanh", "sigmoid"])
@pytest.mark.parametrize("slimming", ["one_hot", "scalar"])
@pytest.mark.parametrize("shared", [True, False])
def test_gate(attention: str, slimming: str, shared: bool) -> None:
    torch.manual_seed(0)
    channels = Channels((4, 8, 12))
    spec = GateSpec(attention=attention, slimming=slimming, shared=shared)
    gate = scrambled(Gate(spec, channels, hidden=6, candidates=3))
    for w, count in enumerate(channels.counts):
        x = tensor(2, count, 5, 5)
        scaled, code = gate(x, w)
        assert code.shape == (2, 6 if shared else count)
        scores = gate.slimming(code, w)
        assert scores.shape == (2, 3)
        assert_close(gate.materialise(w)(x), scaled)
        assert_close(gate.slimming.materialise(w)(code), scores)
        assert gate.madds(x.shape, w) == 2 * 6 * count
        assert gate.pools(x.shape, w) == 25 * count
        assert gate.pool.out_shape(x.shape, w) == gate.pool(x, w).shape
        assert gate.slimming.madds(code.shape, w) == 6 * (3 if slimming == "one_hot" else 1) + (not shared) * 6 * count
        factors = (scaled / x).amin((2, 3)), (scaled / x).amax((2, 3))
        assert torch.allclose(*factors)
        assert (factors[0] > 0).all()
        assert (factors[1] < (2 if attention == "tanh" else 1)).all()
        padded = torch.cat([x, torch.zeros(2, channels.max - count, 5, 5, dtype=x.dtype)], dim=1)
        mix = Mix(nn.functional.one_hot(torch.full((2,), w), 3).double(), 2)
        wide, wide_code = gate(padded, mix)
        assert_close(wide[:, :count], scaled)
        assert wide[:, count:].abs().sum() == 0
        assert_close(gate.slimming(wide_code, mix), scores)


def test_a_fresh_gate_is_the_identity() -> None:
    gate = Gate(GateSpec(), Channels((4, 8)), hidden=2, candidates=2)
    for w, count in enumerate((4, 8)):
        x = torch.randn(2, count, 3, 3)
        assert torch.equal(gate(x, w)[0], x)


def test_scalar_head_scores_the_nearest_width_highest() -> None:
    gate = Gate(GateSpec(slimming="scalar"), Channels.of(4), hidden=3, candidates=5)
    head = gate.slimming
    assert head is not None
    for k in range(5):
        p = torch.tensor(min(max(k / 4, 1e-4), 1 - 1e-4))
        head.score.weight.data = torch.logit(p).repeat(1, 3)
        scores = head(torch.tensor([[1.0, 0.0, 0.0]]), 0)
        assert scores.argmax() == k
        # -(p - k/(R-1))^2 / s0 with s0 = 1/(R-1)^2
        expected = [-((float(p) - j / 4) ** 2) * 16 for j in range(5)]
        assert torch.allclose(scores[0], torch.tensor(expected), atol=1e-4)


def test_global_pool() -> None:
    pool = GlobalPool(Channels((3, 6)))
    x = torch.randn(2, 3, 4, 5)
    assert torch.allclose(pool(x, 0), x.mean((2, 3)), atol=1e-6)
    assert torch.equal(pool.materialise(0)(x), pool(x, 0))
    assert (pool.pools(x.shape, 0), pool.pools(x.shape, 1)) == (60, 120)


def test_batch_norm_refuses_a_mix_in_training() -> None:
    norm = SliceBatchNorm2d(Channels((4, 8)))
    with pytest.raises(RuntimeError, match=r"call net.eval\(\) first"):
        norm(torch.randn(2, 8, 3, 3), Mix(torch.ones(2, 2), 1))


def test_what_lies_beyond_a_width_is_never_used() -> None:
    norm = scrambled(SliceBatchNorm2d(Channels((4, 8))))
    norm.running_var[0, 4:] = torch.nan
    norm.running_mean[0, 4:] = torch.inf
    x = tensor(2, 8, 3, 3)
    assert norm(x, Mix(torch.eye(2).double(), 1)).isfinite().all()


def test_group_norm_refuses_widths_that_split_a_group() -> None:
    with pytest.raises(ValueError, match="4 channels per group cannot divide a width of 6 channels"):
        SliceGroupNorm(Channels((4, 6)), 4)


def test_batch_norm_in_training_touches_only_its_own_width() -> None:
    norm = SliceBatchNorm2d(Channels((4, 8, 12)))
    norm(torch.randn(5, 8, 3, 3) + 3, 1)
    assert norm.num_batches_tracked.tolist() == [0, 1, 0]
    assert norm.running_mean[0].abs().sum() == norm.running_mean[2].abs().sum() == 0
    assert (norm.running_mean[1, :8] != 0).all()
    assert norm.running_mean[1, 8:].abs().sum() == 0


def test_batches_that_are_counted_at_once_are_counted_as_one_by_one() -> None:
    one, other = SliceBatchNorm2d(Channels((4, 8))), SliceBatchNorm2d(Channels((4, 8)))
    x = torch.randn(3, 8, 2, 2)
    with counted_at_once():
        one(x, 1)
        one(x, 1)
        one(x[:, :4], 0)
        other(x, 1)
        other.eval()(x, 1)
        assert one.num_batches_tracked.tolist() == [0, 0]
    assert one.num_batches_tracked.tolist() == [1, 2]
    assert other.num_batches_tracked.tolist() == [0, 1]
    one(x, 1)
    assert one.num_batches_tracked.tolist() == [1, 3]


def test_materialising_draws_no_random_numbers() -> None:
    layer = SliceConv2d(Channels.of(4), Channels.of(4))
    state = torch.get_rng_state()
    layer.materialise(0, 0)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("width", [0, 1, 2])
def test_the_gradient_of_a_slice_is_that_of_indexing(width: int) -> None:
    """`corner` pads a gradient once; the plain way slices twice."""
    widths = Channels.of((2, 3, 5), 3)
    for shape in ((5, 5, 3, 3), (5, 5)):
        weight = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        for w_in in range(3):
            found = corner(weight, widths, width, widths, w_in)
            plain = weight[: widths[width]][:, : widths[w_in]]
            assert torch.equal(found, plain)
            factor = torch.randn(plain.shape, dtype=torch.float64)
            assert torch.equal(*(torch.autograd.grad((part * factor).sum(), weight)[0] for part in (found, plain)))
