"""Published and independently counted figures, to the last digit."""

from __future__ import annotations

import pytest
import torch

from dsnet.models import create_model, model_spec
from dsnet.models.count import count
from dsnet.training.complexity import expected

RELEASED = [
    *(132890144, 152917184, 175151968, 199594496, 226244768, 255102784, 286168544),
    *(319442048, 354923296, 392612288, 432509024, 474613504, 518925728, 565445696),
]


def test_released_ds_mobilenet() -> None:
    table = count(model_spec("ds_mobilenet_v1"))
    assert [table.madds((k,)) for k in range(14)] == RELEASED
    slimmest = table.cost((0,))
    assert slimmest.pools == 849856 + 36064
    assert slimmest.layers == 5419008 + 7648704 + 889024 + 117311488 + 736000


def test_the_slimming_head_is_charged_in_dynamic_mode() -> None:
    table = count(model_spec("ds_mobilenet_v1", routing=range(4)))
    assert table.madds((2,), dynamic=True) - table.madds((2,)) == 66 * 4
    alone = count(model_spec("ds_mobilenet_v1", routing=range(4), shared=False))
    assert alone.madds((2,), dynamic=True) - alone.madds((2,)) == 66 * 4 + 96 * 66
    scalar = count(model_spec("ds_mobilenet_v1", slimming="scalar"))
    assert scalar.madds((2,), dynamic=True) - scalar.madds((2,)) == 66


@pytest.mark.parametrize(
    ("name", "width", "layers"),
    [
        ("mobilenet_v1", 1.0, 568740352),
        ("mobilenet_v1", 0.75, 325400448),
        ("mobilenet_v1", 0.5, 149497088),
        ("resnet50", 1.0, 4089184256),
        ("resnet50", 0.75, 2322677760),
        ("resnet50", 0.5, 1052311552),
        ("resnet50", 0.25, 278085632),
    ],
)
def test_static_references(name: str, width: float, layers: int) -> None:
    assert count(model_spec(name, width=width)).cost(()).layers == layers


@pytest.mark.parametrize(
    ("name", "params"), [("mobilenet_v1", 4231976), ("resnet50", 25557032), ("efficientnet_b0", 5288548)]
)
def test_static_networks_have_their_well_known_number_of_parameters(name: str, params: int) -> None:
    assert count(model_spec(name)).params(()) == params


def test_slimmable_networks_cost_what_the_static_ones_cost() -> None:
    s_resnet, us_mobilenet = count(model_spec("s_resnet50")), count(model_spec("us_mobilenet_v1"))
    for k, width in enumerate((0.25, 0.5, 0.75, 1.0)):
        assert s_resnet.cost((k,)) == count(model_spec("resnet50", width=width)).cost(())
        assert us_mobilenet.cost((10 * k,)) == count(model_spec("mobilenet_v1", width=width)).cost(())


@pytest.mark.parametrize(
    ("name", "slimmest", "widest"),
    [
        ("ds_mobilenet_v1_18", 102e6, 513e6),  # before attention
        ("ds_efficientnet_b0", 175e6, 663e6),
        ("ds_resnet50", 0.31e9, 4.0e9),
        ("ds_mobilenet_v1_tiny", 0.55e6, 4.1e6),
    ],
)
def test_dynamic_networks_span_the_published_range(name: str, slimmest: float, widest: float) -> None:
    table = count(model_spec(name))
    assert table.slimmest == pytest.approx(slimmest, rel=0.05)
    assert table.widest == pytest.approx(widest, rel=0.05)


def test_the_tiny_front_is_cheap_and_the_ratio_large() -> None:
    table = count(model_spec("ds_mobilenet_v1_tiny"))
    assert table.front.madds < 0.45e6
    assert 6.5 < table.widest / table.slimmest < 9


def test_image_size_is_an_argument() -> None:
    net = create_model("ds_mobilenet_v1_tiny")
    small, large = count(net, 32), count(net, 64)
    assert small.madds((0,)) < large.madds((0,))
    assert small.params((0,)) == large.params((0,))
    with pytest.raises(ValueError, match="image size 4 is too small for 'ds_mobilenet_v1_tiny'"):
        count(net, 4)


def test_counting_leaves_the_network_alone() -> None:
    net = create_model("ds_resnet_tiny")
    state = torch.get_rng_state()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    count(net, 40).madds((0, 1, 2, 3))
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(before[key], value) for key, value in net.state_dict().items())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_wrong_mixes_are_refused() -> None:
    table = count(model_spec("ds_resnet_tiny"))
    with pytest.raises(ValueError, match="got 1 mixes but the network has 4 choice points"):
        expected(table, [torch.ones(1, 4)])
    with pytest.raises(ValueError, match=r"mix 1 has shape \(2, 3\); expected \(2, 4\)"):
        expected(table, [torch.ones(2, 4), torch.ones(2, 3), torch.ones(2, 4), torch.ones(2, 4)])
    with pytest.raises(ValueError, match="image size 0 is too small"):
        count(model_spec("ds_resnet_tiny"), 0)
    with pytest.raises(ValueError, match="has no choice points"):
        expected(count(model_spec("mobilenet_v1")), [])
