"""Evaluates every path and the dynamic network in one pass over the images, for every task and runtime."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsnet.config import RunConfig
from dsnet.data.dataset import Data
from dsnet.errors import RoutingError
from dsnet.manifest import Caps
from dsnet.results import Evaluation, Made, PathRow, Stat, made
from dsnet.routing.traces import Traces
from dsnet.runs.dynamic import evaluate_dynamic, policy_of
from dsnet.runs.resampled import Resampled
from dsnet.runs.routes import answers_of
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath
from dsnet.tasks import Task, traces_of


@dataclass(frozen=True)
class EvalOptions:
    """What to evaluate.

    Args:
        budgets: Budgets of the dynamic network in average MAdds; None takes those of the task.
        max_width: Upper limit of the width index.
        sample: Number of random paths besides the uniform ones, for networks with several gates.
        seed: Seed of the random paths.
        options: Settings of the task's metric.
        max_size: Upper limit of the image size in pixels, of a network that looks at several.
    """

    split: str = "test"
    budgets: Sequence[str | float] | None = None
    max_width: int | None = None
    sample: int = 16
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    max_size: int | None = None

    @property
    def caps(self) -> Caps:
        return {"max_width": self.max_width, "max_size": self.max_size}


def evaluate(runner: Runner, data: Data, task: Task, config: RunConfig, asked: EvalOptions | None = None) -> Evaluation:
    """What runs the network of a run, on a split of the run's data: one row per path, cheapest first, and the dynamic
    network at several budgets. All processes of a job share the images and return the same result."""
    result, _ = evaluate_traced(runner, data, task, config, asked or EvalOptions())
    return result


def evaluate_resampled(
    runner: Runner, data: Data, task: Task, config: RunConfig
) -> tuple[Evaluation, Resampled | None]:
    """`evaluate`, and the same over test images that are drawn again."""
    result, traces = evaluate_traced(runner, data, task, config, EvalOptions())
    dynamic, paths = result.dynamic, [row.path for row in result.rows]
    rows = [] if dynamic is None else [dynamic.as_trained, *dynamic.rows, *dynamic.windows]
    policies = [policy_of(row) for row in rows if row is not None]
    return result, Resampled.of(traces, paths, [traces.at(policy) for policy in policies])


def evaluate_traced(
    runner: Runner, data: Data, task: Task, config: RunConfig, asked: EvalOptions
) -> tuple[Evaluation, Traces]:
    start, manifest = time.perf_counter(), runner.manifest
    if manifest.raw:
        raise ValueError(
            f"{runner.place} takes raw pictures, but evaluation prepares its images; evaluate the run, or a file that "
            f"was exported without --raw"
        )
    if not data.classes:
        raise ValueError(f"{data.name} has no labels to evaluate with; evaluate a run on labelled images")
    if manifest.classes != data.classes:
        raise ValueError(
            f"the model knows the classes {list(manifest.classes)[:5]} but the data has {list(data.classes)[:5]}; "
            f"evaluate on data with the same classes"
        )
    if manifest.image_size != data.image_size:
        raise ValueError(
            f"{runner.runtime} takes {manifest.image_size}-pixel images but the run was trained and calibrated with "
            f"{data.image_size}; evaluate a file that was exported without --image_size"
        )
    if not manifest.routes and (asked.budgets or asked.max_width is not None or asked.max_size is not None):
        raise RoutingError(f"this {manifest.model} {manifest.why_fixed()}, so it has no budgets")
    options, (dataset, training) = task.options(config, asked.options), task.about(config, manifest)
    paths = paths_to_evaluate(runner, asked.sample, asked.seed)
    runner.check_paths(paths)
    traces, skipped = traces_of(task, runner, data, asked.split, config, paths=paths, options=options)
    scorer = traces.scorer
    paths = sorted(paths, key=lambda path: traces.table.madds(path))
    rows = [row_of(traces, path, paths[-1]) for path in paths]
    dynamic = None
    if manifest.routes:
        dynamic = evaluate_dynamic(traces, asked.budgets, paths=paths, **asked.caps)
    outcome = None if dynamic is None else traces.at(policy_of(dynamic.best_row, **asked.caps))
    result = Evaluation(
        task=task.name,
        metric=scorer.metric,
        model=manifest.model,
        dataset=dataset,
        split=asked.split,
        images=len(traces),
        image_size=traces.image_size,
        seeds=(config.seed,),
        rows=tuple(rows),
        made=made_here(runtime=runner.runtime, seconds=time.perf_counter() - start),
        classes=manifest.classes,
        objects=scorer.objects,
        options=options,
        dynamic=dynamic,
        examples=scorer.examples(traces, outcome),
        training=training,
        skipped=skipped,
        warnings=data.warnings,
        answers=answers_of(traces, paths[-1], dynamic, outcome),
    )
    return result, traces


def made_here(**known: Any) -> Made:
    """`made`, including the versions of torch and ONNX Runtime."""
    import onnxruntime
    import torch

    return made(torch=str(torch.__version__), onnxruntime=onnxruntime.__version__, **known)


def paths_to_evaluate(runner: Runner, sample: int = 0, seed: int = 0) -> list[WidthPath]:
    """Every path of a network with one choice point; with several, the uniform paths and a random sample of others. The
    exits are the first."""
    space = runner.manifest.space
    paths, exits = runner.manifest.uniform, [path for path in space.exits if path in runner.paths]
    if len(paths) < space.size:
        rng, known = random.Random(seed), {*exits, *paths}
        others = [path for path in runner.paths if path not in known]
        paths = [*paths, *rng.sample(others, min(sample, len(others)))]
    return list(dict.fromkeys([*exits, *paths]))


def row_of(traces: Traces, path: WidthPath, widest: WidthPath) -> PathRow:
    table, scorer = traces.table, traces.scorer
    (_, score), *more = scorer.of(path).items()
    parts: dict[str, int] = next((row.parts for row in traces.manifest.widths if row.path == path), {})
    return PathRow(
        size=traces.manifest.size_of(path),
        path=path,
        madds=table.madds(path),
        params=table.params(path),
        share=table.madds(path) / table.widest,
        score=Stat(score),
        more={name: Stat(value) for name, value in more},
        parts=parts,
        to_full=None if path == widest else scorer.difference(traces.alike(path), traces.alike(widest)),
    )
