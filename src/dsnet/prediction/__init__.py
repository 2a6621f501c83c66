"""From image files to predictions: preprocessing by the model's card, the routed network, one answer per image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dsnet.errors import DataError
from dsnet.images import SUFFIXES, prepare, read_image
from dsnet.manifest import Manifest, Policy
from dsnet.prediction.answers import CONFIDENCE, Answer, answers_of
from dsnet.routing.route import as_array
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath


def predict(
    runner: Runner,
    files: Sequence[Path],
    policy: Policy,
    *,
    path: WidthPath | None = None,
    batch_size: int = 64,
    confidence: float = CONFIDENCE,
    refused: list[str] | None = None,
) -> Iterator[Answer]:
    """Predict images in the order of `files`; the router chooses each path, unless `path` pins it.

    confidence: lowest confidence of the objects that are returned.
    refused: list that collects the error messages of unreadable files, which are skipped; without it, they raise.
    """
    manifest = runner.manifest
    for images in readable(files, batch_size, refused):
        x = np.stack([as_input(image, manifest) for _, image in images])
        routed = runner.run(x, policy) if path is None else runner.run_path(x, path)
        paths, madds = as_array(routed.paths), as_array(routed.madds)
        yield from answers_of(manifest, routed.outputs, images, paths, madds, confidence=confidence)


def readable(
    files: Sequence[Path], batch_size: int, refused: list[str] | None
) -> Iterator[list[tuple[str, Image.Image]]]:
    """Batches of file names with their images."""
    for start in range(0, len(files), batch_size):
        batch = []
        for file in files[start : start + batch_size]:
            try:
                batch.append((str(file), read_image(file)))
            except DataError as error:
                if refused is None:
                    raise
                refused.append(str(error))
        if batch:
            yield batch


def as_input(image: Image.Image, manifest: Manifest) -> np.ndarray:
    """Turn an image into the network's input [C, S, S]."""
    options = manifest.preprocessing
    return prepare(
        image,
        size=manifest.image_size,
        channels=manifest.in_channels,
        fit=options.fit,
        crop=options.crop,
        interpolation=options.interpolation,
        mean=options.mean,
        std=options.std,
    )


def image_files(names: Sequence[str]) -> list[Path]:
    """The given files, and all images in the given folders and their subfolders, sorted within each folder."""
    files: list[Path] = []
    for name in names:
        place = Path(name)
        if place.is_dir():
            inside = sorted(file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not inside:
                raise DataError(f"{place} holds no images ({', '.join(SUFFIXES)}); give another folder")
            files += inside
        elif place.is_file():
            files.append(place)
        else:
            raise DataError(f"{place} does not exist; give image files or folders of them")
    return files
