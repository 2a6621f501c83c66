"""The tasks that a network can be trained for.

A task is an object that opens its data, builds its network, gives the stages of its training as plans, and scores its
outputs. Training, resuming and evaluation are the same code for all tasks. A new task is a folder here with an object
named `task`, and an entry in `TASKS`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, overload

import torch
from torch import nn

from dsnet.card import Card, Preprocessing
from dsnet.checkpoint import (
    MODEL,
    WEIGHTS,
    card_in,
    check_tensors,
    completed,
    read_description,
    read_model,
    task_in,
    with_standard,
    write_model,
)
from dsnet.config import RunConfig, read_run, read_yaml, resolve
from dsnet.data.batches import Batches, PlainImages, TrainBatches
from dsnet.data.dataset import Data
from dsnet.data.own import Datasets
from dsnet.errors import CheckpointError
from dsnet.manifest import Manifest
from dsnet.models import Supernet, eager
from dsnet.models.devices import find_device
from dsnet.nn import ThresholdHead
from dsnet.results import Metric
from dsnet.routing.budgets import policy_for
from dsnet.routing.calibration import calibrate, fit_threshold
from dsnet.routing.scorer import Scorer
from dsnet.routing.traces import Traces
from dsnet.runtime.runner import Runner
from dsnet.schema import parse, plain, shortened
from dsnet.space import WidthPath
from dsnet.training import OptimConfig, Stage, distributed

TASKS = {"classification": "dsnet.tasks.classification.task", "detection": "dsnet.tasks.detection.task"}

GATE = "gate"  # folder in a run's folder, with the training state and metrics of stage II
STATE = "state/last.pt"  # training state, in the folder of a stage
KEPT = 2**30  # bytes of pixels that a process keeps where images may be run again

N = TypeVar("N", bound=nn.Module)
Note = Callable[[Sequence[str]], None]  # called with the names of damaged files


@dataclass(frozen=True)
class Plan(Generic[N]):
    """One stage of a training, as data.

    name: Folder of its state and metrics in the run's folder. Empty for stage I, which uses the run's folder itself.
    key: Name of its optimiser's config.
    momentum: Momentum of the moving average.
    stage: Builds the losses of a step. None if nothing is trained, as for a threshold or for gates that are kept.
    validate: Scores the moving average after an epoch, and notes damaged files.
    watch: Further figures of the moving average after an epoch, for the log.
    cache: Replaces batches of images by what a frozen network makes of them, and measures there what the stage needs.
    caches: Whether `cache` does so for a network.
    check: Refuses a network that this stage cannot train, before anything is written.
    split: Split of the data that it trains on.
    prepare: Prepares the network for this stage. It sets the seed and may add a fresh router.
    finish: Completes the trained network before it is saved, for example its statistics or budgets. All processes
        share this work.
    """

    name: str
    key: str
    optim: OptimConfig
    momentum: float
    stage: Callable[[N], Stage[N]] | None
    validate: Callable[[N, Note], dict[str, float]]
    watch: Callable[[N], dict[str, float]] = lambda net: {}
    cache: Callable[[Stage[N], TrainBatches], Batches] = lambda stage, batches: batches
    caches: Callable[[N], bool] = lambda net: False
    check: Callable[[N], None] = lambda net: None
    split: Literal["train", "calibration"] = "train"
    prepare: Callable[[N], N] = lambda net: net
    finish: Callable[[N], N] = lambda net: net

    @property
    def goes_on(self) -> bool:
        """Whether this stage trains the network saved in the run's folder, not the one that the run begins with."""
        return bool(self.name)

    @property
    def keep(self) -> Literal["best", "last"]:
        """Stage I keeps the best moving average by `validate`, stage II the last one."""
        return "last" if self.name else "best"


class Task(Protocol):
    """The interface of a task. Every task has its own types of config and network."""

    name: str

    @property
    def config(self) -> type[RunConfig]: ...

    @property
    def network(self) -> type[nn.Module]: ...

    metric: Metric
    batch: int  # number of images that are evaluated together
    fit: str  # how images are resized, for cards of older versions that do not say

    def spec(self, written: object) -> type[Any]:
        """The type of the spec that a description holds."""

    def open_data(self, config: Any, root: str | None = None, own: Datasets | None = None) -> Data:
        """The data of a run. root: where it lies now. own: the datasets of a run on data from Python."""

    def begin(self, config: Any, data: Data, *, again: Path | None) -> Any:
        """The network that a run begins with: fresh, from a source, or from the folder `again` of a resumed run."""

    def sources(self, config: Any, net: Any) -> Mapping[str, Any]:
        """Networks to save in the run's folder, so that the run can be resumed without its sources.

        Keys are folders in the run's folder; "" is the run's folder itself.
        """

    def plans(self, config: Any, data: Data, folder: Path, *, resume: bool) -> Sequence[Plan[Any]]:
        """The stages of a run. A folder that is not resumed may still hold another run, which is overwritten later."""

    def scorer(self, manifest: Manifest, options: Mapping[str, Any]) -> Scorer:
        """The scorer of the network's outputs, with the options of its metric."""

    def options(self, config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the metric: those given, and the run's for the others. Unknown options are an error."""

    def about(self, config: Any, manifest: Manifest) -> tuple[str, dict[str, Any]]:
        """The name of the data, and a summary of the training."""


def card_of(data: Data) -> Card:
    """The card of a network that is trained on this data."""
    return Card(data.classes, Preprocessing(data.mean, data.std, data.crop, data.interpolation, data.fit))


def images_of(task: Task, data: Data, split: str, config: Any, **options: Any) -> PlainImages:
    """The images of a split for evaluation, without augmentation."""
    options |= {"workers": config.data.workers, "max_skipped": config.data.max_skipped}
    return PlainImages(data.split(split), task.batch, name=split, **options)


def traces_of(
    task: Task,
    runner: Runner,
    data: Data,
    split: str,
    config: Any,
    *,
    paths: Sequence[WidthPath] = (),
    options: Mapping[str, Any] | None = None,
    routed: bool = True,
) -> tuple[Traces, tuple[str, ...]]:
    """The traces of a split, and its damaged files. All processes share the images, so every process must call this.

    options: Those of the task's metric. routed: see `Traces`.
    """
    team, router = distributed.Team(), runner.manifest.router if runner.manifest.routes else None
    several = routed and router is not None and not router.spec.single  # images may be run again
    shared = {"rank": team.rank, "world": team.world, "keep": KEPT if several else 0}
    images = images_of(task, data, split, config, device=runner.device, **shared)
    scorer = task.scorer(runner.manifest, task.options(config, {}) if options is None else options)
    traces = Traces(runner, images.batches(), scorer, paths=paths, load=images.load, routed=routed, team=team)
    return traces, images.check(team.gathered(images.found))


def calibrated(task: Task, net: Any, data: Data, config: Any) -> Any:
    """The network in eval mode, with budgets in its card whose lambdas are calibrated on the calibration split, whose
    images all processes share."""
    return calibrated_score(task, net, data, config).net


class Calibrated(NamedTuple):
    """A network with calibrated budgets, and its mean score on the calibration images over the task's budgets."""

    net: Any
    score: float


def calibrated_score(task: Task, net: Any, data: Data, config: Any) -> Calibrated:
    net = net.to(memory_format=torch.contiguous_format).eval()
    net.card = replace(net.card, budgets=())
    runner = eager(net)
    traces, _ = traces_of(task, runner, data, "calibration", config)
    if isinstance(getattr(net, "probe", None), ThresholdHead):
        fit_threshold(traces, threshold_width(net, traces))
    net.card = replace(net.card, budgets=calibrate(traces))
    policies = [policy_for(runner.manifest, madds) for madds in traces.scorer.budgets(traces).values()]
    return Calibrated(net, fmean(traces.score(traces.at(policy)) for policy in policies))


def ends(net: Any) -> dict[str, WidthPath]:
    """The paths that are validated in stage I: slimmest and widest. A static network has the widest only."""
    space = net.space
    return {"slimmest": space.slimmest, "widest": space.widest} if space.size > 1 else {"widest": space.widest}


def check_source(net: Any, folder: str, data: Data) -> None:
    """Refuse a network for stage II that was trained on other classes or at another image size."""
    if net.card.classes != data.classes:
        raise ValueError(
            f"the network in {folder} knows the classes {list(net.card.classes)[:5]} but the data has "
            f"{list(data.classes)[:5]}; train its router on the same classes"
        )
    if net.spec.image_size != data.image_size:
        raise ValueError(
            f"the network in {folder} takes {net.spec.image_size}-pixel images but the data has {data.image_size}; "
            f"set data.image_size {net.spec.image_size}"
        )


def threshold_width(net: Any, traces: Traces) -> Callable[[int], None]:
    """A function that sets the candidate a threshold router escalates to, in the network and in its traces."""

    def escalate(position: int) -> None:
        net.probe.width.fill_(position)
        traces.scores[()][:, 1:] = ThresholdHead.NEVER
        traces.scores[()][:, position] = 1.0

    return escalate


def named(name: str) -> Task:
    if not isinstance(name, str) or name not in TASKS:
        raise ValueError(f"task {shortened(name)} is unknown; choose {' or '.join(TASKS)}")
    task: Task = import_module(TASKS[name]).task
    return task


def config_from(keys: Mapping[str, Any]) -> Any:
    """The config with these keys, as if read from a file. The default task is classification."""
    return resolve(named(keys.get("task", "classification")).config, keys)


def read_config(file: Path) -> Any:
    """The config of a run folder."""
    try:
        task = read_yaml(file).get("task", "classification")
    except (OSError, ValueError):
        task = "classification"  # `read_run` reports what is wrong with the file
    return read_run(named(task).config, file)


def save(net: nn.Module, folder: str | os.PathLike[str]) -> Path:
    """Write a network of any task with its spec and card. A crash at any moment leaves the old model or the new one.

    One process at a time may write to a folder.
    """
    net = getattr(net, "_orig_mod", net)  # unwrap torch.compile
    spec: Any = getattr(net, "spec", None)
    if spec is None or not isinstance(net, named(getattr(spec, "task", "classification")).network):
        raise ValueError(
            f"only a Supernet or another task's network can be saved, not a {type(net).__name__}; use torch.save for "
            f"extracted networks"
        )
    card: Any = net.card
    return write_model(folder, net.state_dict(), spec, card)


@overload
def load(
    folder: str | os.PathLike[str], task: Literal["classification"], *, device: torch.device | str = "cpu"
) -> Supernet: ...


@overload
def load(folder: str | os.PathLike[str], task: str | None = None, *, device: torch.device | str = "cpu") -> Any: ...


def load(folder: str | os.PathLike[str], task: str | None = None, *, device: torch.device | str = "cpu") -> Any:
    """Load a saved network in eval mode. Its weights are equal bit for bit.

    task: If given, networks of other tasks are refused. device: Where it is loaded: auto, cpu, cuda, cuda:N or mps.
    """
    device = find_device(device)
    folder = Path(folder)
    content, tensors = read_model(folder)
    empty = described(folder, content, task)
    expected = empty.state_dict()
    tensors = with_standard(tensors, expected)
    check_tensors(folder / WEIGHTS, tensors, expected)
    with torch.random.fork_rng(devices=[]):  # building draws initial weights; loading must not move the generator
        net = empty.spec.build()
    net.card = empty.card
    net.load_state_dict(tensors, assign=True)
    return net.to(device).eval()


def blank(folder: str | os.PathLike[str], task: str | None = None) -> Any:
    """The network in a folder without its weights, for its spec, card and cost."""
    return described(Path(folder), read_description(folder), task).eval()


def described(folder: Path, content: Mapping[str, Any], task: str | None) -> Any:
    """The network of a description, on the meta device, so that a spec with huge sizes allocates nothing."""
    name = task_in(content)
    if task not in (None, name):
        raise CheckpointError(f"{folder} holds a network for {name}, not for {task}")
    if name not in TASKS:
        raise CheckpointError(f"{folder} holds a network for {name}, which dsnet does not know; update dsnet")
    owner = named(name)
    written = completed(content.get("spec"))
    spec = parse(owner.spec(written), written, str(folder / MODEL), error=CheckpointError, strict=True)
    if plain(spec) != written:
        raise CheckpointError(f"{folder / MODEL} leaves out keys of the spec; restore it from a copy")
    try:
        with torch.device("meta"):
            net = spec.build()
    except (ValueError, TypeError, RuntimeError, IndexError) as error:
        raise CheckpointError(f"{folder / MODEL} describes a network that cannot be built ({error})") from error
    net.card = card_in(folder, content, fit=owner.fit)
    return net
