"""Files that other programs wrote are read without running anything in them, or refused."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from torch import Tensor

from dsnet.errors import CheckpointError
from dsnet.weights.files import read_tensors


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv_stem.weight": (24, 3, 3, 3), "classifier.weight": (100, 64), "classifier.bias": (100,)}
    return {name: torch.rand(shape, generator=generator) for name, shape in shapes.items()}


def test_ema_weights_prefixes_and_arguments(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "released.pth.tar"
    content = {
        "state_dict": {f"module.{name}": tensor for name, tensor in tensors.items()},
        "state_dict_ema": {name: tensor + 1 for name, tensor in tensors.items()},
        "args": argparse.Namespace(model="x", lr=0.1),
    }
    torch.save(content, file)
    stem = "conv_stem.weight"
    assert torch.equal(read_tensors(file)[stem], tensors[stem])
    assert torch.equal(read_tensors(file, "ema")[stem], tensors[stem] + 1)
    del content["state_dict_ema"]
    torch.save(content, file)
    with pytest.raises(CheckpointError, match=r"has no EMA weights.*--weights model"):
        read_tensors(file, "ema")


def test_safetensors_are_read_too(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "released.safetensors"
    safetensors.torch.save_file(tensors, file)
    assert set(read_tensors(file)) == set(tensors)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"released.safetensors is not a complete safetensors file"):
        read_tensors(file)


@pytest.mark.parametrize("content", [[1, 2], torch.zeros(2), None, {"a": 1}, {"a": torch.zeros(2).to_sparse()}])
@pytest.mark.parametrize("wrapped", [True, False])
def test_contents_of_other_kinds_are_refused(content: object, wrapped: bool, tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    torch.save({"state_dict": content} if wrapped else content, file)
    with pytest.raises(CheckpointError, match=r"x.pth"):
        read_tensors(file)


def test_values_that_are_not_finite_are_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    torch.save({**tensors, "classifier.bias": torch.full((1000,), torch.nan)}, file)
    with pytest.raises(CheckpointError, match=r"'classifier.bias' holds values that are not finite"):
        read_tensors(file)


def test_a_flipped_bit_is_refused(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    torch.save({"weight": tensors["classifier.weight"]}, file)
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


def test_damaged_missing_and_foreign_files_are_named(tensors: dict[str, Tensor], tmp_path: Path) -> None:
    file = tmp_path / "x.pth"
    with pytest.raises(CheckpointError, match=r"x.pth does not exist"):
        read_tensors(file)
    torch.save(tensors, file)
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
