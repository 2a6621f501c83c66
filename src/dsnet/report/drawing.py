"""Figures of evaluations as files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

from dsnet.report.adapter import as_dict
from dsnet.report.detection import examples_sheet, precision_figure
from dsnet.report.old_figures import accuracy_figure, gates_figure
from dsnet.results import Evaluation


def draw(results: Sequence[Evaluation], prefix: Path, static: Sequence[Evaluation] = ()) -> list[Path]:
    """PREFIX.png, the score over MAdds, and PREFIX-gates.png of a dynamic network for classification."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    file, result = prefix.with_name(prefix.name + ".png"), results[0]
    if result.objects is not None:
        return [precision_figure([as_dict(each) for each in results], file)]
    pictures = [accuracy_figure(as_dict(result), file, [as_dict(other) for other in static])]
    if result.dynamic is not None:
        pictures.append(gates_figure(as_dict(result), prefix.with_name(prefix.name + "-gates.png")))
    return pictures


def draw_boxes(result: Evaluation, images: Sequence[Image.Image], file: Path) -> Path:
    """The example images with their detections and annotated objects."""
    return examples_sheet(as_dict(result), images, file)
