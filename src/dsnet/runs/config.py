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
    layers = recipe_keys(recipe, keys), source_keys(kind, source, gate=gate), keys, {"source": source}
    config = resolve(kind, *layers)
    config.data.check_used()
    return config


def recipe_for(kind: type[RunConfig], source: str | None, keys: Mapping[str, Any]) -> str | None:
    """The packaged config that a run on a folder of images starts from if the user names none. None for other runs,
    and for runs that start from another one."""
    data = keys.get("data") or {}
    named, place = data.get("dataset"), data.get("root") or data.get("labels")
    is_folder = named == "folder" or (named is None and place is not None)
    return kind.RECIPE if is_folder and source is None else None


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
    """The keys taken from a source run: all of them to train a router, otherwise those in the config's CARRIED."""
    if source is None or not (Path(source) / MODEL).is_file():
        return {}
    file = Path(source) / CONFIG
    if file.is_file():
        keys = read_yaml(file)
        return keys if gate else {key: keys[key] for key in kind.CARRIED if key in keys}
    if gate or "model" not in kind.CARRIED:
        return {}
    spec = blank(source).spec
    graph = isinstance(spec, GraphSpec)
    outline = {"widths": list(spec.widths), "image_size": spec.image_size} if graph else {}
    return {"model": {"name": spec.name, **outline}}


def resumed_config(folder: Path, keys: Mapping[str, Any]) -> Any:
    """The config of a resumed run; only where and with how much patience it runs may change."""
    config: Any = read_config(folder / CONFIG)
    given: Any = resolve(type(config), config.to_dict(), keys)
    where = replace(given.data, root=config.data.root, workers=config.data.workers)
    if replace(given, threads=config.threads, timeout=config.timeout, data=where) != config:
        raise ValueError(
            "--resume goes on with the run's own config; besides it only --data.root, --data.workers, --threads and "
            "--timeout may be given. To change anything else, start a new run"
        )
    return given
