"""The dynamic network on real images: milliseconds at several budgets, beside the static network of each path."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsnet.bench.candidates import Artefacts
from dsnet.bench.timing import seconds, summary
from dsnet.manifest import Policy
from dsnet.results import RoutedTime, Times
from dsnet.runtime.onnx import IMAGE, open_session
from dsnet.space import WidthPath


@dataclass(frozen=True)
class Operating:
    """A network at one of its budgets; `name` tells networks apart."""

    name: str
    artefacts: Artefacts
    policy: Policy
    asked: float


def bench_routed(
    points: Sequence[Operating], images: Tensor, *, runtime: str = "onnx", threads: int = 1, rounds: int = 1
) -> list[RoutedTime]:
    """One row per operating point: every image `rounds` times, one at a time.

    ideal: what the images' paths would take as static networks, if one knew beforehand which to choose.
    """
    paths = {number: point.artefacts.chosen(images, point.policy) for number, point in enumerate(points)}
    calls: dict[Any, Callable[[int], Any]] = {}
    for number, point in enumerate(points):
        calls[number] = routed_call(point, images, runtime, threads)
        for path in dict.fromkeys(paths[number]):
            if (point.name, path) not in calls:
                calls[point.name, path] = static_call(point, path, images, runtime, threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = image_by_image(calls, len(images), rounds)
    finally:
        torch.set_num_threads(before)
    rows = []
    for number, point in enumerate(points):
        ideal = float(np.mean([times[point.name, path].mean for path in paths[number]]))
        spent = [point.artefacts.table.madds(path, dynamic=True) for path in paths[number]]
        router = point.artefacts.manifest.router
        assert router is not None, "only networks that route have budgets"
        rows.append(
            RoutedTime(
                name=point.name,
                router=router.spec.kind,
                targets=router.spec.targets,
                runtime=runtime,
                threads=threads,
                asked=point.asked,
                lam=point.policy.lam,
                madds=float(np.mean(spent)),
                paths=len(set(paths[number])),
                times=times[number],
                ideal=ideal,
                ratio=times[number].mean / ideal,
            )
        )
    return rows


def image_by_image(calls: dict[Any, Callable[[int], Any]], images: int, rounds: int) -> dict[Any, Times]:
    """Times of every call over all images, `rounds` times; each timed call follows an untimed one on the same image."""
    times: dict[Any, list[float]] = {key: [] for key in calls}
    order, rng = list(calls), random.Random(0)
    for number in range(rounds * images):
        rng.shuffle(order)
        for key in order:
            calls[key](number % images)
            times[key].append(seconds(partial(calls[key], number % images)))
    return {key: summary(found) for key, found in times.items()}


def routed_call(point: Operating, images: Tensor, runtime: str, threads: int) -> Callable[[int], Any]:
    if runtime == "runner":
        run = point.artefacts.routed(point.policy)
        return lambda number: run(images[number : number + 1])
    session = open_session(point.artefacts.dynamic(), threads)
    arrays = [image.numpy() for image in images.split(1)]
    lam = np.array([point.policy.lam], np.float32)
    return lambda number: session.run(None, {IMAGE: arrays[number], "lam": lam})


def static_call(point: Operating, path: WidthPath, images: Tensor, runtime: str, threads: int) -> Callable[[int], Any]:
    if runtime == "runner":
        call = point.artefacts.extracted(images[:1], path)
        return lambda number: call()
    session = open_session(point.artefacts.static(path), threads)
    arrays = [image.numpy() for image in images.split(1)]
    return lambda number: session.run(None, {IMAGE: arrays[number]})
