"""Classification of images: a supernet that learns all its widths (stage I), then to choose among them (stage II)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dsnet.config import TrainConfig
from dsnet.data.batches import plain_batches
from dsnet.data.dataset import Batch, Data
from dsnet.data.splits import SPLITS, check_data
from dsnet.evaluate import accuracy, router_auc
from dsnet.models import Card, ModelSpec, Preprocessing, Supernet
from dsnet.results import Evaluation
from dsnet.tasks import GATE, Note, Plan, load
from dsnet.tasks.assess import EVAL_BATCH, calibrate_budgets, calibration_images, evaluate_split, open_data
from dsnet.training import IEB, SGS, recalibrate, with_fresh_router
from dsnet.training.distributed import rank, world
from dsnet.training.sgs import of_router
from dsnet.weights.account import CLASSIFIER, Account

START, ROUTER = "start", "router"  # below a run's folder: the networks that it began with


class Classification:
    """The task of `dsnet train` unless another is named."""

    name = "classification"
    network = Supernet
    config = TrainConfig

    def read_spec(self, data: Mapping[str, Any]) -> ModelSpec:
        return ModelSpec.from_dict(data)

    def build(self, spec: ModelSpec) -> Supernet:
        return Supernet(spec)

    def open_data(self, config: TrainConfig, root: str | None = None) -> Data:
        return open_data(config, root)

    def begin(self, config: TrainConfig, data: Data, *, again: Path | None) -> Supernet:
        """Fresh weights; or the source's, for stage gate as they are, else carried over to this run's data."""
        torch.manual_seed(config.seed)
        if config.source is None and config.stage != "gate":
            return new_network(config, data)
        if again is not None:
            net = load(again / START, "classification")
            return with_fresh_router(net, replace(net.spec, router=None)).train()
        return source_network(config, data) if config.stage == "gate" else carried_over(config, data)

    def sources(self, config: TrainConfig, net: Supernet) -> Mapping[str, Supernet]:
        found = {} if config.source is None else {"" if config.stage == "gate" else START: net}
        return found if config.gate_from is None else {**found, ROUTER: load(config.gate_from, "classification")}

    def plans(self, config: TrainConfig, data: Data, folder: Path) -> Sequence[Plan[Supernet]]:
        first = [] if config.stage == "gate" else [widths_plan(config, data)]
        return [*first, router_plan(config, data, folder)] if config.routes else first

    def evaluate(self, net: Supernet, data: Data, config: TrainConfig) -> Evaluation:
        return evaluate_split(net, data, config)


task = Classification()


def widths_plan(config: TrainConfig, data: Data) -> Plan[Supernet]:
    """Stage I: the best moving average, with the statistics of every width averaged anew."""

    def validate(average: Supernet, note: Note) -> dict[str, float]:
        ends = dict.fromkeys([average.space.slimmest, average.space.widest])
        rows = accuracy(average, noted(data, config, note), list(ends), everywhere=True)
        names = ["slimmest", "widest"] if len(ends) == 2 else ["widest"]
        return {name: row["top1"] for name, row in zip(names, rows, strict=True)}

    def finish(net: Supernet) -> Supernet:
        net.card = card_of(data)
        recalibrate(net, calibration_images(data, config))
        return net

    return Plan(
        name="",
        key="optim",
        optim=config.optim,
        momentum=config.ieb.momentum,
        keep="best",
        goes_on=False,
        check=lambda net: None,
        prepare=lambda net: net,
        stage=lambda net: IEB(net, config.ieb),
        validate=validate,
        finish=finish,
    )


def router_plan(config: TrainConfig, data: Data, folder: Path) -> Plan[Supernet]:
    """Stage II: the last moving average of the router, with calibrated budgets."""

    def finish(net: Supernet) -> Supernet:
        net = net.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
        calibrate_budgets(net, data, config)
        return net

    return Plan(
        name=GATE,
        key="sgs_optim",
        optim=config.sgs_optim,
        momentum=config.sgs.momentum,
        keep="last",
        goes_on=True,
        check=lambda net: check_gate_source(config, net.spec, data.classes),
        prepare=lambda net: with_router(net, config, folder),
        stage=None if config.sgs.router == "threshold" else lambda net: SGS(net, config.sgs),
        validate=lambda average, note: {"auc": router_auc(average, plain_batches(data.calibration, EVAL_BATCH))},
        finish=finish,
    )


def noted(data: Data, config: TrainConfig, note: Note) -> Iterator[Batch]:
    """Plain batches of this process's calibration images; `note` is told of damaged ones."""
    batches = plain_batches(data.calibration, EVAL_BATCH, workers=config.data.workers, rank=rank(), world=world())
    for batch in batches:
        note(batch.skipped)
        yield batch


def new_network(config: TrainConfig, data: Data) -> Supernet:
    spec = config.model.spec(num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size)
    net = Supernet(spec)
    net.card = card_of(data)
    return net


def card_of(data: Data) -> Card:
    return Card(classes=data.classes, preprocessing=Preprocessing(data.mean, data.std, data.crop, data.interpolation))


def source_network(config: TrainConfig, data: Data) -> Supernet:
    """The trained supernet that stage II starts from; it must know the data."""
    if config.source is None:
        raise ValueError("stage gate needs a trained supernet; say which with --from RUN")
    folder = Path(config.source)
    net = load_source(config)
    if (folder / SPLITS).exists():
        check_data(folder, data)
    if net.card.classes != data.classes:
        raise ValueError(
            f"the supernet in {folder} knows the classes {list(net.card.classes)[:5]} but the data has "
            f"{list(data.classes)[:5]}; train its router on the same classes"
        )
    if net.spec.image_size != data.image_size:
        raise ValueError(
            f"the supernet in {folder} takes {net.spec.image_size}-pixel images but the data has {data.image_size}; "
            f"set data.image_size {net.spec.image_size}"
        )
    config.routed(net.spec)  # says what is wrong with a routing space
    return net


def carried_over(config: TrainConfig, data: Data) -> Supernet:
    """The source's network for this run's data; says what became of its tensors."""
    net, account = transferred(load_source(config), data)
    if rank() == 0:
        where = f"{len(data.train)} training images of {len(data.classes)} classes, {data.image_size} px"
        begun = f"from {config.source}: {len(account.loaded)} tensors loaded"
        print("\n".join([begun, *account.lines(), f"to {config.data.dataset}: {where}"]))
    net.card = card_of(data)
    return net


def load_source(config: TrainConfig) -> Supernet:
    """The network that a run starts from; it must be the one that the config names."""
    assert config.source is not None
    net = load(config.source, "classification")
    if net.spec.name != config.model.name:
        raise ValueError(
            f"{config.source} holds a {net.spec.name} (widths {list(net.spec.widths)}), not a {config.model.name}; "
            f"leave --model.name out, or carry its weights over first: dsnet import {config.source} --as "
            f"{config.model.name} --out FOLDER"
        )
    return net


def transferred(source: Supernet, data: Data) -> tuple[Supernet, Account]:
    """The source's weights and per-width statistics in a network for other classes, channels and image size."""
    changed = {"num_classes": len(data.classes), "in_channels": data.channels, "image_size": data.image_size}
    spec = replace(source.spec, router=None, **changed)  # type: ignore[arg-type]
    spec.check_size(data.image_size)
    net, account = Supernet(spec), Account()
    state = net.state_dict()
    stem = first_weight(net)
    for key, tensor in source.state_dict().items():
        if key not in state:  # the head of a router that probes
            account.unused[key] = "the router is left behind"
        elif key.startswith(f"{CLASSIFIER}.") and source.card.classes != data.classes:
            account.unused[key] = account.fresh[key] = "the classes are others"
        elif key == stem and source.spec.in_channels != data.channels:
            state[key] = adapted_stem(tensor, data.channels)
            account.adapted[key] = f"{source.spec.in_channels} input channels became {data.channels}"
        else:
            assert state[key].shape == tensor.shape, key
            state[key] = tensor
            account.whole.append(key)
    net.load_state_dict(state)
    return net, account


def first_weight(net: Supernet) -> str:
    """The weight that reads the image."""
    return next(name for name, _ in net.named_parameters() if name.endswith("conv.weight"))


def adapted_stem(weight: Tensor, channels: int) -> Tensor:
    """A first convolution for another number of input channels, which gives the same answer to a grey image.

    One channel: the sum over the old ones. Several: an equal share of that sum for each.
    """
    return weight.sum(1, keepdim=True).expand(-1, channels, -1, -1) / channels


def check_gate_source(config: TrainConfig, spec: ModelSpec, classes: tuple[str, ...]) -> None:
    """Refuse a router that does not fit the network it is to go on with."""
    if config.gate_from is None:
        return
    source = load(config.gate_from, "classification")
    wished = config.routed(spec)
    if source.spec.router is None:
        raise ValueError(f"{config.gate_from} has no router to start from; leave gate_from out, or name a routed run")
    if source.spec.router != config.sgs.spec:
        have, want = source.spec.router, config.sgs.spec
        raise ValueError(
            f"{config.gate_from} has router {have.kind} with targets {have.targets}, but {want.kind} with targets "
            f"{want.targets} is to be trained; set --sgs.router {have.kind} --sgs.targets {have.targets}"
        )
    if (source.spec.name, source.spec.routing, source.spec.gate) != (wished.name, wished.routing, wished.gate):
        raise ValueError(
            f"the router of {config.gate_from} chooses among widths {list(source.spec.routing)} of {source.spec.name}, "
            f"but this run among {list(wished.routing)} of {wished.name}; use the same model and model.routing"
        )
    if source.probe is not None and source.spec.num_classes != len(classes):
        raise ValueError(
            f"the {source.spec.router.kind} router of {config.gate_from} reads answers of {source.spec.num_classes} "
            f"classes but the data has {len(classes)}; only --sgs.router gate goes over to other numbers of classes"
        )


def with_router(net: Supernet, config: TrainConfig, folder: Path) -> Supernet:
    """The network with a fresh router, or with the one that the run's folder keeps."""
    torch.manual_seed(config.seed)
    net = with_fresh_router(net, config.routed(net.spec))
    if config.gate_from is not None:
        kept = {
            key: tensor
            for key, tensor in load(folder / ROUTER, "classification").state_dict().items()
            if of_router(key)
        }
        assert kept
        found = net.load_state_dict(kept, strict=False)
        assert not found.unexpected_keys
    return net
