"""Reading of weight files that other programs wrote, without running any code in them.

A file is safetensors, or a torch file, which is read in weights-only mode.
"""

from __future__ import annotations

import argparse
import mmap
import os
import pickle
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dsnet.checkpoint import check_header
from dsnet.errors import CheckpointError
from dsnet.limits import allow

Weights = Literal["model", "ema"]
BYTEARRAY = b"\nbytearray\n"  # its name in a pickle


def read_tensors(file: str | os.PathLike[str], weights: Weights = "model") -> dict[str, Tensor]:
    """The tensors of a file by name, without a `module.` prefix. The format is recognised by the file's content."""
    file = Path(file)
    if not file.is_file():
        raise CheckpointError(f"{file} does not exist or is not a file")
    content = _read_safetensors(file) if _looks_like_safetensors(file) else _read_torch(file)
    key = {"model": "state_dict", "ema": "state_dict_ema"}[weights]
    if isinstance(content, Mapping) and key in content:
        content = content[key]
    elif weights == "model" and isinstance(content, Mapping) and isinstance(content.get("model"), Mapping):
        content = content["model"]  # torchvision's training script
    elif weights == "ema":
        raise CheckpointError(f"{file} has no EMA weights (no {key!r} in it); use --weights model")
    if not isinstance(content, Mapping):
        raise CheckpointError(f"{file} holds a {type(content).__name__} instead of named tensors")
    tensors = {str(name).removeprefix("module."): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise CheckpointError(f"{file} holds no tensors; expected a state dict or a file with {key!r}")
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            raise CheckpointError(
                f"{file}: tensor {name!r} is sparse, quantised or without data; only dense ones are read"
            )
    # A tensor may repeat a few numbers of the file, and take any amount of memory as soon as it is computed with.
    check_growth(file, sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise CheckpointError(f"{file}: tensor {name!r} holds values that are not finite; the file is damaged")
    return tensors


def check_growth(file: Path, size: int) -> None:
    """Refuse a file whose content takes many times its size."""
    held = file.stat().st_size
    what = (
        f"{file} has {held:,} bytes but its content takes {size:,}; the content's bytes for each byte of the file are"
    )
    allow("growth", -(-size // max(held, 1)), what, error=CheckpointError)


def _looks_like_safetensors(file: Path) -> bool:
    """Whether the file begins as safetensors do, with an 8-byte header length and JSON."""
    with file.open("rb") as stream:
        return file.suffix == ".safetensors" or stream.read(9)[8:] == b"{"


def _read_safetensors(file: Path) -> dict[str, Tensor]:
    with file.open("rb") as stream:
        check_header(file, stream.read(8), file.stat().st_size)
    try:
        return safetensors.torch.load_file(file)
    except (SafetensorError, KeyError) as error:  # a KeyError is a type that torch does not have
        raise CheckpointError(f"{file} is not a complete safetensors file ({error})") from error


def _read_torch(file: Path) -> Any:
    try:
        check_pickled(file)
        # The authors' training script stores an argparse.Namespace next to the weights. It is plain data.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(file, map_location="cpu", weights_only=True)
    except CheckpointError:
        raise
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        reason = f"it refers to {named[1]}, which loading would run" if named else "it is not a file of plain tensors"
        raise CheckpointError(
            f"{file} is refused, nothing in it was run: {reason}. Only plain tensors are read; save them as safetensors"
        ) from None
    except Exception as error:  # torch raises many kinds of errors for damaged files
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(
            f"{file} is damaged or not a file of weights ({reason}); give a file that torch.save or safetensors wrote"
        ) from None


def check_pickled(file: Path) -> None:
    """Refuse a damaged torch file, and one that would take much memory while it is read.

    torch verifies no checksums, and it makes a bytearray of any size that a file asks for.
    """
    if not zipfile.is_zipfile(file):  # torch's old format
        with file.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
            asks = data.find(BYTEARRAY) >= 0
    else:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            check_growth(file, sum(entry.file_size for entry in entries))
            if damaged := archive.testzip():
                raise CheckpointError(
                    f"{file} is damaged: the checksum of {damaged} in it does not match; copy it again"
                )
            asks = any(BYTEARRAY in archive.read(entry) for entry in entries if entry.filename.endswith(".pkl"))
    if asks:
        raise CheckpointError(f"{file} is refused: it holds a bytearray. Only plain tensors are read")
