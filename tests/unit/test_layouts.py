"""What benchmarks/layouts.py counts: the layout changes that torch's rules for CUDA ask for."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.benchmarks import benchmark

LAST = torch.channels_last


@pytest.fixture(scope="module")
def layouts() -> ModuleType:
    return benchmark("layouts")


def maps(layout: torch.memory_format) -> Tensor:
    return torch.zeros(2, 8, 4, 4).to(memory_format=layout)


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_a_norm_between_two_convolutions_changes_the_layout_around_itself(
    layouts: ModuleType, layout: torch.memory_format
) -> None:
    """Of channels-last maps, both ways. The gradient changes it twice, and the norm's input once more."""
    net = nn.Sequential(*[nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2)])
    net.to(memory_format=layout)  # type: ignore[call-overload]
    mode, size = layouts.Shapes(), maps(layout).nbytes
    layouts.without_values(net, mode)
    x = mode.from_tensor(maps(layout)).requires_grad_()
    with mode, layouts.Layouts() as counts:
        y = net[1](F.group_norm(net[0](x), 2))
        assert y.is_contiguous(memory_format=layout)
        y.backward(torch.ones_like(y))
    found = dict(counts.changes)
    if layout == LAST:
        assert found["native_group_norm"] == 1
        assert found["convolution"] == 1
        assert found["native_group_norm_backward"] == 2
        assert found["convolution_backward"] >= 2  # what it saved, and the gradient of the first convolution
        assert counts.bytes >= 2 * 6 * size
        assert counts.inside == 0
    else:
        assert found == {}
        assert counts.bytes == 0
        assert counts.inside >= 2 * 2 * 5 * size  # cuDNN may change all that it reads and writes


def test_the_norm_of_operators_is_group_norm_and_keeps_the_layout(layouts: ModuleType) -> None:
    layouts.check()
    x, weight, bias = maps(LAST), torch.ones(8), torch.zeros(8)
    with layouts.Layouts() as counts:
        found = layouts.Moments.apply(x, weight, bias, 2, 1e-5)
    assert found.is_contiguous(memory_format=LAST)
    assert not counts.changes


def test_every_operator_reads_and_writes_its_tensors_once(layouts: ModuleType) -> None:
    x = torch.zeros(256)
    with layouts.Layouts() as counts:
        (x + x).view(16, 16)
    assert counts.operators == 1
    assert counts.moved == 3 * x.nbytes
