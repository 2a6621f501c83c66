"""The configuration of `dsnet train`, composed of the configs of model, data and training."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from dsnet.config import RunConfig
from dsnet.data.config import DataConfig
from dsnet.errors import must
from dsnet.models import Network, Outline, model_spec
from dsnet.models.graph import GATE
from dsnet.models.spec import customise
from dsnet.schema import Typed
from dsnet.training import IEBConfig, OptimConfig, SGSConfig
from dsnet.training.sgs_config import BEFORE

N = TypeVar("N", bound=Network)


@dataclass(frozen=True)
class ModelConfig(Typed):
    """Which network to train.

    Args:
        name: Name of the model, from `dsnet models`.
        width: Multiplier of all channels, for static models.
        routing: Width indices that the gates may choose, one list for all gates or one for each. By default all.
        slimming: Design of the slimming heads.
        shared: Let the slimming heads read the first layer of the attention head.
        widths: Number of widths of a network that `dsnet slim` made; set by --from.
        image_size: Image size of such a network; set by --from.
        sizes: Image sizes that the network learns to run at, smallest first, such as [64, 96, 128]. The largest is
            that of the images. By default one size.
    """

    name: str = "ds_mobilenet_v1_tiny"
    width: float | None = None
    routing: list[int] | list[list[int]] | None = None
    slimming: Literal["one_hot", "scalar"] | None = None
    shared: bool | None = None
    widths: list[int] | None = None
    image_size: int | None = None
    sizes: list[int] | None = None

    def __post_init__(self) -> None:
        self.spec()

    def spec(self, *, num_classes: int = 10, in_channels: int = 3, image_size: int | None = None) -> Network:
        """The network with fresh weights; of a converted one, all but its layers."""
        if self.widths is not None and self.image_size is not None:
            outline = Outline(self.name, tuple(self.widths), self.image_size, GATE)
            known: dict[str, Any] = {
                "routing": self.routing,
                "slimming": self.slimming,
                "shared": self.shared,
                "sizes": self.sizes,
            }
            return customise(outline, **known)
        return model_spec(
            self.name,
            width=self.width,
            routing=self.routing,
            slimming=self.slimming,
            shared=self.shared,
            num_classes=num_classes,
            in_channels=in_channels,
            image_size=image_size,
            sizes=self.sizes,
        )


@dataclass(frozen=True)
class ClassificationConfig(RunConfig):
    """A whole run. Saved as config.yaml in its folder.

    Args:
        task: Always classification.
        stage: Stages to train: supernet (I), gate (II, the router of the run that --from names), or both.
        source: Run that this one starts from; set by --from.
        gate_from: Run whose router stage II starts from (gate transfer). By default the router starts afresh.
        distill: Run whose widest sub-network this network learns from, besides the labels. It was trained on the same
            data.
        model: Which network to train.
        data: Which images to train on, and how they are split and read.
        ieb: How the sub-networks teach each other in stage I.
        optim: How weights are updated in stage I.
        sgs: How the network learns to route in stage II.
        sgs_optim: How the router's weights are updated in stage II.
        seed: Seed of weights, data order and paths.
        threads: Threads of torch. 0 is its own default.
        timeout: Minutes that the processes of a torchrun job wait for one that does not answer, until the run ends with
            an error. Others wait while the first checks the files of the data and finishes a stage.
        save_steps: Number of steps between checkpoints inside an epoch. By default only the end of an epoch is saved.
        freeze: Weights that stage I leaves as they are: none, or those of the shared front with their statistics. A
            frozen front makes steps shorter, and suits few images and pretrained weights.
        recalibration: Number of training images from which batch-norm statistics are recomputed at the end.
    """

    RECIPE: ClassVar[str | None] = "folder"
    PRETRAINED: ClassVar[str | None] = "pretrained"
    BASIC: ClassVar[tuple[str, ...]] = (
        "data.dataset",
        "data.root",
        "data.labels",
        "data.image_size",
        "model.name",
        "optim.epochs",
        "optim.batch_size",
        "optim.lr",
        "sgs.router",
        "seed",
    )
    CARRIED: ClassVar[tuple[str, ...]] = ("model", "ieb", "sgs")

    task: Literal["classification"] = "classification"
    stage: Literal["both", "supernet", "gate"] = "both"
    source: str | None = None
    gate_from: str | None = None
    distill: str | None = None
    model: ModelConfig = field(default_factory=ModelConfig)
    data: DataConfig = field(default_factory=DataConfig)
    ieb: IEBConfig = field(default_factory=IEBConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    sgs: SGSConfig = field(default_factory=SGSConfig)
    sgs_optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(epochs=16, lr=0.1, schedule="cosine", warmup_epochs=0.0, weight_decay=5e-4)
    )
    seed: int = 0
    threads: int = 0
    timeout: float = 30.0
    save_steps: int | None = None
    freeze: Literal["none", "front"] = "none"
    recalibration: int = 4096

    def __post_init__(self) -> None:
        super().__post_init__()
        must("recalibration", self.recalibration, self.recalibration >= 1, "be at least 1, a number of images")
        if self.stage not in ("both", "supernet", "gate"):
            raise ValueError(f"stage {self.stage!r} is unknown; choose both, supernet or gate")
        if self.stage == "gate" and self.distill is not None:
            raise ValueError("--distill is for stage I, which trains weights; stage gate trains only a router")
        if self.freeze == "front" and self.model.sizes:
            raise ValueError(
                f"freeze front keeps the statistics of the front, but it needs others at each of the image sizes "
                f"{self.model.sizes}; set freeze none, or leave model.sizes out"
            )
        if self.stage != "gate":
            self._check_teacher()
        if self.model.sizes and self.sgs.router == "auto":
            object.__setattr__(self, "sgs", replace(self.sgs, router="margin"))
        if self.model.sizes and self.routes:
            self._check_sized_router()
        if self.routes:
            self.routed(self.model.spec())

    def _check_sized_router(self) -> None:
        sgs, sizes = self.sgs, self.model.sizes
        if sgs.router not in ("margin", "threshold", "exit_first"):
            raise ValueError(
                f"router {sgs.router} chooses widths at one image size, but model.sizes are {sizes}; use sgs.router "
                f"margin, threshold or exit_first, which look at a small image first, or leave the sizes out"
            )
        if sgs.router == "exit_first" and not sgs.margin:
            raise ValueError(
                f"sgs.hidden {sgs.hidden} and sgs.targets {sgs.targets} train a head, but with model.sizes {sizes} it "
                f"is fitted to the calibration images; leave both out"
            )
        if self.gate_from is not None:
            raise ValueError(
                f"gate_from is {self.gate_from}, but a router of several image sizes is fitted to its own network; "
                f"leave gate_from out, or leave the sizes out"
            )

    def _check_teacher(self) -> None:
        teacher, only = self.ieb.teacher, self.ieb.only
        if self.data.kind == "images" and (teacher != "original" or only is not None or self.stage != "supernet"):
            raise ValueError(
                "data.dataset images has no labels; add --config distil, or --ieb.teacher original --stage supernet"
            )
        if only is not None and self.stage != "supernet":
            raise ValueError(f"ieb.only {only} trains one width, so there is nothing to route; add --stage supernet")

    @classmethod
    def completed(cls, keys: dict[str, Any]) -> dict[str, Any]:
        sgs = keys.get("sgs")
        written = isinstance(sgs, dict) and "momentum" in sgs and "cache" not in sgs  # in full, by an older version
        return {**keys, "sgs": {**BEFORE, **sgs}} if written and keys.get("stage") != "supernet" else keys  # type: ignore[dict-item]

    @property
    def routes(self) -> bool:
        """Whether this run trains a router. A static network has no widths to choose from."""
        return self.stage == "gate" or (self.stage == "both" and self.model.spec().space.size > 1)

    def routed(self, spec: N) -> N:
        """A supernet's spec with this run's router, routing space and gate design."""
        model, plain = self.model, spec.without_router()
        customised = customise(plain, routing=model.routing, slimming=model.slimming, shared=model.shared)
        gate = customised.gate and replace(customised.gate, standardised=self.sgs.standardised)
        return replace(customised, router=self.sgs.spec, gate=gate)  # type: ignore[type-var]

    @property
    def run_name(self) -> str:
        name = f"{self.model.name}-{self.data.name}-seed{self.seed}"
        if self.stage == "gate":
            return f"{name}-{self.sgs.router}-{self.sgs.spec.targets}"
        return name if self.source is None else f"{name}-from-{Path(self.source).name}"
