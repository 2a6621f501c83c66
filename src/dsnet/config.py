"""What the config of any task tells the training pipeline. The configs themselves lie beside their tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict
from typing import Any, ClassVar

from dsnet.data.dataset import Reading
from dsnet.errors import must
from dsnet.schema import Typed
from dsnet.training import OptimConfig

CONFIG = "config.yaml"


class RunConfig(Typed, ABC):
    """The keys that every task's config has. It is saved as config.yaml in the run's folder.

    BASIC: keys that the short help shows. CARRIED: keys that fine-tuning takes from the run that it starts from.
    """

    BASIC: ClassVar[tuple[str, ...]] = ()
    CARRIED: ClassVar[tuple[str, ...]] = ()

    task: str
    stage: str
    source: str | None
    data: Reading
    optim: OptimConfig
    seed: int
    threads: int
    save_steps: int | None

    def __post_init__(self) -> None:
        must("seed", self.seed, self.seed >= 0, "be at least 0")
        must("threads", self.threads, self.threads >= 0, "be at least 0, which leaves torch's default")
        must("save_steps", self.save_steps, self.save_steps is None or self.save_steps >= 1, "be at least 1, or null")

    @property
    @abstractmethod
    def run_name(self) -> str:
        """What the folder of this run is called unless it is named."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]
