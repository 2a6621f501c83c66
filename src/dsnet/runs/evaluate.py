"""Evaluates every path and the dynamic network in one pass over the images, for every task and runtime."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsnet.config import RunConfig
from dsnet.data.dataset import Data
from dsnet.errors import RoutingError
from dsnet.hull import concave, straight
from dsnet.manifest import Caps, Policy
from dsnet.results import (
    BudgetRow,
    Dynamic,
    Evaluation,
    Made,
    PathRow,
    Point,
    Stat,
    made,
)
from dsnet.routers import Router
from dsnet.routing.budgets import parse_budget, policy_for
from dsnet.routing.traces import Outcome, Traces, auc, by_path, widest_gain
from dsnet.routing.windows import name_of_window, parse_window, trained_windows, window_text
from dsnet.runs.resampled import Resampled
from dsnet.runs.routes import answers_of, by_class, choices, difficulties, histograms, routed
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath, is_exit
from dsnet.tasks import Task, traces_of

COLLAPSED = 0.99


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


def evaluate_dynamic(
    traces: Traces,
    budgets: Sequence[str | float] | None = None,
    *,
    max_width: int | None = None,
    max_size: int | None = None,
    paths: Sequence[WidthPath] = (),
) -> Dynamic:
    """Evaluate the dynamic network at the given budgets, or at those of the task. paths: what it is compared with."""
    manifest, router, table = traces.manifest, traces.router, traces.table
    assert router is not None
    groups = difficulties(traces)
    caps: Caps = {"max_width": max_width, "max_size": max_size}
    wanted: dict[str, str | float] = (
        dict(traces.scorer.budgets(traces)) if budgets is None else {str(k): budget for k, budget in enumerate(budgets)}
    )
    rows = []
    for name, budget in wanted.items():
        asked = parse_budget(budget, table)
        policy = policy_for(manifest, asked, image_size=traces.image_size, table=table, **caps)
        name = "" if name.isdigit() else name
        rows.append(budget_row(traces, policy, groups, name=name, asked=asked, paths=paths))
    best = best_of(rows)
    windows = []
    for window in trained_windows(router):
        policy = Policy(window=window, **caps)
        windows.append(budget_row(traces, policy, groups, name=name_of_window(window, router), paths=paths))
    middle = parse_window("M", router) if windows else None
    as_trained = budget_row(traces, Policy(window=middle, **caps), groups)  # lambda 0: the paper's gate
    judged = bool(groups)
    warnings = [row.note for row in rows if row.note]
    if judged:  # the remedies in these warnings apply to classification only
        if max_size is None:  # a cap may leave a single size
            warnings += health(router, rows[len(rows) // 2], "at the middle budget")
        if windows:
            for row in windows if max_width is None else ():  # a cap may leave a single width of a window
                warnings += health(router, row, f"in window {window_text(row.window)} as trained")
        elif manifest.defaults.lam == 0:
            warnings += health(router, as_trained, "without a budget")
    return Dynamic(
        router=router.spec.kind,
        targets=router.spec.targets,
        range=tuple(row.madds for row in (router.budgets[:1] + router.budgets[-1:])),
        rows=tuple(rows),
        as_trained=as_trained,
        auc=Stat(auc(traces.belief, traces.right(router.candidates[0]))) if judged else None,
        difficulty={name: float(members.astype(np.float64).mean()) for name, members in groups.items()},
        oracle=oracle(traces) if judged else None,
        warnings=tuple(dict.fromkeys(warnings)),
        classes=by_class(traces, [policy_of(row, **caps) for row in rows], best),
        best=best,
        max_width=max_width,
        max_size=max_size,
        auc_wider=Stat(auc_wider(traces)) if judged else None,
        windows=tuple(windows),
    )


def policy_of(row: BudgetRow, max_width: int | None = None, max_size: int | None = None) -> Policy:
    """The policy that a row is about."""
    return Policy(row.lam, max_width, window=row.window, max_size=max_size)


def auc_wider(traces: Traces) -> float:
    """How well the router's scores tell which images the widest candidate gets right and the slimmest does not."""
    assert traces.router is not None
    slim, wide = (traces.right(traces.router.candidates[end], routed=True) for end in (0, -1))
    return auc(widest_gain(traces.scores[()]), wide & ~slim)


def best_of(rows: Sequence[BudgetRow]) -> int:
    """Position of the cheapest budget whose score equals the full network's, or else of the most accurate one."""
    costs = [row.madds.mean for row in rows]
    equal = [place for place, row in enumerate(rows) if row.to_full is not None and row.to_full.sign >= 0]
    if equal:
        return min(equal, key=lambda place: costs[place])
    return max(range(len(rows)), key=lambda place: (rows[place].score.mean, -costs[place]))


def budget_row(
    traces: Traces,
    policy: Policy,
    groups: Mapping[str, np.ndarray],
    *,
    name: str = "",
    asked: float = 0.0,
    paths: Sequence[WidthPath] = (),
) -> BudgetRow:
    """The dynamic network under one policy: score, MAdds, routes, the gain over the uniform sub-networks, and the
    differences to some paths."""
    outcome = traces.at(policy)
    madds = outcome.madds.astype(np.float64)
    score, error, exit = traces.score(outcome), None, None
    uniform, exits = traces.manifest.uniform, list(filter(is_exit, traces.paths))
    if groups:
        level, gain, error = over_hull(traces, outcome, uniform)
        exit = over_hull(traces, outcome, [*exits, *uniform]) if exits else None
    else:
        level = between(traces, outcome.spent)
        gain = 100 * (score - level)
    differences = [traces.scorer.difference(outcome.answers, traces.alike(path)) for path in paths]
    known = tuple(difference for difference in differences if difference is not None)
    return BudgetRow(
        name=name,
        asked=asked,
        lam=policy.lam,
        note=policy.note,
        madds=Stat(outcome.spent),
        p50=Stat(float(np.quantile(madds, 0.5))),
        p95=Stat(float(np.quantile(madds, 0.95))),
        score=Stat(score),
        hull=Stat(level),
        gain=Stat(gain),
        gain_se=error,
        gates=histograms(traces, outcome.paths),
        groups={key: routed(traces, outcome, members) for key, members in groups.items()},
        to_paths=known if len(known) == len(paths) else (),
        window=policy.window,
        lottery=lottery(traces, outcome) if groups else None,
        oracle=Stat(oracle_at(traces, outcome.spent)) if groups else None,
        exit_hull=None if exit is None else Stat(exit[0]),
        exit_gain=None if exit is None else Stat(exit[1]),
        exit_gain_se=None if exit is None else exit[2],
    )


def over_hull(traces: Traces, outcome: Outcome, paths: Sequence[WidthPath]) -> tuple[float, float, float]:
    """The score on the hull of some paths at the outcome's MAdds, and the points above it with their standard error."""
    reference = hull(traces, outcome.spent, paths)
    difference = traces.correct(outcome).astype(np.float64) - reference
    error = 100 * float(difference.std(ddof=1)) / len(difference) ** 0.5
    return float(reference.mean()), 100 * float(difference.mean()), error


def oracle(traces: Traces) -> Point:
    """Cost and score of a router that always takes the narrowest right candidate, or the slimmest if none is right."""
    assert traces.router is not None
    paths = choices(traces.router)
    right = np.stack([traces.right(path, routed=True) for path in paths], 1)
    costs = np.array([traces.table.madds(path) for path in paths], np.float64)
    narrowest = right.argmax(1)
    return Point(Stat(float(costs[narrowest].mean())), Stat(float(right.any(1).astype(np.float64).mean())))


def lottery(traces: Traces, outcome: Outcome) -> Stat | None:
    """The score of choosing at random with the outcome's shares of paths; None if a path was not run on all images."""
    shares = [(path, len(rows) / len(traces)) for path, rows in by_path(outcome.paths)]
    if not all(traces.known[path].all() for path, _ in shares):
        return None
    return Stat(sum(share * float(traces.right(path, routed=True).astype(np.float64).mean()) for path, share in shares))


def oracle_at(traces: Traces, madds: float) -> float:
    """The score of a router that knows the narrowest uniform path that is right, at average MAdds. It begins with the
    slimmest path, or the exit, for all images and widens those first that need the least."""
    paths = traces.combined or sorted(traces.manifest.uniform, key=traces.table.madds)
    right = np.stack([traces.right(path, routed=True) for path in paths], 1)
    costs = np.array([traces.table.madds(path) for path in paths], np.float64)
    narrowest = np.bincount(right.argmax(1)[right.any(1)], minlength=len(paths)) / len(right)
    spent, score = costs[0] + (narrowest * (costs - costs[0])).cumsum(), narrowest.cumsum()
    return float(np.interp(madds, spent, score))


def hull(traces: Traces, madds: float, paths: Sequence[WidthPath]) -> np.ndarray:
    """Each image's expected correctness [N] on the upper concave hull of some paths, at average MAdds.

    A point on the hull is a random mix of two paths, which needs no router.
    """
    corners = concave(
        [(traces.table.madds(path), float(traces.right(path).astype(np.float64).mean()), path) for path in paths]
    )
    before = [corner for corner in corners if corner[0] <= madds]
    after = [corner for corner in corners if corner[0] > madds]
    if not before or not after:
        return traces.right((before or after)[-1 if before else 0][2]).astype(np.float64)
    (x0, _, slim), (x1, _, wide) = before[-1], after[0]
    share = (madds - x0) / (x1 - x0)
    return (1 - share) * traces.right(slim).astype(np.float64) + share * traces.right(wide).astype(np.float64)


def between(traces: Traces, madds: float) -> float:
    """The score at the given MAdds, interpolated between the uniform widths."""
    uniform = traces.manifest.uniform
    return straight(
        [(traces.table.madds(path), next(iter(traces.scorer.of(path).values()))) for path in uniform], madds
    )


def health(router: Router, row: BudgetRow, when: str) -> list[str]:
    """Warnings about gates that send almost all images to one width, with remedies that this router has."""
    remedies = ["ask for another budget"]
    if router.spec.kind != "threshold":  # a threshold is not trained
        remedies.append("train the router longer (sgs_optim.epochs)")
    if router.spec.kind == "gate":
        remedies += ["raise sgs.temperature"] if router.spec.targets not in ("correctness", "kl") else []
        remedies.append("use sgs.router cheap_first")
    remedy = f"{', '.join(remedies[:-1])} or {remedies[-1]}" if len(remedies) > 1 else remedies[0]
    warnings = []
    alike = [max(*gate.shares, gate.exit) > COLLAPSED for gate in row.gates]
    if router.routing.sized and router.spec.exits and not all(alike):  # one size may have an exit and full settings
        return []
    for point, gate in enumerate(row.gates[:1] if router.spec.bound else row.gates):
        share = max(*gate.shares, gate.exit)
        if share > COLLAPSED and len(router.routing.choices[point]) > 1:
            kind = "image size" if router.routing.sized and point == 0 else "width"
            where = "the exit" if share == gate.exit else f"{kind} {gate.shares.index(share)}"
            warnings.append(
                f"gate {point} sends {share:.1%} of the images to {where} {when}: it does not tell inputs apart. "
                f"{remedy.capitalize()}"
            )
    return warnings
