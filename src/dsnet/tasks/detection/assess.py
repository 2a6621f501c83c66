"""The data of a detection run, and its detector's evaluation on a split of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pydantic import JsonValue

from dsnet.data.batches import plain_batches
from dsnet.data.dataset import Batch, Data, Split
from dsnet.data.voc import open_detection_data
from dsnet.results import Evaluation
from dsnet.tasks.detection.average_precision import Rule
from dsnet.tasks.detection.config import DetectionConfig
from dsnet.tasks.detection.detector import Detector
from dsnet.tasks.detection.evaluate import DetectionTraces, evaluate_detector
from dsnet.tasks.detection.onnx import OnnxDetector

EVAL_BATCH = 32


def open_data(config: DetectionConfig, root: str | None = None) -> Data:
    """The data of a run, at another place if `root` is given."""
    return open_detection_data(config.data if root is None else replace(config.data, root=root))


def evaluate_detection(
    detector: Detector | OnnxDetector,
    data: Data,
    config: DetectionConfig,
    *,
    split: str = "test",
    budgets: Sequence[str | float] | None = None,
    max_width: int | None = None,
    rule: Rule | None = None,
    overlap: float = 0.5,
) -> Evaluation:
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
    training: dict[str, JsonValue] = {
        "epochs": config.optim.epochs,
        "batch_size": config.optim.batch_size,
        "lr": config.optim.lr,
    }
    return replace(result, dataset=Path(config.data.root).name, seeds=(config.seed,), training=training)


def split_of(data: Data, name: str) -> Split:
    return {"test": data.test, "calibration": data.calibration, "train": data.train}[name]


def plain(split: Split, config: DetectionConfig) -> Iterator[Batch]:
    yield from plain_batches(split, EVAL_BATCH, workers=config.data.workers)
