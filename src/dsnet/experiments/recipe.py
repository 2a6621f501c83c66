"""What an experiment trains, as data: for each scale and seed a recipe becomes a cell, a run with a name of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from dsnet.config import TrainConfig, config_from
from dsnet.layers import flat, nested
from dsnet.tasks.detection.config import DetectionConfig, detection_config_from

Keys = Mapping[str, Any]  # of a config, such as {"ieb.teacher": "ema"}
LINKS = ("source", "gate_from", "backbone")  # other runs that a run starts from
PLACES = ("data.root", "data.workers", "threads", "save_steps")  # do not change what is learned
EPOCHS = ("optim.epochs", "optim.milestones")
ROUNDING: Keys = {"optim.channels_last": False}  # changes no more than rounding: the digest holds the default


@dataclass(frozen=True, eq=False)
class Recipe:
    """A base of the scale with some keys changed; the links are recipes of the runs that it starts from."""

    base: str
    keys: Keys = field(default_factory=dict)
    source: Recipe | None = None
    gate_from: Recipe | None = None
    backbone: Recipe | None = None

    def but(self, keys: Keys, **links: Any) -> Recipe:
        return replace(self, keys={**self.keys, **keys}, **links)

    def gates(self, keys: Keys, **links: Any) -> Recipe:
        """Stage II on this supernet."""
        return self.but({"stage": "gate", **keys}, source=self, **links)


@dataclass(frozen=True)
class Scale:
    """The same experiments with other networks and data.

    bases: keys of a whole config by name. folders: where a base's data lies below the folder of all data. slim: the
    routing space of the paper's S networks, by base. longer: every training takes this many times its epochs.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    bases: Mapping[str, Keys]
    folders: Mapping[str, str]
    widths: tuple[float, ...]  # of static networks
    slim: Mapping[str, list[list[int]]]
    latency: Mapping[str, Any] = field(default_factory=dict)
    trained: str = ""  # on what, and how long
    notes: Mapping[str, str] = field(default_factory=dict)  # the same of experiments that differ
    longer: int = 1

    @property
    def suffix(self) -> str:
        """Of the names of results: those of longer trainings lie beside the others."""
        return "" if self.longer == 1 else f"-longer{self.longer}"


@dataclass(frozen=True)
class Cell:
    """One training run. Equal names are equal runs, whichever experiment asks for them."""

    name: str
    config: TrainConfig | DetectionConfig
    needs: tuple[Cell, ...]

    def everything(self) -> list[Cell]:
        """The cell behind all that it needs."""
        return [*(cell for need in self.needs for cell in need.everything()), self]


def cell_of(recipe: Recipe, scale: Scale, seed: int, *, runs: Path, root: str | None) -> Cell:
    """The run of a recipe; its name carries a digest of everything that decides what is learned."""
    linked = {link: getattr(recipe, link) for link in LINKS if getattr(recipe, link) is not None}
    needs = {link: cell_of(other, scale, seed, runs=runs, root=root) for link, other in linked.items()}
    keys: dict[str, Any] = {**scale.bases[recipe.base], **recipe.keys, "seed": seed}
    keys |= {key: stretched(value, scale.longer) for key, value in keys.items() if key.endswith(EPOCHS)}
    keys |= {link: str(runs / need.name) for link, need in needs.items()}
    if (folder := scale.folders.get(keys.get("data.dataset", recipe.base))) is not None:
        if root is None:
            raise ValueError(
                f"scale {scale.name} needs data: give --root, the folder with {folder or 'cifar-10-batches-bin'}"
            )
        keys["data.root"] = str(Path(root) / folder)
    config = config_of_keys(json.dumps(keys))
    decisive = {key: value for key, value in flat(config.to_dict()).items() if key not in (*PLACES, *LINKS)}
    decisive |= {key: value for key, value in ROUNDING.items() if key in decisive}
    decisive |= {link: need.name for link, need in needs.items()}
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:8]
    said = [str(value) for value in recipe.keys.values() if isinstance(value, str | float | int)]
    return Cell("-".join([recipe.base, *said, f"seed{seed}", digest]), config, tuple(needs.values()))


def stretched(epochs: Any, times: int) -> Any:
    return [times * epoch for epoch in epochs] if isinstance(epochs, list) else times * epochs


@cache  # tables share many of them, and reading one takes a moment
def config_of_keys(keys: str) -> TrainConfig | DetectionConfig:
    tree = nested(json.loads(keys))
    return detection_config_from(tree) if tree.get("task") == "detection" else config_from(tree)
