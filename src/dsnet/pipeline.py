"""A run from its config to its folder: data -> supernet -> stage I -> recalibration -> evaluation."""

from __future__ import annotations

import itertools
import json
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import torch
import yaml
from torch import Tensor

from dsnet.checkpoint import MODEL, CheckpointError, save, write_whole
from dsnet.config import TrainConfig, read_config
from dsnet.data import Batch, Dataset, Split, TrainBatches, named_worker_deaths, open_dataset, plain_batches
from dsnet.evaluate import accuracy, evaluate, paths_to_evaluate
from dsnet.models import Card, Preprocessing, Supernet
from dsnet.training import IEB, Loop, TrainingError, recalibrate
from dsnet.training.display import make_display
from dsnet.training.distributed import barrier, process_group, rank, world
from dsnet.version import __version__

CONFIG = "config.yaml"
SPLITS = "splits.json"
__all__ = [
    "CONFIG",
    "calibration_images",
    "check_data",
    "evaluate_split",
    "open_data",
    "read_config",
    "train",
    "write_result",
]
EVAL_BATCH = 256


def train(config: TrainConfig, folder: File, *, resume: bool = False) -> dict[str, Any]:
    """Train a supernet, or continue to; returns the evaluation of the saved model on the test split."""
    if config.threads:
        torch.set_num_threads(config.threads)
    with process_group(), named_worker_deaths():
        data = open_data(config)
        torch.manual_seed(config.seed)
        net = new_network(config, data)
        batches = TrainBatches(
            data.train, config.optim.batch_size, config.seed, config.data.workers, rank=rank(), world=world()
        )
        loop = Loop(
            IEB(net, config.ieb),
            batches,
            config.optim,
            folder=folder,
            seed=config.seed,
            momentum=config.ieb.momentum,
            save_steps=config.save_steps,
            max_skipped=config.data.max_skipped if config.data.on_corrupt == "skip" else None,
        )
        if resume:
            check_data(folder, data)
            loop.resume()
        elif rank() == 0:
            prepare_folder(folder, config, data)
        barrier()
        display = make_display(folder, rank=rank())

        def validate(average: Supernet) -> dict[str, float]:
            ends = dict.fromkeys([average.space.slimmest, average.space.widest])
            rows = accuracy(average, plain(data.calibration, config, loop), list(ends), everywhere=True)
            names = ["slimmest", "widest"] if len(ends) == 2 else ["widest"]
            return {name: row["top1"] for name, row in zip(names, rows, strict=True)}

        try:
            best = loop.run(validate, display)
        except RuntimeError as error:
            if world() > 1 and re.search(r"[Cc]onnection|[Tt]imed? ?out|peer|NCCL", str(error)):
                raise TrainingError(
                    f"process {rank()} of {world()} lost touch with another one, which died or hung ({error}); "
                    f"see the other process's output, then continue with --resume {folder}"
                ) from error
            raise
        finally:
            display.close()
        if rank() != 0:  # what is left takes one process
            return {}
        best.card = card_of(data)
        recalibrate(best, calibration_images(data, config))
        save(best.to(memory_format=torch.contiguous_format), folder)  # type: ignore[call-overload]
        result = evaluate_split(best, data, config)
        write_result(folder, "test", result)
        return result


def open_data(config: TrainConfig, root: str | None = None) -> Dataset:
    """The data of a run, at another place if `root` is given."""
    where = config.data if root is None else replace(config.data, root=root)
    return open_dataset(where, default_size=config.model.spec(num_classes=1, in_channels=1).image_size)


def new_network(config: TrainConfig, data: Dataset) -> Supernet:
    spec = config.model.spec(num_classes=len(data.classes), in_channels=data.channels, image_size=data.image_size)
    net = Supernet(spec)
    net.card = card_of(data)
    return net


def card_of(data: Dataset) -> Card:
    how = data.train.loader.config
    files = how.dataset == "folder"
    crop = how.crop_ratio if files else 1.0
    return Card(classes=data.classes, preprocessing=Preprocessing(data.mean, data.std, crop, how.interpolation))


def plain(split: Split, config: TrainConfig, loop: Loop) -> Iterator[Batch]:
    for batch in plain_batches(split, EVAL_BATCH, workers=config.data.workers, rank=rank(), world=world()):
        loop.note_skipped(batch.skipped)
        yield batch


def calibration_images(data: Dataset, config: TrainConfig, *, seed: int = 0) -> Iterator[Tensor]:
    """Training images, augmented as in training: the weights were trained on statistics of such batches.

    Plain images cost 3 points of accuracy on CIFAR-10, where augmentation adds dark borders.
    """
    size = min(EVAL_BATCH, len(data.train))
    batches = TrainBatches(data.train, size, seed, config.data.workers)
    wanted = max(1, min(config.recalibration // size, len(batches)))
    for batch in itertools.islice(batches.epoch(0), wanted):
        if len(batch.images) > 1:  # a batch of damaged files may be empty
            yield batch.images


def evaluate_split(
    net: Supernet, data: Dataset, config: TrainConfig, *, split: str = "test", sample: int = 16, seed: int = 0
) -> dict[str, Any]:
    """Evaluate every width (or uniform and some random paths) on a split, in this process alone."""
    if net.card.classes != data.classes:
        raise ValueError(
            f"the model knows the classes {list(net.card.classes)[:5]} but the data has {list(data.classes)[:5]}; "
            f"evaluate on data with the same class folders"
        )
    part = {"test": data.test, "calibration": data.calibration, "train": data.train}[split]
    skipped: list[str] = []

    def counted() -> Iterator[Batch]:
        for batch in plain_batches(part, EVAL_BATCH, workers=config.data.workers):
            skipped.extend(batch.skipped)
            if len(skipped) > config.data.max_skipped * len(part):
                raise ValueError(
                    f"{len(skipped)} of {len(part)} {split} images are damaged, more than data.max_skipped allows "
                    f"({config.data.max_skipped:.2%}); the first is {skipped[0]}"
                )
            yield batch

    paths = paths_to_evaluate(net, sample, seed)
    with named_worker_deaths():
        result = evaluate(net, counted(), paths, image_size=data.image_size, split=split)
    training = {
        "teacher": config.ieb.teacher,
        "epochs": config.optim.epochs,
        "batch_size": config.optim.batch_size,
        "lr": config.optim.lr,
        "ema_momentum": config.ieb.momentum,
    }
    return {
        **result,
        "dataset": config.data.dataset,
        "seed": config.seed,
        "training": training,
        "skipped": skipped,
    }


def write_result(folder: File, name: str, result: dict[str, Any]) -> File:
    file = folder / "results" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(result, indent=1).encode())
    return file


def prepare_folder(folder: File, config: TrainConfig, data: Dataset) -> None:
    """Write what tells a reader, or a resumed run, what this run is."""
    if (folder / "state" / "last.pt").exists() or (folder / MODEL).exists():
        raise CheckpointError(
            f"{folder} already holds a run; continue it with --resume {folder}, or choose another --out"
        )
    folder.mkdir(parents=True, exist_ok=True)
    versions = {"dsnet": __version__, "torch": torch.__version__, "python": platform.python_version()}
    splits = {name: getattr(data, name).ids.tolist() for name in ("calibration", "test")}
    write_whole(folder / SPLITS, json.dumps({"fingerprint": data.fingerprint, **splits}).encode())
    write_whole(folder / "versions.json", json.dumps({**versions, "command": sys.argv}, indent=1).encode())
    write_whole(folder / CONFIG, yaml.safe_dump(to_plain(config.to_dict()), sort_keys=False).encode())


def check_data(folder: File, data: Dataset) -> None:
    """Refuse data that changed since the run began: test or calibration images might have become training images."""
    try:
        known = json.loads((folder / SPLITS).read_text())["fingerprint"]
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{folder / SPLITS} cannot be read ({error}); it tells how the data was split") from error
    if known != data.fingerprint:
        raise CheckpointError(
            f"the data is not the one that the run in {folder} began with: images, labels or classes were added, "
            f"removed or renamed, so its splits would mix; restore the data, or train anew"
        )


def to_plain(value: Any) -> Any:
    """Tuples as lists, so that YAML stays plain."""
    if isinstance(value, dict):
        return {key: to_plain(item) for key, item in value.items()}
    return [to_plain(item) for item in value] if isinstance(value, list | tuple) else value
