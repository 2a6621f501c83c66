"""Import of the authors' released checkpoint, by names and shapes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.weights.plain import import_released
from support.weights import Tensors, released_shapes, released_tensors

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "released_ds_mbnet_tensors.json"


@pytest.fixture(scope="module")
def released() -> Tensors:
    return released_tensors()


@pytest.mark.skipif(not REFERENCE.exists(), reason="the list of released tensors is not part of this repository")
def test_these_are_the_released_names_and_shapes() -> None:
    assert released_shapes() == json.loads(REFERENCE.read_text())["tensors"]


def test_everything_is_used_but_the_cut_front(released: Tensors) -> None:
    net, account = import_released(released)
    assert net.spec.num_classes == 1000
    assert net.routing.choices == ((0, 1, 2, 3),)
    assert set(account.loaded) | set(account.unused) == set(released)
    front = ("conv_stem", "bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.3.first_block.bn1")
    assert account.unused
    assert all(name.startswith(front) and ".aux_bn.1." in name for name in account.unused)
    gate_of_block_6 = ("blocks.3.first_block.conv_dw", "blocks.3.first_block.gate", "blocks.3.first_block.conv_pw")
    assert all(name.startswith(front + gate_of_block_6) for name in account.cut)
    assert account.cut["conv_stem.weight"] == ((24, 3, 3, 3), (16, 3, 3, 3))


def reference_forward(t: Tensors, x: Tensor, width: int) -> Tensor:
    """The released network at one width, written from its description with plain functions."""
    F = torch.nn.functional

    def norm(x: Tensor, name: str) -> Tensor:
        k = width if f"{name}.aux_bn.13.weight" in t else 0
        affine = 13 if f"{name}.aux_bn.13.weight" in t else 1
        mean, var = t[f"{name}.aux_bn.{k}.running_mean"], t[f"{name}.aux_bn.{k}.running_var"]
        weight, bias = (t[f"{name}.aux_bn.{affine}.{kind}"][: len(mean)] for kind in ("weight", "bias"))
        return F.silu(F.batch_norm(x, mean, var, weight, bias, eps=1e-5))

    def outputs(name: str) -> int:
        k = width if f"{name}.aux_bn.13.weight" in t else 0
        return len(t[f"{name}.aux_bn.{k}.running_mean"])

    x = norm(F.conv2d(x, t["conv_stem.weight"][:16], stride=2, padding=1), "bn1")
    names = [name.removesuffix(".conv_dw.weight") for name in t if name.endswith(".conv_dw.weight")]
    for name, stride in zip(names, (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1), strict=True):
        c = x.shape[1]
        x = norm(F.conv2d(x, t[f"{name}.conv_dw.weight"][:c], stride=stride, padding=1, groups=c), f"{name}.bn1")
        s = x.mean((2, 3), keepdim=True)
        s = F.relu(F.conv2d(s, t[f"{name}.gate.conv_reduce.weight"][:, :c], t[f"{name}.gate.conv_reduce.bias"]))
        s = F.conv2d(s, t[f"{name}.gate.conv_expand.weight"][:c], t[f"{name}.gate.conv_expand.bias"][:c])
        x = x * s.sigmoid()
        x = norm(F.conv2d(x, t[f"{name}.conv_pw.weight"][: outputs(f"{name}.bn2"), :c]), f"{name}.bn2")
    return F.linear(x.mean((2, 3)), t["classifier.weight"][:, : x.shape[1]], t["classifier.bias"])


@pytest.mark.parametrize("width", [0, 3, 13])
def test_the_imported_network_computes_what_the_released_one_computes(released: Tensors, width: int) -> None:
    # signed weights, so that activations neither explode nor saturate
    tensors = {
        name: (tensor.double() - 0.6) * 0.3 if name.endswith("weight") and "aux_bn" not in name else tensor.double()
        for name, tensor in released.items()
    }
    net, _ = import_released(tensors)
    net = net.double()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference_forward(tensors, x, width)
        assert expected.std() > 0
        assert torch.allclose(net(x, (width,)), expected, rtol=1e-5, atol=1e-5 * float(expected.std()))


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("blocks.4.first_block.conv_dw.weight", torch.zeros(640, 1, 5, 5), r"\(640, 1, 5, 5\) but \(640, 1, 3, 3\)"),
        ("conv_stem.weight", torch.zeros(24, 3, 5, 5), r"but at least \(16, 3, 3, 3\)"),
        ("classifier.bias", torch.zeros(2000), r"has shape \(2000,\) but \(1000,\) is needed"),
        ("classifier.weight", torch.tensor(1.0), "has 0 dimensions instead of 2"),
        ("classifier.weight", torch.zeros(0, 1152), "num_classes is 0"),
        ("bn1.aux_bn.0.running_var", -torch.ones(16), "negative variance"),
        ("blocks.4.first_block.bn2.aux_bn.13.running_mean", torch.zeros(10), r"\(10,\) but \(1152,\) is needed"),
        ("blocks.5.first_block.conv_dw.weight", torch.zeros(1), "has no place in the released DS-MBNet"),
        ("blocks.3.first_block.gate.gate.0.weight", torch.zeros(20, 66, 1, 1), "choose from 0 to 13"),
    ],
)
def test_other_shapes_are_refused(released: Tensors, name: str, tensor: Tensor, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        import_released({**released, name: tensor})


def test_incomplete_or_smaller_tensors_are_refused(released: Tensors) -> None:
    incomplete = dict(released)
    del incomplete["blocks.4.first_block.conv_dw.weight"]
    with pytest.raises(CheckpointError, match=r"'blocks.4.first_block.conv_dw.weight' is missing"):
        import_released(incomplete)
    smaller = {**released, "blocks.3.first_block.conv_pw.weight": torch.zeros(100, 264, 1, 1)}
    with pytest.raises(CheckpointError, match=r"has shape \(100, 264, 1, 1\) but at least \(640, 96, 1, 1\) is needed"):
        import_released(smaller)
