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


def tiny(config: str, static: str, sizes: list[int], **keys: Any) -> Mapping[str, Base]:
    """A config's network and a static one, with and without several image sizes."""
    alone, sized = {"stage": "supernet", **keys}, {"stage": "supernet", "model.sizes": sizes, **keys}
    return {
        "tiny_static": Base(config, {**alone, "model.name": static}),
        "tiny_sizes": Base(config, {**sized, "model.name": static}),
        "tiny_widths": Base(config, alone),
        "tiny_both": Base(config, sized),
    }


TINY: Keys = {
    "model.name": "tiny",
    "model.widths": [2],
    "model.image_size": 16,
    "data.calibration": 0.2,
    "optim.epochs": 1,
}
TINY_SIZES: Keys = {**TINY, "model.sizes": [8, 12, 16], "freeze": "none", "stage": "supernet"}
SLIM_TRANSFER = ("slim_source", "slim_target")
SIZES_ALONE = ("sizes_static", "sizes_sweep")
SMOKE = Scale(
    name="smoke",
    about="Scale smoke: one epoch on the embedded digits. It shows that the experiment runs; its figures mean nothing.",
    seeds=(0,),
    bases={
        "mbnet": Base("smoke/digits"),
        "small": Base("smoke/digits"),
        "static_small": Base("smoke/digits", {"model.name": "mobilenet_v1_tiny"}),
        "us": Base("smoke/digits", {"model.name": "us_mobilenet_v1_tiny"}),
        "static": Base("smoke/digits", {"model.name": "mobilenet_v1_tiny"}),
        "resnet": Base("smoke/digits", {"model.name": "ds_resnet_tiny"}),
        "static_resnet": Base("smoke/digits", {"model.name": "resnet_tiny"}),
        "effnet": Base("smoke/digits", {"model.name": "ds_efficientnet_tiny"}),
        "static_effnet": Base("smoke/digits", {"model.name": "efficientnet_tiny"}),
        "mbnet_target": Base("smoke/digits", {"data.image_size": 20}),
        "static_mbnet_target": Base("smoke/digits", {"model.name": "mobilenet_v1_tiny", "data.image_size": 20}),
        "resnet_target": Base("smoke/digits", {"model.name": "ds_resnet_tiny", "data.image_size": 20}),
        "static_resnet_target": Base("smoke/digits", {"model.name": "resnet_tiny", "data.image_size": 20}),
        "backbone": Base("smoke/backbone"),
        "static_backbone": Base("smoke/backbone", {"model.name": "mobilenet_v1", "model.width": 0.25}),
        "detector": Base("smoke/detection"),
        **tiny("smoke/digits", "mobilenet_v1_tiny", [8, 12, 16]),
        "slim": Base("pretrained", TINY),
        **{name: Base("pretrained", {**TINY, "stage": "supernet"}) for name in ("slim_narrow", *SLIM_TRANSFER)},
        **{name: Base("pretrained", {**TINY_SIZES, "model.widths": [1]}) for name in ("sizes", *SIZES_ALONE)},
        "sizes_small": Base("pretrained", {**TINY_SIZES, "model.widths": [1], "model.sizes": None}),
        "sizes_both": Base("pretrained", TINY_SIZES),
    },
    folders={"folder": "digits", "detector": "digits-voc"},
    widths=(0.5, 1.0),
    latency=Latency("ds_mobilenet_v1_tiny", {(2,): "mobilenet_v1_tiny:0.5"}, table1=64, repeats=2),
)
MBNET, RESNET, IMAGENETTE = "cifar10_ds_mobilenet_v1_tiny", "cifar10_ds_resnet_tiny", "imagenette_ds_mobilenet_v1_small"
CLUTTERED = "cluttered_ds_mobilenet_v1_tiny"
LONGER: Keys = {"optim.epochs": 12}  # DS-ResNet has fewer seeds, each trained twice as long as its config says
AS_BEFORE = (
    "The learning rate is 0.05 and every sub-network's loss has the same weight, as before the sweep of recipes."
)
FASHION: Keys = {"data.dataset": "fashion_mnist", "data.image_size": 28, "optim.epochs": 1}
LITE0: Keys = {  # as `dsnet slim efficientnet_lite0` converts it, at 112 px and four widths
    "model.name": "efficientnet_lite0",
    "model.widths": [4],
    "model.image_size": 112,
    "data.mean": [127 / 255] * 3,
    "data.std": [128 / 255] * 3,
}
PHOTOGRAPHS: Keys = {**LITE0, "data.calibration": 0.16}
SIZED: Keys = {  # the same network with all its channels, at five image sizes; all layers learn
    **PHOTOGRAPHS,
    "model.widths": [1],
    "model.sizes": [48, 64, 80, 96, 112],
    "freeze": "none",
    "stage": "supernet",
}
ALONE: Keys = {**SIZED, "ieb.weight": 1.0, "optim.epochs": 11}  # a step costs 1 / 1.8 of one with sizes
SIZES: Mapping[str, Base] = {
    "sizes": Base("pretrained", SIZED),
    "sizes_both": Base("pretrained", {**SIZED, "model.widths": [2], "ieb.paths": 2}),
    "sizes_static": Base("pretrained", ALONE),
    "sizes_sweep": Base("pretrained", ALONE),
    "sizes_small": Base("pretrained", {**ALONE, "model.sizes": None}),
}
NARROWED: Keys = {**PHOTOGRAPHS, "optim.lr": 1e-3, "stage": "supernet"}
SLIM: Mapping[str, Base] = {
    "slim": Base("pretrained", {**PHOTOGRAPHS, "optim.lr": 1e-3}),
    "slim_narrow": Base("pretrained", {**NARROWED, "optim.epochs": 12}),
    "slim_source": Base("pretrained", {**NARROWED, "optim.epochs": 2}),
    "slim_target": Base("pretrained", {**NARROWED, "optim.epochs": 4}),
}
SLIM_FOLDERS = {**dict.fromkeys((*SLIM, *SIZES), "caltech101"), "slim_source": "imagenette"}
CPU = Scale(
    name="cpu",
    about="Scale cpu: small networks, short trainings.",
    trained="On CIFAR-10: networks 14 epochs (DS-ResNet 12, EfficientNets 6), routers 16 over stored features "
    "(gates that decide one by one 2, through the network).",
    one_by_one={"sgs_optim.epochs": 2},
    seeds=(0, 1, 2),
    few={
        **dict.fromkeys(
            ("resnet", "resnet_target", "static_resnet", "static_resnet_target", "effnet", "static_effnet", "detector"),
            2,
        ),
        "slim": 2,
        **dict.fromkeys(
            ("slim_narrow", *SLIM_TRANSFER, "sizes_both", "sizes_sweep", "sizes_small", *tiny("", "", [])), 1
        ),
    },
    bases={
        "mbnet": Base(MBNET),
        "small": Base(CLUTTERED),
        "static_small": Base(CLUTTERED, {"model.name": "mobilenet_v1_tiny"}),
        "us": Base(MBNET, {"model.name": "us_mobilenet_v1_tiny"}),
        "static": Base(MBNET, {"model.name": "mobilenet_v1_tiny"}),
        "resnet": Base(RESNET, LONGER),
        "static_resnet": Base(RESNET, {"model.name": "resnet_tiny", **LONGER}),
        "effnet": Base(MBNET, {"model.name": "ds_efficientnet_tiny", "optim.epochs": 6}),
        "static_effnet": Base(MBNET, {"model.name": "efficientnet_tiny", "optim.epochs": 6}),
        "mbnet_target": Base("transfer_small", {"model.name": "ds_mobilenet_v1_tiny", **FASHION}),
        "static_mbnet_target": Base("transfer_small", {"model.name": "mobilenet_v1_tiny", **FASHION}),
        "resnet_target": Base("transfer_small", {"model.name": "ds_resnet_tiny", **FASHION}),
        "static_resnet_target": Base("transfer_small", {"model.name": "resnet_tiny", **FASHION}),
        "backbone": Base(IMAGENETTE),
        "static_backbone": Base(IMAGENETTE, {"model.name": "mobilenet_v1", "model.width": 0.5}),
        "detector": Base("detection/bccd_small"),
        **tiny(MBNET, "mobilenet_v1_tiny", [16, 24, 32], **{"optim.epochs": 7}),
        **SLIM,
        **SIZES,
    },
    folders={"cifar10": "", "folder": "imagenette", "detector": "BCCD", **SLIM_FOLDERS},
    widths=(0.5, 0.75, 1.0),
    notes={
        "ieb": f"On CIFAR-10: 8 epochs. {AS_BEFORE}",
        "temperature": f"On CIFAR-10: 14 epochs. {AS_BEFORE}",
        "alternatives": "On cluttered digits at 32 px, which need no download: every network 800 steps of 64 images "
        "with AdamW, the router 300.",
        "transfer": "From CIFAR-10 to Fashion-MNIST at 28 px, one epoch of each stage; the paper's figures are of "
        "ImageNet to CIFAR-10. Learning rate 0.05, from scratch 0.1.",
        "sizes": "Caltech-101 (100 classes, 4,150 training, 790 calibration and 3,302 test images) at 112 px. The "
        "network has ImageNet weights and learns 6 epochs, in every step at 112 px, one size in between and 48 px. "
        "Static networks learn 11 epochs, which take as long. All layers learn.",
        "slim": "Caltech-101 (100 classes, 4,150 training, 790 calibration and 3,302 test images) at 112 px. The "
        "network has ImageNet weights and the widths 0.35/0.5, 0.5/0.75, 0.75/0.75 and 1 of its hidden and residual "
        "channels; residual channels are principal components, and every width has its own scale and shift. All widths "
        "learn 6 epochs, behind a frozen front. The static networks are those of `sizes`: they learn 11 epochs, which "
        "take as long, in all layers.",
        "slim_transfer": "From Imagenette (2 epochs) to Caltech-101 (4 epochs) at 112 px, one seed.",
        "tiny_sizes": "On CIFAR-10 at 32 px, with sizes also at 24 and 16 px: 7 epochs, one seed.",
        "detection": "Blood cells (BCCD, 205 training images, 3 classes) at 160 px, 50 epochs; backbones trained on "
        "Imagenette; the static backbone is MobileNetV1 x0.5. The paper's figures are of VOC 2007 at 300 px.",
        "latency": "The paper's own networks, untrained, at 224 px.",
    },
    latency=Latency(
        "ds_mobilenet_v1",
        {(1,): "mobilenet_v1:0.5", (7,): "mobilenet_v1:0.75", (13,): "mobilenet_v1"},  # the paper's S, M, L
        table1=224,
        repeats=30,
    ),
)
IMAGENET, CIFAR = "imagenet_ds_mobilenet_v1", "transfer_cifar10_ds_resnet50"
PAPER = Scale(
    name="paper",
    about="Scale paper: ImageNet, VOC and CIFAR-10 with the paper's recipes.",
    seeds=(0,),
    bases={
        "mbnet": Base(IMAGENET),
        "small": Base(IMAGENET),
        "static_small": Base(IMAGENET, {"model.name": "mobilenet_v1"}),
        "us": Base(IMAGENET, {"model.name": "us_mobilenet_v1"}),
        "static": Base(IMAGENET, {"model.name": "mobilenet_v1"}),
        "resnet": Base("imagenet_ds_resnet50"),
        "static_resnet": Base("imagenet_ds_resnet50", {"model.name": "resnet50"}),
        "effnet": Base("imagenet_ds_efficientnet_b0"),
        "static_effnet": Base("imagenet_ds_efficientnet_b0", {"model.name": "efficientnet_b0"}),
        "mbnet_target": Base(CIFAR, {"model.name": "ds_mobilenet_v1"}),
        "static_mbnet_target": Base(CIFAR, {"model.name": "mobilenet_v1"}),
        "resnet_target": Base(CIFAR),
        "static_resnet_target": Base(CIFAR, {"model.name": "resnet50"}),
        "backbone": Base(IMAGENET, {"stage": "supernet"}),
        "static_backbone": Base(IMAGENET, {"model.name": "mobilenet_v1", "stage": "supernet"}),
        "detector": Base("detection/voc_ds_mobilenet_v1"),
        **tiny(IMAGENET, "mobilenet_v1", [128, 160, 192, 224]),
        **SLIM,
        **SIZES,
    },
    folders={"cifar10": "", "folder": "imagenet", "detector": "VOCdevkit", **SLIM_FOLDERS},
    widths=(0.5, 0.75, 1.0),
    window=4,  # as many as the released network's gate has outputs
    latency=CPU.latency,
)
SCALES = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}
