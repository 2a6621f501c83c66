from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dsnet.models import ModelSpec, StageSpec, Supernet, create_model, model_spec
from dsnet.nn import Bottleneck, DepthwiseSeparable, InvertedResidual
from dsnet.schema import parse, parse_json, plain, to_json
from support.networks import CHOOSING, MODELS


@pytest.mark.parametrize("name", MODELS)
def test_a_spec_survives_json(name: str) -> None:
    spec = model_spec(name)
    assert parse_json(ModelSpec, to_json(spec)) == spec


def test_a_spec_with_unknown_or_missing_keys_is_refused() -> None:
    data = plain(model_spec("ds_resnet_tiny"))
    with pytest.raises(ValueError, match="'depth' is unknown; known are name, stages"):
        parse(ModelSpec, {**data, "depth": 3})
    del data["stages"]
    with pytest.raises(ValueError, match="'stages' is missing"):
        parse(ModelSpec, data)


def test_batch_norm_behind_several_choice_points_is_refused() -> None:
    spec = model_spec("ds_resnet_tiny")
    with pytest.raises(ValueError, match=r"4 choice points with batch norm.*use NormSpec\('group'\)"):
        replace(spec, norm=model_spec("s_resnet50").norm)


def test_inconsistent_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="lists 2 widths; its choice point has 3"):
        ModelSpec("x", (StageSpec("conv", (8, 16), choice=0),), widths=(3,))
    with pytest.raises(ValueError, match="lies behind a choice point"):
        ModelSpec("x", (StageSpec("conv", (8, 16), choice=0), StageSpec("conv", 8)), widths=(2,))
    for wrong, message in (
        ({"block": "dense", "out": 8}, "block 'dense' is unknown"),
        ({"block": "conv", "out": 0}, "must be positive"),
        ({"block": "conv", "out": (16, 8)}, "must not fall"),
        ({"block": "conv", "out": 8, "stride": 0}, "stride of a conv stage is 0"),
        ({"block": "conv", "out": 8, "kernel": 4}, "must be odd"),
        ({"block": "conv", "out": 8, "repeats": 0}, "repeats of a conv stage is 0"),
        ({"block": "bottleneck", "out": 9, "expansion": 4}, "not multiples of the expansion 4"),
    ):
        with pytest.raises(ValueError, match=message):
            StageSpec(**wrong)
    with pytest.raises(ValueError, match="at least one stage"):
        ModelSpec("x", ())
    with pytest.raises(ValueError, match="names taps twice"):
        ModelSpec("x", (StageSpec("conv", 8, tap="a"), StageSpec("conv", 8, tap="a")))
    with pytest.raises(ValueError, match="must rise from 0 to 0"):
        ModelSpec("x", (StageSpec("conv", 8),), widths=(2,))


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_18", "ds_mobilenet_v1_tiny", "ds_resnet50", "ds_resnet_tiny"])
def test_fresh_attention_is_the_identity_on_features(name: str) -> None:
    net = create_model(name).eval()
    x = torch.randn(1, 3, 2 * net.spec.stride, 2 * net.spec.stride)
    with torch.no_grad():
        expected = net.forward_features(x, net.space.widest)
        for module in net.modules():
            if hasattr(module, "gate"):
                module.gate = None
        assert all(torch.equal(f, expected[k]) for k, f in net.forward_features(x, net.space.widest).items())


def test_residual_branches_start_at_zero() -> None:
    for block in create_model("ds_resnet50").modules():
        if isinstance(block, Bottleneck):
            assert block.norm3.weight.abs().sum() == 0
            assert block.norm2.weight.abs().sum() > 0
    skips = [
        b.norm2 for b in create_model("ds_efficientnet_b0").modules() if isinstance(b, InvertedResidual) and b.skip
    ]
    assert skips
    assert all(norm.weight.abs().sum() == 0 for norm in skips)


@pytest.mark.parametrize("active", [True, False])
def test_depthwise_convolutions_are_linear_without_their_activation(active: bool) -> None:
    """Doubling what enters a block doubles what its pointwise convolution reads, but for the constant of the norm."""
    spec = replace(model_spec("ds_mobilenet_v1_tiny"), activation="hardswish", depthwise_activation=active)
    blocks = [block for block in Supernet(spec).front.modules() if isinstance(block, DepthwiseSeparable)]
    assert blocks
    for block in blocks:
        x = torch.randn(2, block.depthwise.channels.max, 8, 8)
        block.eval()
        with torch.no_grad():
            nothing, once, twice = (block.enter(times * x, 0) for times in (0.0, 1.0, 2.0))
        assert torch.allclose(twice - nothing, 2 * (once - nothing), atol=1e-5) is not active


@pytest.mark.parametrize("name", CHOOSING)
def test_slimming_heads_sit_at_choice_points_of_ds_models(name: str) -> None:
    with torch.device("meta"):
        net = create_model(name, routing=[0, 1])
    heads = net.slimming_heads()
    assert len(heads) == (len(net.space) if name.startswith("ds_") else 0)
    assert all(head.score.cout.max == 2 for head in heads)
    assert net.routing.widest == (1,) * len(net.space)
    assert net.space.widest > net.routing.widest


def test_equispaced_widths() -> None:
    """In one layer consecutive widths differ by one constant, a multiple of 8."""
    for name in ("ds_mobilenet_v1", "ds_mobilenet_v1_18", "ds_efficientnet_b0", "ds_mobilenet_v1_tiny"):
        for stage in model_spec(name).stages:
            if isinstance(stage.out, tuple):
                steps = {b - a for a, b in zip(stage.out, stage.out[1:], strict=False)}
                assert len(steps) == 1
                assert steps.pop() % 8 == 0


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 32, 32), r"input has shape \(3, 32, 32\)"),
        ((1, 1, 32, 32), r"takes \[batch, 3, height, width\]"),
        ((1, 3, 32, 4), "image size 4 is too small"),
    ],
)
def test_wrong_inputs_are_refused_by_every_call(shape: tuple[int, ...], message: str) -> None:
    net = create_model("ds_resnet_tiny")
    x, widest = torch.randn(shape), net.space.widest
    calls = [
        lambda: net(x, widest),
        lambda: net.forward_paths(x, [widest]),
        lambda: net.forward_features(x, widest),
        lambda: net.forward_mixed(x, lambda point, scores: scores),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=message):
            call()


def test_wrong_paths_and_weights_are_refused() -> None:
    net = create_model("ds_resnet_tiny")
    x = torch.randn(2, 3, 32, 32)
    for call in (net, net.forward_features, lambda x, path: net.forward_paths(x, [path])):
        with pytest.raises(ValueError, match="has 2 entries but the network has 4 choice points"):
            call(x, (0, 1))
        with pytest.raises(ValueError, match="asks for width 4 at choice point 3"):
            call(x, (0, 0, 0, 4))
    with pytest.raises(ValueError, match=r"choose gave weights of shape \(2, 3\) at choice point 0; expected \(2, 4\)"):
        net.forward_mixed(x, lambda point, scores: torch.ones(2, 3))
    assert net.forward_paths(x, []) == []


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "ds_efficientnet_tiny"])
def test_evaluating_twice_is_equal_and_other_sizes_and_channels_work(name: str) -> None:
    net = create_model(name, in_channels=1, num_classes=3).eval()
    for side in (16, 33, 48):
        x = torch.randn(2, 1, side, side)
        assert torch.equal(net(x, net.space.widest), net(x, net.space.widest))
        assert net(x, net.space.slimmest).shape == (2, 3)


def test_a_straight_through_mix_gives_gradients_to_the_slimming_heads() -> None:
    torch.manual_seed(0)
    for name in ("ds_mobilenet_v1_tiny", "ds_resnet_tiny"):
        net = create_model(name).eval()
        for parameter in net.parameters():
            parameter.data = torch.randn_like(parameter) * 0.3
        heads = {p for head in net.slimming_heads() for p in head.parameters()}
        for parameter in net.parameters():
            parameter.requires_grad_(parameter in heads)

        def choose(point: int, scores: torch.Tensor) -> torch.Tensor:
            soft = scores.softmax(1)
            hard = torch.nn.functional.one_hot(soft.argmax(1), soft.shape[1]).to(soft)
            return hard - soft.detach() + soft

        logits, _, _ = net.forward_mixed(torch.randn(4, 3, 32, 32), choose)
        torch.nn.functional.cross_entropy(logits, torch.arange(4)).backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in heads)
