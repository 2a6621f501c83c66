"""Object detection: a detector on a trained backbone learns all its widths (stage I), then to choose one (stage II)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsnet.data.batches import TrainBatches
from dsnet.data.dataset import Data
from dsnet.data.own import Datasets
from dsnet.data.voc import open_detection_data
from dsnet.errors import TrainingError, must
from dsnet.manifest import Manifest
from dsnet.models import GraphSpec, eager
from dsnet.models.parts import uncalibrated
from dsnet.prediction.answers import CONFIDENCE
from dsnet.tasks import (
    GATE,
    STATE,
    Note,
    Plan,
    blank,
    calibrated,
    card_of,
    check_source,
    ends,
    images_of,
    load,
    traces_of,
)
from dsnet.tasks.detection.config import DetectionConfig
from dsnet.tasks.detection.detector import Detector, with_backbone
from dsnet.tasks.detection.scorer import METRIC, PrecisionScorer
from dsnet.tasks.detection.spec import TAPS, DetectorSpec, check_one_size
from dsnet.tasks.detection.stages import GatesStage, WidthsStage, median_gap
from dsnet.training import OptimConfig, with_fresh_router
from dsnet.training.distributed import gathered, rank, world


class Detection:
    """The task of `dsnet train --task detection`."""

    name = "detection"
    config = DetectionConfig
    metric = METRIC
    batch = 32
    fit = "squeeze"
    network = Detector

    def spec(self, written: object) -> type[DetectorSpec]:
        return DetectorSpec

    def open_data(self, config: DetectionConfig, root: str | None = None, own: Datasets | None = None) -> Data:
        if own is not None:
            raise ValueError("datasets from Python have images and classes, and a detector learns from boxes")
        return open_detection_data(config.data if root is None else replace(config.data, root=root))

    def begin(self, config: DetectionConfig, data: Data, *, again: Path | None) -> Detector:
        """Fresh neck and heads on a backbone, also for a resumed run. Stage gate begins with the source unchanged."""
        torch.manual_seed(config.seed)
        if again is None:
            check_routing(config)
        return source_detector(config, data) if config.stage == "gate" else new_detector(config, data)

    def sources(self, config: DetectionConfig, net: Detector) -> Mapping[str, Detector]:
        return {"": net} if config.stage == "gate" else {}

    def plans(self, config: DetectionConfig, data: Data, folder: Path, *, resume: bool) -> Sequence[Plan[Detector]]:
        if config.stage == "gate":
            return [gates_plan(config, data)]
        begun = resume and (folder / GATE / STATE).exists()  # then the backbone may be gone
        routes = config.stage == "both" and (begun or has_widths(config))
        return [widths_plan(config, data), *([gates_plan(config, data)] if routes else [])]

    def scorer(self, manifest: Manifest, options: Mapping[str, Any]) -> PrecisionScorer:
        return PrecisionScorer(manifest, **options)

    def options(self, config: DetectionConfig, given: Mapping[str, Any]) -> dict[str, Any]:
        overlap = 0.5 if given.get("overlap") is None else given["overlap"]
        must("--overlap", overlap, 0 < overlap < 1, "lie between 0 and 1")
        return {"rule": given.get("rule") or config.rule, "overlap": overlap, "confidence": CONFIDENCE}

    def about(self, config: DetectionConfig, manifest: Manifest) -> tuple[str, dict[str, Any]]:
        optim = config.optim
        return config.data.name, {**optim.length, "batch_size": optim.batch_size, "lr": optim.lr}


task = Detection()


def widths_plan(config: DetectionConfig, data: Data) -> Plan[Detector]:
    """The plan of stage I, which keeps the moving average that is best on the calibration split."""

    def validate(average: Detector, note: Note) -> dict[str, float]:
        paths = ends(average)
        runner, uniform = eager(average), list(paths.values())
        traces, _ = traces_of(task, runner, data, "calibration", config, paths=uniform, routed=False)
        return {name: traces.scorer.of(path)["mAP"] for name, path in paths.items()}

    keep = config.gates.router == "frozen"
    return Plan(
        name="",
        key="optim",
        optim=config.optim,
        momentum=config.widths.momentum,
        stage=lambda net: WidthsStage(net, config.widths, keep_gates=keep),
        validate=validate,
        check=lambda net: check_optim(config.optim, "optim"),
    )


def gates_plan(config: DetectionConfig, data: Data) -> Plan[Detector]:
    """The plan of stage II, which trains the gate or keeps those of the backbone, and calibrates budgets."""
    learns = config.gates.router == "trained"

    def prepare(net: Detector) -> Detector:
        torch.manual_seed(config.seed)
        return with_fresh_gate(net, config) if learns else net

    def stage(net: Detector) -> GatesStage:
        # Every process uses all images, so that all of them agree on which images are hard.
        size = config.gates_optim.batch(len(data.train))
        batches = TrainBatches(data.train, size, config.seed, config.data.workers, device=net.priors.device)
        return GatesStage(net, median=median_gap(net, batches.epoch(0)))

    return Plan(
        name=GATE,
        key="gates_optim",
        optim=config.gates_optim,
        momentum=config.gates.momentum,
        stage=stage if learns else None,
        validate=lambda average, note: {"slimmest_share": slimmest_share(average, data, config)},
        check=lambda net: check_optim(config.gates_optim, "gates_optim") if learns else None,
        prepare=prepare,
        finish=lambda net: calibrated(task, net, data, config),
    )


def check_optim(optim: OptimConfig, key: str) -> None:
    if optim.compile is not None:
        raise TrainingError(f"detectors are not compiled; leave {key}.compile out")


def backbone_of(config: DetectionConfig) -> Path:
    if config.backbone is None:
        raise ValueError(
            "a detector is built on a trained backbone, whose batch-norm statistics it keeps; say which classification "
            "run with --backbone RUN"
        )
    return Path(config.backbone)


def check_routing(config: DetectionConfig) -> None:
    if config.routing is not None and config.gates.router == "frozen":
        raise ValueError(
            f"routing is {config.routing}, but gates.router frozen keeps the widths among which the backbone's gates "
            f"choose; set --routing null, or train the gates"
        )


def has_widths(config: DetectionConfig) -> bool:
    """Whether the backbone has several widths to choose from."""
    return bool(blank(backbone_of(config), "classification").spec.widths)


def new_detector(config: DetectionConfig, data: Data) -> Detector:
    """Fresh neck and heads on the backbone of a classification run."""
    net = load(backbone_of(config), "classification")
    check_one_size(net.spec)
    if unseen := uncalibrated(net, list(net.space.uniform)):
        raise ValueError(
            f"the batch-norm statistics of {len(unseen)} widths of {config.backbone} were never calibrated; run "
            f"`dsnet recalibrate` on it first"
        )
    router = net.spec.router
    if router is not None and (router.probes or router.early is not None):  # a detector has no classifier to read
        router = None
    if config.gates.router == "frozen" and net.spec.widths and router is None:
        raise ValueError(f"{config.backbone} has no trained gates to keep; train them, or set gates.router trained")
    backbone = replace(net.spec, image_size=data.image_size, num_classes=1, router=router)
    taps = tuple(config.taps)
    if isinstance(backbone, GraphSpec) and taps == TAPS:  # those of MobileNetV1, which no converted network has
        taps = tuple(backbone.taps)[-len(TAPS) :]
    spec = DetectorSpec(backbone, len(data.classes), taps, config.projection, config.pyramid)
    detector = with_backbone(spec, net)
    detector.card = card_of(data)
    return detector


def source_detector(config: DetectionConfig, data: Data) -> Detector:
    """The trained detector that stage II starts from. It must have been trained on the same classes and image size."""
    if config.source is None:
        raise ValueError("stage gate needs a trained detector; say which with --from RUN")
    detector: Detector = load(config.source, "detection")
    check_source(detector, config.source, data)
    if config.gates.router == "frozen" and detector.spec.backbone.router is None:
        raise ValueError(f"{config.source} has no trained gates to keep; set gates.router trained")
    if not detector.spec.backbone.widths:
        raise ValueError(f"{detector.spec.name!r} has one width only, so there is nothing to route")
    return detector


def with_fresh_gate(detector: Detector, config: DetectionConfig) -> Detector:
    """The detector with this run's router, whose slimming heads have fresh weights."""
    backbone = detector.spec.backbone
    routing = backbone.space.restrict(config.routing).choices
    backbone = replace(backbone, router=config.gates.spec, routing=routing)
    return with_fresh_router(detector, replace(detector.spec, backbone=backbone))


def slimmest_share(average: Detector, data: Data, config: DetectionConfig) -> float:
    """Share of the calibration images that the gate, at lambda 0, sends to the slimmest candidate."""
    runner = eager(average)
    images = images_of(task, data, "calibration", config, rank=rank(), world=world(), device=runner.device)
    slimmest, slim, total = average.backbone.routing.slimmest[0], 0, 0
    for batch in images.batches():
        paths = runner.run(batch.images).paths
        slim, total = slim + int((paths[:, 0] == slimmest).sum()), total + len(paths)
    counts = gathered([(slim, total)])
    return sum(slim for slim, _ in counts) / max(1, sum(total for _, total in counts))
