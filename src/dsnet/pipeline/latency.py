"""Routers in milliseconds: runs on the images of their own test split, at several budgets, at equal accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dsnet.checkpoint import load
from dsnet.config import CONFIG, read_config
from dsnet.pipeline.assess import open_data, traces_of
from dsnet.pipeline.folder import check_data
from dsnet.routing import Traces, policy_for
from dsnet.runtime.bench import Artefacts, Operating, bench_routed, machine


def bench_runs(
    folders: Sequence[str],
    *,
    root: str | None = None,
    accuracy: bool = False,
    budgets: int = 5,
    images: int = 64,
    runtime: str = "onnx",
    threads: int = 1,
    rounds: int = 1,
) -> dict[str, Any]:
    """Latency of dynamic networks on test images; with `accuracy` on the whole split, and compared at equal accuracy.

    An image that a probing router escalates pays for two bodies: MAdds alone do not decide.
    """
    points, found = [], []
    sample: torch.Tensor | None = None
    with tempfile.TemporaryDirectory() as scratch:
        for number, name in enumerate(folders):
            folder = Path(name)
            net, config = load(folder), read_config(folder / CONFIG)
            if net.spec.router is None or not net.card.budgets:
                raise ValueError(f"{folder} has no calibrated router; train it with `dsnet train --stage gate`")
            data = open_data(config, root)
            check_data(folder, data)
            if sample is None:
                sample = data.test.load(data.test.ids[torch.linspace(0, len(data.test) - 1, images).long()]).images
            artefacts = Artefacts(net, Path(scratch) / str(number), data.image_size)
            traces = traces_of(net, data.test, config, [], name="test") if accuracy else None
            low, high = net.card.budgets[0].madds, net.card.budgets[-1].madds
            for asked in np.linspace(low, high, budgets):
                policy = policy_for(net, float(asked), image_size=data.image_size)
                points.append(Operating(str(folder), artefacts, policy, float(asked)))
                kind = {"router": net.spec.router.kind, "targets": net.spec.router.targets}
                found.append(kind | scored(traces, policy))
        assert sample is not None
        rows = bench_routed(points, sample, runtime=runtime, threads=threads, rounds=rounds)
    rows = [{**row, **more} for row, more in zip(rows, found, strict=True)]
    about: dict[str, Any] = {"model": points[0].artefacts.net.spec.name, "images": images, "rounds": rounds}
    return {**machine(), **about, "rows": rows, "equal": equal_accuracy(rows) if accuracy else []}


def scored(traces: Traces | None, policy: Any) -> dict[str, float]:
    """Accuracy and average MAdds on the whole split."""
    if traces is None:
        return {}
    outcome = traces.at(policy)
    return {"top1": outcome.correct.double().mean().item(), "madds_split": outcome.madds.double().mean().item()}


def equal_accuracy(rows: Sequence[dict[str, Any]], levels: int = 4) -> list[dict[str, Any]]:
    """Milliseconds and MAdds of every run at accuracies that all of them reach, between their operating points."""
    curves: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        curves.setdefault(row["name"], []).append(row)
    rising = {name: climbing(mine) for name, mine in curves.items()}
    low = max(mine[0]["top1"] for mine in rising.values())
    high = min(mine[-1]["top1"] for mine in rising.values())
    if high <= low:
        return []
    found = []
    for level in np.linspace(low, high, levels):
        entries = {}
        for name, mine in rising.items():
            tops = [row["top1"] for row in mine]
            entries[name] = {
                key: float(np.interp(level, tops, [row[source] for row in mine]))
                for key, source in (("ms", "mean"), ("madds", "madds_split"))
            }
        first = entries[rows[0]["name"]]["ms"]
        found.append({"top1": float(level), "runs": {n: {**e, "ratio": e["ms"] / first} for n, e in entries.items()}})
    return found


def climbing(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operating points that are more accurate than all faster ones, fastest first."""
    kept: list[dict[str, Any]] = []
    for row in sorted(rows, key=lambda row: row["mean"]):
        if not kept or row["top1"] > kept[-1]["top1"]:
            kept.append(row)
    return kept
