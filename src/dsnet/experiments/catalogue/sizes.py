"""The image size as a second axis: a network that looks at a small image first, next to static networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from dsnet.experiments.catalogue import slim as widths_only
from dsnet.experiments.catalogue.alternatives import TOP1, judged
from dsnet.experiments.catalogue.compared import LOST, Compared, compared
from dsnet.experiments.catalogue.sizes_points import (
    BOTH,
    EQUAL_STEPS,
    EXITS,
    SETTINGS,
    SMALL,
    WIDTHS,
    points_of,
    small_label,
)
from dsnet.experiments.catalogue.sizes_times import Larger, from_files, larger, pinned
from dsnet.experiments.catalogue.slim_points import DYNAMIC, INT8, STATIC, Point
from dsnet.experiments.catalogue.starts import BOTH_FIRST, EVEN_FIRST, SMALL_FIRST, convert, static_rows
from dsnet.experiments.layout import Column, Findings, Row, Runs, Table
from dsnet.experiments.measures import widest, widest_madds
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.results import Claim
from dsnet.results import Table as ResultTable

TRAINED = {"smoke": (12,)}  # sizes that static networks are trained for, where they are not 80 and 64 px
EQUAL = ((0.5, ""), (0.7, ""), (0.7, INT8))  # budgets and precisions at which dynamic networks are compared
FEW = ((0.35, ""), (0.5, ""))
AGAINST = {
    (DYNAMIC, WIDTHS): EQUAL,
    (DYNAMIC, BOTH): EQUAL,
    (DYNAMIC, EQUAL_STEPS): EQUAL,
    (EQUAL_STEPS, BOTH): FEW,
    (EXITS, DYNAMIC): FEW,
}
TIMED = {"smoke": 2}  # images that are timed for further tables, where they are not 40
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, over {images} test images; all "
    "networks of all seeds took turns in one run. Files take the largest size and resize themselves, and MAdds "
    "contain the resizing; networks that were trained for smaller images get them in their size. The dynamic "
    "network is one file. Its settings and budgets were chosen on held-out training images. The static network is "
    "the same pretrained network, fine-tuned alone at the largest size with no less training time; of its learning "
    "rates, the best on the held-out images of each seed is shown. It also runs on smaller images, with batch-norm "
    "statistics of their size. With exits: the dynamic network's supernet with a router whose exits are early "
    "classifiers, one at each size; of its settings only the exits are shown. Equal steps: with sizes and widths "
    "every setting learns as often as with sizes alone. Widths only: the same network as the experiment `slim` "
    "makes and trains it. Figures are means over the seeds that are finished. The oracle knows the cheapest setting "
    "that is right, and cannot be built."
)


def sizes_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    router, exits, alone = {"sgs.router": "margin"}, {"sgs.router": "exit_first"}, {"ieb.only": 0}
    supernet = Recipe("sizes", start=SMALL_FIRST)
    rows = [
        Row(DYNAMIC, supernet.gates(router, start=None)),
        *static_rows(),
        Row(EXITS, supernet.gates(exits, start=None)),
        Row(BOTH, Recipe("sizes_both", start=BOTH_FIRST).gates(router, start=None)),
        Row(EQUAL_STEPS, Recipe("sizes_both_equal", start=BOTH_FIRST).gates(router, start=None)),
    ]
    for size in TRAINED.get(scale.name, (80, 64)):
        recipe = Recipe("sizes_small", {**alone, "data.image_size": size}, start=SMALL_FIRST)
        rows.append(Row(small_label(size), recipe))
    rows.append(Row(WIDTHS, widths_only.LEARNED))
    return (Table("Runs", (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)), tuple(rows)),)


def prepare(scale: Scale, out: Path, root: str | None) -> None:
    """Convert the networks that the runs start from, unless they are there."""
    convert(scale, out, root, (EVEN_FIRST, SMALL_FIRST, BOTH_FIRST))


def compare(scale: Scale, runs: Runs) -> Findings:
    title = "A pretrained network that looks small first"
    timed = TIMED.get(scale.name, 40)
    return compared(runs, points_of, lambda found: tables_of(found, timed), claims, title=title, note=NOTE, drawn=drawn)


def tables_of(found: Compared, timed: int) -> Iterator[ResultTable]:
    """What else is shown. timed: Images that are timed for some of it."""
    table, at_twice = larger(found, timed)
    yield reached(found, at_twice)
    yield table
    yield from_files(found, timed)
    yield pinned(found)


def reached(found: Compared, at_twice: Larger) -> ResultTable:
    """What it takes to keep an accuracy less LOST, read on the test curve: that of the static network, and the dynamic
    network's own at its largest setting."""
    rows, columns = [], ("seed", "<network", "<accuracy of", "top-1", "MAdds", "ms", "INT8 ms")
    for seed, points in found.points.items():
        for label, curve in found.curves[seed].items():
            settings = f"{SETTINGS}, {DYNAMIC if label == EXITS else label}"  # these two are one supernet
            own = max((point for point in points.values() if point.group == settings), key=madds_of)
            for name, theirs in ((STATIC, points[STATIC]), ("its own largest setting", own)):
                wanted = float(theirs.right.mean()) - LOST
                share = next((share for share, score in curve if score >= wanted), None)
                line = [str(seed), label, name, f"{100 * theirs.right.mean():.2f}", share_text(share)]
                for precision in ("", INT8):
                    spent = {
                        point.madds: float(
                            (found.times[seed, each]).mean() / found.times[seed, STATIC + precision].mean()
                        )
                        for each, point in points.items()
                        if point.group == label + precision
                    }
                    line.append(share_text(between(spent, share, own.madds)))
                twice = {points[each].madds: ratio for (which, each), ratio in at_twice.shares.items() if which == seed}
                line.append(share_text(between(twice, share, own.madds)) if label == DYNAMIC else "")
                rows.append(tuple(line))
    note = (
        f"Shares of the largest setting's MAdds and of the static network's milliseconds at which the accuracy less "
        f"{100 * LOST:g} points is reached, read on the test curve; milliseconds between timed budgets. INT8: at the "
        f"same MAdds, over the static network in INT8. Milliseconds at {at_twice.size} px: see the next table."
    )
    title = "What it takes to keep an accuracy"
    return ResultTable(title, (*columns, f"ms at {at_twice.size} px"), tuple(rows), note)


def madds_of(point: Point) -> float:
    return point.madds


def between(known: Mapping[float, float], share: float | None, whole: float) -> float | None:
    """What a share of MAdds takes, between known ones. None if the accuracy is never reached, or nothing is known."""
    if share is None or not known:
        return None
    madds, values = zip(*sorted(known.items()), strict=True)
    return float(np.interp(share * whole, madds, values))


def share_text(share: float | None) -> str:
    return "never" if share is None else f"{share:.2f}"


def claims(found: Compared) -> list[Claim]:
    """The dynamic network over each alternative: the static network, those for smaller images, widths, and both."""
    full = [label for label, group in found.groups.items() if group == f"{SETTINGS}, {DYNAMIC}"][-1]
    small = [label for label, group in found.groups.items() if group == SMALL]
    pairs = [(full, STATIC), (full + INT8, STATIC + INT8)]
    pairs += [(f"{DYNAMIC} at {share:g}", STATIC) for share in (0.5, 0.6, 0.7)]
    pairs += [(f"{DYNAMIC} at {share:g}{INT8}", STATIC + INT8) for share in (0.6, 0.7)]
    for share, label in zip((0.6, 0.4), small, strict=False):
        pairs.append((f"{DYNAMIC} at {share:g}", label))
    for (ours, other), shown in AGAINST.items():
        pairs += [(f"{ours} at {share:g}{precision}", f"{other} at {share:g}{precision}") for share, precision in shown]
    return [claim for pair in pairs for claim in judged(found.points, found.times, *pair)]


def drawn(group: str) -> bool:
    """Whether the figures show a group: not every setting of every network, nor the static network on images that it
    was not trained for, which is far below all others."""
    return group in (
        DYNAMIC,
        STATIC,
        EXITS,
        BOTH,
        EQUAL_STEPS,
        WIDTHS,
        SMALL,
        f"{SETTINGS}, {DYNAMIC}",
        DYNAMIC + INT8,
        STATIC + INT8,
    )
