"""The dynamic network on real images: milliseconds at several budgets, beside the static network of each path."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsnet.models import Supernet
from dsnet.routing import Policy, route
from dsnet.runtime.bench.candidates import Artefacts
from dsnet.runtime.bench.timing import Call, interleaved, summary
from dsnet.runtime.dynamic import DynamicRunner
from dsnet.runtime.onnx.export import IMAGE
from dsnet.runtime.onnx.runner import open_session
from dsnet.space import Path


@dataclass(frozen=True)
class Operating:
    """A network at one of its budgets; `name` tells networks apart."""

    name: str
    net: Supernet
    artefacts: Artefacts
    policy: Policy
    asked: float


def bench_routed(
    points: Sequence[Operating], images: Tensor, *, runtime: str = "onnx", threads: int = 1, repeats: int = 100
) -> list[dict[str, Any]]:
    """One row per operating point. Every call runs the next image, one at a time, in the same order for all.

    ideal: what the images' paths would take as static networks, if one knew beforehand which to choose.
    """
    paths = {number: chosen_paths(point, images) for number, point in enumerate(points)}
    calls: dict[Any, Call] = {}
    for number, point in enumerate(points):
        calls[number] = routed_call(point, images, runtime, threads)
        for path in dict.fromkeys(paths[number]):
            key = (point.name, path)
            if key not in calls:
                calls[key] = static_call(point, path, images, runtime, threads)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        times = {key: summary(found) for key, found in interleaved(calls, repeats).items()}
    finally:
        torch.set_num_threads(before)
    rows = []
    for number, point in enumerate(points):
        ideal = float(np.mean([times[point.name, path]["mean"] for path in paths[number]]))
        spent = [point.artefacts.table.madds(path, dynamic=True) for path in paths[number]]
        row: dict[str, Any] = {"name": point.name, "runtime": runtime, "threads": threads}
        row |= {"asked": point.asked, "lam": point.policy.lam}
        row |= {"madds": float(np.mean(spent)), "paths": len(set(paths[number])), **times[number]}
        rows.append({**row, "ideal": ideal, "ratio": times[number]["mean"] / ideal})
    return rows


def chosen_paths(point: Operating, images: Tensor) -> list[Path]:
    return [tuple(path) for path in route(point.net, images, point.policy).paths.tolist()]


def routed_call(point: Operating, images: Tensor, runtime: str, threads: int) -> Call:
    if runtime == "runner":
        runner, following = DynamicRunner(point.net), cycle(images.split(1))
        return lambda: runner.run(next(following), point.policy)
    session = open_session(point.artefacts.dynamic(), threads)
    arrays = cycle([image.numpy() for image in images.split(1)])
    lam = np.array([point.policy.lam], np.float32)
    return lambda: session.run(None, {IMAGE: next(arrays), "lam": lam})


def static_call(point: Operating, path: Path, images: Tensor, runtime: str, threads: int) -> Call:
    if runtime == "runner":
        from dsnet.runtime.bench.candidates import static_call as static

        return static(point.net, images[:1], path)
    session = open_session(point.artefacts.static(path), threads)
    return partial(session.run, ["logits"], {IMAGE: images[:1].numpy()})
