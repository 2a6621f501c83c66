"""What `dsnet train --task detection` can be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from jsonargparse import ActionConfigFile, ArgumentParser, Namespace

from dsnet.data.voc import DetectionDataConfig
from dsnet.errors import must
from dsnet.layers import read_run, resolve
from dsnet.schema import Typed
from dsnet.tasks.detection.spec import GROUP, TAPS
from dsnet.tasks.detection.stages import GatesConfig, WidthsConfig
from dsnet.training import OptimConfig


@dataclass(frozen=True)
class DetectionConfig(Typed):
    """A whole detection run. Saved as config.yaml in its folder.

    Args:
        task: detection.
        stage: both, detector (stage I: every width becomes good), or gate (stage II: the detector learns to choose its
            width; needs --from).
        source: the run whose detector stage gate starts from; set by --from.
        backbone: the classification run that the detector is built on.
        taps: maps of the backbone that are fused, the largest first.
        projection: channels of each projected map, the same for all widths.
        pyramid: channels of the maps that the heads read.
        routing: width indices that the gate may choose; by default all of them.
        data: which images.
        widths: how the widths learn together, stage I.
        optim: how weights are updated, stage I.
        gates: how the gate learns to route, stage II.
        gates_optim: how the gate's weights are updated, stage II.
        rule: of average precision; area, or 11point as VOC 2007 has it.
        seed: of weights, order, augmentation and paths.
        threads: of torch; 0 leaves its default.
        save_steps: steps between checkpoints inside an epoch; null saves after every epoch only.
    """

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
    save_steps: int | None = None

    def __post_init__(self) -> None:
        if self.stage not in ("both", "detector", "gate"):
            raise ValueError(f"stage {self.stage!r} is unknown; choose both, detector or gate")
        must("seed", self.seed, self.seed >= 0, "be at least 0")
        must("threads", self.threads, self.threads >= 0, "be at least 0, which leaves torch's default")
        must("save_steps", self.save_steps, self.save_steps is None or self.save_steps >= 1, "be at least 1, or null")
        for name in ("projection", "pyramid"):
            if getattr(self, name) < GROUP or getattr(self, name) % GROUP:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be a positive multiple of {GROUP}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def add_detection_config(parser: ArgumentParser) -> None:
    """A flag for every key, and --config for files of them."""
    parser.add_argument("--config", action=ActionConfigFile, help="YAML file of the keys below; flags override it")
    parser.add_class_arguments(DetectionConfig)


def detection_config_of(parser: ArgumentParser, args: Namespace) -> DetectionConfig:
    known = [f.name for f in fields(DetectionConfig)]
    made = parser.instantiate(Namespace(**{key: args[key] for key in known}))
    return DetectionConfig(**{key: made[key] for key in known})


def detection_config_from(keys: Mapping[str, Any]) -> DetectionConfig:
    """The config that a file of these keys would give."""
    return resolve(DetectionConfig, keys)


def read_detection_config(file: Path) -> DetectionConfig:
    """The config of a run folder."""
    return read_run(DetectionConfig, file)
