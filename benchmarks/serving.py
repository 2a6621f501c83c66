"""What `dsnet serve` does under load, next to the same server at one width and to a server of a static network.

    python benchmarks/serving.py --model RUN [--static RUN] [--data FOLDER] [--export docs/results/NAME]

The model is an ONNX file, a bundle, or a run, which is exported as a bundle; the images are the test images of the run,
or of the run or folder of classes that --data names. Requests are binary tensors of `--images` images each and come at
random times of a seeded rate, whether the server keeps up or not. Each server runs on one core with one worker, and
this process, the load generator, on another. The servers take turns, and get the same images at the same times:

    dynamic    `dsnet serve` as it is
    widest     the same file, and every request pins the widest path
    slimmest   the same, and every request pins the cheapest way to run that the server knows
    static     a static network: the run of --static, or the widest path exported alone

Loads are multiples of what the server of the widest path answers at best; that is measured before each load. `double`
is twice that, or 0.9 of what the cheapest way can answer if this is less. `bursty` rests at half load and jumps to
`double`. Late, refused and lost requests count as wrong. The overhead of a request and the throughput are compared with
the bare runner on the server's core, in turns. Writes PREFIX.json, PREFIX.md, PREFIX.svg and PREFIX-bursts.svg.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from load import Reply, arrivals, bursts, over_time, recoveries, saturate, send, summed
from servers import PATIENT, Server, beside_the_runner, levels_of, pin, served
from turns import write_page

from dsnet import open_runner
from dsnet.config import CONFIG
from dsnet.images import ImageFile
from dsnet.latency.timing import machine
from dsnet.manifest import Manifest
from dsnet.pictures import as_input, image_files
from dsnet.report.figures import save
from dsnet.report.tables import markdown_table
from dsnet.results import Chart, Dot, Series
from dsnet.runs.folder import RunFolder
from dsnet.runtime.onnx import is_artefact

CROWD = 32  # connections that measure what a server can answer at best: batches form
PAUSE = 1.0  # seconds between loads, in which a server forgets what it has learned
STEP = 0.25  # seconds of a point in the figure of bursts
COLUMNS = ["<load", "<server", "requests", "in time", "accuracy", "refused", "late", "p50 ms", "p99 ms", "mean width"]


def labelled(manifest: Manifest, source: Path, root: str | None, count: int) -> tuple[np.ndarray, list[int]]:
    """Images as the network takes them, and their classes: of a run's test split, or of folders named like classes."""
    rng = random.Random(0)
    if (source / CONFIG).exists():
        split = RunFolder.of(source).opened(root)[1].test
        numbers = rng.sample(range(len(split)), min(count, len(split)))
        batch = split.load(split.ids[numbers])
        return batch.images.numpy(), batch.labels.tolist()
    named = {name: label for label, name in enumerate(manifest.classes)}
    files = [file for file in image_files([source]) if file.parent.name in named]
    if not files:
        raise ValueError(f"{source} is no run and has no folders named {', '.join(list(named)[:3])} ...; see --data")
    files = rng.sample(files, min(count, len(files)))
    return np.stack([as_input(ImageFile(file), manifest) for file in files]), [named[f.parent.name] for f in files]


def exported(run: Path, file: Path, *options: str) -> Path:
    """A run as an ONNX file."""
    subprocess.run([sys.executable, "-m", "dsnet", "export", str(run), "--out", str(file), *options], check=True)
    return file


# Loads


def capacities(servers: dict[str, Server], images: np.ndarray, labels: Sequence[int], size: int) -> dict[str, float]:
    """Requests per second that the servers of the widest and the slimmest path answer at best, in turns."""
    found: dict[str, list[float]] = {"widest": [], "slimmest": []}
    for _ in range(2):
        for name, rates in found.items():
            asked = servers[name].questions(images, labels[: CROWD * size], size, deadline_ms=PATIENT)
            rates.append(asyncio.run(saturate(servers[name].port, asked, 0.7, CROWD)) / size)
    return {name: mean(rates) for name, rates in found.items()}


def multiples_of(able: dict[str, float]) -> dict[str, float]:
    """The loads, as multiples of what the widest path can answer."""
    double = min(2.0, 0.9 * able["slimmest"] / able["widest"])
    return {"half": 0.5, "full": 1.0, "double": double, "triple": 3.0, "bursty": double}


@dataclass
class Heard:
    """The replies of every load and server, what the servers could answer then, and what the bursts showed."""

    replies: dict[tuple[str, str], list[Reply]]
    able: list[dict[str, float]]
    recovery: list[float]
    timeline: list[Reply]


def loaded(servers: dict[str, Server], images: np.ndarray, labels: Sequence[int], full: float, args: Any) -> Heard:
    """Send every load to every server, in turns. full: the budget of the best level. What the servers can answer is
    measured before each load, because on a shared machine it changes."""
    names = list(multiples_of({"widest": 1, "slimmest": 1}))
    heard = Heard({(name, server): [] for name in names for server in servers}, [], [], [])
    asked = {name: server.questions(images, labels, args.images) for name, server in servers.items()}
    for number, name in product(range(args.rounds), names):
        able = capacities(servers, images, labels, args.images)
        heard.able.append(able)
        rate = multiples_of(able)[name] * able["widest"]
        spans = [(args.seconds, rate)]
        if name == "bursty":
            spans = bursts(2 * args.seconds, 0.5 * able["widest"], rate, seed=number)
        times = arrivals(spans, seed=number, most=args.most)
        for server in random.Random(number).sample(list(servers), len(servers)):
            time.sleep(PAUSE)
            found = asyncio.run(send(servers[server].port, asked[server], times))
            heard.replies[name, server] += found
            if (name, server) == ("bursty", "dynamic"):
                heard.recovery += recoveries(found, spans, full)
                heard.timeline = heard.timeline or found
            print(f"{number + 1} of {args.rounds}: {name}, {server}", file=sys.stderr)
    return heard


# The page


def verdicts(result: dict[str, Any]) -> list[list[str]]:
    """The figures that are expected of the server, and what they are."""
    rows, beside = result["loads"], result["beside the runner"]
    half, double = rows["half"], rows["double"]
    better = max(double[name]["accuracy"] for name in ("widest", "slimmest"))
    gain, loss = double["dynamic"]["accuracy"] - better, half["dynamic"]["accuracy"] - half["widest"]["accuracy"]
    slowest = max(result["recovery s"], default=math.nan)
    return [
        ["overhead of a request alone over the bare runner, p50", "<= 2 ms", f"{beside['overhead ms']:.2f} ms"],
        ["throughput over HTTP / bare runner", ">= 0.85", f"{beside['throughput / bare runner']:.2f}"],
        ["in time at `double`, dynamic", ">= 99 %", f"{100 * double['dynamic']['in time']:.1f} %"],
        ["in time at `double`, widest", "< 60 %", f"{100 * double['widest']['in time']:.1f} %"],
        ["accuracy at `double`, dynamic minus the better of widest and slimmest", ">= 1", f"{100 * gain:+.1f} points"],
        ["accuracy at `half`, dynamic minus widest", ">= -0.2", f"{100 * loss:+.1f} points"],
        ["back at the full budget after a burst, slowest", "<= 2 s", f"{slowest:.2f} s"],
    ]


def page_of(result: dict[str, Any], command: str) -> list[str]:
    about, multiples = machine(), result["multiples"]
    images, size, able = result["images"], result["images of a request"], result["requests per second"]
    most = "twice the widest's capacity" if multiples["double"] == 2 else "0.9 of the slimmest's capacity"
    lines = [f"# `dsnet serve` under load: {result['model']}", "", f"![Accuracy over load]({result['name']}.svg)", ""]
    lines += markdown_table(["<", "expected", "measured"], verdicts(result))
    lines += [
        "",
        f"`double` is {most}, {multiples['double']:.2f} of the widest's; `bursty` jumps to it from half load.",
        "",
    ]
    rows = []
    for name, found in result["loads"].items():
        for server, one in found.items():
            shares = [f"{100 * one[key]:.1f}" for key in ("in time", "accuracy", "refused", "late")]
            times = [f"{one[key]:.1f}" for key in ("p50 ms", "p99 ms")]
            load = f"{name}, {multiples[name]:.2f}"
            rows.append([load, server, str(one["requests"]), *shares, *times, f"{one['mean width']:.2f}"])
    lines += markdown_table(COLUMNS, rows)
    lines += [
        "",
        f"![A bursty load]({result['name']}-bursts.svg)",
        "",
        "Percent of all requests; a request that is refused, late or lost counts as wrong.",
        f"{images} labelled test images, {size} in each request, as binary tensors;",
        f"deadline {result['deadline ms']:g} ms from when the request was due. Slimmest: {result['slimmest']}.",
        f"Widest answers {able['widest']:.0f} requests per second at best, slimmest {able['slimmest']:.0f}.",
        "Mean width: MAdds of answered images, as a share of the widest path's.",
        f"The generator sent 99 % of the requests within {result['generator p99 ms']:.1f} ms of their times.",
        f"Load average of the machine before the benchmark: {result['load before']:.1f}.",
        f"Made by `{command}` with dsnet {about.dsnet}, onnxruntime {about.onnxruntime}",
        f"on {about.machine}; every figure is in {result['name']}.json.",
    ]
    return lines


def charts(result: dict[str, Any], timeline: Sequence[Reply]) -> list[Chart]:
    steady = sorted((at, name) for name, at in result["multiples"].items() if name != "bursty")
    lines = [
        Series(server, tuple(Dot(at, 100 * result["loads"][name][server]["accuracy"]) for at, name in steady))
        for server in result["loads"]["half"]
    ]
    capacity, widest = result["requests per second"]["widest"], result["madds"]
    kinds: dict[str, Callable[[Sequence[Reply]], float]] = {
        "requests, of the widest's capacity": lambda found: len(found) / STEP / capacity,
        "mean width, of the widest's MAdds": lambda found: (
            mean([one for reply in found for one in reply.madds] or [0]) / widest
        ),
        "refused": lambda found: mean(reply.status != 200 for reply in found),
    }
    parts = [
        Series(name, tuple(Dot(*dot) for dot in over_time(timeline, value, STEP))) for name, value in kinds.items()
    ]
    return [
        Chart("Accuracy over all requests", "requests, of what the widest path can answer", "%", tuple(lines)),
        Chart("Bursts", "seconds", "", tuple(parts)),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--static", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--root", help="where the data of the run lies now")
    parser.add_argument("--images", type=int, default=1, help="images of a request")
    parser.add_argument("--deadline", type=float, default=100.0, help="milliseconds")
    parser.add_argument("--seconds", type=float, default=8.0, help="length of a load, each time")
    parser.add_argument("--rounds", type=int, default=2, help="how often every load is sent to every server")
    parser.add_argument("--most", type=int, default=20_000, help="most requests of a load, each time")
    parser.add_argument("--sample", type=int, default=800, help="images that are used")
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), help="of the servers and of the generator")
    parser.add_argument("--export", type=Path)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        place, static = args.model, args.static
        if not is_artefact(place):
            place, static = exported(args.model, folder / "bundle", "--bundle"), static or args.model
        manifest = open_runner(place).manifest
        path = ",".join(map(str, manifest.space.widest))
        if static is not None and not is_artefact(static):
            static = exported(static, folder / "static.onnx", *(["--path", path] if static == args.model else []))
        source = args.data or (args.model if args.model.is_dir() else args.model.parent)
        images, labels = labelled(manifest, source, args.root, args.sample)
        core, generator = args.cores
        os.sched_setaffinity(0, [generator])
        names = ["dynamic", "widest", "slimmest"]
        ports = {name: stack.enter_context(served(place, args.deadline, core)) for name in names}
        levels = levels_of(ports["dynamic"])
        asks = {"dynamic": {}, "widest": {"path": path}, "slimmest": pin(levels[0])}
        servers = {name: Server(port, asks[name]) for name, port in ports.items()}
        if static is not None:
            servers["static"] = Server(stack.enter_context(served(static, args.deadline, core)), {})
        beside = beside_the_runner(place, servers["widest"], manifest, images, core)
        heard = loaded(servers, images, labels, levels[-1]["budget"], args)
    able = {name: median(one[name] for one in heard.able) for name in ("widest", "slimmest")}
    multiples = multiples_of(able)
    prefix = args.export or Path(tempfile.gettempdir()) / "serving"
    deadline, widest = args.deadline / 1e3, manifest.table.widest
    lags = [reply.sent - reply.at for found in heard.replies.values() for reply in found if reply.sent < math.inf]
    result = {
        "name": prefix.name,
        "model": manifest.model,
        "madds": widest,
        "images": len(labels),
        "images of a request": args.images,
        "deadline ms": args.deadline,
        "levels": levels,
        "slimmest": levels[0]["name"],
        "requests per second": able,
        "requests per second, each time": heard.able,
        "multiples": multiples,
        "beside the runner": beside,
        "loads": {
            name: {server: summed(heard.replies[name, server], deadline, widest) for server in servers}
            for name in multiples
        },
        "recovery s": heard.recovery,
        "generator p99 ms": 1e3 * float(np.quantile(lags, 0.99)),
        "load before": before,
    }
    lines = page_of(result, f"python benchmarks/serving.py --images {args.images} --deadline {args.deadline:g} ...")
    print("\n".join(lines))
    write_page(prefix, result, lines)
    for chart, ending in zip(charts(result, heard.timeline), ("", "-bursts"), strict=True):
        save(chart, prefix.with_name(f"{prefix.name}{ending}.svg"))


if __name__ == "__main__":
    main()
