"""Everything that a folder has to tell, gathered for a report: runs, their data's images, experiment results."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from dsnet.checkpoint import MODEL
from dsnet.config import CONFIG
from dsnet.data.dataset import Data as Dataset
from dsnet.data.splits import check_data
from dsnet.errors import ResultError
from dsnet.report.blocks import Chapter, Picture, Pictures, Report
from dsnet.report.chapters import RunParts, experiment_chapter, run_chapter
from dsnet.report.html import chapter
from dsnet.report.overview import compose, data_of
from dsnet.results import Bench, Evaluation, Example, read
from dsnet.runs.folder import BENCH
from dsnet.tasks import GATE, read_config
from dsnet.tasks.assess import open_data, pixels, split_of

RESULT = "results/test.json"
SHEET = "results/test-examples.png"
METRICS = "metrics.jsonl"
DEPTH = 3
SIDE = 96  # pixels of an image in the page, at most
GROUPS = {"slimmest": "Easy for the router: the cheapest paths", "widest": "Hard for the router: the dearest paths"}


def report_of(place: Path, *, root: str | None = None, static: Sequence[Evaluation] = ()) -> Report:
    """The report of a run, or of all runs and experiments below a folder."""
    found = list(below(place))
    opened: dict[str, Dataset] = {}
    runs = [gather(folder, place, root, opened) for folder in found if folder.is_dir()]
    experiments = [content for file in found if file.is_file() and (content := experiment(file))]
    if not runs and not experiments:
        raise ValueError(
            f"there is no run and no experiment in {place}, nor up to {DEPTH} folders below it; a run has a {CONFIG}, "
            f"which `dsnet train` writes"
        )
    lone = [run.result for run in runs if run.result is not None and not run.detector and run.result.static]
    runs = [with_static(run, [*static, *lone]) for run in runs]
    return compose(place.resolve().name, runs, experiments)


def below(place: Path, depth: int = DEPTH) -> Iterator[Path]:
    """Run folders and JSON files, a run's own folders left out."""
    if any((place / name).is_file() for name in (CONFIG, MODEL, RESULT)):
        yield place
        return
    entries = sorted(entry for entry in place.iterdir() if not entry.name.startswith("."))
    for entry in entries:
        if entry.is_file() and entry.suffix == ".json":
            yield entry
        elif entry.is_dir() and depth:
            yield from below(entry, depth - 1)


def experiment(file: Path) -> dict[str, Any] | None:
    """An experiment's result; None for other JSON."""
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get("experiment"), str):
        return None
    if not drawable(lambda: experiment_chapter(content)):
        raise ValueError(f"{file} says that it is an experiment's result, but is not in the shape of one; make it anew")
    return content


def drawable(make: Callable[[], Chapter]) -> bool:
    """Whether JSON is in the shape that a chapter takes; files may be damaged, or of another version of dsnet."""
    try:
        chapter(make(), "", single=True)
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, AssertionError):
        return False
    return True


def read_json(file: Path) -> Any:
    """None where there is no file, or not one that can be read."""
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def read_result(file: Path) -> Evaluation | None:
    """None where there is no evaluation, or not one that this version of dsnet reads."""
    try:
        return read(file, Evaluation)
    except ValueError:
        return None


def read_lines(file: Path) -> list[dict[str, Any]]:
    """A log of one JSON object per line; a line that is still being written is left out."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    found = []
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if isinstance(entry, dict) and "epoch" in entry:
            found.append(entry)
    return found


def benchmark(file: Path) -> Bench | None:
    try:
        return read(file, Bench)
    except ResultError:
        return None


def gather(folder: Path, place: Path, root: str | None, opened: dict[str, Dataset]) -> RunParts:
    result = read_result(folder / RESULT)
    try:
        config = (folder / CONFIG).read_text(encoding="utf-8")
    except (OSError, ValueError):
        config = None
    detector = (result is not None and result.objects is not None) or "task: detection" in (config or "").splitlines()
    pictures, why = [], ""
    if result is not None and result.dynamic is not None and not detector:
        try:
            pictures = examples(folder, result, root, opened)
        except (ValueError, OSError, KeyError, TypeError) as error:
            why = " ".join(str(error).split())
    sheet = folder / SHEET
    run = RunParts(
        name=place.resolve().name if folder == place else folder.relative_to(place).as_posix(),
        folder=str(folder),
        config=config,
        result=result,
        bench=benchmark(folder / BENCH),
        metrics=read_lines(folder / METRICS),
        gate_metrics=read_lines(folder / GATE / METRICS),
        pictures=pictures,
        no_pictures=why,
        sheet=sheet.read_bytes() if sheet.is_file() else None,
        detector=detector,
    )
    # What cannot be drawn counts as missing.
    bare = replace(run, result=None, bench=None, metrics=(), gate_metrics=())
    fewer = (run, replace(run, bench=None), replace(run, result=None), replace(run, result=None, bench=None))
    return next((kept for kept in fewer if drawable(partial(run_chapter, kept))), bare)


def examples(folder: Path, result: Evaluation, root: str | None, opened: dict[str, Dataset]) -> list[Pictures]:
    """The images that the router found easy and hard, with class, answer and path."""
    config = read_config(folder / CONFIG)
    key = repr((config.data, config.model))
    if key not in opened:
        opened[key] = open_data(config, root)
    data = opened[key]
    check_data(folder, data)
    part = split_of(data, result.split)
    groups = []
    for name in dict.fromkeys(example.group for example in result.examples):
        shown = [example for example in result.examples if example.group == name]
        images = pixels(data, part, [example.id for example in shown])
        pictures = [picture(image, entry, data) for image, entry in zip(images, shown, strict=True)]
        groups.append(Pictures(GROUPS.get(name, name), pictures))
    return groups


def picture(image: np.ndarray, example: Example, data: Dataset) -> Picture:
    drawn = Image.fromarray((255 * image).round().astype(np.uint8).squeeze())
    drawn.thumbnail((SIDE, SIDE))
    buffer = io.BytesIO()
    drawn.save(buffer, format="PNG", optimize=True)
    if example.answer is None or example.label is None:
        return Picture(buffer.getvalue(), [f"image {example.id}"])
    right = example.answer == example.label
    said = "✓ right" if right else f"✗ {data.classes[example.answer]}"
    route = "path " + ",".join(map(str, example.path))
    return Picture(buffer.getvalue(), [data.classes[example.label], said, route], right)


def with_static(run: RunParts, static: Sequence[Evaluation]) -> RunParts:
    """Static networks on the same data are drawn beside a run."""
    if run.result is None or run.detector or run.result.static:
        return run
    return replace(run, static=[other for other in static if data_of(other) == data_of(run.result)])
