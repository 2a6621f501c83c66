"""Models on disk: `model.safetensors` holds the weights, `model.json` everything else that rebuilds the network.

`model.json` holds digests of itself and of the weights, so that a truncated or damaged file is refused. Nothing is
unpickled. The tasks know which network a spec describes.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from dsnet.card import Card
from dsnet.errors import CheckpointError
from dsnet.files import (
    digest,
    file_digest,
    matches_digest,
    read_limited,
    settled,
    sync_folder,
    with_digest,
    write_whole,
)
from dsnet.limits import allow
from dsnet.routers import present
from dsnet.schema import clipped, parse, plain, shortened
from dsnet.version import __version__

WEIGHTS = "model.safetensors"
INCOMING = "model.safetensors.new"
MODEL = "model.json"
FORMAT = 1


class Spec(Protocol):
    """The fields that the spec of every network has."""

    @property
    def name(self) -> str: ...

    @property
    def num_classes(self) -> int: ...

    @property
    def in_channels(self) -> int: ...


def write_model(folder: str | os.PathLike[str], state: Mapping[str, Tensor], spec: Spec, card: Card) -> Path:
    """Write weights, spec and card. A crash at any moment leaves the old model or the new one.

    `model.json` is the head (see `dsnet.files`). New weights wait beside the old ones until it names them. One process
    at a time may write to a folder.
    """
    check_card(spec, card)
    folder = Path(folder)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    weights = safetensors.torch.save(tensors)
    description = _describe(spec, card, {"sha256": digest(weights), "bytes": len(weights)})
    folder.mkdir(parents=True, exist_ok=True)
    _complete(folder)
    write_whole(folder / INCOMING, weights)
    write_whole(folder / MODEL, description)  # from here on the new model is loaded
    (folder / INCOMING).replace(folder / WEIGHTS)
    return folder


def _complete(folder: Path) -> None:
    """Finish a save that was killed: its weights move to their place if `model.json` names them already."""
    incoming = folder / INCOMING
    with contextlib.suppress(CheckpointError):
        if incoming.is_file() and file_digest(incoming) == read_description(folder)["weights"]["sha256"]:
            incoming.replace(folder / WEIGHTS)
            sync_folder(folder)


def check_card(spec: Spec, card: Card) -> None:
    if card.classes and len(card.classes) != spec.num_classes:
        raise ValueError(f"the card names {len(card.classes)} classes but the network has {spec.num_classes} outputs")
    if len(card.preprocessing.mean) != spec.in_channels:
        raise ValueError(
            f"the card normalises {len(card.preprocessing.mean)} channels but the network takes {spec.in_channels}"
        )


def _describe(spec: Spec, card: Card, weights: Mapping[str, Any]) -> bytes:
    body = {
        "format": FORMAT,
        "dsnet": __version__,
        "spec": plain(spec),
        "card": plain(card),
        "weights": dict(weights),
    }
    try:
        return json.dumps(with_digest(body), indent=1, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the model's card or spec cannot be written as JSON ({error}); nothing was saved") from error


def read_model(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Read and verify the description and the weights in a model folder."""

    def read(data: bytes) -> tuple[dict[str, Any], dict[str, Tensor]]:
        content = _parsed(folder / MODEL, data)
        return content, _read_weights(folder, content["weights"])

    return settled(_head(folder), read)


def read_description(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and verify the model.json of a model folder."""
    file = _head(Path(folder))
    return _parsed(file, read_limited(file, "json"))


def _head(folder: Path) -> Path:
    file = folder / MODEL
    if not file.is_file():
        remedy = "run `dsnet import` for foreign weights" if folder.is_file() else "give the folder that dsnet wrote"
        raise CheckpointError(f"{folder} is not a model folder: there is no {MODEL} in it; {remedy}")
    return file


def _parsed(file: Path, data: bytes) -> dict[str, Any]:
    try:
        content: dict[str, Any] = json.loads(data)
        whole = matches_digest(content)
        del content["digest"]
        written = content["format"], content["dsnet"], content["weights"]["sha256"], content["weights"]["bytes"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{file} is truncated or not written by dsnet ({error}); restore it from a copy"
        ) from error
    if not whole:
        raise CheckpointError(f"{file} does not match its digest, it was damaged or edited; restore it from a copy")
    if written[0] != FORMAT:
        raise CheckpointError(
            f"{file} has format {shortened(written[0])} but dsnet {__version__} reads {FORMAT}; load it with dsnet "
            f"{clipped(str(written[1]), 40)}"
        )
    return content


def task_in(content: Mapping[str, Any]) -> str:
    """The task of the network that a description belongs to."""
    spec = content.get("spec")
    return clipped(str(spec.get("task", "classification")), 80) if isinstance(spec, Mapping) else "classification"


def card_in(folder: Path, content: Mapping[str, Any], *, fit: str) -> Card:
    """The card of a description. fit: How images are resized if the card does not say, as in dsnet 0.1."""
    card = content.get("card")
    if isinstance(card, Mapping) and isinstance(card.get("preprocessing"), Mapping):
        card = {**card, "preprocessing": {"fit": fit, **card["preprocessing"]}}
    return parse(Card, card, str(folder / MODEL), error=CheckpointError, remedy="restore it from a copy")


LATER: dict[str, dict[str, Any]] = {
    "": {"sizes": []},
    "graph": {"cuts": []},
    "router": {"early": None, "bound": False, "windows": None, "candidates": []},
    "gate": {"standardised": False, "blocks": "all"},
}
"""Keys of a spec's parts that older models lack, with the values that they mean. The spec of a network has no name, and
graph stands for one that is a graph."""


def completed(spec: Any) -> Any:
    """The spec of a description, with the keys that dsnet did not have when it was written, and present names."""
    if not isinstance(spec, Mapping):
        return spec
    found = {
        key: {**LATER.get(key, {}), **completed(value)} if isinstance(value, Mapping) else value
        for key, value in spec.items()
    }
    if isinstance(router := found.get("router"), dict) and isinstance(router.get("kind"), str):
        found["router"] = {**router, "kind": present(router["kind"])}
    if "nodes" in found:
        return {**LATER[""], **LATER["graph"], **found}
    return {**LATER[""], **found} if "stages" in found else found


def with_standard(given: dict[str, Tensor], expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model, with those that leave inputs as they are if it was written before heads read standardised
    inputs."""
    weight, fresh = given.get("probe.reduce.weight"), {"mean": torch.zeros, "std": torch.ones}
    lacking = {
        name: make(expected[name].shape, dtype=weight.dtype)
        for part, make in fresh.items()
        if weight is not None and (name := f"probe.reduce.{part}") in expected and name not in given
    }
    return {**given, **lacking}


def check_tensors(file: Path, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse a file whose tensors are not those of the network, naming the first difference of each kind."""
    if missing := sorted(set(expected) - set(given)):
        raise CheckpointError(f"{file} misses {len(missing)} tensors of the network, the first is {missing[0]!r}")
    if unknown := sorted(set(given) - set(expected)):
        raise CheckpointError(f"{file} has {len(unknown)} tensors that the network lacks, the first is {unknown[0]!r}")
    for name, tensor in expected.items():
        if given[name].is_floating_point() != tensor.is_floating_point():
            raise CheckpointError(f"{file}: tensor {name!r} is {given[name].dtype}, the network needs {tensor.dtype}")
        if given[name].shape != tensor.shape:
            raise CheckpointError(
                f"{file}: tensor {name!r} has shape {tuple(given[name].shape)} "
                f"but the network needs {tuple(tensor.shape)}"
            )


def _read_weights(folder: Path, stated: Mapping[str, Any]) -> dict[str, Tensor]:
    """Read the weights whose digest the description holds. They may still wait beside the old ones."""
    file, sizes = folder / WEIGHTS, list[int]()
    for candidate in (folder / INCOMING, file):  # in this order, because the first one may be moved to the other
        with contextlib.suppress(FileNotFoundError):
            sizes.append(candidate.stat().st_size)
            if sizes[-1] == stated["bytes"] and digest(held := candidate.read_bytes()) == stated["sha256"]:
                return _tensors(file, held)
    if not file.is_file() or not sizes:
        raise CheckpointError(f"{file} is missing; copy it beside {MODEL}")
    if sizes[-1] != stated["bytes"]:
        raise CheckpointError(
            f"{file} has {sizes[-1]} bytes but {shortened(stated['bytes'])} were written; "
            f"it is truncated or was replaced, restore it from a copy"
        )
    raise CheckpointError(f"{file} does not match its digest, it was damaged; restore it from a copy")


def _tensors(file: Path, data: bytes) -> dict[str, Tensor]:
    check_header(file, data[:8], len(data))
    try:
        return safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:  # a KeyError is a type that torch does not have
        raise CheckpointError(f"{file} is not a safetensors file ({error})") from error


def check_header(file: Path, first: bytes, whole: int) -> None:
    """Refuse a safetensors file whose list of tensors is too long.

    first: The file's first 8 bytes, which say how long it is. whole: Bytes of the file. safetensors itself refuses a
        list that would be longer.
    """
    if (size := int.from_bytes(first, "little")) > whole:
        return
    allow("header", size, f"{file}: the size of its list of tensors in bytes is", error=CheckpointError)
