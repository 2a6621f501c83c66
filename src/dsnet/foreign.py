"""Weights that other programs wrote, mapped by name onto dsnet's networks.

Foreign files are read without running anything in them: safetensors, or torch files in weights-only mode.
"""

from __future__ import annotations

import argparse
import os
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as File
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dsnet.checkpoint import CheckpointError
from dsnet.models import Supernet, create_model

Weights = Literal["model", "ema"]


@dataclass
class ImportReport:
    """What became of every tensor of a foreign file."""

    loaded: list[str] = field(default_factory=list)
    cut: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)


def read_tensors(file: str | os.PathLike[str], weights: Weights = "model") -> dict[str, Tensor]:
    """The tensors of a foreign file by name, without a `module.` prefix."""
    file = File(file)
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist or is not a file")
    content: Any = _read_safetensors(file) if file.suffix == ".safetensors" else _read_torch(file)
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{file} holds a {type(content).__name__} instead of named tensors")
    key = {"model": "state_dict", "ema": "state_dict_ema"}[weights]
    if key in content:
        content = content[key]
    elif weights == "ema":
        raise CheckpointError(f"{file} has no EMA weights (no {key!r} in it); use --weights model")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{file} holds no tensors; expected a state dict or a file with {key!r}")
    return {name.removeprefix("module."): value for name, value in tensors.items()}


def _read_safetensors(file: File) -> dict[str, Tensor]:
    try:
        return safetensors.torch.load_file(file)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not a complete safetensors file ({error})") from error


def _read_torch(file: File) -> Any:
    try:
        # Namespace is what the authors' training script stores beside the weights; it is plain data.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        reason = str(error).split("\n")[0]
        found = re.search(r"GLOBAL (\S+)", str(error))
        what = f"it refers to {found[1]}, which loading would run" if found else reason
        raise CheckpointError(
            f"{file} is refused, nothing in it was run: {what}. "
            f"Only plain tensors are read; save the state dict as safetensors"
        ) from None
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(f"{file} is damaged or not a torch file ({str(error).splitlines()[0]})") from None


def import_released(tensors: Mapping[str, Tensor]) -> tuple[Supernet, ImportReport]:
    """The DS-MBNet that the paper's authors released, as `ds_mobilenet_v1`.

    Its stem and first five blocks hold a wider front that the routed network never uses: they are cut to the
    leading channels. Batch-norm statistics are in `aux_bn.<width>`, the shared affine in the last of them.
    """
    source = _Source(tensors)
    head = "blocks.3.first_block.gate.gate.0.weight"
    net = create_model(
        "ds_mobilenet_v1",
        num_classes=source.shape("classifier.weight")[0],
        in_channels=source.shape("conv_stem.weight")[1],
        routing=range(source.shape(head)[0]),
    ).eval()
    names = {"front.blocks.0.conv": "conv_stem", "front.blocks.0.norm": "bn1", "head.classifier": "classifier"}
    for ours, theirs in zip(_our_blocks(), _released_blocks(), strict=True):
        names |= {f"{ours}.{mine}": f"{theirs}.{its}" for mine, its in _RELEASED_LAYERS.items()}
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            layer, _, kind = name.rpartition(".")
            theirs = names[layer]
            if kind in ("running_mean", "running_var", "num_batches_tracked"):
                for width, row in enumerate(tensor):
                    count = source.shape(f"{theirs}.aux_bn.{width}.running_mean")[0] if row.dim() else 0
                    source.copy(f"{theirs}.aux_bn.{width}.{kind}", row[: min(count, len(row))] if row.dim() else row)
            elif source.has(f"{theirs}.aux_bn.0.running_mean"):
                source.copy(f"{theirs}.aux_bn.{source.last_statistics(theirs)}.{kind}", tensor)
            else:
                source.copy(f"{theirs}.{kind}", tensor)
    return net, source.report()


_RELEASED_LAYERS = {
    "depthwise": "conv_dw",
    "norm1": "bn1",
    "gate.reduce": "gate.conv_reduce",
    "gate.expand": "gate.conv_expand",
    "gate.slimming.score": "gate.gate.0",
    "pointwise": "conv_pw",
    "norm2": "bn2",
}


def _our_blocks() -> list[str]:
    return (
        [f"front.blocks.{k}" for k in range(1, 6)]
        + ["segments.0.first"]
        + [f"segments.0.rest.blocks.{k}" for k in range(7)]
    )


def _released_blocks() -> list[str]:
    repeats = (0, 1, 1, 5, 1)
    return [
        f"blocks.{stage}.{block}"
        for stage, count in enumerate(repeats)
        for block in ("first_block", *(f"residual_blocks.{k}" for k in range(count)))
    ]


class _Source:
    """Foreign tensors, and a record of what was taken from them."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = tensors
        self.record = ImportReport()

    def has(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str) -> torch.Size:
        if name not in self.tensors:
            raise CheckpointError(
                f"tensor {name!r} is missing, so this is not the released DS-MBNet or it is incomplete; "
                f"the file has {len(self.tensors)} tensors"
            )
        return self.tensors[name].shape

    def last_statistics(self, norm: str) -> int:
        return max(
            int(match[1]) for name in self.tensors if (match := re.match(rf"{re.escape(norm)}\.aux_bn\.(\d+)\.", name))
        )

    def copy(self, name: str, target: Tensor) -> None:
        """Fill `target` with the leading slice of a tensor; 1x1 convolutions serve as linear layers."""
        if name.endswith("num_batches_tracked") and name not in self.tensors:
            target.fill_(1)  # older files leave the counter out; the statistics beside it are trained
            return
        shape = self.shape(name)
        tensor = self.tensors[name]
        if tensor.dim() == target.dim() + 2 and tensor.shape[2:] == (1, 1):
            tensor = tensor.flatten(1)
        if tensor.dim() != target.dim() or any(
            have < need for have, need in zip(tensor.shape, target.shape, strict=True)
        ):
            raise CheckpointError(
                f"tensor {name!r} has shape {tuple(shape)} but at least {tuple(target.shape)} is needed"
            )
        target.copy_(tensor[tuple(slice(count) for count in target.shape)])
        self.record.loaded.append(name)
        if tensor.shape != target.shape:
            self.record.cut[name] = (tuple(tensor.shape), tuple(target.shape))

    def report(self) -> ImportReport:
        self.record.unused = sorted(set(self.tensors) - set(self.record.loaded))
        return self.record
