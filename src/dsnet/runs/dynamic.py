"""Evaluates the dynamic network at budgets and in windows, and warns of gates that do not tell inputs apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsnet.manifest import Caps, Policy
from dsnet.results import BudgetRow, Dynamic, Stat
from dsnet.routers import Router
from dsnet.routing.budgets import parse_budget, policy_for
from dsnet.routing.traces import Traces, auc, widest_gain
from dsnet.routing.windows import name_of_window, parse_window, trained_windows, window_text
from dsnet.runs.references import between, lottery, oracle, oracle_at, over_hull
from dsnet.runs.routes import by_class, difficulties, histograms, routed
from dsnet.space import WidthPath, is_exit

COLLAPSED = 0.99


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
