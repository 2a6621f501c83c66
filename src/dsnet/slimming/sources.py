"""What a conversion reads: a factory that the user names, a file of weights, and images."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dsnet.card import Preprocessing
from dsnet.errors import CheckpointError, SlimError
from dsnet.images import ImageFile, prepare
from dsnet.pictures import image_files
from dsnet.weights.files import read_tensors


def model_from(factory: str) -> nn.Module:
    """The module that PACKAGE.MODULE:FACTORY gives. The code of the factory runs."""
    place, colon, attribute = factory.partition(":")
    if not colon or not place or not attribute:
        raise SlimError(
            f"{factory!r} names no network; give PACKAGE.MODULE:FACTORY, a function without arguments that returns an "
            f"nn.Module, or the name of a pretrained network"
        )
    sys.path.insert(0, str(Path.cwd()))  # as `python -m` does
    try:
        found: Any = importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is None or not place.startswith(error.name):
            raise SlimError(f"{place} imports {error.name}, which is not installed; install it first") from error
        raise SlimError(f"there is no module {place}; start in its folder, or install its package") from error
    finally:
        sys.path.pop(0)
    for name in attribute.split("."):
        if not hasattr(found, name):
            raise SlimError(f"module {place} has no {attribute!r}; name a function or class in it")
        found = getattr(found, name)
    return found if isinstance(found, nn.Module) else called(factory, found)


def called(factory: str, function: Any) -> nn.Module:
    if not callable(function):
        raise SlimError(f"{factory} is a {type(function).__name__}; name a function that returns an nn.Module")
    needed = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if needed:
        raise SlimError(
            f"{factory} needs the arguments {', '.join(needed)}; write a function without arguments that calls it, and "
            f"name that"
        )
    model = function()
    if not isinstance(model, nn.Module):
        raise SlimError(f"{factory} returns a {type(model).__name__}; it must return an nn.Module")
    return model


def load_weights(model: nn.Module, file: str | os.PathLike[str]) -> None:
    """Load a file of weights into a module. No code in the file is run, and every tensor must fit."""
    fitted(model, read_tensors(file), str(file))


def fitted(model: nn.Module, tensors: Mapping[str, Tensor], file: str) -> None:
    wanted = model.state_dict()
    missing = [name for name in wanted if name not in tensors and not name.endswith("num_batches_tracked")]
    unknown = [name for name in tensors if name not in wanted]
    shapes = [name for name in wanted if name in tensors and wanted[name].shape != tensors[name].shape]
    kind = type(model).__name__
    if shapes:
        name = shapes[0]
        raise CheckpointError(
            f"{file}: tensor {name!r} has shape {tuple(tensors[name].shape)} but {kind} needs "
            f"{tuple(wanted[name].shape)} ({len(shapes)} differ); these are weights of another architecture"
        )
    if missing or unknown:
        parts = [f"lacks {len(missing)} tensors of {kind}, the first is {missing[0]!r}"] if missing else []
        parts += [f"holds {len(unknown)} that {kind} lacks, the first is {unknown[0]!r}"] if unknown else []
        raise CheckpointError(f"{file} {' and '.join(parts)}; give the weights of this architecture")
    model.load_state_dict({**wanted, **tensors})


def read_images(folder: str | Path, channels: int, size: int, preprocessing: Preprocessing, most: int = 300) -> Tensor:
    """Up to 300 images of a folder, spread over it, as the network takes them."""
    files = image_files([folder])
    chosen = [files[int(place)] for place in np.linspace(0, len(files) - 1, min(most, len(files)))]
    rows = [prepare(ImageFile(file), size=size, channels=channels, **asdict(preprocessing)) for file in chosen]
    return torch.from_numpy(np.stack(rows))
