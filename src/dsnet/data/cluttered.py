"""Cluttered digits: real handwritten digits, drawn on a larger canvas so that some are easy and others hard to read.

Every picture has a level from 0 to 1. At level 0 a digit is large, upright, bright and alone. The higher the level, the
smaller, more turned and fainter it may be, with pieces of other digits around it, a part missing, and noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image

SIDE = 32  # pixels of the canvas
SOURCE, BORDER = 72, 9  # pixels to which the 8 x 8 digits are enlarged before they are drawn, and of the border in them
PIECES = 3  # most pieces of other digits in one picture
TRAIN_DRAWINGS, TEST_DRAWINGS = 24, 5  # pictures of each digit
CHUNK = 512  # pictures drawn at once
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
    strokes, labels = np.stack([enlarged(image) for image in bunch.images]), bunch.target.astype(np.int64)
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


def enlarged(digit: np.ndarray) -> np.ndarray:
    """An 8 x 8 digit with values 0 to 16 as a smooth picture of SOURCE pixels, with a dark border and clear strokes."""
    small = Image.fromarray(np.round(digit * (255 / 16)).astype(np.uint8))
    large = small.resize((SOURCE - 2 * BORDER,) * 2, Image.Resampling.BICUBIC).point(CLEAR)
    return np.pad(np.asarray(large), BORDER)


def drawn(
    strokes: np.ndarray,
    labels: np.ndarray,
    digits: np.ndarray,
    clutter: np.ndarray,
    drawings: int,
    rng: np.random.Generator,
) -> Drawings:
    """Draw each of `digits` several times, with halves of digits of other classes, taken from `clutter`, around it."""
    digits = np.repeat(digits, drawings)
    number = len(digits)
    levels = rng.uniform(0, 1, number)
    wild = levels * rng.uniform(0, 1, (4, number))  # how far size, angle, brightness and noise are from the plain ones
    sizes, angles = 30 - 14 * wild[0], np.deg2rad(50 * wild[1] * rng.choice([-1, 1], number))
    centres = SIDE / 2 + (SIDE - sizes) / 2 * rng.uniform(-1, 1, (2, number))
    pieces = np.where(
        rng.uniform(0, 1, (number, PIECES)) < 0.9 * levels[:, None], rng.choice(clutter, (number, PIECES)), -1
    )
    pieces[labels[pieces] == labels[digits][:, None]] = -1
    canvas = placed(strokes, digits, sizes, angles, centres)
    missing = np.flatnonzero(rng.uniform(0, 1, number) < 0.4 * levels)
    canvas[missing] *= beside_strip(sizes[missing], centres[:, missing], rng)
    canvas *= (1 - 0.5 * wild[2]).astype(np.float32)[:, None, None]
    halves = strokes.copy()
    halves[:, :, SOURCE // 2 :] = 0
    for column in pieces.T:
        rows = np.flatnonzero(column >= 0)
        towards, turn = rng.uniform(0, 2 * np.pi, (2, len(rows)))
        away = sizes[rows] * rng.uniform(0.4, 0.7, len(rows)) * np.stack([np.cos(towards), np.sin(towards)])
        around = placed(halves, column[rows], rng.uniform(14, 26, len(rows)), turn, centres[:, rows] + away)
        canvas[rows] = np.maximum(canvas[rows], 0.9 * around)
    noise = (255 * 0.25 * wild[3]).astype(np.float32)[:, None, None]
    canvas += noise * rng.standard_normal(canvas.shape, np.float32)
    images = np.round(np.clip(canvas, 0, 255)).astype(np.uint8)
    return Drawings(images, labels[digits], levels, digits, pieces)


def placed(
    strokes: np.ndarray, which: np.ndarray, sizes: np.ndarray, angles: np.ndarray, centres: np.ndarray
) -> np.ndarray:
    """The strokes `which`, scaled to `sizes` pixels and turned by `angles`, with their middles at `centres` [2, N]."""
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5).astype(np.float32)
    across, down = (SOURCE / sizes * np.stack([np.cos(angles), np.sin(angles)])).astype(np.float32)
    left, top = centres.astype(np.float32)
    canvas = np.empty((len(which), SIDE, SIDE), np.float32)
    for start in range(0, len(which), CHUNK):
        rows = slice(start, start + CHUNK)
        a, b, dx, dy = (value[rows, None, None] for value in (across, down, left, top))
        u = (a * (x - dx) + b * (y - dy) + SOURCE / 2).astype(np.int32).clip(0, SOURCE - 1)
        v = (a * (y - dy) - b * (x - dx) + SOURCE / 2).astype(np.int32).clip(0, SOURCE - 1)
        canvas[rows] = strokes[which[rows, None, None], v, u]
    return canvas


def beside_strip(sizes: np.ndarray, centres: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """False in a strip [N, SIDE, SIDE] across each digit, in a random direction, beside its middle; True elsewhere."""
    turn, width = rng.uniform(0, 2 * np.pi, len(sizes)), rng.uniform(0.1, 0.2, len(sizes)).astype(np.float32)
    slopes = (np.stack([np.cos(turn), np.sin(turn)]) / sizes).astype(np.float32)
    start = (slopes * centres).sum(0).astype(np.float32) + 0.08
    y, x = (np.mgrid[:SIDE, :SIDE] + 0.5).astype(np.float32)
    share = slopes[0, :, None, None] * x + slopes[1, :, None, None] * y - start[:, None, None]
    return (share < 0) | (share > width[:, None, None])
