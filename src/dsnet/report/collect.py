"""Collects the content of a folder for a report: runs, example images and experiments."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from PIL import Image

from dsnet.errors import ResultError
from dsnet.report.chapters import Run, compose, data_of
from dsnet.report.document import Document, Images, Picture
from dsnet.report.sheets import png
from dsnet.results import Bench, Evaluation, Example, Experiment, kind_of, read

CONFIG, MODEL, RESULT = "config.yaml", "model.json", "results/test.json"
BENCH, SHEET = "results/bench.json", "results/test-examples.png"
METRICS, GATE_METRICS = "metrics.jsonl", "gate/metrics.jsonl"
DEPTH = 3
SIDE = 96  # pixels of an image in the page, at most
GROUPS = {
    "slimmest": "Easy for the router: the cheapest paths",
    "widest": "Hard for the router: the most expensive paths",
}
ExampleImages = Callable[[Path, Evaluation], Sequence[Image.Image]]  # the images of a run's examples
T = TypeVar("T", Evaluation, Bench)


def report_of(place: Path, *, images_of: ExampleImages, static: Sequence[Evaluation] = ()) -> Document:
    """The report of a run, or of all runs and experiments below a folder."""
    entries = list(below(place))
    runs = [gather(folder, place, images_of) for folder in entries if folder.is_dir()]
    files = [file for file in entries if file.is_file() and kind_of(file) == "experiment"]
    experiments = [read(file, Experiment) for file in files]
    if not runs and not experiments:
        raise ValueError(
            f"there is no run and no experiment in {place}, nor up to {DEPTH} folders below it; a run has a {CONFIG}, "
            f"which `dsnet train` writes"
        )
    lone = [run.result for run in runs if run.result is not None and run.result.static]
    return compose(place.resolve().name, [with_static(run, [*static, *lone]) for run in runs], experiments)


def below(place: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Run folders and JSON files below a folder; the inside of a run folder is not searched."""
    if any((place / name).is_file() for name in (CONFIG, MODEL, RESULT)):
        yield place
        return
    entries = sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_file() and entry.suffix == ".json":
            yield entry
        elif entry.is_dir() and depth:
            yield from below(entry, depth - 1)


def gather(folder: Path, place: Path, images_of: ExampleImages) -> Run:
    why: dict[str, str] = {}
    result = found_in(folder / RESULT, Evaluation, why)
    pictures: list[Images] = []
    if result is not None and result.dynamic is not None and result.objects is None:
        try:
            pictures = pictures_of(result, images_of(folder, result))
        except (ValueError, OSError, KeyError, IndexError) as error:
            why["pictures"] = " ".join(str(error).split())
    return Run(
        name=place.resolve().name if folder == place else folder.relative_to(place).as_posix(),
        folder=str(folder),
        config=text_of(folder / CONFIG),
        result=result,
        bench=found_in(folder / BENCH, Bench, why),
        metrics=lines_of(folder / METRICS),
        gate_metrics=lines_of(folder / GATE_METRICS),
        pictures=pictures,
        sheet=(folder / SHEET).read_bytes() if (folder / SHEET).is_file() else None,
        why=why,
    )


def found_in(file: Path, kind: type[T], why: dict[str, str]) -> T | None:
    """A result, or None if there is no file or it cannot be read; in the latter case `why` gets the reason."""
    if not file.is_file():
        return None
    part, command = ("result", "eval") if kind is Evaluation else ("bench", "bench")
    try:
        return read(file, kind, remedy=f"run `dsnet {command} {file.parent.parent}` again")
    except ResultError as error:
        why[part] = " ".join(str(error).split())
        return None


def text_of(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def lines_of(file: Path) -> list[Mapping[str, float]]:
    """A log of one JSON object per line; a line that is still being written is left out."""
    entries: list[Mapping[str, float]] = []
    for line in (text_of(file) or "").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "epoch" in entry:
            entries.append({key: value for key, value in entry.items() if isinstance(value, int | float)})
    return entries


def pictures_of(result: Evaluation, images: Sequence[Image.Image]) -> list[Images]:
    """The images that the router found easy and hard, with class, answer and path."""
    groups: dict[str, list[Picture]] = {}
    for example, image in zip(result.examples, images, strict=True):
        groups.setdefault(example.group, []).append(picture(image, example, result))
    return [Images(GROUPS.get(name, name), pictures) for name, pictures in groups.items()]


def picture(image: Image.Image, example: Example, result: Evaluation) -> Picture:
    image.thumbnail((SIDE, SIDE))
    if example.answer is None or example.label is None:
        return Picture(png(image), [f"image {example.id}"])
    classes, right = result.classes, example.answer == example.label
    verdict = "✓ right" if right else f"✗ {classes[example.answer]}"
    return Picture(png(image), [classes[example.label], verdict, "path " + result.path_name(example.path)], right)


def with_static(run: Run, static: Sequence[Evaluation]) -> Run:
    """Add the static networks on the same data, which are drawn next to a run."""
    if run.result is None or run.result.static:
        return run
    return replace(run, static=[other for other in static if data_of(other) == data_of(run.result)])
