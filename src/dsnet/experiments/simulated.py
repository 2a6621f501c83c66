"""Experiments that train nothing: the simulation that motivates the paper, and latency."""

from __future__ import annotations

import math
from dataclasses import replace

from dsnet.bench.table1 import PAPER, table1
from dsnet.bench.widths import bench
from dsnet.experiments.layout import Findings
from dsnet.experiments.recipe import Scale
from dsnet.latency.files import BenchConfig
from dsnet.models import Supernet, model_spec
from dsnet.nn import RouterSpec
from dsnet.report.tables import human
from dsnet.results import Bench, Chart, Claim, Dot, Series, StaticTime, Table, WidthTime, WidthTimes

EASY, HARD = 0.6, 3.0  # compute at which accuracy reaches 1 - 1/e, relative to the static network
SCHEMES = 20


def accuracy(compute: float, need: float) -> float:
    """An exponential accuracy curve. It rises faster for images that need less compute."""
    return 1 - math.exp(-compute / need)


def motivation(scale: Scale) -> Findings:
    """The paper's simulation: half of the images are easy, and a scheme gives them a fixed share of the compute.

    The paper does not state its curves. These exponentials and their constants are our choice.
    """
    budgets = [0.1 * 1.12**step for step in range(40)]
    static = [(x, mixed(x, x)) for x in budgets]
    shown = [Series("static networks", tuple(Dot(x, 100 * y) for x, y in static))]
    best: list[tuple[float, float, float]] = []
    cloud: list[Dot] = []
    for scheme in range(SCHEMES):
        share = (scheme + 0.5) / SCHEMES  # of all compute that goes to easy images
        curve = [(x, mixed(2 * share * x, 2 * (1 - share) * x)) for x in budgets]
        cloud += [Dot(x, 100 * y) for x, y in curve[::4]]
        best.append((share, *max(((x, y - mixed(x, x)) for x, y in curve), key=lambda point: point[1])))
    shown.append(Series(f"{SCHEMES} dynamic schemes", tuple(cloud), kind="points"))
    envelope = [(x, max(mixed(2 * share * x, 2 * (1 - share) * x) for share, *_ in best)) for x in budgets]
    shown.append(Series("best dynamic scheme", tuple(Dot(x, 100 * y) for x, y in envelope)))
    rows = tuple((f"{share:.1%}", f"{x:.2f}", f"{100 * gain:+.2f}") for share, x, gain in best)
    ahead = sum(gain > 1e-9 for _, _, gain in best)
    gains = [100 * (y - z) for (_, y), (_, z) in zip(envelope, static, strict=True)]
    text = (
        f"Accuracy is 1 - exp(-compute / need); easy images need {EASY}, hard ones {HARD}; half of the images are "
        f"easy. A scheme gives easy images a fixed share of the compute; at a half it is the static network. "
        f"{ahead} of {SCHEMES} schemes beat the static network of equal average compute somewhere."
    )
    claim = Claim(
        claim="a dynamic scheme beats the static network of equal average compute",
        paper="",
        ours=f"at {sum(gain > 0 for gain in gains)} of {len(gains)} costs, by up to {max(gains):.1f} points",
        holds=sum(gain > 0 for gain in gains) > len(gains) / 2,
    )
    title = "Simulated accuracy of static and dynamic networks"
    return Findings(
        text=(text,),
        tables=(Table("Schemes", ("<share for easy images", "best at compute", "points over static"), rows),),
        claims=(claim,),
        figures=(Chart(title, "average compute", "accuracy (%)", tuple(shown), log_x=True),),
    )


def mixed(easy: float, hard: float) -> float:
    return (accuracy(easy, EASY) + accuracy(hard, HARD)) / 2


def latency(scale: Scale) -> Findings:
    """Table 1 and the latency column, measured on this machine. Only ratios are comparable with the paper."""
    how, pairs = scale.latency, scale.latency.pairs
    ways = table1(image_size=how.table1, repeats=how.repeats)
    net = Supernet(replace(model_spec(how.model), router=RouterSpec("gate", "try_best"))).eval()
    runtimes = ("eager", "runner", "onnx")
    found = bench(net, BenchConfig(runtimes, tuple(pairs), repeats=how.repeats, against=tuple(pairs.values())))
    first = tuple(
        (row.way, f"{row.times.p50:.2f}", f"{row.ratio:.2f}", f"{row.paper:.2f}" if row.paper else "")
        for row in ways.rows
    )
    by_way = {row.way: row.ratio for row in ways.rows}
    claims = [
        Claim(
            claim=f"slicing is faster than {other}",
            paper=f"{PAPER[other] / PAPER['slicing']:.2f}x",
            ours=f"{by_way[other] / by_way['slicing']:.2f}x",
            holds=by_way[other] > by_way["slicing"],
        )
        for other in ("masking", "indexing")
    ]
    onnx = {row.path: row for row in found.rows if row.runtime == "onnx"}
    alone = {row.model: row.times.p50 for row in found.against}
    same = [onnx[path].ratio or 0.0 for path in pairs]
    equal = [onnx[path].times.p50 / alone[name] for path, name in pairs.items()]
    claims += [
        Claim(
            claim="the dynamic network takes at most 1.18x the time of a plain MobileNetV1 of about its MAdds",
            paper="1.18x 1.13x 1.10x",
            ours=" ".join(f"{value:.2f}x" for value in equal),
            holds=max(equal) <= 1.18,
        ),
        Claim(
            claim="and of the same path as a static network: choosing costs little",
            paper="",
            ours=" ".join(f"{value:.2f}x" for value in same),
            holds=max(same) <= 1.18,
        ),
    ]
    text = (
        "Milliseconds are medians of interleaved rounds on one thread, one image; only ratios within one table "
        f"compare. {found.repeats} rounds, {found.image_size} px; table 1 at {ways.image_size} px."
    )
    columns = ("<path or network", "<runtime", "MAdds", "ms", "over a static network of the width")
    return Findings(
        text=(text,),
        tables=(
            Table(f"Table 1: a quarter of the channels of {ways.model}", ("<way", "ms", "over ideal", "paper"), first),
            Table(f"{found.model}: widths and static networks", columns, width_rows(found)),
        ),
        claims=tuple(claims),
        figures=(latency_chart(found),),
        bench=Bench("", widths=found, table1=ways),
    )


def width_rows(found: WidthTimes) -> tuple[tuple[str, ...], ...]:
    def cells(name: str, row: WidthTime | StaticTime, ratio: float | None = None) -> tuple[str, ...]:
        return name, row.runtime, human(row.madds), f"{row.times.p50:.2f}", f"{ratio:.2f}" if ratio else ""

    widths = [cells(row.words, row, row.ratio) for row in found.rows]
    return (*widths, *(cells(row.model, row) for row in found.against))


def latency_chart(found: WidthTimes) -> Chart:
    lines: dict[str, list[Dot]] = {}
    for row in found.rows:
        lines.setdefault(row.runtime, []).append(Dot(row.madds / 1e6, row.times.p50))
    series = [Series(name, tuple(dots)) for name, dots in lines.items()]
    for other in found.against:
        series.append(Series(other.model, (Dot(other.madds / 1e6, other.times.p50),), kind="points"))
    return Chart(f"{found.model}: milliseconds against MAdds", "MAdds (M)", "ms", tuple(series))
