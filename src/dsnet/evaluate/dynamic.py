"""The dynamic network: against the hull of its own uniform sub-networks, by difficulty, beside an oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dsnet.data.dataset import Batch
from dsnet.models import Supernet
from dsnet.routing import Outcome, Policy, Routed, Traces, parse_budget, policy_for
from dsnet.routing.budgets import default_lambda
from dsnet.routing.route import first_scores
from dsnet.routing.traces import Described, Load
from dsnet.runtime import Runner
from dsnet.space import WidthPath

SHARES = (1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6)
COLLAPSED = 0.99


class RunnerTraces(Traces):
    """What a router does when something else than the network itself runs it."""

    def __init__(self, runner: Runner, batches: Iterable[Batch], load: Load, *, image_size: int) -> None:
        self.runner = runner
        super().__init__(runner, batches, load, image_size=image_size)

    def _look(self, images: Tensor, paths: list[WidthPath]) -> tuple[list[Tensor], Tensor]:
        logits = [self.runner.run_path(images, path).logits for path in paths]
        return logits, self.runner.run(images).scores[0]

    def _route(self, images: Tensor, policy: Policy) -> Routed:
        return self.runner.run(images, policy)


def evaluate_dynamic(
    traces: Traces, budgets: Sequence[str | float] | None = None, *, max_width: int | None = None
) -> dict[str, Any]:
    """The dynamic part of a result: one row per budget, by default five between slimmest and widest uniform path."""
    net, table = traces.net, traces.table
    router = net.spec.router
    assert router is not None
    difficulty = difficulties(traces)
    low, high = table.madds(net.routing.slimmest), table.madds(net.routing.widest)
    if budgets is None:
        budgets = [low + share * (high - low) for share in SHARES]
    rows = []
    for budget in budgets:
        asked = parse_budget(budget, table)
        policy = policy_for(net, asked, max_width=max_width, image_size=table.image_size)
        row = row_of(traces, policy, difficulty)
        rows.append({"asked": asked, "miss": row["madds"] / asked - 1, **row})
    as_trained = row_of(traces, Policy(0.0, max_width), difficulty)  # lambda 0: the paper's gate
    warnings = [row["note"] for row in rows if row["note"]] + health(net, rows[len(rows) // 2], "at the middle budget")
    if default_lambda(net) == 0:
        warnings += health(net, as_trained, "without a budget")
    return {
        "router": router.kind,
        "targets": router.targets,
        "images": len(traces),
        "range": [row.madds for row in (net.card.budgets[:1] + net.card.budgets[-1:])],
        "rows": rows,
        "as_trained": as_trained,
        "auc": auc(slimmest_score(net, traces.scores[()]), traces.right(net.candidates[0])),
        "difficulty": {name: mine.double().mean().item() for name, mine in difficulty.items()},
        "oracle": oracle(traces),
        "warnings": list(dict.fromkeys(warnings)),
        "examples": examples(traces, Policy(rows[len(rows) // 2]["lam"], max_width)),
        "classes": by_class(traces, [Policy(row["lam"], max_width) for row in rows]),
    }


def row_of(traces: Traces, policy: Policy, difficulty: dict[str, Tensor]) -> dict[str, Any]:
    """One policy: accuracy, MAdds and their spread, routes, and the gain over the uniform sub-networks' hull."""
    outcome = traces.at(policy)
    madds = outcome.madds.double()
    mean = madds.mean().item()
    reference = hull(traces, mean)
    difference = outcome.correct.double() - reference
    return {
        "lam": policy.lam,
        "note": policy.note,
        "top1": outcome.correct.double().mean().item(),
        "madds": mean,
        "p50": madds.quantile(0.5).item(),
        "p95": madds.quantile(0.95).item(),
        "hull": reference.mean().item(),
        "gain": 100 * difference.mean().item(),
        "gain_se": 100 * difference.std().item() / len(difference) ** 0.5,
        "gates": histograms(traces.net, outcome.paths),
        "difficulty": {name: routed(traces, outcome, mine) for name, mine in difficulty.items()},
    }


def routed(traces: Traces, outcome: Outcome, mine: Tensor) -> dict[str, Any]:
    """Where the images of one difficulty go."""
    if not mine.any():
        return {"madds": None, "gates": []}
    madds = outcome.madds[mine].double().mean().item()
    return {"madds": madds, "gates": [gate["shares"] for gate in histograms(traces.net, outcome.paths[mine])]}


def histograms(net: Described, paths: Tensor) -> list[dict[str, Any]]:
    """For each choice point, the share of images at each width, and the entropy of these shares in bits."""
    gates = []
    for point, widths in enumerate(net.spec.widths):
        shares = torch.bincount(paths[:, point], minlength=widths).double() / len(paths)
        entropy = -(shares * shares.clamp_min(1e-12).log2()).sum().item()
        gates.append({"shares": shares.tolist(), "entropy": max(0.0, entropy)})
    return gates


def examples(traces: Traces, policy: Policy, count: int = 12) -> dict[str, list[dict[str, Any]]]:
    """Images with the cheapest and the dearest paths, on the same path the surest ones first: label, answer, path."""
    outcome = traces.at(policy)
    belief = slimmest_score(traces.net, traces.scores[()])
    order = belief.argsort(descending=True, stable=True)
    cheap = order[outcome.madds[order].argsort(stable=True)][:count]
    unsure = order.flip(0)
    dear = unsure[outcome.madds[unsure].argsort(descending=True, stable=True)][:count]
    return {name: shown(traces, policy, rows) for name, rows in (("slimmest", cheap), ("widest", dear))}


def shown(traces: Traces, policy: Policy, rows: Tensor) -> list[dict[str, Any]]:
    batch = traces.load(traces.ids[rows])
    routed = traces._route(batch.images, policy)
    fields = {"id": batch.ids, "label": batch.labels, "answer": routed.logits.argmax(1), "path": routed.paths}
    values = {name: tensor.tolist() for name, tensor in fields.items()}
    return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]


def by_class(traces: Traces, policies: Sequence[Policy]) -> dict[str, list[Any]]:
    """Of every class: its images and, per policy, accuracy and average MAdds; the middle policy's first gate's shares.

    A class without images has None.
    """
    names = list(traces.net.card.classes) or [str(label) for label in range(int(traces.labels.max()) + 1)]
    mine = [traces.labels == label for label in range(len(names))]
    outcomes = [traces.at(policy) for policy in policies]
    middle = outcomes[len(outcomes) // 2]

    def means(values: Tensor, digits: int) -> list[float | None]:
        return [round(values[rows].double().mean().item(), digits) if rows.any() else None for rows in mine]

    return {
        "names": names,
        "images": [int(rows.sum()) for rows in mine],
        "top1": [means(outcome.correct, 4) for outcome in outcomes],
        "madds": [means(outcome.madds, 0) for outcome in outcomes],
        "shares": [
            [round(share, 4) for share in histograms(traces.net, middle.paths[rows])[0]["shares"]]
            if rows.any()
            else None
            for rows in mine
        ],
    }


def choices(net: Described) -> list[WidthPath]:
    """The uniform paths of the routing space and its widest, which is one of them unless gates have different lists."""
    return list(dict.fromkeys([*net.candidates, net.routing.widest]))


def difficulties(traces: Traces) -> dict[str, Tensor]:
    """Easy: the slimmest candidate is right. Hard: none is. Dependent: only wider ones are."""
    right = torch.stack([traces.right(path) for path in choices(traces.net)], 1)
    easy, hard = right[:, 0], ~right.any(1)
    return {"easy": easy, "dependent": ~easy & ~hard, "hard": hard}


def oracle(traces: Traces) -> dict[str, float]:
    """A router that knows the narrowest candidate that is right, and takes the slimmest where none is."""
    right = torch.stack([traces.right(path) for path in choices(traces.net)], 1)
    costs = torch.tensor([traces.table.madds(path) for path in choices(traces.net)])
    narrowest = right.int().argmax(1)
    return {"top1": right.any(1).double().mean().item(), "madds": costs[narrowest].double().mean().item()}


def hull(traces: Traces, madds: float) -> Tensor:
    """Each image's expected correctness [N] on the upper concave hull of the uniform sub-networks, at average MAdds.

    A point on the hull is a lottery between two widths, so it is a network that one can have without any router.
    """
    corners = concave(
        [
            (traces.table.madds(path), traces.right(path).double().mean().item(), path)
            for path in traces.net.space.uniform
        ]
    )
    before = [corner for corner in corners if corner[0] <= madds]
    after = [corner for corner in corners if corner[0] > madds]
    if not before or not after:
        return traces.right((before or after)[-1 if before else 0][2]).double()
    (x0, _, slim), (x1, _, wide) = before[-1], after[0]
    share = (madds - x0) / (x1 - x0)
    return (1 - share) * traces.right(slim).double() + share * traces.right(wide).double()


Point = tuple[float, float, WidthPath]


def concave(points: Sequence[Point]) -> list[Point]:
    """The corners of the upper concave hull, as far as it rises."""
    kept: list[Point] = []
    for point in sorted(points):
        while len(kept) > 1 and slope(kept[-2], kept[-1]) <= slope(kept[-2], point):
            kept.pop()
        kept.append(point)
    rising = kept[:1]
    for point in kept[1:]:
        if point[1] > rising[-1][1]:
            rising.append(point)
    return rising


def slope(a: Point, b: Point) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def health(net: Described, row: dict[str, Any], when: str) -> list[str]:
    """What is wrong with the routes of a row, and what to do."""
    found = []
    for point, gate in enumerate(row["gates"]):
        share = max(gate["shares"])
        if share > COLLAPSED and len(net.spec.routing[point]) > 1:
            found.append(
                f"gate {point} sends {share:.1%} of the images to width {gate['shares'].index(share)} {when}: "
                f"it does not tell inputs apart. Ask for another budget, train longer (sgs_optim.epochs), raise "
                f"sgs.temperature, or use sgs.router slim_first"
            )
    return found


def slimmest_score(net: Described, scores: Tensor) -> Tensor:
    """How much a router believes in the slimmest candidate [N], given the scores [N, R] of its first decision."""
    assert net.spec.router is not None
    return scores[:, 0] if net.spec.router.targets in ("correctness", "kl") else scores.log_softmax(1)[:, 0]


@torch.no_grad()
def router_auc(net: Supernet, batches: Iterable[Batch]) -> float:
    """How well the first scores tell whether the slimmest candidate is right, over some images."""
    scores, right = [], []
    for batch in batches:
        if len(batch.images):
            entered = net.enter(batch.images.to(net.head.classifier.weight.device))
            logits = net.run_paths(entered, net.candidates[:1])[0]
            scores.append(slimmest_score(net, first_scores(net, logits, entered.code)).cpu())
            right.append(logits.argmax(1).cpu() == batch.labels)
    return auc(torch.cat(scores), torch.cat(right))


def auc(scores: Tensor, positive: Tensor) -> float:
    """Area under the ROC curve: the chance that a positive outranks a negative, ties counting half."""
    count, negatives = int(positive.sum()), int((~positive).sum())
    if not count or not negatives:
        return 0.5
    _, inverse, counts = scores.unique(return_inverse=True, return_counts=True)
    ranks = counts.cumsum(0).double() - (counts.double() - 1) / 2
    return (ranks[inverse][positive].sum().item() - count * (count + 1) / 2) / (count * negatives)
