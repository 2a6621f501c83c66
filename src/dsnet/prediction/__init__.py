"""From image files to predictions: preprocessing by the model's card, the routed network, one answer per image."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from dsnet.errors import DataError
from dsnet.manifest import Manifest, Policy
from dsnet.pictures import Picture, as_input, batch_of, name_of, opened
from dsnet.prediction.answers import CONFIDENCE, Answer, Input, answers_of
from dsnet.routing.parts import as_array
from dsnet.routing.tracking import BudgetTracker
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath


def predict(
    runner: Runner,
    files: Sequence[Picture],
    policy: Policy,
    *,
    path: WidthPath | None = None,
    batch_size: int = 64,
    confidence: float = CONFIDENCE,
    top: int = 0,
    tracker: BudgetTracker | None = None,
    refused: list[str] | None = None,
    seconds: list[float] | None = None,
    round_up: bool = False,
) -> Iterator[Answer]:
    """Predict images in the order of `files`; the router chooses each path, unless `path` pins it.

    confidence: lowest confidence of the objects that are returned.
    top: number of the most probable classes that each answer of a classifier lists.
    tracker: runs the images and keeps the average of its budget; `policy` is not used then.
    refused: list that collects the error messages of unreadable files, which are skipped; without it, they raise.
    seconds: list that collects what the network took for each batch.
    round_up: run images of small groups at a wider width where that is faster; see `Runner`.
    """
    manifest = runner.manifest
    for inputs in prepared(files, manifest, batch_size, refused):
        x = batch_of([one.pixels for one in inputs], manifest)
        begun = time.perf_counter()
        if tracker is not None:
            routed = tracker(x)
        else:
            routed = runner.run(x, policy, round_up=round_up) if path is None else runner.run_path(x, path)
        if seconds is not None:
            seconds.append(time.perf_counter() - begun)
        paths, madds = as_array(routed.paths), as_array(routed.madds)
        yield from answers_of(manifest, routed.outputs, inputs, paths, madds, confidence=confidence, top=top)


def prepared(
    files: Sequence[Picture], manifest: Manifest, batch_size: int, refused: list[str] | None
) -> Iterator[list[Input]]:
    """Batches of inputs. Each image is reduced to the network's size as it is read, so that only one is held whole. A
    raw file takes it whole, so batches are of one image."""
    batch_size = 1 if manifest.raw else batch_size
    for start in range(0, len(files), batch_size):
        batch = []
        for number, file in enumerate(files[start : start + batch_size], start=start):
            try:
                batch.append(read_input(file, number, manifest))
            except DataError as error:
                if refused is None:
                    raise
                refused.append(str(error))
        if batch:
            yield batch


def read_input(picture: Picture, number: int, manifest: Manifest) -> Input:
    image = opened(picture)
    return Input(name_of(picture, number), (image.width, image.height), as_input(image, manifest))
