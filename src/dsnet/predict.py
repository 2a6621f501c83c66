"""From image files to answers: preprocessing by the model's card, the routed network, one row per image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from dsnet.errors import DataError
from dsnet.images import SUFFIXES, centre_crop, read_image
from dsnet.models import Supernet
from dsnet.routing import Policy
from dsnet.runtime import Runner
from dsnet.space import WidthPath


@dataclass(frozen=True)
class Prediction:
    """The answer for one image: class number and name, its probability, the path taken, MAdds spent."""

    file: str
    label: int
    name: str
    confidence: float
    path: WidthPath
    madds: int


def predict(
    runner: Runner,
    files: Sequence[Path],
    policy: Policy,
    *,
    path: WidthPath | None = None,
    batch_size: int = 64,
    refused: list[str] | None = None,
) -> Iterator[Prediction]:
    """Answers in the order of `files`; the router chooses each path, unless `path` pins it.

    refused: gets what is wrong with a file that cannot be read, and the others go on; without it, that is an error.
    """
    for part, images in readable(files, batch_size, refused):
        x = torch.stack([prepare(image, runner) for image in images])
        routed = runner.run(x, policy) if path is None else runner.run_path(x, path)
        found = routed.logits.softmax(1).max(1)
        for file, probability, label, taken, cost in zip(
            part,
            found.values.tolist(),
            found.indices.tolist(),
            routed.paths.tolist(),
            routed.madds.tolist(),
            strict=True,
        ):
            name = runner.card.classes[label] if runner.card.classes else str(label)
            yield Prediction(str(file), label, name, probability, tuple(taken), cost)


def readable(
    files: Sequence[Path], batch_size: int, refused: list[str] | None
) -> Iterator[tuple[list[Path], list[Image.Image]]]:
    """Batches of files with their images."""
    for start in range(0, len(files), batch_size):
        found = []
        for file in files[start : start + batch_size]:
            try:
                found.append((file, read_image(file)))
            except DataError as error:
                if refused is None:
                    raise
                refused.append(str(error))
        if found:
            yield [file for file, _ in found], [image for _, image in found]


def prepare(image: Image.Image, net: Supernet | Runner) -> Tensor:
    """An image as the network's input [C, S, S]."""
    how, channels = net.card.preprocessing, net.spec.in_channels
    if channels not in (1, 3):
        raise DataError(f"{net.spec.name} takes {channels} channels; only grey and colour images can be read")
    size = net.image_size if isinstance(net, Runner) else net.spec.image_size
    image = centre_crop(image, size, crop=how.crop, interpolation=how.interpolation)
    pixels = torch.frombuffer(bytearray(image.convert("L" if channels == 1 else "RGB").tobytes()), dtype=torch.uint8)
    x = pixels.view(size, size, channels).permute(2, 0, 1).float() / 255
    return (x - torch.tensor(how.mean).view(-1, 1, 1)) / torch.tensor(how.std).view(-1, 1, 1)


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
