"""Embedded digits as files, for the smoke scale: a folder of images by class, and detection data in VOC's layout."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

FOLDER, VOC, DONE = "digits", "digits-voc", "digits.done"
SIDE, OBJECTS, COUNTS = 64, 3, {"train": 16, "val": 8, "test": 8}


def write_digits(root: Path) -> None:
    """Write both datasets below `root`, unless they exist."""
    if (root / DONE).exists():
        return
    from sklearn.datasets import load_digits

    found = load_digits()
    pixels = np.rint(found.images * 255 / 16).astype(np.uint8)
    for split, first, last in (("train", 0, 160), ("val", 160, 240)):
        for number in range(first, last):
            file = root / FOLDER / split / str(found.target[number]) / f"{number:04d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels[number]).convert("RGB").resize((32, 32)).save(file)
    rng, top = np.random.default_rng(0), root / VOC
    for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
        (top / part).mkdir(parents=True, exist_ok=True)
    for split, count in COUNTS.items():
        names = [f"{split}{number:03d}" for number in range(count)]
        (top / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            scene(top, name, pixels, found.target, rng)
    (root / DONE).touch()


def scene(top: Path, name: str, pixels: np.ndarray, labels: np.ndarray, rng: np.random.Generator) -> None:
    """Write one image with a few enlarged digits, one in each column, and the annotation with their boxes."""
    image, objects = Image.new("RGB", (SIDE, SIDE), (90, 90, 90)), []
    for column in range(OBJECTS):
        number = int(rng.integers(len(pixels)))
        side, wide = int(rng.integers(14, 20)), SIDE // OBJECTS
        x, y = column * wide + int(rng.integers(0, wide - side + 1)), int(rng.integers(0, SIDE - side))
        image.paste(Image.fromarray(pixels[number]).convert("RGB").resize((side, side)), (x, y))
        box = f"<xmin>{x + 1}</xmin><ymin>{y + 1}</ymin><xmax>{x + side}</xmax><ymax>{y + side}</ymax>"
        objects.append(f"<object><name>digit{labels[number] % 2}</name><bndbox>{box}</bndbox></object>")
    image.save(top / "JPEGImages" / f"{name}.jpg", quality=95)
    size = f"<size><width>{SIDE}</width><height>{SIDE}</height><depth>3</depth></size>"
    annotation = f"<annotation><filename>{name}.jpg</filename>{size}{''.join(objects)}</annotation>"
    (top / "Annotations" / f"{name}.xml").write_text(annotation)
