"""Several runs as one result: means over seeds, and standard deviations beside them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

ROW = ("top1", "top5", "loss")
DYNAMIC_ROW = ("madds", "p50", "p95", "miss", "top1", "hull", "gain")
DYNAMIC = ("auc",)
SOURCES = ("source", "gate_from")


def combine(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result of several runs that differ in their seed; what is not averaged is the first run's."""
    first, *others = results
    for other in others:
        if kind(other) != kind(first):
            raise ValueError(
                f"runs of different kinds cannot be shown as one: {kind(first)} and {kind(other)}; "
                f"evaluate them one by one"
            )
    if not others:
        return first
    if len({result["seed"] for result in results}) != len(results):
        raise ValueError(f"runs with seeds {[result['seed'] for result in results]} were given; each must have its own")
    combined = {key: value for key, value in first.items() if key != "seed"}
    combined["seeds"] = [result["seed"] for result in results]
    combined["rows"] = averaged([result["rows"] for result in results], ROW)
    if "dynamic" in first:
        parts = [result["dynamic"] for result in results]
        combined["dynamic"] = {
            **parts[0],
            **averaged([[part] for part in parts], DYNAMIC)[0],
            "rows": averaged([part["rows"] for part in parts], DYNAMIC_ROW),
            "warnings": [warning for part in parts for warning in part["warnings"]],
            "oracle": averaged([[part["oracle"]] for part in parts], ("top1", "madds"))[0],
        }
    return combined


def kind(result: dict[str, Any]) -> list[Any]:
    """What must be alike in runs that are shown as one."""
    dynamic = result.get("dynamic", {})
    keys = ("model", "dataset", "split", "image_size")
    training = {key: key in SOURCES or value for key, value in result["training"].items()}  # each seed has its own
    return [*(result[key] for key in keys), training, dynamic.get("router"), dynamic.get("targets")]


def averaged(tables: Sequence[Sequence[dict[str, Any]]], keys: Sequence[str]) -> list[dict[str, Any]]:
    """Row by row over several tables: means, and standard deviations as KEY_std."""
    rows = []
    for same in zip(*tables, strict=True):
        values = {key: [row[key] for row in same] for key in keys}
        means = {key: statistics.mean(found) for key, found in values.items()}
        spreads = {f"{key}_std": statistics.stdev(found) for key, found in values.items()}
        rows.append({**same[0], **means, **spreads})
    return rows
