"""Writes results and their figures into a run's folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from PIL import Image

from dsnet.data.augment import to_pixels
from dsnet.data.dataset import Data, Split
from dsnet.files import write_whole
from dsnet.images import ImageFile
from dsnet.report.export import draw as draw_evaluations
from dsnet.report.figures import enabled
from dsnet.report.sheets import contact_sheet, detection_sheet
from dsnet.results import Evaluation, write

LANCZOS = Image.Resampling.LANCZOS


def record(folder: Path, name: str, result: Evaluation, data: Data, *, draw: bool = True) -> list[Path]:
    """Write a result of any task below a run's folder; draw: its figures as well, which are returned."""
    file = write(result, folder / "results" / f"{name}.json")
    if not (draw and enabled()):
        return []
    drawn = draw_evaluations([result], file.with_suffix(""))
    if result.examples:
        drawn.append(draw_examples(result, data, file.with_name(f"{name}-examples.png")))
    return drawn


def draw_examples(result: Evaluation, data: Data, file: Path) -> Path:
    """Draw a sheet of example images: with their detections, or those that the router finds easy and hard."""
    part = data.split(result.split)
    if result.objects is not None:
        files = [name for example in result.examples if (name := part.source.file(example.id)) is not None]
        return detection_sheet(result, [shrunk(Path(name)) for name in files], file)
    groups: dict[str, list[tuple[Image.Image, list[str]]]] = {}
    images = pictures(data, part, [example.id for example in result.examples])
    for example, image in zip(result.examples, images, strict=True):
        caption = f"{data.classes[example.label or 0]}, {result.path_name(example.path)}"
        groups.setdefault(f"routed {example.group}", []).append((image, [caption]))
    write_whole(file, contact_sheet(list(groups.items()), title=f"{result.model}, {result.dataset} {result.split}"))
    return file


def shrunk(file: Path, side: int = 1000) -> Image.Image:
    """An image that fits into a square, so that the examples are not held at their full size."""
    image = ImageFile(file)
    share = min(1, side / image.width, side / image.height)
    return image.resize((max(1, round(share * image.width)), max(1, round(share * image.height))), LANCZOS)


def pictures(data: Data, part: Split, ids: Sequence[int]) -> list[Image.Image]:
    """Images of a split as pictures, with the normalisation undone."""
    images = part.load(torch.tensor(ids, dtype=torch.long)).images
    pixels = to_pixels(images, data.mean, data.std).permute(0, 2, 3, 1).numpy()
    return [Image.fromarray(image.squeeze(-1) if image.shape[-1] == 1 else image) for image in pixels]
