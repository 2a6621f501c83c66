"""Import of the authors' released checkpoint, by names and shapes."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.weights.files import read_tensors
from dsnet.weights.plain import import_released

REFERENCE = Path(__file__).parents[3] / "shared" / "reference" / "released_ds_mbnet_tensors.json"


def released_shapes() -> dict[str, list[int]]:
    """Names and shapes of the released state dict: a front of two widths, then 14 widths."""
    shapes: dict[str, list[int]] = {}

    def norm(name: str, counts: list[int]) -> None:
        for width, count in enumerate(counts):
            last = width == len(counts) - 1
            for kind in (["weight", "bias"] if last else []) + ["running_mean", "running_var"]:
                shapes[f"{name}.aux_bn.{width}.{kind}"] = [count]

    def block(name: str, cin: list[int], cout: list[int], candidates: int = 0) -> None:
        hidden = cin[-1] // 4
        shapes[f"{name}.conv_dw.weight"] = [cin[-1], 1, 3, 3]
        norm(f"{name}.bn1", cin)
        shapes[f"{name}.gate.conv_reduce.weight"] = [hidden, cin[-1], 1, 1]
        shapes[f"{name}.gate.conv_reduce.bias"] = [hidden]
        shapes[f"{name}.gate.conv_expand.weight"] = [cin[-1], hidden, 1, 1]
        shapes[f"{name}.gate.conv_expand.bias"] = [cin[-1]]
        if candidates:
            shapes[f"{name}.gate.gate.0.weight"] = [candidates, hidden, 1, 1]
        shapes[f"{name}.conv_pw.weight"] = [cout[-1], cin[-1], 1, 1]
        norm(f"{name}.bn2", cout)

    middle, last = [224 + 32 * k for k in range(14)], [736 + 32 * k for k in range(14)]
    shapes["conv_stem.weight"] = [24, 3, 3, 3]
    norm("bn1", [16, 24])
    block("blocks.0.first_block", [16, 24], [32, 88])
    block("blocks.1.first_block", [32, 88], [48, 168])
    block("blocks.1.residual_blocks.0", [48, 168], [48, 168])
    block("blocks.2.first_block", [48, 168], [96, 264])
    block("blocks.2.residual_blocks.0", [96, 264], [96, 264])
    block("blocks.3.first_block", [96, 264], middle, candidates=4)
    for k in range(5):
        block(f"blocks.3.residual_blocks.{k}", middle, middle)
    block("blocks.4.first_block", middle, last)
    block("blocks.4.residual_blocks.0", last, last)
    shapes["classifier.weight"] = [1000, 1152]
    shapes["classifier.bias"] = [1000]
    return shapes


@pytest.fixture(scope="module")
def released() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.rand(shape, generator=generator) + 0.1 for name, shape in released_shapes().items()}
    means = [name for name in tensors if name.endswith("running_mean")]
    return tensors | {name.replace("running_mean", "num_batches_tracked"): torch.tensor(5) for name in means}


@pytest.mark.skipif(not REFERENCE.exists(), reason="the list of released tensors is not part of this repository")
def test_these_are_the_released_names_and_shapes() -> None:
    assert released_shapes() == json.loads(REFERENCE.read_text())["tensors"]


def test_everything_is_used_but_the_cut_front(released: dict[str, Tensor]) -> None:
    net, report = import_released(released)
    assert net.spec.num_classes == 1000
    assert net.routing.choices == ((0, 1, 2, 3),)
    assert set(report.loaded) | set(report.unused) == set(released)
    front = ("conv_stem", "bn1", "blocks.0", "blocks.1", "blocks.2", "blocks.3.first_block.bn1")
    assert report.unused
    assert all(name.startswith(front) and ".aux_bn.1." in name for name in report.unused)
    gate_of_block_6 = ("blocks.3.first_block.conv_dw", "blocks.3.first_block.gate", "blocks.3.first_block.conv_pw")
    assert all(name.startswith(front + gate_of_block_6) for name in report.cut)
    assert report.cut["conv_stem.weight"] == ((24, 3, 3, 3), (16, 3, 3, 3))


def reference_forward(t: dict[str, Tensor], x: Tensor, width: int) -> Tensor:
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
def test_the_imported_network_computes_what_the_released_one_computes(released: dict[str, Tensor], width: int) -> None:
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


def test_ema_weights_prefixes_and_arguments(released: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "released.pth.tar"
    content = {
        "state_dict": {f"module.{name}": tensor for name, tensor in released.items()},
        "state_dict_ema": {name: tensor + 1 for name, tensor in released.items()},
        "args": argparse.Namespace(model="x", lr=0.1),
    }
    torch.save(content, file)
    stem = "conv_stem.weight"
    assert torch.equal(read_tensors(file)[stem], released[stem])
    assert torch.equal(read_tensors(file, "ema")[stem], released[stem] + 1)
    del content["state_dict_ema"]
    torch.save(content, file)
    with pytest.raises(CheckpointError, match=r"has no EMA weights.*--weights model"):
        read_tensors(file, "ema")


def test_safetensors_are_read_too(released: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "released.safetensors"
    safetensors.torch.save_file(released, file)
    assert set(read_tensors(file)) == set(released)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"released.safetensors is not a complete safetensors file"):
        read_tensors(file)


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
def test_other_shapes_are_refused(released: dict[str, Tensor], name: str, tensor: Tensor, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        import_released({**released, name: tensor})


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(2), None, {"a": 1}, {"a": torch.zeros(2).to_sparse()}])
@pytest.mark.parametrize("wrapped", [True, False])
def test_contents_of_other_kinds_are_refused(content: object, wrapped: bool, tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    torch.save({"state_dict": content} if wrapped else content, file)
    with pytest.raises(CheckpointError, match=r"x.pth"):
        read_tensors(file)


def test_values_that_are_not_finite_are_refused(released: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    torch.save({**released, "classifier.bias": torch.full((1000,), torch.nan)}, file)
    with pytest.raises(CheckpointError, match=r"'classifier.bias' holds values that are not finite"):
        read_tensors(file)


def test_a_flipped_bit_is_refused(released: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    torch.save({"weight": released["classifier.weight"]}, file)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="checksum"):
        read_tensors(file)


class Trap:
    """Unpickling this would run a command."""

    def __init__(self, witness: Path) -> None:
        self.witness = witness

    def __reduce__(self):
        return os.system, (f"touch {self.witness}",)


def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    witness, file = tmp_path / "witness", tmp_path / "trap.pth"
    torch.save({"state_dict": {"a": torch.zeros(1)}, "args": Trap(witness)}, file)
    with pytest.raises(CheckpointError, match=r"trap.pth is refused, nothing in it was run"):
        read_tensors(file)
    assert not witness.exists()


def test_damaged_missing_and_foreign_files_are_named(released: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    with pytest.raises(CheckpointError, match=r"x.pth does not exist"):
        read_tensors(file)
    torch.save(released, file)
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(CheckpointError, match=r"x.pth is (damaged|refused)"):
        read_tensors(file)
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(CheckpointError, match=r"x.pth is (damaged|refused)"):
        read_tensors(file)
    torch.save([1, 2], file)
    with pytest.raises(CheckpointError, match="holds a list instead of named tensors"):
        read_tensors(file)
    torch.save({"epoch": 3}, file)
    with pytest.raises(CheckpointError, match="holds no tensors"):
        read_tensors(file)


def test_incomplete_or_smaller_tensors_are_refused(released: dict[str, Tensor]) -> None:
    incomplete = dict(released)
    del incomplete["blocks.4.first_block.conv_dw.weight"]
    with pytest.raises(CheckpointError, match=r"'blocks.4.first_block.conv_dw.weight' is missing"):
        import_released(incomplete)
    smaller = {**released, "blocks.3.first_block.conv_pw.weight": torch.zeros(100, 264, 1, 1)}
    with pytest.raises(CheckpointError, match=r"has shape \(100, 264, 1, 1\) but at least \(640, 96, 1, 1\) is needed"):
        import_released(smaller)
