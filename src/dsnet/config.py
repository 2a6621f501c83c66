"""Configs of runs: the keys that all tasks share, and the layers from which a config is built.

The layers are defaults, the config of another run, YAML files and flags. Later layers override earlier ones.
"""

from __future__ import annotations

import difflib
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, Literal, TypeVar, get_origin

import yaml

from dsnet.data.config import Reading
from dsnet.errors import must
from dsnet.files import read_limited
from dsnet.limits import allow
from dsnet.schema import Typed, members, parse, shortened
from dsnet.training import OptimConfig

CONFIG = "config.yaml"
EITHER = (("epochs", "steps"), ("warmup_epochs", "warmup_steps"))  # a layer that gives one of a pair unsets the other
USUAL: Mapping[str, Mapping[str, float]] = {  # what a layer sets that names an optimiser, unless it says otherwise
    "adamw": {"lr": 0.001, "weight_decay": 0.01},
    "sgd": {"lr": 0.03, "weight_decay": 1e-4},
}
T = TypeVar("T")


class RunConfig(Typed, ABC):
    """The keys that every task's config has. It is saved as config.yaml in the run's folder.

    BASIC: keys that the short help shows. CARRIED: keys that fine-tuning takes from the run that it starts from.
    RECIPE: packaged config that a run on a folder of images starts from if the user names none. PRETRAINED: the same
    for runs that start from a network that `dsnet slim` converted.
    """

    RECIPE: ClassVar[str | None] = None
    PRETRAINED: ClassVar[str | None] = None
    BASIC: ClassVar[tuple[str, ...]] = ()
    CARRIED: ClassVar[tuple[str, ...]] = ()

    task: str
    stage: str
    source: str | None
    data: Reading
    optim: OptimConfig
    seed: int
    threads: int
    timeout: float
    save_steps: int | None

    def __post_init__(self) -> None:
        must("seed", self.seed, self.seed >= 0, "be at least 0")
        must("threads", self.threads, self.threads >= 0, "be at least 0, which leaves torch's default")
        must("timeout", self.timeout, 0 < self.timeout <= 100_000, "be above 0 and at most 100,000 minutes")
        must("save_steps", self.save_steps, self.save_steps is None or self.save_steps >= 1, "be at least 1, or null")

    @property
    @abstractmethod
    def run_name(self) -> str:
        """Default name of the run's folder."""

    @classmethod
    def completed(cls, keys: dict[str, Any]) -> dict[str, Any]:
        """The keys of a run's config, with those that did not exist when it was written as they were meant then."""
        return keys

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]


class Loader(yaml.SafeLoader):
    """YAML loader that reads 1e-4 as a number; YAML 1.1 requires 1.0e-4."""


Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def resolve(kind: type[T], *layers: Mapping[str, Any]) -> T:
    """Build a config from layers. Later layers override earlier ones, key by key."""
    return parse(kind, merged(asdict(kind()), *layers), strict=True)  # type: ignore[call-overload]


def merged(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Merge trees of keys. Later trees override earlier ones."""
    tree: dict[str, Any] = {}
    for layer in layers:
        for key, value in {**implied(tree, layer), **layer}.items():
            both = isinstance(value, Mapping) and isinstance(tree.get(key, {}), Mapping)
            tree[key] = merged(tree.get(key, {}), value) if both else value
    return tree


def implied(tree: Mapping[str, Any], layer: Mapping[str, Any]) -> dict[str, Any]:
    """The keys of a tree that a layer changes without naming them: the other key of a pair, and the usual learning rate
    of an optimiser."""
    usual = USUAL.get(str(layer.get("name")), {})
    found: dict[str, Any] = {key: value for key, value in usual.items() if key in tree}
    for pair in EITHER:
        for one, other in (pair, pair[::-1]):
            if layer.get(one) is not None and tree.get(other) is not None:
                found[other] = None
    return found


def nested(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into a tree, as in a config file."""
    tree: dict[str, Any] = {}
    for key, value in keys.items():
        *groups, last = key.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return tree


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn a tree into dotted keys: the inverse of `nested`."""
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def read_run(kind: type[T], file: Path) -> T:
    """Read the config of a run folder."""
    if not file.is_file():
        raise ValueError(f"{file} does not exist: this folder was not written by `dsnet train`")
    try:
        keys = read_yaml(file)
        return resolve(kind, kind.completed(keys) if issubclass(kind, RunConfig) else keys)
    except (ValueError, OSError) as error:
        raise ValueError(f"{file} is not a config of this version of dsnet: {error}") from error


def read_yaml(file: Path) -> dict[str, Any]:
    """Read the keys in a YAML file."""
    text = read_limited(file, "yaml")
    try:
        content = from_yaml(text.decode(), Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{file} is not a YAML file that can be read ({' '.join(str(error).split())})") from None
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise ValueError(f"{file}: the config is {shortened(content)}; it must be a YAML file of `key: value` lines")
    return content


def from_yaml(text: str, kind: type[yaml.BaseLoader] | type[yaml.SafeLoader]) -> Any:
    """Read YAML, unless its aliases would repeat so much that it takes all memory when it is written out."""
    loader = kind(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        allow("values", written_out(node), "the number of values, with aliases written out, is")
        return loader.construct_document(node)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    finally:
        loader.dispose()


def written_out(node: yaml.Node) -> int:
    """Number of values in a tree of YAML, where an alias counts as what it stands for."""
    sizes: dict[int, int] = {}  # of each node that was seen; 0 while it is being counted

    def size(node: yaml.Node) -> int:
        if id(node) in sizes:
            if not sizes[id(node)]:
                raise ValueError("an alias stands inside of what it stands for")
            return sizes[id(node)]
        sizes[id(node)], children = 0, node.value if isinstance(node, yaml.CollectionNode) else []
        parts = (part for child in children for part in (child if isinstance(child, tuple) else (child,)))
        sizes[id(node)] = 1 + sum(map(size, parts))
        return sizes[id(node)]

    return size(node)


def from_text(kind: Any, text: str) -> Any:
    """Convert the text of a flag to a value for a field of this type: text stays text, all else is read as YAML."""
    parts = members(kind)
    if text == "null" and NoneType in parts:
        return None
    if any(part is str or get_origin(part) is Literal for part in parts):
        return int(text) if int in parts and text.isdecimal() and len(text) < 20 else text
    loader = yaml.BaseLoader if list[str] in parts else Loader  # both load plain values only
    try:
        return from_yaml(text, loader)
    except (yaml.YAMLError, ValueError):  # a ValueError is a number with thousands of digits
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
