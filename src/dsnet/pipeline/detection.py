"""A detection run from its config to its folder: backbone -> stage I -> stage II -> budgets -> evaluation."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch

from dsnet.checkpoint import load
from dsnet.config import CONFIG
from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.dataset import Batch, Split
from dsnet.data.dataset import Data as DetectionData
from dsnet.data.voc import Records, open_detection_data
from dsnet.errors import TrainingError
from dsnet.files import write_whole
from dsnet.images import read_image
from dsnet.models import Card, Preprocessing
from dsnet.pipeline.folder import GATE, check_data, prepare_folder
from dsnet.pipeline.run import run_loop
from dsnet.report.detection import examples_sheet
from dsnet.results import RoutedTimes
from dsnet.routing import calibrate
from dsnet.runtime.bench import Operating, bench_routed, machine
from dsnet.tasks.detection import (
    DetectionConfig,
    DetectionTraces,
    Detector,
    DetectorSpec,
    GatesStage,
    OnnxDetector,
    WidthsStage,
    detector_policy,
    evaluate_detector,
    load_detector,
    median_gap,
    read_detection_config,
    route_detector,
    save_detector,
    with_backbone,
)
from dsnet.tasks.detection.average_precision import Rule
from dsnet.tasks.detection.bench import DetectorArtefacts
from dsnet.training import Loop, OptimConfig, Stage, uncalibrated
from dsnet.training.distributed import barrier, process_group, rank, world

EVAL_BATCH = 32


def train_detection(config: DetectionConfig, folder: Path, *, resume: bool = False) -> dict[str, Any]:
    """Train a detector, its gate, or both, or continue to.

    Returns the evaluation of the saved detector on the test split; processes other than the first return nothing.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    with process_group():
        data = open_data(config)
        in_stage_two = resume and (folder / GATE / "state" / "last.pt").exists()
        loop = None if config.stage == "gate" or in_stage_two else widths_loop(config, folder, data)
        if resume:
            check_data(folder, data)
        else:
            source = source_detector(config, data) if config.stage == "gate" else None
            if rank() == 0:
                prepare_folder(folder, config, data)  # type: ignore[arg-type]
            if rank() == 0 and source is not None:
                save_detector(source, folder)
        barrier()
        if loop is not None:
            train_widths(loop, config, folder, data, resume=resume)
            barrier()
        if config.stage == "gate" or (config.stage == "both" and load_detector(folder).spec.backbone.widths):
            train_gates(config, folder, data, resume=in_stage_two)
        if rank() != 0:  # what is left takes one process
            return {}
        result = evaluate_detection(load_detector(folder), data, config)
        record_detection(folder, "test", result, data)
        return result


def open_data(config: DetectionConfig, root: str | None = None) -> DetectionData:
    """The data of a run, at another place if `root` is given."""
    return open_detection_data(config.data if root is None else replace(config.data, root=root))


def new_detector(config: DetectionConfig, data: DetectionData) -> Detector:
    """Fresh neck and heads on the backbone of a classification run."""
    if config.backbone is None:
        raise ValueError(
            "a detector is built on a trained backbone, whose batch-norm statistics it keeps; say which classification "
            "run with --backbone RUN"
        )
    net = load(config.backbone)
    if unseen := uncalibrated(net, list(net.space.uniform)):
        raise ValueError(
            f"the batch-norm statistics of {len(unseen)} widths of {config.backbone} were never calibrated; run "
            f"`dsnet recalibrate` on it first"
        )
    router = net.spec.router if net.spec.router is not None and not net.spec.router.probes else None
    if config.gates.router == "frozen" and net.spec.widths and router is None:
        raise ValueError(f"{config.backbone} has no trained gates to keep; train them, or set gates.router trained")
    backbone = replace(net.spec, image_size=data.image_size, num_classes=1, router=router)
    spec = DetectorSpec(backbone, len(data.classes), tuple(config.taps), config.projection, config.pyramid)
    detector = with_backbone(spec, net)
    how = Preprocessing(data.mean, data.std, 1.0, config.data.interpolation)
    detector.card = Card(classes=data.classes, preprocessing=how)
    return detector


def widths_loop(config: DetectionConfig, folder: Path, data: DetectionData) -> Loop[Detector]:
    torch.manual_seed(config.seed)
    keep = config.gates.router == "frozen"
    stage = WidthsStage(new_detector(config, data), config.widths, keep_gates=keep)
    return loop_of(stage, config, config.optim, data, folder, key="optim", momentum=config.widths.momentum)


def loop_of(
    stage: Stage[Detector],
    config: DetectionConfig,
    optim: OptimConfig,
    data: DetectionData,
    folder: Path,
    **how: Any,
) -> Loop[Detector]:
    if optim.compile is not None:
        raise TrainingError("detectors are not compiled; leave optim.compile out")
    return Loop(
        stage,
        train_batches(config, data, optim.batch_size),
        optim,
        folder=folder,
        seed=config.seed,
        save_steps=config.save_steps,
        max_skipped=config.data.max_skipped if config.data.on_corrupt == "skip" else None,
        **how,
    )


def train_batches(config: DetectionConfig, data: DetectionData, size: int) -> TrainBatches:
    return TrainBatches(data.train, size, config.seed, config.data.workers, rank=rank(), world=world())


def train_widths(
    loop: Loop[Detector], config: DetectionConfig, folder: Path, data: DetectionData, *, resume: bool
) -> None:
    """Stage I; leaves the moving average that is best on the calibration split in the folder."""
    if resume:
        loop.resume()

    def validate(average: Any) -> dict[str, float]:
        ends = list(dict.fromkeys([average.space.slimmest, average.space.widest]))
        traces = DetectionTraces(average, plain(data.calibration, config), paths=ends)
        names = ["slimmest", "widest"] if len(ends) == 2 else ["widest"]
        return {name: traces.precision(traces.found[path])[0] for name, path in zip(names, ends, strict=True)}

    best = run_loop(loop, validate, folder, folder)
    if rank() == 0:
        save_detector(best.to(memory_format=torch.contiguous_format), folder)  # type: ignore[call-overload]


def train_gates(config: DetectionConfig, folder: Path, data: DetectionData, *, resume: bool) -> None:
    """Stage II on the folder's detector; leaves it there with its gate and calibrated budgets."""
    detector = load_detector(folder)
    torch.manual_seed(config.seed)
    if config.gates.router == "trained":
        detector = with_fresh_gate(detector, config)
        # All images in every process: what is hard must not depend on which of them saw an image.
        batches = TrainBatches(data.train, config.gates_optim.batch_size, config.seed, config.data.workers)
        stage = GatesStage(detector, median=median_gap(detector, batches.epoch(0)))
        how = {"key": "gates_optim", "momentum": config.gates.momentum, "keep": "last"}
        loop = loop_of(stage, config, config.gates_optim, data, folder / GATE, **how)
        if resume:
            loop.resume()
        detector = run_loop(
            loop, lambda average: {"slimmest_share": slimmest_share(average, data, config)}, folder / GATE, folder
        )
    if rank() != 0:
        return
    detector = detector.to(memory_format=torch.contiguous_format).eval()  # type: ignore[call-overload]
    traces = DetectionTraces(detector, plain(data.calibration, config))
    detector.card = replace(detector.card, budgets=calibrate(traces))
    save_detector(detector, folder)


def with_fresh_gate(detector: Detector, config: DetectionConfig) -> Detector:
    """The detector's weights under a spec with this run's router, whose slimming heads are new."""
    backbone = detector.spec.backbone
    routing = backbone.space.restrict(config.routing).choices
    spec = replace(detector.spec, backbone=replace(backbone, router=config.gates.spec, routing=routing))
    fresh = Detector(spec).eval()
    fresh.card = replace(detector.card, budgets=())
    kept = {name: tensor for name, tensor in detector.state_dict().items() if ".slimming." not in name}
    found = fresh.load_state_dict(kept, strict=False)
    assert all(".slimming." in name for name in found.missing_keys)
    return fresh


def slimmest_share(average: Any, data: DetectionData, config: DetectionConfig) -> float:
    """Share of the calibration images that the gate, at lambda 0, sends to the slimmest candidate."""
    slimmest, slim, total = average.backbone.routing.slimmest[0], 0, 0
    for batch in plain(data.calibration, config):
        paths = route_detector(average, batch.images.to(average.priors.device)).paths
        slim, total = slim + int((paths[:, 0] == slimmest).sum()), total + len(paths)
    return slim / max(1, total)


def source_detector(config: DetectionConfig, data: DetectionData) -> Detector:
    """The trained detector that stage II starts from; it must know the data."""
    if config.source is None:
        raise ValueError("stage gate needs a trained detector; say which with --from RUN")
    detector = load_detector(config.source)
    if detector.card.classes != data.classes:
        raise ValueError(
            f"the detector in {config.source} knows the classes {list(detector.card.classes)[:5]} but the data has "
            f"{list(data.classes)[:5]}; train its gate on the same classes"
        )
    if detector.spec.image_size != data.image_size:
        raise ValueError(
            f"the detector in {config.source} takes {detector.spec.image_size}-pixel images; "
            f"set data.image_size {detector.spec.image_size}"
        )
    if config.gates.router == "frozen" and detector.spec.backbone.router is None:
        raise ValueError(f"{config.source} has no trained gates to keep; set gates.router trained")
    if not detector.spec.backbone.widths:
        raise ValueError(f"{detector.spec.name!r} has one width only, so there is nothing to route")
    return detector


def evaluate_detection(
    detector: Detector | OnnxDetector,
    data: DetectionData,
    config: DetectionConfig,
    *,
    split: str = "test",
    budgets: Sequence[str | float] | None = None,
    max_width: int | None = None,
    rule: Rule | None = None,
    overlap: float = 0.5,
) -> dict[str, Any]:
    """Evaluate every width on a split, and the dynamic detector where it can route. Runs in this process alone.

    rule: by default the run's.
    """
    if detector.card.classes != data.classes:
        raise ValueError(
            f"the detector knows the classes {list(detector.card.classes)[:5]} but the data has "
            f"{list(data.classes)[:5]}; evaluate on data with the same classes"
        )
    traces = DetectionTraces(detector, plain(split_of(data, split), config))
    rule = rule or config.rule
    result = evaluate_detector(traces, split=split, budgets=budgets, max_width=max_width, rule=rule, overlap=overlap)
    training = {"epochs": config.optim.epochs, "batch_size": config.optim.batch_size, "lr": config.optim.lr}
    return {**result, "seed": config.seed, "training": training}


def bench_detection(
    name: str, *, root: str | None = None, budgets: int = 5, images: int = 64, threads: int = 1, rounds: int = 1
) -> RoutedTimes:
    """Latency of a dynamic detector on its test images at several budgets, sliced in PyTorch and as ONNX."""
    folder = Path(name)
    detector, config = load_detector(folder).float(), read_detection_config(folder / CONFIG)
    if detector.spec.backbone.router is None or not detector.card.budgets:
        raise ValueError(f"{folder} has no calibrated gate; train it with `dsnet train --stage gate`")
    data = open_data(config, root)
    check_data(folder, data)
    images = min(images, len(data.test))
    sample = data.test.load(data.test.ids[torch.linspace(0, len(data.test) - 1, images).long()]).images
    low, high = detector.card.budgets[0].madds, detector.card.budgets[-1].madds
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        artefacts = DetectorArtefacts(detector, Path(scratch))
        for runtime, words in (("runner", "eager"), ("onnx", "onnx")):
            asked = [low + (high - low) * number / (budgets - 1) for number in range(budgets)]
            points = [Operating(words, artefacts, detector_policy(detector, madds), madds) for madds in asked]
            rows += bench_routed(points, sample, runtime=runtime, threads=threads, rounds=rounds)
    return RoutedTimes(detector.spec.name, images, rounds, tuple(rows), machine())


def record_detection(folder: Path, name: str, result: dict[str, Any], data: DetectionData) -> Path:
    """Write a result below a run's folder, and a sheet of examples beside it."""
    file = folder / "results" / f"{name}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_whole(file, json.dumps(result, indent=1).encode())
    draw_examples(result, data, file.with_name(f"{name}-examples.png"))
    return file


def draw_examples(result: dict[str, Any], data: DetectionData, file: Path) -> Path:
    """A sheet of images with what was found in them."""
    records = cast(Records, split_of(data, result["split"]).source).items
    shown = [records[example["image"]].file for example in result["examples"]["images"]]
    return examples_sheet(result, [read_image(Path(name)) for name in shown], file)


def split_of(data: DetectionData, name: str) -> Split:
    return {"test": data.test, "calibration": data.calibration, "train": data.train}[name]


def plain(split: Split, config: DetectionConfig) -> Iterator[Batch]:
    yield from plain_batches(split, EVAL_BATCH, workers=config.data.workers)
