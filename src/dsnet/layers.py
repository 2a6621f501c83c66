"""Configs in layers: defaults, then the config of another run, then YAML files, then flags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml

from dsnet.schema import parse

T = TypeVar("T")


class Loader(yaml.SafeLoader):
    """YAML in which 1e-4 is a number, as it is everywhere else."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def resolve(kind: type[T], *layers: Mapping[str, Any]) -> T:
    """The config that these layers give; a later one overrides an earlier one, key by key."""
    return parse(kind, merged(asdict(kind()), *layers), strict=True)  # type: ignore[call-overload]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Trees of keys as one tree."""
    tree: dict[str, Any] = {}
    for layer in layers:
        for key, value in layer.items():
            both = isinstance(value, Mapping) and isinstance(tree.get(key, {}), Mapping)
            tree[key] = merged(tree.get(key, {}), value) if both else value
    return tree


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys as the tree that a config file is."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *groups, last = key.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The inverse of `nested`."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def read_run(kind: type[T], file: Path) -> T:
    """The config of a run folder."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: this folder was not written by `dsnet train`")
    try:
        return resolve(kind, read_yaml(file))
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is not a config of this version of dsnet: {error}") from error


def read_yaml(file: Path) -> dict[str, Any]:
    """The keys in a YAML file."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader)  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{file} is not a YAML file ({' '.join(str(error).split())})") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{file}: the config is {content!r}; it must be a YAML file of `key: value` lines")
    return content


def from_text(kind: Any, text: str) -> Any:
    """The value that the text of a flag means for a field of this type; text stays text, all else is YAML."""
    parts = [kind] if get_origin(kind) in (list, tuple, Literal) else [kind, *get_args(kind)]
    if text == "null" and type(None) in parts:
        return None
    if any(part is str or get_origin(part) is Literal for part in parts):
        return text
    holds_text = any(get_origin(part) is list and str in get_args(part) for part in parts)
    try:
        return yaml.load(text, yaml.BaseLoader if holds_text else Loader)  # both make plain values only
    except yaml.YAMLError:
        return text


def packaged() -> dict[str, Path]:
    """The configs that come with dsnet, by name: `digits`, `detection/bccd_small`."""
    folder = Path(str(files("dsnet"))) / "configs"
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}


def config_file(name: str) -> Path:
    """The YAML file at a path, or the config of this name that comes with dsnet."""
    known = packaged()
    if Path(name).is_file() or name in known:
        return Path(name) if Path(name).is_file() else known[name]
    close = difflib.get_close_matches(name, known, n=2, cutoff=0.6)
    meant = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(
        f"config {name!r} does not exist{meant or ';'} give the path of a YAML file, or one of {', '.join(known)}"
    )
