"""Cluttered digits: real handwritten digits, drawn on a larger canvas so that some are easy and others hard to read.

Every picture has a level from 0 to 1. At level 0 a digit is large, upright, bright and alone. The higher the level, the
smaller, more turned and fainter it may be, with pieces of other digits around it, a part missing, and noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

SIDE = 32  # pixels of the canvas
SOURCE = 24  # pixels to which the 8 x 8 digits are enlarged before they are drawn
PIECES = 3  # most pieces of other digits in one picture
TRAIN_DRAWINGS, TEST_DRAWINGS = 8, 5  # pictures of each digit
SEED = 0
CLEAR = [min(255, max(0, round(1.7 * (value - 64)))) for value in range(256)]  # darkens blurred edges


@dataclass(frozen=True)
class Drawings:
    """Pictures of digits: uint8 [N, SIDE, SIDE], with the class, the level and the source digit of each [N].

    clutter: The digits that the pieces were taken from [N, PIECES], or -1 for no piece.
    """

    images: np.ndarray
    labels: np.ndarray
    levels: np.ndarray
    digits: np.ndarray
    clutter: np.ndarray


def cluttered_digits() -> tuple[Drawings, Drawings]:
    """Training and test pictures of the 1,797 digits that scikit-learn installs. They are the same on every call.

    A fifth of the digits of each class is drawn in the test pictures only, as digit and as clutter. A tenth appears in
    the training pictures as clutter only, so that these can be split by digit without a digit being on both sides.
    """
    from sklearn.datasets import load_digits

    bunch = load_digits()
    strokes, labels = [enlarged(image) for image in bunch.images], bunch.target.astype(np.int64)
    rng = np.random.default_rng(SEED)
    test, clutter, train = [], [], []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        fifth, tenth = round(len(members) / 5), round(len(members) / 10)
        test.append(members[:fifth])
        clutter.append(members[fifth : fifth + tenth])
        train.append(members[fifth + tenth :])
    for_train, for_test = np.sort(np.concatenate(train)), np.sort(np.concatenate(test))
    return (
        drawn(strokes, labels, for_train, np.concatenate(clutter), TRAIN_DRAWINGS, rng),
        drawn(strokes, labels, for_test, for_test, TEST_DRAWINGS, rng),
    )


def enlarged(digit: np.ndarray) -> Image.Image:
    """An 8 x 8 digit with values 0 to 16 as a smooth picture of SOURCE pixels, with a dark border and clear strokes."""
    border = 3
    small = Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))
    large = Image.new("L", (SOURCE, SOURCE))
    large.paste(small.resize((SOURCE - 2 * border,) * 2, Image.Resampling.BICUBIC), (border, border))
    return large.point(CLEAR)


def drawn(
    strokes: list[Image.Image],
    labels: np.ndarray,
    digits: np.ndarray,
    clutter: np.ndarray,
    drawings: int,
    rng: np.random.Generator,
) -> Drawings:
    """Draw each of `digits` several times, with pieces of `clutter` around them."""
    digits = np.repeat(digits, drawings)
    number = len(digits)
    levels = rng.uniform(0, 1, number)
    wild = (levels[:, None] * rng.uniform(0, 1, (number, 4))).astype(
        np.float32
    )  # how far each property is from the plain one
    sizes = 30 - 14 * wild[:, 0]
    angles = 50 * wild[:, 1] * rng.choice([-1, 1], number)
    centres = SIDE / 2 + (SIDE - sizes[:, None]) / 2 * rng.uniform(-1, 1, (number, 2))
    pieces = np.where(
        rng.uniform(0, 1, (number, PIECES)) < 0.9 * levels[:, None], rng.choice(clutter, (number, PIECES)), -1
    )
    pieces = np.where(labels[pieces] == labels[digits][:, None], -1, pieces)  # a piece of the same class would help
    canvas = np.zeros((number, SIDE, SIDE), np.float32)
    for row in range(number):
        canvas[row] = placed(strokes[digits[row]], sizes[row], angles[row], *centres[row])
    missing = np.flatnonzero(rng.uniform(0, 1, number) < 0.5 * levels)
    canvas[missing] *= beside_strip(centres[missing], sizes[missing], rng)
    canvas *= 1 - 0.5 * wild[:, 2, None, None]
    canvas = np.maximum(canvas, around_of(strokes, pieces, centres, sizes, rng))
    canvas += 255 * 0.25 * wild[:, 3, None, None] * rng.standard_normal(canvas.shape, np.float32)
    images = np.round(np.clip(canvas, 0, 255)).astype(np.uint8)
    return Drawings(images, labels[digits], levels, digits, pieces)


def around_of(
    strokes: list[Image.Image], pieces: np.ndarray, centres: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Halves of the given digits, each at a random place outside the middle of the picture's own digit."""
    number = len(pieces)
    around = np.zeros((number, SIDE, SIDE), np.float32)
    towards = rng.uniform(0, 2 * np.pi, pieces.shape)
    away = sizes[:, None] * rng.uniform(0.4, 0.7, pieces.shape)
    size, angle = rng.uniform(14, 26, pieces.shape), rng.uniform(0, 360, pieces.shape)
    for row, column in zip(*np.nonzero(pieces >= 0), strict=True):
        x, y = centres[row] + away[row, column] * np.array([np.cos(towards[row, column]), np.sin(towards[row, column])])
        half = strokes[pieces[row, column]].copy()
        half.paste(0, (SOURCE // 2, 0, SOURCE, SOURCE))
        piece = placed(half, size[row, column], angle[row, column], x, y)
        around[row] = np.maximum(around[row], 0.9 * piece)
    return around


def placed(stroke: Image.Image, size: float, angle: float, x: float, y: float) -> np.ndarray:
    """A picture of SOURCE pixels, scaled to `size`, turned by `angle` degrees, with its middle at (x, y)."""
    scale, turn = SOURCE / size, np.deg2rad(angle)
    a, b = scale * np.cos(turn), scale * np.sin(turn)
    middle = SOURCE / 2
    inverse = (a, b, middle - a * x - b * y, -b, a, middle + b * x - a * y)
    return np.asarray(stroke.transform((SIDE, SIDE), Image.Transform.AFFINE, inverse, Image.Resampling.BILINEAR))


def beside_strip(centres: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """1 except in a strip [N, SIDE, SIDE] across each digit, in a random direction, beside its middle."""
    turn = rng.uniform(0, 2 * np.pi, len(sizes))
    slopes = (np.stack([np.cos(turn), np.sin(turn)], 1) / sizes[:, None]).astype(np.float32)
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5).astype(np.float32)
    start = (slopes * centres).sum(1) + 0.08
    share = slopes[:, 0, None, None] * x + slopes[:, 1, None, None] * y - start[:, None, None]
    return (share < 0) | (share > rng.uniform(0.1, 0.22, len(sizes))[:, None, None])
