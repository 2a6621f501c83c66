"""From a network's outputs to answers: a class, or objects with boxes. Also draws boxes on images."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from dsnet.manifest import Manifest
from dsnet.routing.parts import Outputs, as_array
from dsnet.space import WidthPath

CONFIDENCE = 0.5  # lowest confidence of the objects that are shown


@dataclass(frozen=True)
class Ranked:
    """A class among the most probable ones: number, name and probability."""

    label: int
    name: str
    confidence: float


@dataclass(frozen=True)
class Prediction:
    """The class predicted for one image: number, name and probability, with the path taken and the MAdds spent.

    top: The most probable classes, if they were asked for. The first is the predicted one.
    ms: Milliseconds that the network took, if a latency was asked for.
    """

    file: str
    label: int
    name: str
    confidence: float
    path: WidthPath
    madds: int
    top: tuple[Ranked, ...] = ()
    ms: float | None = None

    @property
    def words(self) -> list[str]:
        others = [", ".join(f"{one.name} {one.confidence:.1%}" for one in self.top[1:])] if len(self.top) > 1 else []
        return [self.name, f"{self.confidence:.1%}", *others]


@dataclass(frozen=True)
class Detection:
    """A detected object: class number, name and probability, and its box (left, top, right, bottom) in pixels."""

    label: int
    name: str
    confidence: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageDetections:
    """The objects detected in one image, best first, with the path taken and the MAdds spent.

    ms: Milliseconds that the network took, if a latency was asked for.
    """

    file: str
    objects: tuple[Detection, ...]
    path: WidthPath
    madds: int
    ms: float | None = None

    @property
    def words(self) -> list[str]:
        names = [item.name for item in self.objects]
        return [", ".join(f"{names.count(name)} {name}" for name in dict.fromkeys(names)) or "nothing"]


Answer = Prediction | ImageDetections


@dataclass(frozen=True)
class Input:
    """An image as the network takes it, its file, and the width and height of the whole image."""

    file: str
    size: tuple[int, int]
    pixels: np.ndarray


@dataclass(frozen=True)
class Detections:
    """The detections in one image, best first: boxes [D, 4] as corners, scores [D] and classes [D]."""

    boxes: np.ndarray
    scores: np.ndarray
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.scores)


def name_of(manifest: Manifest, label: int) -> str:
    return manifest.classes[label] if manifest.classes else str(label)


def finds_boxes(manifest: Manifest) -> bool:
    """Whether the network detects objects; otherwise it classifies images."""
    return "boxes" in manifest.outputs


def answers_of(
    manifest: Manifest,
    outputs: Outputs,
    images: Sequence[Input],
    paths: np.ndarray,
    madds: np.ndarray,
    *,
    confidence: float = CONFIDENCE,
    top: int = 0,
) -> list[Answer]:
    """The answers for a batch of images. top: number of the most probable classes that are kept with them."""
    taken = list(zip(images, map(tuple, paths.tolist()), madds.tolist(), strict=True))
    if not finds_boxes(manifest):
        probs = softmax(as_array(outputs["logits"]))
        orders = np.argsort(-probs, 1, kind="stable")[:, : max(1, top)].tolist()
        return [
            classified(manifest, *one, row, order, top) for one, row, order in zip(taken, probs, orders, strict=True)
        ]
    answers: list[Answer] = []
    both = zip(taken, as_array(outputs["boxes"]), as_array(outputs["scores"]), strict=True)
    for (image, path, cost), boxes, scores in both:
        detections = select(boxes, scores, threshold=confidence)
        scale = np.array([*image.size, *image.size], np.float32)
        rows = zip(
            detections.classes.tolist(), detections.scores.tolist(), (detections.boxes * scale).tolist(), strict=True
        )
        objects = tuple(Detection(label, name_of(manifest, label), score, tuple(box)) for label, score, box in rows)
        answers.append(ImageDetections(image.file, objects, path, cost))
    return answers


def classified(
    manifest: Manifest,
    image: Input,
    path: WidthPath,
    madds: int,
    probs: np.ndarray,
    order: list[int],
    top: int,
) -> Prediction:
    """The prediction for one image. order: the most probable classes, best first."""
    best, *_ = ranked = [Ranked(label, name_of(manifest, label), float(probs[label])) for label in order]
    kept = tuple(ranked) if top else ()
    return Prediction(image.file, best.label, best.name, best.confidence, path, madds, kept)


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def iou(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Intersection over union of every pair, [N, 4] and [M, 4] as corners -> [N, M]; 0 if both boxes are empty."""
    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    both = np.clip(high - low, 0, None).prod(-1)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(-1) for boxes in (first, second)]
    either = areas[0][:, None] + areas[1][None, :] - both
    return np.where(either > 0, both / np.maximum(either, np.finfo(both.dtype).tiny), 0).astype(both.dtype)


def nms(boxes: np.ndarray, scores: np.ndarray, threshold: float) -> np.ndarray:
    """Greedy non-maximum suppression: a mask [N] of the boxes [N, 4] to keep. Scores [N] must be sorted, best first.

    A box is removed if it overlaps a better box that is kept by more than the threshold. All boxes are updated at once:
    whether a box is kept depends on better boxes only, so each pass settles at least one more box. In practice a few
    passes settle all of them.
    """
    if bool((scores[1:] > scores[:-1]).any()):
        raise ValueError("scores rise somewhere; sort boxes and scores by falling score first")
    # [N, N]: the row's box, if kept, removes the column's. Floats, because matrix products of floats are fast.
    beats = np.triu((iou(boxes, boxes) > threshold).astype(np.float32), 1)
    keep = np.ones(len(scores), bool)
    while True:
        settled = keep.astype(np.float32) @ beats == 0
        if bool((settled == keep).all()):
            return keep
        keep = settled


def select(
    boxes: np.ndarray,
    scores: np.ndarray,
    *,
    threshold: float = 0.01,
    overlap: float = 0.45,
    per_class: int = 400,
    most: int = 200,
) -> Detections:
    """The detections of one image, best first, suppressed within each class.

    boxes: [P, 4] as corners. scores: [P, classes]. threshold: lowest score. overlap: threshold of `nms`.
    per_class: number of candidates considered for each class. most: number of detections kept.
    """
    class_boxes, class_scores, labels = [], [], []
    for label, column in enumerate(scores.T):  # class by class, because all N x N overlaps at once need much memory
        likely = int((column > threshold).sum())
        which = np.argsort(-column, kind="stable")[: min(per_class, likely)]
        best = column[which]
        keep = nms(boxes[which], best, overlap)
        class_boxes.append(boxes[which[keep]])
        class_scores.append(best[keep])
        labels.append(np.full(int(keep.sum()), label, np.int64))
    together, values, classes = np.concatenate(class_boxes), np.concatenate(class_scores), np.concatenate(labels)
    order = np.argsort(-values, kind="stable")[:most]
    return Detections(together[order], values[order], classes[order])


def drawn(image: Image.Image, sighting: ImageDetections, classes: int) -> Image.Image:
    """A copy of the image with a box and a caption for every object, one colour per class."""
    picture = image.convert("RGB")
    pen = ImageDraw.Draw(picture)
    width = max(1, round(max(picture.size) / 300))
    for item in reversed(sighting.objects):  # the best on top
        colour = colour_of(item.label, classes)
        pen.rectangle(item.box, outline=colour, width=width)
        text = f"{item.name} {item.confidence:.0%}"
        left, top, right, bottom = pen.textbbox((0, 0), text)
        height = bottom - top + 4
        x, y = item.box[0], max(0.0, item.box[1] - height)
        pen.rectangle((x, y, x + right - left + 4, y + height), fill=colour)
        pen.text((x + 2, y + 2 - top), text, fill="white")
    return picture


def colour_of(label: int, classes: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(label / max(1, classes), 0.9, 0.8)
    return round(255 * red), round(255 * green), round(255 * blue)


def plain(answer: Answer) -> dict[str, Any]:
    """An answer as a dict for JSON."""
    fields = asdict(answer)
    if not fields.get("top", True):
        del fields["top"]
    if fields["ms"] is None:
        del fields["ms"]
    return fields
