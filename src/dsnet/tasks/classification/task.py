"""Classification of images: a supernet that learns all its widths (stage I), then to choose among them (stage II)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsnet.data.batches import plain_batches
from dsnet.data.dataset import Batch, Data
from dsnet.data.splits import SPLITS, check_data
from dsnet.evaluate import accuracy, router_auc
from dsnet.models import Card, ModelSpec, Preprocessing, Supernet
from dsnet.results import Evaluation
from dsnet.tasks import GATE, Note, Plan, load
from dsnet.tasks.assess import (
    EVAL_BATCH,
    calibrate_budgets,
    calibration_images,
    evaluate_split,
    open_data,
)
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.tasks.classification.transfer import (
    ROUTER,
    START,
    check_gate_source,
    load_source,
    transferred,
    with_router,
)
from dsnet.training import IEB, SGS, recalibrate, with_fresh_router
from dsnet.training.distributed import rank, world


class Classification:
    """The task of `dsnet train` unless another is named."""

    name = "classification"
    config = ClassificationConfig
    network = Supernet

    def read_spec(self, data: Mapping[str, Any]) -> ModelSpec:
        return ModelSpec.from_dict(data)

    def build(self, spec: ModelSpec) -> Supernet:
        return Supernet(spec)

    def open_data(self, config: ClassificationConfig, root: str | None = None) -> Data:
        return open_data(config, root)

    def begin(self, config: ClassificationConfig, data: Data, *, again: Path | None) -> Supernet:
        """Fresh weights; or the source's, for stage gate as they are, else carried over to this run's data."""
        torch.manual_seed(config.seed)
        if config.source is None and config.stage != "gate":
            return new_network(config, data)
        if again is not None:
            net = load(again / START, "classification")
            return with_fresh_router(net, replace(net.spec, router=None)).train()
        return source_network(config, data) if config.stage == "gate" else carried_over(config, data)

    def sources(self, config: ClassificationConfig, net: Supernet) -> Mapping[str, Supernet]:
        found = {} if config.source is None else {"" if config.stage == "gate" else START: net}
        return found if config.gate_from is None else {**found, ROUTER: load(config.gate_from, "classification")}

    def plans(self, config: ClassificationConfig, data: Data, folder: Path) -> Sequence[Plan[Supernet]]:
        first = [] if config.stage == "gate" else [widths_plan(config, data)]
        return [*first, router_plan(config, data, folder)] if config.routes else first

    def evaluate(self, net: Supernet, data: Data, config: ClassificationConfig) -> Evaluation:
        return evaluate_split(net, data, config)


task = Classification()


def widths_plan(config: ClassificationConfig, data: Data) -> Plan[Supernet]:
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


def router_plan(config: ClassificationConfig, data: Data, folder: Path) -> Plan[Supernet]:
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


def noted(data: Data, config: ClassificationConfig, note: Note) -> Iterator[Batch]:
    """Plain batches of this process's calibration images; `note` is told of damaged ones."""
    batches = plain_batches(data.calibration, EVAL_BATCH, workers=config.data.workers, rank=rank(), world=world())
    for batch in batches:
        note(batch.skipped)
        yield batch


def new_network(config: ClassificationConfig, data: Data) -> Supernet:
    spec = config.model.spec(num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size)
    net = Supernet(spec)
    net.card = card_of(data)
    return net


def card_of(data: Data) -> Card:
    return Card(classes=data.classes, preprocessing=Preprocessing(data.mean, data.std, data.crop, data.interpolation))


def source_network(config: ClassificationConfig, data: Data) -> Supernet:
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


def carried_over(config: ClassificationConfig, data: Data) -> Supernet:
    """The source's network for this run's data; says what became of its tensors."""
    net, account = transferred(load_source(config), data)
    if rank() == 0:
        where = f"{len(data.train)} training images of {len(data.classes)} classes, {data.image_size} px"
        begun = f"from {config.source}: {len(account.loaded)} tensors loaded"
        print("\n".join([begun, *account.lines(), f"to {config.data.dataset}: {where}"]))
    net.card = card_of(data)
    return net
