"""Rotation of channels between linear layers: the function stays, and leading channels hold what the readers need."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dsnet.models import Supernet
from dsnet.slimming.convert import plan
from dsnet.slimming.network import slim
from dsnet.slimming.rotate import streams
from support.cnns import CNNS, SIZE, lively

WIDTHS = ((1.0, 0.5), 1.0)  # all hidden channels, half of the residual ones


def images(count: int = 24) -> Tensor:
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(3))


class Block(nn.Module):
    """An inverted residual block, whose output is linear. bias: Whether convolutions have biases instead of norms."""

    def __init__(self, cin: int, cout: int, *, bias: bool = False) -> None:
        super().__init__()

        def norm(channels: int) -> nn.Module:
            return nn.Identity() if bias else nn.BatchNorm2d(channels)

        self.skips = cin == cout
        self.expand = nn.Sequential(nn.Conv2d(cin, 32, 1, bias=bias), norm(32), nn.ReLU6())
        self.depth = nn.Sequential(nn.Conv2d(32, 32, 3, 1, 1, groups=32, bias=bias), norm(32), nn.ReLU6())
        self.project = nn.Sequential(nn.Conv2d(32, cout, 1, bias=bias), norm(cout))

    def forward(self, x: Tensor) -> Tensor:
        y = self.project(self.depth(self.expand(x)))
        return x + y if self.skips else y


def linear_blocks(*, bias: bool = False) -> nn.Sequential:
    stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
    body = [Block(16, 16, bias=bias), Block(16, 24, bias=bias), Block(24, 24, bias=bias), Block(24, 24, bias=bias)]
    head = nn.Sequential(nn.Conv2d(24, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU())
    return nn.Sequential(stem, *body, head, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 5))


def made(*, bias: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = lively(linear_blocks(bias=bias))
    assert isinstance(net, nn.Sequential)
    return net


def converted(model: nn.Module, sort: str) -> Supernet:
    return slim(model, images()[:1], WIDTHS, "0", images=images(), sort=sort)  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [False, True])
def test_the_widest_path_stays_the_original(bias: bool) -> None:
    model = made(bias=bias)
    net, x = converted(model, "components"), images(3)
    with torch.no_grad():
        wanted, given = model(x), net(x, net.space.widest)
    assert (given - wanted).abs().max() < 1e-4 * (wanted.max() - wanted.min())


@pytest.mark.parametrize("bias", [False, True])
def test_a_stream_of_few_dimensions_loses_nothing_in_as_many_channels(bias: bool) -> None:
    """No choice of channels could do that: all of them are used."""
    model = made(bias=bias)
    generator = torch.Generator().manual_seed(4)
    basis = torch.randn(24, 8, generator=generator)  # a third of the channels; half of them are kept
    with torch.no_grad():
        for block in model[2:5]:
            conv, norm = block.project
            conv.weight.copy_((basis @ torch.randn(8, 32, generator=generator))[:, :, None, None])
            if bias:
                conv.bias.zero_()
            else:
                norm.reset_parameters()
                norm.reset_running_stats()
    errors = {}
    for sort in ("components", "activation"):
        net, x = converted(model, sort), images(3)
        with torch.no_grad():
            wide, slimmer = net(x, net.space.widest), net(x, net.space.slimmest)
        errors[sort] = float((slimmer - wide).abs().max() / (wide.max() - wide.min()))
    assert errors["components"] < 1e-3
    assert errors["activation"] > 0.05


def test_images_make_components_the_default() -> None:
    def weights(**options: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)  # of the gate, which is new
        return slim(made(), images()[:1], WIDTHS, "0", images=images(), **options).state_dict()

    default, asked, other = weights(), weights(sort="components"), weights(sort="activation")
    assert all(torch.equal(default[name], tensor) for name, tensor in asked.items())
    assert not all(torch.equal(default[name], tensor) for name, tensor in other.items())


def test_only_channels_between_linear_layers_are_mixed() -> None:
    found = streams(plan(made(), images()[:1], WIDTHS, cut="0"))
    names = [{conv.place for conv, _ in stream.writers} for stream in found]
    assert names == [{"2.project.0", "3.project.0", "4.project.0"}]  # block 1 adds to the front, which stays whole
    for name in ("plain", "residual"):  # a function follows every addition
        torch.manual_seed(0)
        assert not streams(plan(lively(CNNS[name]()), images()[:1], (0.5, 1.0)))


def test_mixed_channels_are_normalised_in_training_as_they_are_in_use() -> None:
    """The norms behind the writers have the statistics of the rotated channels."""
    net = converted(made(), "components")
    x, wide = images(), net.space.widest
    trained = copy.deepcopy(net).train()
    with torch.no_grad():
        used, batch = net(x, wide), trained(x, wide)
    assert torch.corrcoef(torch.stack([used.flatten(), batch.flatten()]))[0, 1] > 0.9
