"""The tasks: what a network is trained for.

A task is one object that opens its data, builds its network, gives the stages of its training as plans, and scores its
answers. Training, resuming and evaluation never ask which task they have. A new task is a file or a folder here, with
an object named `task`, and a line in `TASKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Generic, Literal, Protocol, TypeVar

from torch import nn

from dsnet.data.dataset import Data
from dsnet.training import OptimConfig, Stage

TASKS = {"classification": "dsnet.tasks.classification", "detection": "dsnet.tasks.detection.task"}

GATE = "gate"  # below a run's folder: training state and metrics of stage II
STATE = "state/last.pt"  # below the folder of a stage: where its training stands

N = TypeVar("N", bound=nn.Module)
Note = Callable[[Sequence[str]], None]  # is told of damaged files


@dataclass(frozen=True)
class Plan(Generic[N]):
    """One stage of a training, as data.

    name: folder of its state and metrics below the run's; empty for the run's folder itself.
    key: of its optimisation in the config. momentum: of the moving average.
    keep: the best moving average by `validate`, or the last one.
    goes_on: trains the network that lies in the run's folder, rather than the one that the run begins with.
    check: refuses what the run begins with, before anything is written.
    prepare: the network of the folder as this stage trains it; seeds, and adds a fresh router.
    stage: what a step learns; None where there is nothing to learn, such as a threshold, or gates that are kept.
    finish: what the trained network still needs before it is saved, such as statistics or budgets.
    """

    name: str
    key: str
    optim: OptimConfig
    momentum: float
    keep: Literal["best", "last"]
    goes_on: bool
    check: Callable[[N], None]
    prepare: Callable[[N], N]
    stage: Callable[[N], Stage[N]] | None
    validate: Callable[[N, Note], dict[str, float]]
    finish: Callable[[N], N]


class Task(Protocol):
    """What the pipeline asks of a task. The config and the network are the task's own."""

    name: str

    def read_config(self, file: Path) -> Any: ...

    def open_data(self, config: Any, root: str | None = None) -> Data: ...

    def begin(self, config: Any, data: Data, *, again: Path | None) -> Any:
        """The network that a run begins with: seeded and fresh, from a source, or out of the folder `again`."""

    def sources(self, config: Any, net: Any) -> Mapping[str, Any]:
        """Networks that the run's folder keeps, so that the run goes on without their sources; "" is the folder."""

    def plans(self, config: Any, data: Data, folder: Path) -> Sequence[Plan[Any]]: ...

    def load(self, folder: Path) -> Any: ...

    def save(self, net: Any, folder: Path) -> Path: ...

    def evaluate(self, net: Any, data: Data, config: Any) -> Any:
        """The evaluation on the test split, in this process alone."""

    def record(self, folder: Path, name: str, result: Any, data: Data, *, draw: bool) -> None:
        """Write a result below a run's folder. draw: its figures as well."""


def named(name: str) -> Task:
    if name not in TASKS:
        raise ValueError(f"task {name!r} is unknown; choose {' or '.join(TASKS)}")
    task: Task = import_module(TASKS[name]).task
    return task
