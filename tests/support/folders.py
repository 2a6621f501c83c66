"""Small folders of images, with classes or boxes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

Box = tuple[str, int, int, int, int]


def make_folder(root: Path, splits: tuple[str, ...] = ("train", "val"), count: int = 12) -> Path:
    """Noise of three classes that differ in brightness."""
    rng = np.random.default_rng(0)
    for split in splits:
        for label, name in enumerate(("cat", "dog", "emu")):
            (root / split / name).mkdir(parents=True)
            for k in range(count):
                pixels = rng.integers(0, 80, (24, 30, 3), np.uint8) + np.uint8(80 * label)
                Image.fromarray(pixels).save(root / split / name / f"{k:02d}.jpg")
    return root


def write_digits(root: Path, counts: dict[str, int]) -> None:
    """A folder of real images: handwritten digits of three classes."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    for label, name in enumerate(("cat", "dog", "emu")):
        mine = iter(digits.images[digits.target == label])
        for split, count in counts.items():
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = (next(mine) / 16 * 255).astype(np.uint8).repeat(5, 0).repeat(5, 1)
                Image.fromarray(pixels).save(root / split / name / f"{number:02d}.png")


def annotation(boxes: Sequence[Box], *, difficult: Sequence[int] = ()) -> str:
    things = "".join(
        f"<object><name>{name}</name><difficult>{int(number in difficult)}</difficult><bndbox><xmin>{a}</xmin>"
        f"<ymin>{b}</ymin><xmax>{c}</xmax><ymax>{d}</ymax></bndbox></object>"
        for number, (name, a, b, c, d) in enumerate(boxes)
    )
    return f"<annotation><size><width>100</width><height>80</height></size>{things}</annotation>"


def voc_folder(root: Path, lists: dict[str, int], *, colours: Sequence[str] = ("red", "blue")) -> Path:
    """Images of 100 x 80 pixels with one coloured rectangle each; the class is the colour."""
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (root / part).mkdir(parents=True, exist_ok=True)
    for name, count in lists.items():
        entries = [f"{name}{number:03d}" for number in range(count)]
        (root / "ImageSets/Main" / f"{name}.txt").write_text("\n".join(entries) + "\n")
        for number, entry in enumerate(entries):
            colour = colours[number % len(colours)]
            left, top = 7 * number % 50, 11 * number % 40
            image = Image.new("RGB", (100, 80), "white")
            ImageDraw.Draw(image).rectangle((left, top, left + 39, top + 34), fill=colour)
            image.save(root / "JPEGImages" / f"{entry}.jpg", quality=95)
            box = (colour, left + 1, top + 1, left + 40, top + 35)
            (root / "Annotations" / f"{entry}.xml").write_text(annotation([box]))
    return root
