"""Recipes: what an experiment trains, declared as changes to packaged configs.

A recipe at a scale and a seed becomes a cell: one run with a unique name.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dsnet.config import RunConfig, flat, nested, packaged, read_yaml
from dsnet.routers import former
from dsnet.space import WidthPath
from dsnet.tasks import config_from
from dsnet.tasks.classification.config import ClassificationConfig

Keys = Mapping[str, Any]  # of a config, such as {"ieb.teacher": "ema"}
LINKS = ("source", "gate_from", "distill", "backbone")  # other runs that a run starts from
PLACES = (
    "data.root",
    "data.workers",
    "data.cache",
    "data.cache_size",
    "threads",
    "timeout",
    "save_steps",
    "sgs.cache_folder",
)  # keys that do not change what is learned
STARTS = "starts"  # folder of converted networks, beside that of the runs
EPOCHS = ("optim.epochs", "optim.steps", "optim.milestones")
LATER: Keys = {  # keys by their endings that were added later. At these values a run keeps the name that it had before
    "optim.name": "sgd",
    "optim.steps": None,
    "optim.betas": (0.9, 0.999),
    "optim.warmup_steps": None,
    "optim.patience": None,
    "optim.decay": "all",
    "augment.magnitude_std": 0.5,
    "data.labels": None,
    "data.folders": None,
    "data.mean": None,
    "data.std": None,
    "freeze": "none",
    "model.widths": None,
    "model.image_size": None,
    "model.sizes": None,
    "ieb.only": None,
    "widths.slimmest": True,
    "widths.backbone": True,
    "ieb.weight": 1.0,
    "ieb.mixup": 0.0,
    "ieb.class_weights": "none",
    "ieb.distillation": 0.7,
    "sgs.early": None,
    "sgs.standardised": False,
    "sgs.bound": False,
    "sgs.windows": None,
    "sgs.relative": False,
    "sgs.squares": "sample",
    "sgs.balanced": False,
    "sgs.distillation": None,
    "sgs.combined": False,
    "sgs.held_out": False,
    "sgs.cache": 0,
    "sgs.cache_limit": 4.0,
}
NO_ROUTER: Keys = {  # of a run without a router: the defaults of stage II when such runs got their names
    "sgs.router": "slim_first",
    "sgs.targets": None,
    "sgs.classification": None,
    "sgs.complexity": None,
    "sgs.guidance": 1.0,
    "sgs.temperature": 1.0,
    "sgs.final_temperature": 1.0,
    "sgs.hidden": 32,
    "sgs.momentum": 0.99,
}
ROUTER_OPTIM: Keys = {"sgs_optim.epochs": 10, "sgs_optim.schedule": "exponential", "sgs_optim.weight_decay": 0.0}
ROUTER_EPOCHS = {"cifar10_ds_mobilenet_v1_tiny": 2, "cifar10_ds_resnet_tiny": 1}  # as these configs said then
FIXED: Keys = {  # change only rounding, and which files are refused, so the digest uses the first defaults
    "optim.channels_last": False,
    "data.max_pixels": 100_000_000,
}


@dataclass(frozen=True, eq=False)
class Recipe:
    """A base of the scale with some keys changed. The links are recipes of the runs that it starts from.

    unsaid: More keys, which the name of a run does not show; those that its config had when the run got its name.
    start: Name of a converted network that it starts from. The experiment makes it, see `Experiment.prepare`.
    seed: Seed of a run that the runs of all seeds share.
    """

    base: str
    keys: Keys = field(default_factory=dict)
    unsaid: Keys = field(default_factory=dict)
    source: Recipe | None = None
    gate_from: Recipe | None = None
    distill: Recipe | None = None
    backbone: Recipe | None = None
    start: str | None = None
    seed: int | None = None

    def but(self, keys: Keys, **links: Any) -> Recipe:
        return replace(self, keys={**self.keys, **keys}, **links)

    def gates(self, keys: Keys, **links: Any) -> Recipe:
        """Stage II on this supernet."""
        return self.but({"stage": "gate", **keys}, source=self, **links)


class Base(NamedTuple):
    """A config that comes with dsnet, by name, and the keys that differ from it."""

    config: str
    keys: Keys = MappingProxyType({})


@dataclass(frozen=True)
class Latency:
    """What to time: a model, a static network of similar MAdds for each of some paths, and Table 1 at an image size."""

    model: str
    pairs: Mapping[WidthPath, str]
    table1: int
    repeats: int


@dataclass(frozen=True)
class Scale:
    """The networks, data and seeds with which the experiments run.

    Args:
        bases: Configs that recipes start from, by name.
        few: Number of seeds of the bases that are trained with fewer.
        folders: Folder of a dataset or base, below the folder of all data.
        window: Number of adjacent widths in a window of the paper's gates.
        one_by_one: Keys of gates that decide one by one. They run the network at every step, so they take long.
        longer: Factor by which the epochs of every training are multiplied.
    """

    name: str
    about: str
    seeds: tuple[int, ...]
    bases: Mapping[str, Base]
    folders: Mapping[str, str]
    widths: tuple[float, ...]  # of static networks
    latency: Latency
    trained: str = ""  # data and epochs, in words
    notes: Mapping[str, str] = field(default_factory=dict)  # replaces `trained` for some experiments
    longer: int = 1
    window: int = 3
    one_by_one: Keys = field(default_factory=dict)
    few: Mapping[str, int] = field(default_factory=dict)

    def seeds_of(self, base: str) -> tuple[int, ...]:
        """The seeds with which recipes of a base are trained."""
        return self.seeds[: self.few.get(base)]

    @property
    def suffix(self) -> str:
        """Suffix of the names of results, which keeps those of longer trainings apart."""
        return "" if self.longer == 1 else f"-longer{self.longer}"

    def keys(self, base: str) -> dict[str, Any]:
        """All keys of a base."""
        return {**router_free(self.bases[base].config), **self.bases[base].keys}


@cache
def router_free(config: str) -> Keys:
    """The keys of a packaged config without those of its router, which the recipe chooses. What can be cached is a
    matter of the data."""
    keys = flat(read_yaml(packaged()[config]))
    return {key: value for key, value in keys.items() if not key.startswith("sgs.") or key == "sgs.cache"}


@dataclass(frozen=True)
class Cell:
    """One training run. Cells with equal names are the same run, which experiments share."""

    name: str
    config: RunConfig
    needs: tuple[Cell, ...]

    def everything(self) -> list[Cell]:
        """All cells that this one needs, and then the cell itself."""
        return [*(cell for need in self.needs for cell in need.everything()), self]


def cell_of(recipe: Recipe, scale: Scale, seed: int, *, runs: Path, root: str | None) -> Cell:
    """The run of a recipe. Its name ends with a digest of all keys that affect what is learned."""
    seed = seed if recipe.seed is None else recipe.seed
    linked = {link: getattr(recipe, link) for link in LINKS if getattr(recipe, link) is not None}
    needs = {link: cell_of(other, scale, seed, runs=runs, root=root) for link, other in linked.items()}
    keys: dict[str, Any] = {**scale.keys(recipe.base), **recipe.unsaid, **recipe.keys, "seed": seed}
    keys |= {key: stretched(value, scale.longer) for key, value in keys.items() if key.endswith(EPOCHS) and value}
    keys |= {link: str(runs / need.name) for link, need in needs.items()}
    if recipe.start is not None:
        keys["source"] = str(runs.parent / STARTS / recipe.start)
    place = recipe.base if recipe.base in scale.folders else keys.get("data.dataset")
    if (folder := scale.folders.get(place or "")) is not None:
        if root is None:
            raise ValueError(
                f"scale {scale.name} needs data: give --root, the folder with {folder or 'cifar-10-batches-bin'}"
            )
        keys["data.root"] = str(Path(root) / folder)
    if keys.get("stage") == "gate" and keys.get("sgs.cache") != 0:  # all routers on one supernet read its features
        keys["sgs.cache_folder"] = str(runs.parent / "features")
    config = config_of_keys(json.dumps(keys))
    learned = {key: value for key, value in flat(config.to_dict()).items() if key not in (*PLACES, *LINKS)}
    decisive = {key: value for key, value in learned.items() if not is_later(key, value)}
    if isinstance(config, ClassificationConfig) and not config.routes:
        decisive = {key: value for key, value in decisive.items() if not key.startswith("sgs.")}
        decisive |= {**NO_ROUTER, **without_router(scale, recipe.base, decisive)}
    if config.task == "classification":  # runs that were trained before there were other tasks keep their names
        del decisive["task"]
    decisive |= {key: value for key, value in FIXED.items() if key in decisive}
    decisive |= {link: need.name for link, need in needs.items()}
    decisive |= {} if recipe.start is None else {"source": recipe.start}
    if "sgs.router" in decisive:
        decisive["sgs.router"] = former(decisive["sgs.router"])
    digest = hashlib.sha256(json.dumps(decisive, sort_keys=True, default=str).encode()).hexdigest()[:8]
    said = [former(str(value)) for value in recipe.keys.values() if isinstance(value, str | float | int)]
    return Cell("-".join([recipe.base, *said, f"seed{seed}", digest]), config, tuple(needs.values()))


def without_router(scale: Scale, base: str, decisive: Keys) -> Keys:
    """The optimiser of stage II when runs without a router got their names."""
    config, written = scale.bases[base].config, scale.keys(base)
    keys = {key: value for key, value in ROUTER_OPTIM.items() if key not in written}
    if config in ROUTER_EPOCHS:
        keys["sgs_optim.epochs"] = scale.longer * ROUTER_EPOCHS[config]
    return keys if decisive["sgs_optim.epochs"] is not None else {**keys, "sgs_optim.epochs": None}


def is_later(key: str, value: Any) -> bool:
    """Whether a key was added later and has the value that runs had before."""
    return any(key.endswith(ending) and value == default for ending, default in LATER.items())


def stretched(epochs: Any, times: int) -> Any:
    return [times * epoch for epoch in epochs] if isinstance(epochs, list) else times * epochs


@cache  # tables share many configs, and reading one is slow
def config_of_keys(keys: str) -> RunConfig:
    found: RunConfig = config_from(nested(json.loads(keys)))
    return found
