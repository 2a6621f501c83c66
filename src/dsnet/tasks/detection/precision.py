"""Average precision: PASCAL VOC's, by the 11-point rule of 2007 or by the area of later years, and COCO's, by the
package faster-coco-eval or pycocotools where one is installed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import isnan, nan
from typing import Any, Literal

import torch
from torch import Tensor

from dsnet.data.boxes import iou
from dsnet.predict.answers import Detections

Rule = Literal["area", "11point"]


@dataclass(frozen=True)
class Truth:
    """Of one image: boxes [G, 4] in corners, in the same units as the detections; classes [G]; difficult [G]."""

    boxes: Tensor
    classes: Tensor
    difficult: Tensor


def check_images(found: Sequence[Detections], truths: Sequence[Truth]) -> None:
    if len(found) != len(truths):
        raise ValueError(f"there are detections of {len(found)} images but objects of {len(truths)}; give one for each")


def mean_average_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int, *, overlap: float = 0.5, rule: Rule = "area"
) -> tuple[float, list[float]]:
    """The mean over classes, and each class's; a class without objects that count is nan and left out of the mean."""
    check_images(found, truths)
    each = [average_precision(found, truths, label, overlap=overlap, rule=rule) for label in range(classes)]
    known = [value for value in each if not isnan(value)]
    return (sum(known) / len(known) if known else nan), each


def average_precision(
    found: Sequence[Detections], truths: Sequence[Truth], label: int, *, overlap: float = 0.5, rule: Rule = "area"
) -> float:
    """Of one class. Detections are taken from the best score on; each finds the object that it overlaps most.

    It is right if they overlap by `overlap` at least and no better detection found that object. Objects marked
    difficult neither count nor make a detection wrong. Equal scores keep the order of the images.
    """
    if rule not in ("area", "11point"):
        raise ValueError(f"rule {rule!r} is unknown; choose area or 11point")
    scores: list[Tensor] = []
    right: list[Tensor] = []
    counted: list[Tensor] = []
    objects = 0
    for one, truth in zip(found, truths, strict=True):
        boxes, sure = torch.as_tensor(one.boxes), torch.as_tensor(one.scores)
        mine, own = torch.as_tensor(one.classes) == label, truth.classes == label
        difficult = truth.difficult[own].bool()
        objects += int((~difficult).sum())
        order = sure[mine].argsort(descending=True, stable=True)
        hits, counts = judge(boxes[mine][order], truth.boxes[own], difficult, overlap)
        scores.append(sure[mine][order])
        right.append(hits)
        counted.append(counts)
    if not objects:
        return nan
    order = torch.cat(scores).argsort(descending=True, stable=True)
    order = order[torch.cat(counted)[order]]
    hits = torch.cat(right)[order].double()
    recall = hits.cumsum(0) / objects
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return area_under(recall, precision) if rule == "area" else eleven_points(recall, precision)


def judge(boxes: Tensor, objects: Tensor, difficult: Tensor, overlap: float) -> tuple[Tensor, Tensor]:
    """Which detections [D] of one image and class, best first, are right, and which count at all."""
    right, counts = torch.zeros(len(boxes), dtype=torch.bool), torch.ones(len(boxes), dtype=torch.bool)
    if not len(boxes) or not len(objects):
        return right, counts
    best, which = iou(boxes.double(), objects.double()).max(1)
    taken: set[int] = set()
    for row, (value, place) in enumerate(zip(best.tolist(), which.tolist(), strict=True)):
        if value < overlap:
            continue
        if bool(difficult[place]):
            counts[row] = False
        elif place not in taken:
            right[row] = True
            taken.add(place)
    return right, counts


def area_under(recall: Tensor, precision: Tensor) -> float:
    """The area under the precision that is reached at a recall or beyond it."""
    envelope = precision.flip(0).cummax(0).values.flip(0) if len(precision) else precision
    steps = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((steps * envelope).sum())


def eleven_points(recall: Tensor, precision: Tensor) -> float:
    """The mean of the best precision at a recall of at least 0, 0.1, ... 1."""
    points = [precision[recall >= number / 10 - 1e-12] for number in range(11)]
    return float(sum(float(beyond.max()) if len(beyond) else 0.0 for beyond in points) / 11)


PACKAGES = (("faster_coco_eval", "COCOeval_faster"), ("pycocotools.cocoeval", "COCOeval"))

FIGURES = ("map", "map50", "map75")  # in the order of the packages' own


def coco_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int, *, size: int
) -> dict[str, float]:
    """Precision averaged over overlaps of 0.5 to 0.95, and at 0.5 and 0.75; nan where no object counts.

    size: by which boxes, which are shares of the image, are multiplied. Difficult objects are
    ignored as crowds are: what lies inside of one costs nothing.
    """
    check_images(found, truths)
    coco, evaluation = packages()
    if not any(bool((~truth.difficult).any()) for truth in truths):
        return dict.fromkeys(FIGURES, nan)
    with contextlib.redirect_stdout(io.StringIO()):  # both packages talk
        objects = coco()
        objects.dataset = coco_dataset(truths, classes, size)
        objects.createIndex()
        rows = coco_results(found, size)
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


def coco_dataset(truths: Sequence[Truth], classes: int, size: int) -> dict[str, Any]:
    """Objects in COCO's format; images, objects and classes count from 1."""
    rows: list[dict[str, Any]] = []
    for image, truth in enumerate(truths, start=1):
        each = zip(truth.boxes.tolist(), truth.classes.tolist(), truth.difficult.tolist(), strict=True)
        for box, label, difficult in each:
            edges = coco_box(box, size)
            row = {"id": len(rows) + 1, "image_id": image, "category_id": label + 1, "bbox": edges}
            rows.append({**row, "area": edges[2] * edges[3], "iscrowd": int(difficult)})
    return {
        "images": [{"id": number + 1, "width": size, "height": size} for number in range(len(truths))],
        "categories": [{"id": number + 1, "name": str(number)} for number in range(classes)],
        "annotations": rows,
        "info": {},
    }


def coco_results(found: Sequence[Detections], size: int) -> list[dict[str, Any]]:
    """Detections in COCO's format."""
    return [
        {"image_id": image, "category_id": label + 1, "bbox": coco_box(box, size), "score": score}
        for image, one in enumerate(found, start=1)
        for box, label, score in zip(one.boxes.tolist(), one.classes.tolist(), one.scores.tolist(), strict=True)
    ]


def coco_box(corners: Sequence[float], size: int) -> list[float]:
    left, top, right, bottom = (edge * size for edge in corners)
    return [left, top, right - left, bottom - top]
