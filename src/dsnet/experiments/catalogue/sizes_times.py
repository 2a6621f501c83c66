"""More milliseconds of the experiment `sizes`: at larger images, from files on, and of pinned settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from dsnet.bench.candidates import Artefacts
from dsnet.bench.timing import interleaved
from dsnet.data.dataset import Data
from dsnet.data.labelled import open_dataset
from dsnet.experiments.catalogue.alternatives import file_call
from dsnet.experiments.catalogue.compared import Compared
from dsnet.experiments.catalogue.sizes_points import pinned_label
from dsnet.experiments.catalogue.slim_points import DYNAMIC, INT8, STATIC, Point
from dsnet.images import GAP, ImageFile, prepare
from dsnet.latency.timing import Call
from dsnet.models.sizes import at_sizes
from dsnet.results import Table
from dsnet.runs.folder import RunFolder
from dsnet.space import WidthPath

ROUNDS = 3
TIMES = 2  # larger images: 224 px where the network looks at up to 112
SIDES = ((640, 480), (1280, 960))
QUALITY = 90
FROM_FILES = (0.5, 0.6)  # budgets
WHOLE = "static, decoded whole"


class Larger(NamedTuple):
    """Milliseconds of budgets at a larger image size by seed and label, as shares of the static network's."""

    size: int
    shares: Mapping[tuple[int, str], float]


def milliseconds(calls: Mapping[Any, Call], inputs: list[Any]) -> dict[Any, float]:
    """The mean over inputs of the median over rounds, by call."""
    spent = interleaved(calls, ROUNDS, inputs=[(each,) for each in inputs])
    return {key: 1e3 * float(np.median(np.reshape(each, (ROUNDS, -1)), 0).mean()) for key, each in spent.items()}


def larger(found: Compared, count: int) -> tuple[Table, Larger]:
    """What budgets take at twice the image size, if as many images take each setting. count: Images that are timed."""
    folder = RunFolder.of(found.run.folder)
    before = folder.load().float()
    sizes = [TIMES * size for size in before.spec.sizes]
    artefacts = Artefacts(at_sizes(before, sizes).eval(), found.scratch / "larger", sizes[-1])
    config, _ = folder.opened()
    data = open_dataset(replace(config.data, image_size=sizes[-1]))
    places = torch.linspace(0, len(data.test) - 1, min(count, len(data.test))).long()
    images = [image.numpy() for image in data.test.load(data.test.ids[places]).images.split(1)]
    paths, table = artefacts.manifest.uniform, artefacts.table
    ms = milliseconds({path: file_call(artefacts.static(path)) for path in paths}, images)
    madds = {path: float(table.madds(path)) for path in paths}
    budgets = {
        (seed, label): point
        for seed, points in found.points.items()
        for label, point in points.items()
        if point.group == DYNAMIC
    }
    shares = {key: looks(point.shares, ms) / ms[paths[-1]] for key, point in budgets.items()}
    rows = []
    for label in dict.fromkeys(label for _, label in budgets):
        mine = {key: point for key, point in budgets.items() if key[1] == label}
        columns = (
            [100 * float(point.right.mean()) for point in mine.values()],
            [looks(point.shares, madds) / madds[paths[-1]] for point in mine.values()],
            [shares[key] for key in mine],
            [float(found.times[key].mean() / found.times[key[0], STATIC].mean()) for key in mine],
        )
        rows.append(
            (label, *(f"{mean(values):.{digits}f}" for values, digits in zip(columns, (2, 3, 2, 2), strict=True)))
        )
    at = f"at {sizes[-1]} px"
    names = (
        "<network",
        f"top-1 at {sizes[-1] // TIMES} px",
        f"MAdds {at}",
        f"ms {at}",
        f"ms at {sizes[-1] // TIMES} px",
    )
    note = (
        f"MAdds and milliseconds as shares of the static network's at the same size. The network {at} has the sizes "
        f"{', '.join(map(str, sizes))}; it was not trained there, so it has no accuracy. Each setting was timed as "
        f"a static file that resizes itself, on {len(images)} test images. Every budget takes each of them as often "
        f"as the test images took the same setting at {sizes[-1] // TIMES} px. All looks are counted; the head of the "
        f"router is not. The largest setting took {ms[paths[-1]]:.2f} ms."
    )
    return Table(f"The same shares of images {at}", names, tuple(rows), note), Larger(sizes[-1], shares)


def looks(shares: Mapping[WidthPath, float], each: Mapping[WidthPath, float]) -> float:
    """What images take on average: everyone the first setting, and those that go on another."""
    first, *others = shares
    return each[first] + sum(shares[path] * each[path] for path in others)


def from_files(found: Compared, count: int) -> Table:
    """Milliseconds from a JPEG file to the answer, of those of the static network that decodes it whole. count: Images
    that are timed."""
    _, data = RunFolder.of(found.run.folder).opened()
    rows, seeds = [], list(found.points)
    for side in SIDES:
        files = photographs(data, found.scratch / f"{side[0]}", side, count)
        calls = {key: call for seed in seeds for key, call in file_calls(found, seed, data).items()}
        ms = milliseconds(calls, files)
        for label in dict.fromkeys(label for _, label in calls):
            bases = (WHOLE, WHOLE + INT8 * label.endswith(INT8))
            shares = [mean(ms[seed, label] / ms[seed, base] for seed in seeds) for base in bases]
            spent = mean(ms[seed, label] for seed in seeds)
            rows.append((f"{side[0]} x {side[1]}", label, *(f"{value:.2f}" for value in (spent, *shares))))
    columns = ("<picture", "<network", "ms", "of decoded whole", "of the same precision")
    note = (
        f"From a JPEG file to the answer: reading, decoding, resizing to the network's input, and the network, with "
        f"one thread; the mean over {len(files)} test images and all seeds, in turns. Pictures are test images that "
        f"were enlarged and saved with quality {QUALITY}. dsnet's reader decodes a JPEG at 1/2, 1/4 or 1/8 of its side "
        f"where at least {GAP:g} pixels are left for every pixel of the input, in each direction. The last columns are "
        f"shares of the static network's time where all of the JPEG is decoded."
    )
    return Table("From a file to the answer", columns, tuple(rows), note)


def file_calls(found: Compared, seed: int, data: Data) -> dict[tuple[int, str], Callable[[Path], Any]]:
    """What is timed from files of one seed."""
    calls, points = {}, found.points[seed]
    for precision in ("", INT8):
        calls[seed, WHOLE + precision] = answered(points[STATIC + precision], data, whole=True)
        for label in (STATIC, *(f"{DYNAMIC} at {share:g}" for share in FROM_FILES)):
            name = f"{label}, dsnet's reader{precision}"
            calls[seed, name] = answered(points[label + precision], data, whole=False)
    return calls


def answered(point: Point, data: Data, *, whole: bool) -> Callable[[Path], Any]:
    """A call from a file to the answer. whole: Whether all of a JPEG is decoded, or what is needed."""
    run = point.call
    assert run is not None

    def call(file: Path) -> Any:
        image = ImageFile(file)
        if whole:
            image.decoded()
        x = prepare(
            image,
            size=point.size,
            channels=data.channels,
            fit=data.fit,
            crop=data.crop,
            interpolation=data.interpolation,
            mean=data.mean,
            std=data.std,
        )
        return run(x[None])

    return call


def photographs(data: Data, folder: Path, side: tuple[int, int], count: int) -> list[Path]:
    """Some test images, evenly spaced, enlarged and saved as JPEGs."""
    folder.mkdir(parents=True)
    files, found = data.test.files(), []
    for place in np.linspace(0, len(files) - 1, min(count, len(files))).astype(int):
        found.append(folder / f"{place}.jpg")
        ImageFile(Path(files[place])).resize(side, Image.Resampling.BICUBIC).save(found[-1], quality=QUALITY)
    return found


def pinned(found: Compared) -> Table:
    """Milliseconds of settings in the dynamic file, of those of their own static files."""
    ratios: dict[str, list[float]] = {}
    for seed, points in found.points.items():
        for label in points:
            if (other := pinned_label(label)) in points:
                ratio = np.median(found.times[seed, other] / found.times[seed, label])
                ratios.setdefault(label, []).append(float(ratio))
    rows = tuple((label, f"{mean(each):.3f}", f"{max(each):.3f}", str(len(each))) for label, each in ratios.items())
    note = (
        "The median over images of the time of the dynamic file, in which the setting was pinned, over that of a "
        "static file of the same setting. Both take the largest size and resize themselves. The router does not run."
    )
    columns = ("<setting", "dynamic / static, mean over seeds", "highest", "seeds")
    return Table("A setting in the dynamic file and alone", columns, rows, note)
