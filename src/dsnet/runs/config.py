"""The configs of new and of resumed runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from dsnet.checkpoint import MODEL
from dsnet.config import CONFIG, RunConfig, packaged, read_yaml, resolve
from dsnet.models.graph import GraphSpec
from dsnet.tasks import blank, read_config

ALLOWED = ("root", "workers", "on_corrupt", "max_skipped", "cache", "cache_size")  # of data, in a resumed run


def as_yaml(config: RunConfig) -> str:
    """A config as the file that gives it."""
    return yaml.safe_dump(json.loads(json.dumps(config.to_dict())), sort_keys=False)  # tuples become lists


def new_config(
    kind: type[RunConfig], source: str | None, keys: Mapping[str, Any], *, recipe: str | None = None
) -> RunConfig:
    """The config of a new run: defaults, overridden by a recipe, by keys of the source run, and by `keys`.

    recipe: Name of a packaged config, as `recipe_for` gives it.
    """
    gate = keys.get("stage") == "gate"
    if gate and source is None:
        raise ValueError("--stage gate needs --from RUN: a router needs a trained network")
    carried = source_keys(kind, source, gate=gate)
    if keys.get("backbone") is not None and not gate:
        carried = {**carried, "data": normalisation_of(str(keys["backbone"]))}
    elif not gate and not reads_files(keys):  # arrays have their own normalisation, and may have other channels
        carried.pop("data", None)
    begun = recipe_keys(recipe, keys)
    if any((layer.get("model") or {}).get("sizes") for layer in (carried, keys)):
        begun.pop("freeze", None)  # the front has statistics for each image size, which it must learn
    layers = begun, carried, keys, {"source": source}
    config = resolve(kind, *layers)
    config.data.check_used()
    return config


def recipe_for(kind: type[RunConfig], source: str | None, keys: Mapping[str, Any]) -> str | None:
    """The packaged config that a run on a folder of images, or on shards, starts from if the user names none: one for
    fresh weights, one for a network that `dsnet slim` converted. None for other runs, and for runs that start from
    another run."""
    if not reads_files(keys):
        return None
    return kind.RECIPE if source is None else kind.PRETRAINED if is_converted(source) else None


def reads_files(keys: Mapping[str, Any]) -> bool:
    """Whether the data of these keys are image files, in a folder or in shards."""
    data = keys.get("data") or {}
    named, place = data.get("dataset"), data.get("root") or data.get("labels")
    return named in ("folder", "images", "shards") or (named is None and place is not None)


def is_converted(source: str) -> bool:
    """Whether a folder holds a converted network that was not trained since, or on images without labels only."""
    file = Path(source) / CONFIG
    if file.is_file() and not unlabelled(read_yaml(file)):
        return False
    return (Path(source) / MODEL).is_file() and isinstance(blank(source).spec, GraphSpec)


def unlabelled(keys: Mapping[str, Any]) -> bool:
    return bool((keys.get("data") or {}).get("dataset") == "images")


def recipe_keys(recipe: str | None, keys: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a packaged config, without the place of its data. If `keys` crop differently, the options of its crop
    are left out."""
    if recipe is None:
        return {}
    found = read_yaml(packaged()[recipe])
    del found["data"]["root"]
    if "crop" in ((keys.get("data") or {}).get("augment") or {}):
        del found["data"]["augment"]["scale"]
    return found


def source_keys(kind: type[RunConfig], source: str | None, *, gate: bool) -> dict[str, Any]:
    """The keys taken from a source run: all of them to train a router, otherwise those in the config's CARRIED, and the
    normalisation of a network that was converted."""
    if source is None or not (Path(source) / MODEL).is_file():
        return {}
    file = Path(source) / CONFIG
    if file.is_file() and not unlabelled(keys := read_yaml(file)):
        if gate:
            return keys
        return {key: keys[key] for key in kind.CARRIED if key in keys} | {"data": normalisation_of(source)}
    if gate or "model" not in kind.CARRIED:
        return {}
    spec = blank(source).spec
    if not isinstance(spec, GraphSpec):
        return {"model": {"name": spec.name}}
    outline = {"name": spec.name, "widths": list(spec.widths), "image_size": spec.image_size}
    outline |= {"sizes": list(spec.sizes)} if spec.sizes else {}
    return {"model": outline, "data": normalisation_of(source)}


def normalisation_of(folder: str) -> dict[str, list[float]]:
    """Mean and standard deviation with which a converted network wants its images; nothing for other networks."""
    if not (Path(folder) / MODEL).is_file():
        return {}
    net = blank(folder)
    if not isinstance(net.spec, GraphSpec):
        return {}
    return {"mean": list(net.card.preprocessing.mean), "std": list(net.card.preprocessing.std)}


def resumed_config(folder: Path, keys: Mapping[str, Any]) -> Any:
    """The config of a resumed run; only where and with how much patience it runs may change, and whether damaged
    images are skipped."""
    config: Any = read_config(folder / CONFIG)
    given: Any = resolve(type(config), config.to_dict(), keys)
    own = {key: getattr(config.data, key) for key in ALLOWED if hasattr(config.data, key)}
    if replace(given, threads=config.threads, timeout=config.timeout, data=replace(given.data, **own)) != config:
        named = ", ".join(f"--data.{key}" for key in own)
        raise ValueError(
            f"--resume goes on with the run's own config; besides it only {named}, --threads and --timeout may be "
            f"given. To change anything else, start a new run"
        )
    return given
