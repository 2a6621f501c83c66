"""Average precision of PASCAL VOC, by the 11-point rule of 2007 or the area rule of later years, and of COCO.

COCO's needs the package faster-coco-eval or pycocotools.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from math import isnan, nan
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from dsnet.data.boxes import iou
from dsnet.prediction.answers import Detections

Rule = Literal["area", "11point"]
CHUNK = 4_000_000  # detections times resampled sets that are computed together


@dataclass(frozen=True)
class Truth:
    """The objects of one image: boxes [G, 4] in corners, in the units of the detections; classes [G]; difficult [G]."""

    boxes: Tensor
    classes: Tensor
    difficult: Tensor


def check_images(found: Sequence[Detections], truths: Sequence[Truth]) -> None:
    if len(found) != len(truths):
        raise ValueError(f"there are detections of {len(found)} images but objects of {len(truths)}; give one for each")


def mean_average_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int, *, overlap: float = 0.5, rule: Rule = "area"
) -> tuple[float, list[float]]:
    """The mean average precision, and that of each class. A class without objects that count is nan, and not in the
    mean."""
    check_images(found, truths)
    each = [average_precision(found, truths, label, overlap=overlap, rule=rule) for label in range(classes)]
    known = [value for value in each if not isnan(value)]
    return (sum(known) / len(known) if known else nan), each


def average_precision(
    found: Sequence[Detections], truths: Sequence[Truth], label: int, *, overlap: float = 0.5, rule: Rule = "area"
) -> float:
    """The average precision of one class.

    Detections are sorted by score, and each is assigned to the object that it overlaps most. It is right if the IoU is
    at least `overlap` and no detection with a higher score was assigned to that object. Objects marked difficult do not
    count, nor do detections assigned to them. Equal scores keep the order of the images.
    """
    check_rule(rule)
    ranking = ranked(found, truths, label, overlap=overlap)
    objects = int(ranking.objects.sum())
    if not objects:
        return nan
    hits = ranking.right.double()
    recall = hits.cumsum(0) / objects
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return area_under(recall, precision) if rule == "area" else eleven_points(recall, precision)


def check_rule(rule: str) -> None:
    if rule not in ("area", "11point"):
        raise ValueError(f"rule {rule!r} is unknown; choose area or 11point")


@dataclass(frozen=True)
class Ranking:
    """The detections of one class that count, best first: their images [D], and which are right [D]. objects: number of
    objects in each image [N]."""

    images: Tensor
    right: Tensor
    objects: Tensor


def ranked(found: Sequence[Detections], truths: Sequence[Truth], label: int, *, overlap: float) -> Ranking:
    scores: list[Tensor] = []
    right: list[Tensor] = []
    counted: list[Tensor] = []
    objects: list[int] = []
    for image, truth in zip(found, truths, strict=True):
        of_class, own = torch.as_tensor(image.classes) == label, truth.classes == label
        image_boxes, image_scores = torch.as_tensor(image.boxes)[of_class], torch.as_tensor(image.scores)[of_class]
        difficult = truth.difficult[own].bool()
        objects.append(int((~difficult).sum()))
        order = image_scores.argsort(descending=True, stable=True)
        hits, counts = judge(image_boxes[order], truth.boxes[own], difficult, overlap)
        scores.append(image_scores[order])
        right.append(hits)
        counted.append(counts)
    images = torch.repeat_interleave(torch.arange(len(found)), torch.tensor([len(each) for each in scores]))
    order = torch.cat(scores).argsort(descending=True, stable=True)
    order = order[torch.cat(counted)[order]]
    return Ranking(images[order], torch.cat(right)[order], torch.tensor(objects))


def resampled(rankings: Sequence[Ranking], times: np.ndarray, *, rule: Rule = "area") -> np.ndarray:
    """The mean average precision [R] of resampled sets of images. times: how often each set holds each image [R, N]."""
    each = np.full((len(rankings), len(times)), nan)
    for row, ranking in zip(each, rankings, strict=True):
        images, right = ranking.images.numpy(), ranking.right.numpy()
        objects = times @ ranking.objects.numpy()
        step = max(1, CHUNK // max(1, len(images)))
        for start in range(0, len(times), step):
            part = slice(start, start + step)
            counts, known = times[part][:, images].astype(np.float64), np.maximum(objects[part], 1)[:, None]
            hits = (counts * right).cumsum(1)
            precision = hits / np.maximum(counts.cumsum(1), 1)
            envelope = np.maximum.accumulate(precision[:, ::-1], 1)[:, ::-1]
            if rule == "area":
                values = (counts * right * envelope).sum(1) / known[:, 0]
            else:
                levels = np.arange(11) / 10 - 1e-12
                values = np.stack([np.where(hits / known >= level, precision, 0).max(1, initial=0) for level in levels])
                values = values.mean(0)
            row[part] = np.where(objects[part] > 0, values, nan)
    kept = each[~np.isnan(each).all(1)]
    return np.nanmean(kept, axis=0) if len(kept) else np.full(len(times), nan)


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
    """The area under the curve of the best precision at each recall or beyond."""
    envelope = precision.flip(0).cummax(0).values.flip(0) if len(precision) else precision
    steps = torch.diff(recall, prepend=recall.new_zeros(1))
    return float((steps * envelope).sum())


def eleven_points(recall: Tensor, precision: Tensor) -> float:
    """The mean of the best precision at a recall of at least 0, 0.1, ... 1."""
    points = [precision[recall >= number / 10 - 1e-12] for number in range(11)]
    return float(sum(float(beyond.max()) if len(beyond) else 0.0 for beyond in points) / 11)


PACKAGES = (("faster_coco_eval", "COCOeval_faster"), ("pycocotools.cocoeval", "COCOeval"))

FIGURES = ("map", "map50", "map75")  # in the order of the packages' `stats`


def coco_precision(
    found: Sequence[Detections], truths: Sequence[Truth], classes: int, *, size: int
) -> dict[str, float]:
    """COCO's average precision: the mean over IoU thresholds of 0.5 to 0.95, and at 0.5 and 0.75. It is nan if no
    object counts.

    size: Side of the images in pixels, by which boxes are multiplied. Difficult objects are ignored like COCO's crowds:
    detections inside them do not count as wrong.
    """
    check_images(found, truths)
    coco, evaluation = packages()
    if not any(bool((~truth.difficult).any()) for truth in truths):
        return dict.fromkeys(FIGURES, nan)
    with contextlib.redirect_stdout(io.StringIO()):  # both packages print
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
    """The classes COCO and COCOeval of whichever package is installed."""
    for module, name in PACKAGES:
        try:
            evaluation = getattr(import_module(module), name)
            return import_module(module.replace("cocoeval", "coco")).COCO, evaluation
        except ImportError:
            continue
    raise ValueError("COCO's precision needs another package; install dsnet[coco], or use VOC's rules area and 11point")


def coco_dataset(truths: Sequence[Truth], classes: int, size: int) -> dict[str, Any]:
    """Objects in COCO's format. Images, objects and classes are numbered from 1."""
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
        for image, own in enumerate(found, start=1)
        for box, label, score in zip(own.boxes.tolist(), own.classes.tolist(), own.scores.tolist(), strict=True)
    ]


def coco_box(corners: Sequence[float], size: int) -> list[float]:
    left, top, right, bottom = (edge * size for edge in corners)
    return [left, top, right - left, bottom - top]
