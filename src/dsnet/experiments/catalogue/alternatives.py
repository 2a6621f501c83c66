"""What else could be deployed: small static networks, trained alone or distilled, and single widths of the supernet."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from onnxruntime import InferenceSession

from dsnet.bench.candidates import Artefacts
from dsnet.bench.timing import interleaved
from dsnet.experiments.catalogue.networks import CHEAP_FIRST, SUPERNET, TOP1
from dsnet.experiments.grid import Finished
from dsnet.experiments.layout import Column, Findings, Form, Row, Runs, Table, shown
from dsnet.experiments.measures import series, widest, widest_madds
from dsnet.experiments.paired import ONE_SEED, RULE, WITHOUT, interval, verdict
from dsnet.experiments.recipe import Recipe, Scale
from dsnet.latency.timing import Call
from dsnet.models import eager
from dsnet.results import Chart, Claim
from dsnet.results import Table as ResultTable
from dsnet.routing.budgets import policy_for
from dsnet.routing.traces import Traces
from dsnet.runs.folder import RunFolder
from dsnet.runs.references import hull
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.space import WidthPath
from dsnet.tasks import images_of

IMAGES, ROUNDS = 100, 5  # test images that are timed, and how often each of them
SMALL = Recipe("small", SUPERNET)
MULTIPLIERS = (0.5, 1.0)  # widths of the static networks
BEST = "dynamic at its best budget"
# The usual setting. On the calibration images of one seed it was 0.6 points better than weight 0.7 at temperature 1.
DISTILLATION = {"ieb.distillation": 0.9, "ieb.temperature": 4.0, "ieb.scale_gradients": True}
DYNAMIC, WIDTHS, ALONE, DISTILLED = "dynamic", "widths of the supernet", "alone", "distilled"
MS, P95 = "ms", "p95 ms"
FORMS: Mapping[str, Form] = {TOP1: "percent", "MAdds": "madds", MS: "number", P95: "number"}
NOTE = (
    "Milliseconds are those of ONNX Runtime with one thread and one image per call, the mean over {images} test "
    "images; all networks of all seeds took turns in one run. The dynamic network is one file for every budget. Its "
    "budgets were calibrated on held-out training images, so it spends about the MAdds of the MobileNet that is named. "
    "Distilled: trained on the labels and on the answers of the supernet's widest sub-network. Supernet widths in the "
    "verdicts: the best random mix of single widths with the same MAdds."
)


@dataclass(frozen=True)
class Contender:
    """A network at one operating point.

    right: Which test images [N] it gets right. mixed: For the dynamic network, the chance [N] that a random mix of the
    supernet's widths of equal MAdds gets them right.
    """

    group: str
    right: np.ndarray
    madds: float
    call: Call
    mixed: np.ndarray | None = None


Points = Mapping[str, Contender]  # by label


def static_label(group: str, width: float) -> str:
    return f"MobileNet x{width:g} {group}"


def dynamic_label(width: float) -> str:
    return f"dynamic at x{width:g}'s MAdds"


def alternatives_tables(scale: Scale) -> tuple[Table, ...]:
    """The runs of the experiment; `compare` makes its tables of them."""
    rows = [Row(DYNAMIC, SMALL.gates(CHEAP_FIRST))]
    for width in MULTIPLIERS:
        static = Recipe("static_small", {"model.width": width})
        rows.append(Row(static_label(ALONE, width), static))
        rows.append(Row(static_label(DISTILLED, width), static.but(DISTILLATION, distill=SMALL)))
    return (Table("Runs", (Column("MAdds", widest_madds, "madds"), Column(TOP1, widest)), tuple(rows)),)


def compare(scale: Scale, runs: Runs) -> Findings:
    """Accuracy, MAdds and milliseconds of everything that could be deployed, over the seeds whose runs are finished."""
    by_seed = {label: {run.seed: run for run in mine} for label, mine in runs.items()}
    seeds = sorted(set.intersection(*(set(mine) for mine in by_seed.values())))
    if not seeds:
        return Findings(("No seed is finished yet.",), (), (), ())
    with tempfile.TemporaryDirectory() as scratch:
        found: dict[int, Points] = {}
        for seed in seeds:
            mine = {label: each[seed] for label, each in by_seed.items()}
            found[seed] = contenders(mine, Path(scratch) / str(seed))
        times = timed(found, sample(by_seed[DYNAMIC][seeds[0]]))
    values = {
        label: {
            TOP1: {seed: float(found[seed][label].right.mean()) for seed in seeds},
            "MAdds": {seed: found[seed][label].madds for seed in seeds},
            MS: {seed: float(times[seed, label].mean()) for seed in seeds},
            P95: {seed: float(np.quantile(times[seed, label], 0.95)) for seed in seeds},
        }
        for label in found[seeds[0]]
    }
    rows = tuple((label, *cells(line)) for label, line in values.items())
    kept = {label: {name: dict(mine.items()) for name, mine in line.items()} for label, line in values.items()}
    count = len(next(iter(times.values())))
    judgements = tuple(claims(found, times))
    title = "The dynamic network against what else could be deployed"
    table = ResultTable(title, ("<network", *FORMS), rows, NOTE.format(images=count), kept)  # type: ignore[arg-type]
    return Findings(
        text=(),
        tables=(table,),
        claims=judgements,
        figures=tuple(chart(values, found[seeds[0]], over) for over in (MS, "MAdds")),
        rule=rule_of(judgements),
    )


def cells(line: Mapping[str, Mapping[int, float]]) -> list[str]:
    """The figures of a row: means and standard deviations over seeds, and the mean alone for the percentile."""
    texts = [shown(list(line[name].values()), form) for name, form in FORMS.items()]
    return [*texts[:-1], shown([mean(line[P95].values())], FORMS[P95])]


def contenders(runs: Mapping[str, Finished], scratch: Path) -> Points:
    """Everything that could be deployed from the runs of one seed, by label.

    The best budget is the one that is most accurate on the calibration images, and the cheapest of these.
    """
    artefacts, traces = traced(runs[DYNAMIC], scratch / "dynamic")
    manifest, found = artefacts.manifest, {}
    for path in manifest.space.uniform:
        label = f"supernet width {path[0]}"
        call = file_call(artefacts.static(path))
        found[label] = Contender(WIDTHS, traces.right(path), float(traces.table.madds(path)), call)
    router = manifest.router
    assert router is not None
    asked = {BEST: max(router.budgets, key=lambda row: (row.accuracy, -row.madds)).madds}
    for width in MULTIPLIERS:
        for group in (ALONE, DISTILLED):
            label = static_label(group, width)
            files, alone = traced(runs[label], scratch / label)
            madds = float(alone.table.madds(()))
            found[label] = Contender(group, alone.right(()), madds, file_call(files.static(())))
        if router.budgets[0].madds <= madds <= router.budgets[-1].madds:
            asked[dynamic_label(width)] = madds
    dynamic, file = {}, FileRunner(artefacts.dynamic(), threads=1)
    for label, madds in asked.items():
        policy = policy_for(manifest, madds)
        outcome = traces.at(policy)
        call = session_call(file.session, knobs(file.manifest, policy))
        mixed = hull(traces, outcome.spent, manifest.space.uniform)
        dynamic[label] = Contender(DYNAMIC, traces.correct(outcome), outcome.spent, call, mixed)
    return {**dynamic, **found}


def traced(run: Finished, scratch: Path) -> tuple[Artefacts, Traces]:
    """A network's files, and its answers to all test images."""
    folder = RunFolder.of(run.folder)
    net, (config, data) = folder.load().float(), folder.opened()
    runner, images = eager(net), images_of(folder.task, data, "test", config)
    space = runner.manifest.space
    paths: list[WidthPath] = [*space.exits, *space.uniform]
    scorer = folder.task.scorer(runner.manifest, {})
    traces = Traces(runner, images.batches(), scorer, paths=paths, load=images.load)
    return Artefacts(net, scratch, data.image_size), traces


def sample(run: Finished) -> list[np.ndarray]:
    """Test images of a run, evenly spaced."""
    _, data = RunFolder.of(run.folder).opened()
    places = torch.linspace(0, len(data.test) - 1, min(IMAGES, len(data.test))).long()
    return [image.numpy() for image in data.test.load(data.test.ids[places]).images.split(1)]


def file_call(file: Path) -> Call:
    """A static ONNX file as a call that takes an image, on one thread."""
    return session_call(open_session(file, 1), {})


def session_call(session: InferenceSession, feed: Mapping[str, np.ndarray]) -> Call:
    return lambda image: session.run(None, {IMAGE: image, **feed})


def timed(found: Mapping[int, Points], images: Sequence[np.ndarray]) -> dict[tuple[int, str], np.ndarray]:
    """Milliseconds of every image [images], the median over rounds, by seed and label."""
    calls = {(seed, label): point.call for seed, points in found.items() for label, point in points.items()}
    spent = interleaved(calls, ROUNDS, inputs=[(image,) for image in images])
    return {key: 1e3 * np.median(np.reshape(each, (ROUNDS, len(images))), 0) for key, each in spent.items()}


def claims(found: Mapping[int, Points], times: Mapping[tuple[int, str], np.ndarray]) -> list[Claim]:
    """The dynamic network over each alternative: at equal MAdds, and at its best budget over the full networks."""

    made = []
    for width in MULTIPLIERS:
        ours = dynamic_label(width)
        if any(ours not in points for points in found.values()):
            continue
        mixed = [points[ours].right - points[ours].mixed for points in found.values()]
        made.append(claim(f"{ours} over supernet widths, {TOP1}", 100 * np.stack(mixed)))
        (better, faster), (also, _) = (
            judged(found, times, ours, static_label(kind, width)) for kind in (ALONE, DISTILLED)
        )
        made += [better, also, faster]
    full = [label for label, point in next(iter(found.values())).items() if point.group == WIDTHS][-1]
    for theirs in (full, static_label(ALONE, MULTIPLIERS[-1])):
        made += judged(found, times, BEST, theirs)
    return made


def judged(
    found: Mapping[int, Mapping[str, Any]], times: Mapping[tuple[int, str], np.ndarray], ours: str, theirs: str
) -> list[Claim]:
    """Whether one network is more accurate than another, and whether it takes less time, in the seeds of both. Nothing
    if there is none."""
    both = {seed: points for seed, points in found.items() if ours in points and theirs in points}
    if not both:
        return []
    gains = [1.0 * points[ours].right - points[theirs].right for points in both.values()]
    saved = [times[seed, theirs] - times[seed, ours] for seed in both]
    return [
        claim(f"{ours} over {theirs}, {TOP1}", 100 * np.stack(gains)),
        claim(f"{ours}: ms saved over {theirs}", np.stack(saved), 3),
    ]


def claim(text: str, differences: np.ndarray, digits: int = 2) -> Claim:
    """differences: By seed and image, positive where the claim is right. One seed has no verdict."""
    low, high = interval(differences)
    said = " ".join(f"{value:+.{digits}f}" for value in differences.mean(1))
    alone = len(differences) == 1
    holds, why = (None, ONE_SEED) if alone else (verdict(differences), "")
    return Claim(text, "", f"{said} ({low:+.{digits}f} to {high:+.{digits}f})", holds, why)


def rule_of(claims: Sequence[Claim]) -> str:
    """How the claims were judged, in words."""
    return " ".join([RULE, *(words for why, words in WITHOUT.items() if why in {claim.why for claim in claims})])


def chart(values: Mapping[str, Mapping[str, Mapping[int, float]]], points: Points, over: str) -> Chart:
    """Accuracy over milliseconds or MAdds, one line per kind of network."""
    unit = 1e-6 if over == "MAdds" else 1.0
    lines = []
    for group in dict.fromkeys(point.group for point in points.values()):
        mine = [line for label, line in values.items() if points[label].group == group]
        curves = [sorted((unit * line[over][seed], 100 * line[TOP1][seed]) for line in mine) for seed in mine[0][TOP1]]
        name = group if group in (DYNAMIC, WIDTHS) else f"MobileNet {group}"
        lines.append(series(name, curves))
    axis = "milliseconds per image (ONNX Runtime, one thread)" if over == MS else "MAdds (M), average over images"
    return Chart(f"Accuracy against {'milliseconds' if over == MS else over}", axis, "top-1 accuracy (%)", tuple(lines))
