"""The configuration of `dsnet train --task detection`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

from dsnet.config import RunConfig
from dsnet.data.voc import DetectionDataConfig
from dsnet.tasks.detection.spec import TAPS, check_channels
from dsnet.tasks.detection.stages import GatesConfig, WidthsConfig
from dsnet.training import OptimConfig


@dataclass(frozen=True)
class DetectionConfig(RunConfig):
    """A whole detection run. Saved as config.yaml in its folder.

    Args:
        task: Always detection.
        stage: Stages to train: detector (I), gate (II, the gate of the run that --from names), or both.
        source: Run whose detector gets a gate; set by --from.
        backbone: Classification run that the detector is built on.
        taps: Names of the backbone's maps that are fused, the largest first.
        projection: Number of channels of each projected map, the same for all widths.
        pyramid: Number of channels of the maps that the heads read.
        routing: Width indices that the gate may choose. By default all.
        data: Which images with objects to train on, and how they are split and read.
        widths: How the widths of the detector are trained together in stage I.
        optim: How weights are updated in stage I.
        gates: How the gate learns to route in stage II.
        gates_optim: How the gate's weights are updated in stage II.
        rule: How average precision is computed. VOC 2007 uses 11point.
        seed: Seed of weights, data order and paths.
        threads: Threads of torch. 0 is its own default.
        timeout: Minutes that the processes of a torchrun job wait for one that does not answer, until the run ends with
            an error. Others wait while the first checks the files of the data and finishes a stage.
        save_steps: Number of steps between checkpoints inside an epoch. By default only the end of an epoch is saved.
    """

    BASIC: ClassVar[tuple[str, ...]] = (
        "backbone",
        "data.root",
        "data.train",
        "data.test",
        "data.image_size",
        "stage",
        "optim.epochs",
        "optim.batch_size",
        "optim.lr",
        "gates.router",
        "seed",
    )

    task: Literal["detection"] = "detection"
    stage: Literal["both", "detector", "gate"] = "both"
    source: str | None = None
    backbone: str | None = None
    taps: list[str] = field(default_factory=lambda: list(TAPS))
    projection: int = 128
    pyramid: int = 256
    routing: list[int] | None = None
    data: DetectionDataConfig = field(default_factory=DetectionDataConfig)
    widths: WidthsConfig = field(default_factory=WidthsConfig)
    optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(epochs=60, batch_size=16, lr=0.01, weight_decay=5e-4, clip_norm=10.0)
    )
    gates: GatesConfig = field(default_factory=GatesConfig)
    gates_optim: OptimConfig = field(
        default_factory=lambda: OptimConfig(
            epochs=5, batch_size=16, lr=0.05, schedule="exponential", warmup_epochs=0.0, weight_decay=0.0
        )
    )
    rule: Literal["area", "11point"] = "area"
    seed: int = 0
    threads: int = 0
    timeout: float = 30.0
    save_steps: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in ("both", "detector", "gate"):
            raise ValueError(f"stage {self.stage!r} is unknown; choose both, detector or gate")
        if self.source is not None and self.stage != "gate":
            raise ValueError("--from RUN needs --stage gate; a new detector starts from --backbone RUN")
        super().__post_init__()
        check_channels(projection=self.projection, pyramid=self.pyramid)

    @property
    def run_name(self) -> str:
        backbone, data = Path(self.source or self.backbone or "none").name, self.data.name
        return f"fssd-{backbone}-{data}-seed{self.seed}" + ("-gate" if self.stage == "gate" else "")
