"""Image classification: a supernet learns all its widths (stage I), then to choose among them (stage II)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsnet.data.batches import TrainBatches, load_all, plain_batches
from dsnet.data.dataset import Batch, Data
from dsnet.data.labelled import open_dataset
from dsnet.data.own import Datasets
from dsnet.data.splits import SPLITS, check_data
from dsnet.manifest import Manifest
from dsnet.models import GraphSpec, ModelSpec, Network, Supernet
from dsnet.schema import plain
from dsnet.tasks import GATE, Note, Plan, calibrated_score, card_of, check_source, ends, load
from dsnet.tasks.classification.accuracy import METRIC, AccuracyScorer, accuracy
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.tasks.classification.looks import with_looks
from dsnet.tasks.classification.router import Watch, cached, caches, calibration_reads, check_cache, fit
from dsnet.tasks.classification.transfer import (
    GUIDE,
    ROUTER,
    START,
    check_gate_source,
    load_guide,
    load_original,
    load_source,
    transferred,
    with_router,
)
from dsnet.training import IEB, SGS, balanced, recalibrate, with_fresh_router
from dsnet.training.distributed import gathered, rank, world


class Classification:
    """The task of `dsnet train` unless another is named."""

    name = "classification"
    config = ClassificationConfig
    metric = METRIC
    batch = 256
    fit = "crop"
    network = Supernet

    def spec(self, written: object) -> type[Network]:
        return GraphSpec if isinstance(written, Mapping) and written.get("kind") == "graph" else ModelSpec

    def open_data(self, config: ClassificationConfig, root: str | None = None, own: Datasets | None = None) -> Data:
        """The data of a run, or the same data in the folder `root` if it was moved."""
        data = config.data if root is None else replace(config.data, root=root)
        return open_dataset(data, default_size=config.model.spec().image_size, own=own)

    def begin(self, config: ClassificationConfig, data: Data, *, again: Path | None) -> Supernet:
        """Fresh weights, or the source's: unchanged for stage gate, otherwise adapted to this run's data."""
        torch.manual_seed(config.seed)
        if config.source is None and config.stage != "gate":
            return new_network(config, data)
        if again is not None:
            net = load(again / START, "classification")
            return with_fresh_router(net, replace(net.spec, router=None)).train()
        return source_network(config, data) if config.stage == "gate" else carried_over(config, data)

    def sources(self, config: ClassificationConfig, net: Supernet) -> Mapping[str, Supernet]:
        networks = {} if config.source is None else {"" if config.stage == "gate" else START: net}
        if config.distill is not None:
            networks[GUIDE] = load(config.distill, "classification")
        return networks if config.gate_from is None else {**networks, ROUTER: load(config.gate_from, "classification")}

    def plans(
        self, config: ClassificationConfig, data: Data, folder: Path, *, resume: bool
    ) -> Sequence[Plan[Supernet]]:
        first = [] if config.stage == "gate" else [widths_plan(config, data, folder, resume=resume)]
        return [*first, router_plan(config, data, folder)] if config.routes else first

    def scorer(self, manifest: Manifest, options: Mapping[str, Any]) -> AccuracyScorer:
        return AccuracyScorer(manifest)

    def options(self, config: ClassificationConfig, given: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"--{name} is for detectors, which find boxes; this network classifies whole images")
        return {}

    def about(self, config: ClassificationConfig, manifest: Manifest) -> tuple[str, dict[str, Any]]:
        return config.data.name, training_of(config, manifest)


task = Classification()


def calibration_images(
    data: Data, config: ClassificationConfig, *, seed: int = 0, device: torch.device | None = None
) -> Iterator[Tensor]:
    """Training images for recalibration, augmented as in training, because the weights were trained with such batches.
    A process gets every world-th batch.

    Without augmentation, which adds dark borders there, accuracy on CIFAR-10 was 3 points lower.
    """
    size = min(task.batch, len(data.train))
    batches = TrainBatches(data.train, size, seed)
    number = max(1, min(config.recalibration // size, len(batches)))
    for batch in load_all(data.train, batches.jobs(0)[rank() : number : world()], config.data.workers, device):
        yield batch.images


def training_of(config: ClassificationConfig, manifest: Manifest) -> dict[str, Any]:
    """The summary of the training in a result."""
    training: dict[str, Any] = {
        "teacher": config.ieb.teacher,
        **config.optim.length,
        "batch_size": config.optim.batch_size,
        "lr": config.optim.lr,
        "ema_momentum": config.ieb.momentum,
        "temperature": config.ieb.temperature,
    }
    if config.source is not None and config.stage != "gate":
        training["source"] = Path(config.source).name
    if config.gate_from is not None:
        training["gate_from"] = Path(config.gate_from).name
    if config.distill is not None:
        training["distill"] = Path(config.distill).name
    fresh = ClassificationConfig()
    for name, value, default in (
        ("optimizer", config.optim.name, fresh.optim.name),
        ("patience", config.optim.patience, fresh.optim.patience),
        ("narrow_weight", config.ieb.weight, fresh.ieb.weight),
        ("mixup", config.ieb.mixup, fresh.ieb.mixup),
        ("class_weights", config.ieb.class_weights, fresh.ieb.class_weights),
    ):
        if value != default:
            training[name] = value
    if (router := manifest.router) is not None:
        gate = config.routed(config.model.spec()).gate
        training["router"] = {
            **{key: value for key, value in plain(router.spec).items() if value or key != "candidates"},
            "routing": [list(allowed) for allowed in router.routing.choices],
            "weights": list(config.sgs.weights),
            "gate": None if gate is None else [gate.slimming, gate.shared],
            **config.sgs_optim.length,
            "batch_size": config.sgs_optim.batch_size,
            "lr": config.sgs_optim.lr,
        }
    return training


def widths_plan(config: ClassificationConfig, data: Data, folder: Path, *, resume: bool) -> Plan[Supernet]:
    """The plan of stage I, which keeps the best moving average and recalibrates the statistics of every width."""

    if config.ieb.class_weights == "balanced" and not data.counts:
        raise ValueError(
            "ieb.class_weights is balanced, but an iterable dataset does not tell how many images a class has; set none"
        )

    again = folder if resume else None

    def stage(net: Supernet) -> IEB:
        weights = balanced(torch.tensor(data.counts)) if config.ieb.class_weights == "balanced" else None
        return IEB(
            net,
            config.ieb,
            class_weights=weights,
            guide=load_guide(config, data, again),
            original=load_original(config, data, again),
            labelled=bool(data.classes),
            frozen=config.freeze == "front",
        )

    def validate(average: Supernet, note: Note) -> dict[str, float]:
        paths = ends(average)
        if config.ieb.only is not None:
            paths = {f"width{config.ieb.only}": average.space.at(config.ieb.only)}
        batches = noted(data, config, note, average.device)
        if not data.classes:
            original = load(folder / START, "classification")
            batches = answered_by(original.to(average.device), batches)
        scores = accuracy(average, batches, list(paths.values()))
        return dict(zip(paths, scores, strict=True))

    def finish(net: Supernet) -> Supernet:
        net.card = replace(card_of(data), classes=data.classes or net.card.classes)
        recalibrate(net, calibration_images(data, config, device=net.device), frozen=config.freeze == "front")
        return net

    return Plan(
        name="",
        key="optim",
        optim=config.optim,
        momentum=config.ieb.momentum,
        stage=stage,
        validate=validate,
        finish=finish,
    )


def router_plan(config: ClassificationConfig, data: Data, folder: Path) -> Plan[Supernet]:
    """The plan of stage II, which keeps the last moving average of the router and calibrates budgets."""
    watch = Watch(data, config)

    def check(net: Supernet) -> None:
        check_gate_source(config, net.spec, data.classes)
        check_cache(net, data, config)

    return Plan(
        name=GATE,
        key="sgs_optim",
        optim=config.sgs_optim,
        momentum=config.sgs.momentum,
        stage=(lambda net: SGS(net, config.sgs)) if config.sgs.trains else None,
        validate=lambda average, note: watch.aucs(average),
        watch=watch.gates,
        cache=lambda stage, batches: cached(stage, batches, config),
        caches=lambda net: caches(net, config),
        split="calibration" if config.sgs.held_out else "train",
        check=check,
        prepare=lambda net: with_router(net, config, folder),
        finish=lambda net: finished(net, data, config),
    )


def finished(net: Supernet, data: Data, config: ClassificationConfig) -> Supernet:
    """The network with all that is fitted on the calibration images. Of the routers that auto compares, the one that is
    better over the task's budgets is kept."""
    net = net.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    if net.spec.sizes:
        net = with_looks(net, calibration_reads(net, data, config))
    else:
        fit(net, config.sgs, calibration_reads(net, data, config))
    trained = calibrated_score(task, net, data, config)
    if config.sgs.router != "auto":
        return trained.net
    slim = replace(config, sgs=replace(config.sgs, router="margin", early=None, hidden=None))
    other = with_fresh_router(net, slim.routed(net.spec)).eval()
    fit(other, slim.sgs, calibration_reads(other, data, config))
    fitted = calibrated_score(task, other, data, config)
    kept = max(trained, fitted, key=lambda found: found.score)
    name = kept.net.spec.router.kind
    if rank() == 0:
        print(
            f"router auto keeps {name}: over the budgets, exit_first scores {trained.score:.2%} on the calibration "
            f"images, and cheap_first {fitted.score:.2%}",
            flush=True,
        )
    return kept.net


def noted(data: Data, config: ClassificationConfig, note: Note, device: torch.device) -> Iterator[Batch]:
    """Batches of this process's calibration images. At their end `note` is called with the names of the damaged files
    that all processes came across."""
    shared: dict[str, Any] = {"workers": config.data.workers, "rank": rank(), "world": world(), "device": device}
    batches = plain_batches(data.calibration, task.batch, **shared)
    skipped: list[str] = []
    for batch in batches:
        skipped += batch.skipped
        yield batch
    note(gathered(skipped))


@torch.no_grad()
def answered_by(original: Supernet, batches: Iterator[Batch]) -> Iterator[Batch]:
    """Batches with the answers of a network as labels."""
    device = original.device
    for batch in batches:
        labels = original(batch.images.to(device), original.space.widest).argmax(1)
        yield replace(batch, labels=labels.cpu())


def new_network(config: ClassificationConfig, data: Data) -> Supernet:
    spec = config.model.spec(num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size)
    net = Supernet(spec)
    net.card = card_of(data)
    return net


def source_network(config: ClassificationConfig, data: Data) -> Supernet:
    """The trained supernet that stage II starts from. It must have been trained on the same data."""
    if config.source is None:
        raise ValueError("stage gate needs a trained supernet; say which with --from RUN")
    folder = Path(config.source)
    net = load_source(config)
    if (folder / SPLITS).exists():
        check_data(folder, data)
    check_source(net, config.source, data)
    config.routed(net.spec)  # raises an error if the routing space does not fit
    return net


def carried_over(config: ClassificationConfig, data: Data) -> Supernet:
    """The source's network, adapted to this run's data. Prints what happened to its tensors."""
    net, account = transferred(load_source(config), data, config.model.sizes or ())
    if rank() == 0:
        classes = f"of {len(data.classes)} classes" if data.classes else "without labels"
        where = f"{len(data.train)} training images {classes}, {data.image_size} px"
        begun = f"from {config.source}: {len(account.loaded)} tensors loaded"
        print("\n".join([begun, *account.lines(), f"to {data.name}: {where}"]))
    return net
