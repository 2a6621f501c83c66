"""A run from its config to its folder: supernet -> stage I -> recalibration -> stage II -> budgets -> evaluation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from dsnet.checkpoint import load, save
from dsnet.config import TrainConfig
from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.dataset import Batch, Split
from dsnet.data.dataset import Data as Dataset
from dsnet.errors import TrainingError
from dsnet.evaluate import accuracy, router_auc
from dsnet.models import Card, Preprocessing, Supernet
from dsnet.pipeline.assess import EVAL_BATCH, calibrate_budgets, calibration_images, evaluate_split, open_data, record
from dsnet.pipeline.folder import GATE, SPLITS, check_data, prepare_folder
from dsnet.pipeline.transfer import ROUTER, START, check_gate_source, load_source, transferred, with_router
from dsnet.training import IEB, SGS, Interrupted, Loop, recalibrate, with_fresh_router
from dsnet.training.display import make_display
from dsnet.training.distributed import barrier, process_group, rank, world
from dsnet.training.loop import N


def train(config: TrainConfig, folder: Path, *, resume: bool = False, draw: bool = True) -> dict[str, Any]:
    """Train a supernet, its router, or both, or continue to; draw: figures of the result as well.

    Returns the evaluation of the saved model on the test split; processes other than the first return nothing.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    with process_group():
        data = open_data(config)
        in_stage_two = resume and (folder / GATE / "state" / "last.pt").exists()
        # Whatever can be wrong with the config comes to light before the folder is touched.
        if config.routes:
            train_batches(config, data, "sgs_optim")
        start = starting_network(config, folder, data, resume=resume)
        if not resume:
            check_gate_source(config, start.spec, data.classes)
        loop = None if config.stage == "gate" or in_stage_two else supernet_loop(start, config, folder, data)
        if resume:
            check_data(folder, data)
        elif rank() == 0:
            prepare_folder(folder, config, data)
            # a run goes on without its sources
            if config.source is not None:
                save(start, folder if config.stage == "gate" else folder / START)
            if config.gate_from is not None:
                save(load(config.gate_from), folder / ROUTER)
        barrier()
        if loop is not None:
            train_supernet(loop, config, folder, data, resume=resume)
            barrier()
        if config.routes:
            train_router(config, folder, data, resume=in_stage_two)
        if rank() != 0:  # what is left takes one process
            return {}
        result = evaluate_split(load(folder), data, config)
        record(folder, "test", result, data, pictures=draw)
        return result


def starting_network(config: TrainConfig, folder: Path, data: Dataset, *, resume: bool) -> Supernet:
    """Fresh weights; or the source's, for stage gate as they are, else carried over to this run's data."""
    torch.manual_seed(config.seed)
    if config.source is None:
        return new_network(config, data)
    if resume:
        net = load(folder if config.stage == "gate" else folder / START)
        return with_fresh_router(net, replace(net.spec, router=None)).train()
    if config.stage == "gate":
        return source_network(config, data)
    net, account = transferred(load_source(config), data)
    if rank() == 0:
        where = f"{len(data.train)} training images of {len(data.classes)} classes, {data.image_size} px"
        begun = f"from {config.source}: {len(account.loaded)} tensors loaded"
        print("\n".join([begun, *account.lines(), f"to {config.data.dataset}: {where}"]))
    net.card = card_of(data)
    return net


def supernet_loop(net: Supernet, config: TrainConfig, folder: Path, data: Dataset) -> Loop[Supernet]:
    stage = IEB(net, config.ieb)
    batches = train_batches(config, data, "optim")
    return Loop(stage, batches, config.optim, folder=folder, momentum=config.ieb.momentum, **loop_options(config))


def train_supernet(loop: Loop[Supernet], config: TrainConfig, folder: Path, data: Dataset, *, resume: bool) -> None:
    """Stage I; leaves the best moving average, recalibrated, in the folder."""
    if resume:
        loop.resume()

    def validate(average: Supernet) -> dict[str, float]:
        ends = dict.fromkeys([average.space.slimmest, average.space.widest])
        rows = accuracy(average, plain(data.calibration, config, loop), list(ends), everywhere=True)
        names = ["slimmest", "widest"] if len(ends) == 2 else ["widest"]
        return {name: row["top1"] for name, row in zip(names, rows, strict=True)}

    best = run_loop(loop, validate, folder, folder)
    if rank() == 0:
        best.card = card_of(data)
        recalibrate(best, calibration_images(data, config))
        save(best.to(memory_format=torch.contiguous_format), folder)  # type: ignore[call-overload]


def train_router(config: TrainConfig, folder: Path, data: Dataset, *, resume: bool) -> None:
    """Stage II on the folder's network; leaves it there with its router and calibrated budgets."""
    net = with_router(load(folder), config, folder)
    if config.sgs.router != "threshold":
        batches, options = train_batches(config, data, "sgs_optim"), loop_options(config)
        below, stage = folder / GATE, SGS(net, config.sgs)
        options |= {"momentum": config.sgs.momentum, "key": "sgs_optim", "keep": "last"}
        loop = Loop(stage, batches, config.sgs_optim, folder=below, **options)
        if resume:
            loop.resume()
        net = run_loop(
            loop,
            lambda average: {"auc": router_auc(average, plain_batches(data.calibration, EVAL_BATCH))},
            below,
            folder,
        )
    if rank() != 0:
        return
    net = net.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    calibrate_budgets(net, data, config)
    save(net, folder)


def run_loop(loop: Loop[N], validate: Callable[[N], dict[str, float]], shown: Path, folder: Path) -> N:
    display = make_display(shown, rank=rank())
    try:
        return loop.run(validate, display)
    except Interrupted as stop:
        raise Interrupted(stop.number, folder) from None
    except RuntimeError as error:
        if world() > 1 and re.search(r"[Cc]onnection|[Tt]imed? ?out|peer|NCCL", str(error)):
            raise TrainingError(
                f"process {rank()} of {world()} lost touch with another one, which died or hung ({error}); "
                f"see the other process's output, then continue with --resume {folder}"
            ) from error
        raise
    finally:
        display.close()


def train_batches(config: TrainConfig, data: Dataset, key: Literal["optim", "sgs_optim"]) -> TrainBatches:
    size = getattr(config, key).batch_size
    try:
        return TrainBatches(data.train, size, config.seed, config.data.workers, rank=rank(), world=world())
    except ValueError as error:
        raise ValueError(f"{key}.batch_size: {error}") from None


def loop_options(config: TrainConfig) -> dict[str, Any]:
    return {
        "seed": config.seed,
        "save_steps": config.save_steps,
        "max_skipped": config.data.max_skipped if config.data.on_corrupt == "skip" else None,
    }


def new_network(config: TrainConfig, data: Dataset) -> Supernet:
    spec = config.model.spec(num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size)
    net = Supernet(spec)
    net.card = card_of(data)
    return net


def source_network(config: TrainConfig, data: Dataset) -> Supernet:
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


def card_of(data: Dataset) -> Card:
    return Card(classes=data.classes, preprocessing=Preprocessing(data.mean, data.std, data.crop, data.interpolation))


def plain(split: Split, config: TrainConfig, loop: Loop[Supernet]) -> Iterator[Batch]:
    for batch in plain_batches(split, EVAL_BATCH, workers=config.data.workers, rank=rank(), world=world()):
        loop.note_skipped(batch.skipped)
        yield batch
