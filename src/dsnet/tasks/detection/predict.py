"""From image files to objects, and to images with boxes drawn on them."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageDraw
from torch import Tensor

from dsnet.data.augment import normalise, to_float, to_tensor
from dsnet.images import FILTERS
from dsnet.predict import readable
from dsnet.routing import Policy, Prices
from dsnet.space import WidthPath
from dsnet.tasks.detection.cost import DetectorCost
from dsnet.tasks.detection.detector import Detector
from dsnet.tasks.detection.evaluate import detections_of
from dsnet.tasks.detection.onnx import OnnxDetector
from dsnet.tasks.detection.route import route_boxes


@dataclass(frozen=True)
class Found:
    """An object: class number and name, its probability, its box (left, top, right, bottom) in pixels of the image."""

    label: int
    name: str
    confidence: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Sight:
    """The objects of one image, best first, the path taken, MAdds spent."""

    file: str
    objects: tuple[Found, ...]
    path: WidthPath
    madds: int


@torch.no_grad()
def find_objects(
    detector: Detector | OnnxDetector,
    files: Sequence[Path],
    policy: Policy,
    *,
    path: WidthPath | None = None,
    confidence: float = 0.5,
    batch_size: int = 16,
    refused: list[str] | None = None,
) -> Iterator[Sight]:
    """Objects of at least some confidence, in the order of `files`; gates choose each path, unless `path` pins it.

    refused: gets what is wrong with a file that cannot be read, and the others go on; without it, that is an error.
    """
    table = DetectorCost(detector.spec)
    prices, names = Prices(table), detector.card.classes
    device = detector.priors.device if isinstance(detector, Detector) else torch.device("cpu")
    for part, images in readable(files, batch_size, refused):
        x = torch.cat([prepare(image, detector) for image in images]).to(device)
        if path is None:
            boxes, scores, paths, spent = route_boxes(detector, x, policy, prices=prices)
            taken, madds = paths.tolist(), spent.tolist()
        else:
            (boxes, scores), *_ = detector.look(x, [path])[0]
            taken, madds = [list(path)] * len(x), [table.madds(path)] * len(x)
        for file, image, found, own, cost in zip(
            part, images, detections_of(boxes, scores, threshold=confidence), taken, madds, strict=True
        ):
            scale = torch.tensor([image.width, image.height, image.width, image.height])
            rows = zip(found.classes.tolist(), found.scores.tolist(), (found.boxes * scale).tolist(), strict=True)
            objects = tuple(
                Found(label, names[label] if names else str(label), score, (box[0], box[1], box[2], box[3]))
                for label, score, box in rows
            )
            yield Sight(str(file), objects, tuple(own), cost)


def prepare(image: Image.Image, detector: Detector | OnnxDetector) -> Tensor:
    """An image as the detector's input [1, 3, S, S]: squeezed to a square, as in training."""
    how, size = detector.card.preprocessing, detector.spec.image_size
    square = image.resize((size, size), FILTERS[how.interpolation])
    return normalise(to_float(to_tensor(square)[None]), how.mean, how.std)


def drawn(image: Image.Image, sight: Sight, classes: int) -> Image.Image:
    """A copy of the image with a box and a caption for every object, one colour per class."""
    picture = image.convert("RGB")
    pen = ImageDraw.Draw(picture)
    width = max(1, round(max(picture.size) / 300))
    for thing in reversed(sight.objects):  # the best on top
        colour = colour_of(thing.label, classes)
        pen.rectangle(thing.box, outline=colour, width=width)
        text = f"{thing.name} {thing.confidence:.0%}"
        left, top, right, bottom = pen.textbbox((0, 0), text)
        height = bottom - top + 4
        x, y = thing.box[0], max(0.0, thing.box[1] - height)
        pen.rectangle((x, y, x + right - left + 4, y + height), fill=colour)
        pen.text((x + 2, y + 2 - top), text, fill="white")
    return picture


def colour_of(label: int, classes: int) -> tuple[int, int, int]:
    red, green, blue = colorsys.hsv_to_rgb(label / max(1, classes), 0.9, 0.8)
    return round(255 * red), round(255 * green), round(255 * blue)
