"""Models on disk: `model.safetensors` holds the weights, `model.json` everything else that rebuilds the network.

Both files carry digests, so that a truncated file or a flipped bit is refused instead of loaded. Nothing
is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path as File
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

import dsnet
from dsnet.models import Card, ModelSpec, Supernet

WEIGHTS = "model.safetensors"
MODEL = "model.json"
FORMAT = 1


class CheckpointError(ValueError):
    """A file that cannot be read as what it should be; the message names the file and the remedy."""


def save(net: Supernet, folder: str | os.PathLike[str]) -> File:
    """Write the network with its spec and card; files of an earlier save are replaced one by one, whole."""
    folder = File(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in net.state_dict().items()}
    weights = safetensors.torch.save(tensors)
    write_whole(folder / WEIGHTS, weights)
    save_description(folder, net.spec, net.card, {"sha256": _digest(weights), "bytes": len(weights)})
    return folder


def save_card(folder: str | os.PathLike[str], card: Card) -> None:
    """Replace the card of a saved model, for example after its budgets were calibrated."""
    description = read_description(folder)
    save_description(File(folder), ModelSpec.from_dict(description["spec"]), card, description["weights"])


def save_description(folder: File, spec: ModelSpec, card: Card, weights: Mapping[str, Any]) -> None:
    body = {
        "format": FORMAT,
        "dsnet": dsnet.__version__,
        "spec": spec.to_dict(),
        "card": card.to_dict(),
        "weights": dict(weights),
    }
    text = json.dumps({**body, "digest": _digest(_canonical(body))}, indent=1)
    write_whole(folder / MODEL, text.encode())


def load(folder: str | os.PathLike[str], *, device: torch.device | str = "cpu") -> Supernet:
    """The saved network in eval mode, bit for bit."""
    folder = File(folder)
    description = read_description(folder)
    tensors = _read_weights(folder / WEIGHTS, description["weights"])
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; loading must not move the generator
        net = Supernet(description_spec(folder, description))
    net.card = description_card(folder, description)
    check_tensors(folder / WEIGHTS, tensors, net.state_dict())
    net.load_state_dict(tensors, assign=True)
    dtype = net.head.classifier.weight.dtype
    return net.to(device=device, dtype=dtype).eval()


def read_description(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The verified content of a run folder's model.json."""
    folder = File(folder)
    file = folder / MODEL
    if not file.is_file():
        remedy = "run `dsnet import` for foreign weights" if folder.is_file() else "give the folder that dsnet wrote"
        raise CheckpointError(f"{folder} is not a model folder: there is no {MODEL} in it; {remedy}")
    try:
        content = json.loads(file.read_bytes())
        stated = content.pop("digest")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise CheckpointError(
            f"{file} is truncated or not written by dsnet ({error}); restore it from a copy"
        ) from error
    if content.get("format") != FORMAT:
        raise CheckpointError(
            f"{file} has format {content.get('format')!r} but dsnet {dsnet.__version__} reads {FORMAT}; "
            f"load it with dsnet {content.get('dsnet')}"
        )
    if stated != _digest(_canonical(content)):
        raise CheckpointError(f"{file} does not match its digest, it was damaged or edited; restore it from a copy")
    return content


def description_spec(folder: File, description: Mapping[str, Any]) -> ModelSpec:
    try:
        return ModelSpec.from_dict(description["spec"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / MODEL}: {error}") from error


def description_card(folder: File, description: Mapping[str, Any]) -> Card:
    try:
        return Card.from_dict(description["card"])
    except (ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / MODEL}: {error}") from error


def check_tensors(file: File, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse a file whose tensors are not those of the network, naming the first difference of each kind."""
    if missing := sorted(set(expected) - set(given)):
        raise CheckpointError(f"{file} misses {len(missing)} tensors of the network, the first is {missing[0]!r}")
    if unknown := sorted(set(given) - set(expected)):
        raise CheckpointError(f"{file} has {len(unknown)} tensors that the network lacks, the first is {unknown[0]!r}")
    for name, tensor in expected.items():
        if given[name].shape != tensor.shape:
            raise CheckpointError(
                f"{file}: tensor {name!r} has shape {tuple(given[name].shape)} "
                f"but the network needs {tuple(tensor.shape)}"
            )


def _read_weights(file: File, stated: Mapping[str, Any]) -> dict[str, Tensor]:
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{file} is missing; copy it beside {MODEL}") from None
    if len(data) != stated.get("bytes"):
        raise CheckpointError(
            f"{file} has {len(data)} bytes but {stated.get('bytes')} were written; "
            f"it is truncated or was replaced, restore it from a copy"
        )
    if _digest(data) != stated.get("sha256"):
        raise CheckpointError(f"{file} does not match its digest, it was damaged; restore it from a copy")
    try:
        return safetensors.torch.load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{file} is not a safetensors file ({error})") from error


def write_whole(file: File, data: bytes) -> None:
    """Write to a temporary file, sync, rename: after a crash there is the old file or the new one, never a part."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise OSError(
            error.errno, f"cannot write {file} ({error.strerror}); what was there before is untouched"
        ) from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
