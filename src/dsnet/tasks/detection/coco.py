"""COCO's mean average precision, by the package faster-coco-eval or pycocotools where one is installed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from importlib import import_module
from math import nan
from typing import Any

from dsnet.tasks.detection.average_precision import Detections, Truth

PACKAGES = (("faster_coco_eval", "COCOeval_faster"), ("pycocotools.cocoeval", "COCOeval"))

FIGURES = ("map", "map50", "map75")  # in the order of the packages' own


def coco_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int, *, size: int
) -> dict[str, float]:
    """Precision averaged over overlaps of 0.5 to 0.95, and at 0.5 and 0.75; nan where no object counts.

    size: by which boxes, which are shares of the image, are multiplied. Difficult objects are
    ignored as crowds are: what lies inside of one costs nothing.
    """
    if len(found) != len(truths):
        raise ValueError(f"there are detections of {len(found)} images but objects of {len(truths)}; give one for each")
    coco, evaluation = packages()
    if not any(bool((~truth.difficult).any()) for truth in truths):
        return dict.fromkeys(FIGURES, nan)
    with contextlib.redirect_stdout(io.StringIO()):  # both packages talk
        objects = coco()
        objects.dataset = dataset(truths, classes, size)
        objects.createIndex()
        rows = results(found, size)
        if not rows:
            return dict.fromkeys(FIGURES, 0.0)
        judge = evaluation(objects, objects.loadRes(rows), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return {name: float(judge.stats[place]) for place, name in enumerate(FIGURES)}


def packages() -> tuple[Any, Any]:
    """COCO and COCOeval of whichever package is there."""
    for module, name in PACKAGES:
        try:
            evaluation = getattr(import_module(module), name)
            return import_module(module.replace("cocoeval", "coco")).COCO, evaluation
        except ImportError:
            continue
    raise ValueError("COCO's precision needs another package; install dsnet[coco], or use VOC's rules area and 11point")


def dataset(truths: Sequence[Truth], classes: int, size: int) -> dict[str, Any]:
    """Objects in COCO's format; images, objects and classes count from 1."""
    rows: list[dict[str, Any]] = []
    for image, truth in enumerate(truths, start=1):
        for box, label, difficult in zip(
            truth.boxes.tolist(), truth.classes.tolist(), truth.difficult.tolist(), strict=True
        ):
            edges = bbox(box, size)
            rows.append(
                {
                    "id": len(rows) + 1,
                    "image_id": image,
                    "category_id": label + 1,
                    "bbox": edges,
                    "area": edges[2] * edges[3],
                    "iscrowd": int(difficult),
                }
            )
    return {
        "images": [{"id": number + 1, "width": size, "height": size} for number in range(len(truths))],
        "categories": [{"id": number + 1, "name": str(number)} for number in range(classes)],
        "annotations": rows,
        "info": {},
    }


def results(found: Sequence[Detections], size: int) -> list[dict[str, Any]]:
    """Detections in COCO's format."""
    return [
        {"image_id": image, "category_id": label + 1, "bbox": bbox(box, size), "score": score}
        for image, one in enumerate(found, start=1)
        for box, label, score in zip(one.boxes.tolist(), one.classes.tolist(), one.scores.tolist(), strict=True)
    ]


def bbox(corners: Sequence[float], size: int) -> list[float]:
    left, top, right, bottom = (edge * size for edge in corners)
    return [left, top, right - left, bottom - top]
