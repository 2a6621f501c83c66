"""The data of a run, and its model's evaluation on a split of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import cast

import torch
from PIL import Image
from pydantic import JsonValue
from torch import Tensor

from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.dataset import Batch, Split, open_dataset
from dsnet.data.dataset import Data as Dataset
from dsnet.data.voc import Records
from dsnet.evaluate import RunnerTraces, evaluate, evaluate_dynamic, examples, paths_to_evaluate
from dsnet.files import write_whole
from dsnet.images import read_image
from dsnet.models import Supernet
from dsnet.nn import ThresholdHead
from dsnet.report.export import draw as draw_evaluations
from dsnet.report.figures import enabled
from dsnet.report.sheets import contact_sheet, detection_sheet
from dsnet.results import Evaluation, write
from dsnet.routing import Policy, Traces, calibrate, fit_threshold
from dsnet.runtime import Runner
from dsnet.tasks.classification.config import ClassificationConfig

EVAL_BATCH = 256


def open_data(config: ClassificationConfig, root: str | None = None) -> Dataset:
    """The data of a run, at another place if `root` is given."""
    where = config.data if root is None else replace(config.data, root=root)
    return open_dataset(where, default_size=config.model.spec(num_classes=1, in_channels=1).image_size)


def calibration_images(data: Dataset, config: ClassificationConfig, *, seed: int = 0) -> Iterator[Tensor]:
    """Training images, augmented as in training: the weights were trained on statistics of such batches.

    Plain images cost 3 points of accuracy on CIFAR-10, where augmentation adds dark borders.
    """
    size = min(EVAL_BATCH, len(data.train))
    batches = TrainBatches(data.train, size, seed, config.data.workers)
    wanted = max(1, min(config.recalibration // size, len(batches)))
    for batch in itertools.islice(batches.epoch(0), wanted):
        if len(batch.images) > 1:  # a batch of damaged files may be empty
            yield batch.images


def traces_of(
    net: Supernet | Runner, part: Split, config: ClassificationConfig, skipped: list[str], *, name: str
) -> Traces:
    """What the router does on a split."""
    batches, size = counted(part, config, skipped, name=name), part.loader.size
    if isinstance(net, Runner):
        return RunnerTraces(net, batches, part.load, image_size=size)
    return Traces(net, batches, part.load, image_size=size)


def calibrate_budgets(net: Supernet, data: Dataset, config: ClassificationConfig) -> None:
    """Find the lambdas of all budgets on the calibration split, and keep them in the network's card."""
    traces = traces_of(net, data.calibration, config, [], name="calibration")
    if isinstance(net.probe, ThresholdHead):
        fit_threshold(traces)
    net.card = replace(net.card, budgets=calibrate(traces))


def evaluate_split(
    net: Supernet | Runner,
    data: Dataset,
    config: ClassificationConfig,
    *,
    split: str = "test",
    sample: int = 16,
    seed: int = 0,
    budgets: Sequence[str | float] | None = None,
    max_width: int | None = None,
) -> Evaluation:
    """Evaluate every width (or uniform and some random paths) on a split, and the dynamic network where it can route.

    Runs in this process alone.
    """
    if net.card.classes != data.classes:
        raise ValueError(
            f"the model knows the classes {list(net.card.classes)[:5]} but the data has {list(data.classes)[:5]}; "
            f"evaluate on data with the same class folders"
        )
    part = split_of(data, split)
    skipped: list[str] = []
    routes = net.routes if isinstance(net, Runner) else net.spec.router is not None
    if not routes and (budgets or max_width is not None):
        raise ValueError(
            f"this {net.spec.name} has not learned to route, so it has no budgets; train it with --stage gate"
            if net.spec.router is None
            else f"this file holds one path of {net.spec.name}, so it has no budgets; export it without a path"
        )
    paths = paths_to_evaluate(net, sample, seed)
    batches = counted(part, config, skipped, name=split)
    result = evaluate(net, batches, paths, image_size=data.image_size, split=split)
    if routes:
        traces = traces_of(net, part, config, [], name=split)
        dynamic = evaluate_dynamic(traces, budgets, max_width=max_width)
        shown = examples(traces, Policy(dynamic.middle.lam, max_width))
        result = replace(result, dynamic=dynamic, examples=shown)
    training: dict[str, JsonValue] = {
        "teacher": config.ieb.teacher,
        "epochs": config.optim.epochs,
        "batch_size": config.optim.batch_size,
        "lr": config.optim.lr,
        "ema_momentum": config.ieb.momentum,
        "temperature": config.ieb.temperature,
    }
    if config.source is not None and config.stage != "gate":
        training["source"] = Path(config.source).name
    if config.gate_from is not None:
        training["gate_from"] = Path(config.gate_from).name
    if net.spec.router is not None:
        router = config.sgs_optim
        training["router"] = {
            **asdict(net.spec.router),
            "routing": [list(allowed) for allowed in net.spec.routing],
            "weights": list(config.sgs.weights),
            "gate": None if net.spec.gate is None else [net.spec.gate.slimming, net.spec.gate.shared],
            "epochs": router.epochs,
            "batch_size": router.batch_size,
            "lr": router.lr,
        }
    return replace(result, dataset=config.data.dataset, seeds=(config.seed,), training=training, skipped=tuple(skipped))


def record(folder: Path, name: str, result: Evaluation, data: Dataset, *, draw: bool = True) -> list[Path]:
    """Write a result of any task below a run's folder; draw: its figures as well, which are returned."""
    file = write(result, folder / "results" / f"{name}.json")
    if not (draw and enabled()):
        return []
    drawn = [] if result.objects is not None else draw_evaluations([result], file.with_suffix(""))
    if result.examples:
        drawn.append(draw_examples(result, data, file.with_name(f"{name}-examples.png")))
    return drawn


def draw_examples(result: Evaluation, data: Dataset, file: Path) -> Path:
    """A sheet of images: with the detections in them, or those that the router found easy and hard."""
    part = split_of(data, result.split)
    if result.objects is not None:
        items = cast(Records, part.source).items
        return detection_sheet(result, [read_image(Path(items[example.id].file)) for example in result.examples], file)
    groups: dict[str, list[tuple[Image.Image, list[str]]]] = {}
    images = pictures(data, part, [example.id for example in result.examples])
    for example, image in zip(result.examples, images, strict=True):
        caption = f"{data.classes[example.label or 0]}, {','.join(map(str, example.path))}"
        groups.setdefault(f"routed {example.group}", []).append((image, [caption]))
    write_whole(file, contact_sheet(list(groups.items()), title=f"{result.model}, {result.dataset} {result.split}"))
    return file


def pictures(data: Dataset, part: Split, ids: Sequence[int]) -> list[Image.Image]:
    """Images of a split as they look."""
    images = part.load(torch.tensor(ids, dtype=torch.long)).images
    shape = [1, -1, 1, 1]
    plain = images * torch.tensor(data.std).view(shape) + torch.tensor(data.mean).view(shape)
    pixels = (255 * plain.clamp(0, 1)).round().byte().permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image) for image in pixels]


def split_of(data: Dataset, name: str) -> Split:
    return {"test": data.test, "calibration": data.calibration, "train": data.train}[name]


def counted(part: Split, config: ClassificationConfig, skipped: list[str], *, name: str) -> Iterator[Batch]:
    """Plain batches of a split; damaged files are listed in `skipped`, too many of them stop."""
    for batch in plain_batches(part, EVAL_BATCH, workers=config.data.workers):
        skipped.extend(batch.skipped)
        if len(skipped) > config.data.max_skipped * len(part):
            raise ValueError(
                f"{len(skipped)} of {len(part)} {name} images are damaged, more than data.max_skipped allows "
                f"({config.data.max_skipped:.2%}); the first is {skipped[0]}"
            )
        yield batch
