"""Evaluations as the figures and chapters read them: plain data by name."""

from __future__ import annotations

from typing import Any

from dsnet.results import BudgetRow, Dynamic, Evaluation, Example, PathRow, Stat

KEYS = {"top-5": "top5", "loss": "loss"}


def as_dict(result: Evaluation) -> dict[str, Any]:
    detector = result.objects is not None
    found: dict[str, Any] = {
        "task": result.task,
        "model": result.model,
        "dataset": result.dataset,
        "split": result.split,
        "images": result.images,
        "image_size": result.image_size,
        "dsnet": result.made.dsnet,
        "torch": result.made.torch,
        "machine": result.made.machine,
        **result.options,
        "rows": [path_of(row, result, "map" if detector else "top1") for row in result.rows],
    }
    if detector:
        shown = [example_of(example) for example in result.examples]
        confidence = result.options.get("confidence", 0.5)
        found["examples"] = {"confidence": confidence, "classes": list(result.classes), "images": shown}
    if result.dynamic is not None:
        found["dynamic"] = budgets_of(result) if detector else dynamic_of(result, result.dynamic)
    return found


def stat(key: str, value: Stat) -> dict[str, float]:
    return {key: value.mean} | ({} if value.std is None else {f"{key}_std": value.std})


def path_of(row: PathRow, result: Evaluation, key: str) -> dict[str, Any]:
    found = {
        "path": list(row.path),
        "images": result.images,
        "madds": row.madds,
        "params": row.params,
        "share": row.share,
        **stat(key, row.score),
    }
    if key == "map":
        return {**found, "ap": {name: value.mean for name, value in row.more.items()}, "madds_parts": row.parts}
    for name, value in row.more.items():
        found |= stat(KEYS.get(name, name), value)
    return found


def budgets_of(result: Evaluation) -> list[dict[str, Any]]:
    assert result.dynamic is not None
    return [
        {
            "name": row.name,
            "note": row.note,
            "madds": row.madds.mean,
            "map": row.score.mean,
            "uniform": row.hull.mean,
            "widths": {str(k): round(share * result.images) for k, share in enumerate(row.gates[0].shares)},
        }
        for row in result.dynamic.rows
    ]


def budget_of(row: BudgetRow) -> dict[str, Any]:
    found: dict[str, Any] = {"asked": row.asked, "lam": row.lam, "note": row.note, "gain_se": row.gain_se}
    for key in ("madds", "p50", "p95", "hull", "gain"):
        found |= stat(key, getattr(row, key))
    found |= stat("top1", row.score)
    found["gates"] = [{"shares": list(gate.shares), "entropy": gate.entropy} for gate in row.gates]
    found["difficulty"] = {
        name: {"madds": group.madds, "gates": [list(shares) for shares in group.gates]}
        for name, group in row.groups.items()
    }
    return found


def dynamic_of(result: Evaluation, dynamic: Dynamic) -> dict[str, Any]:
    groups = list(dict.fromkeys(example.group for example in result.examples))
    found: dict[str, Any] = {
        "router": dynamic.router,
        "targets": dynamic.targets,
        "rows": [budget_of(row) for row in dynamic.rows],
        "difficulty": dynamic.difficulty,
        "warnings": list(dynamic.warnings),
        "examples": {
            group: [example_of(example) for example in result.examples if example.group == group] for group in groups
        },
    }
    if dynamic.classes:
        rows = range(len(dynamic.rows))
        found["classes"] = {
            "names": [one.name for one in dynamic.classes],
            "images": [one.images for one in dynamic.classes],
            "top1": [[one.scores[row] for one in dynamic.classes] for row in rows],
            "madds": [[one.madds[row] for one in dynamic.classes] for row in rows],
            "shares": [list(one.shares) or None for one in dynamic.classes],
        }
    return found


def example_of(example: Example) -> dict[str, Any]:
    found: dict[str, Any] = {"id": example.id, "image": example.id, "path": list(example.path)}
    if example.answer is not None:
        found |= {"label": example.label, "answer": example.answer}
    else:
        found["found"] = [{"class": box.name, "score": box.score, "box": list(box.box)} for box in example.detections]
        found["objects"] = [{"class": box.name, "box": list(box.box)} for box in example.objects]
    return found
