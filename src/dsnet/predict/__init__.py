"""From image files to answers: preprocessing by the model's card, the routed network, one answer per image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from dsnet.errors import DataError
from dsnet.images import SUFFIXES, prepare, read_image
from dsnet.manifest import Manifest, Policy
from dsnet.predict.answers import CONFIDENCE, Answer, answers_of
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
    """Answers in the order of `files`; the router chooses each path, unless `path` pins it.

    confidence: least confidence of an object that is told.
    refused: gets what is wrong with a file that cannot be read, and the others go on; without it, that is an error.
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
        found = []
        for file in files[start : start + batch_size]:
            try:
                found.append((str(file), read_image(file)))
            except DataError as error:
                if refused is None:
                    raise
                refused.append(str(error))
        if found:
            yield found


def as_input(image: Image.Image, manifest: Manifest) -> np.ndarray:
    """An image as the network's input [C, S, S]."""
    how = manifest.preprocessing
    return prepare(
        image,
        size=manifest.image_size,
        channels=manifest.in_channels,
        fit=how.fit,
        crop=how.crop,
        interpolation=how.interpolation,
        mean=how.mean,
        std=how.std,
    )


def image_files(names: Sequence[str]) -> list[Path]:
    """Files as given, and all images below folders, sorted."""
    found: list[Path] = []
    for name in names:
        place = Path(name)
        if place.is_dir():
            inside = sorted(file for file in place.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
            if not inside:
                raise DataError(f"{place} holds no images ({', '.join(SUFFIXES)}); give another folder")
            found += inside
        elif place.is_file():
            found.append(place)
        else:
            raise DataError(f"{place} does not exist; give image files or folders of them")
    return found
