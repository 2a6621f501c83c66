"""The dynamic network: against the hull of its own uniform sub-networks, by difficulty, beside an oracle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dsnet.data.dataset import Batch
from dsnet.models import Supernet
from dsnet.results import BudgetRow, ClassRow, Dynamic, Example, Gate, Group, Point, Stat
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
) -> Dynamic:
    """The dynamic part of an evaluation: one row per budget, by default five between slimmest and widest path."""
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
        rows.append(row_of(traces, policy, difficulty, asked=asked))
    as_trained = row_of(traces, Policy(0.0, max_width), difficulty)  # lambda 0: the paper's gate
    warnings = [row.note for row in rows if row.note] + health(net, rows[len(rows) // 2], "at the middle budget")
    if default_lambda(net) == 0:
        warnings += health(net, as_trained, "without a budget")
    return Dynamic(
        router=router.kind,
        targets=router.targets,
        range=tuple(row.madds for row in (net.card.budgets[:1] + net.card.budgets[-1:])),
        rows=tuple(rows),
        as_trained=as_trained,
        auc=Stat(auc(slimmest_score(net, traces.scores[()]), traces.right(net.candidates[0]))),
        difficulty={name: mine.double().mean().item() for name, mine in difficulty.items()},
        oracle=oracle(traces),
        warnings=tuple(dict.fromkeys(warnings)),
        classes=by_class(traces, [Policy(row.lam, max_width) for row in rows]),
    )


def row_of(traces: Traces, policy: Policy, difficulty: dict[str, Tensor], *, asked: float = 0.0) -> BudgetRow:
    """One policy: accuracy, MAdds and their spread, routes, and the gain over the uniform sub-networks' hull."""
    outcome = traces.at(policy)
    madds = outcome.madds.double()
    mean = madds.mean().item()
    reference = hull(traces, mean)
    difference = outcome.correct.double() - reference
    return BudgetRow(
        name="",
        asked=asked,
        lam=policy.lam,
        note=policy.note,
        madds=Stat(mean),
        p50=Stat(madds.quantile(0.5).item()),
        p95=Stat(madds.quantile(0.95).item()),
        score=Stat(outcome.correct.double().mean().item()),
        hull=Stat(reference.mean().item()),
        gain=Stat(100 * difference.mean().item()),
        gain_se=100 * difference.std().item() / len(difference) ** 0.5,
        gates=histograms(traces.net, outcome.paths),
        groups={name: routed(traces, outcome, mine) for name, mine in difficulty.items()},
    )


def routed(traces: Traces, outcome: Outcome, mine: Tensor) -> Group:
    """Where the images of one difficulty go."""
    if not mine.any():
        return Group(None, ())
    madds = outcome.madds[mine].double().mean().item()
    return Group(madds, tuple(gate.shares for gate in histograms(traces.net, outcome.paths[mine])))


def histograms(net: Described, paths: Tensor) -> tuple[Gate, ...]:
    """For each choice point, the share of images at each width, and the entropy of these shares in bits."""
    gates = []
    for point, widths in enumerate(net.spec.widths):
        shares = torch.bincount(paths[:, point], minlength=widths).double() / len(paths)
        entropy = -(shares * shares.clamp_min(1e-12).log2()).sum().item()
        gates.append(Gate(tuple(shares.tolist()), max(0.0, entropy)))
    return tuple(gates)


def examples(traces: Traces, policy: Policy, count: int = 12) -> tuple[Example, ...]:
    """Images with the cheapest and the dearest paths, on the same path the surest ones first."""
    outcome = traces.at(policy)
    belief = slimmest_score(traces.net, traces.scores[()])
    order = belief.argsort(descending=True, stable=True)
    cheap = order[outcome.madds[order].argsort(stable=True)][:count]
    unsure = order.flip(0)
    dear = unsure[outcome.madds[unsure].argsort(descending=True, stable=True)][:count]
    return (*answered(traces, policy, cheap, "slimmest"), *answered(traces, policy, dear, "widest"))


def answered(traces: Traces, policy: Policy, rows: Tensor, group: str) -> list[Example]:
    """Some images with their labels, answers and paths."""
    batch = traces.load(traces.ids[rows])
    routed = traces._route(batch.images, policy)
    parts = [part.tolist() for part in (batch.ids, routed.paths, batch.labels, routed.logits.argmax(1))]
    return [
        Example(number, tuple(path), group, label, answer) for number, path, label, answer in zip(*parts, strict=True)
    ]


def by_class(traces: Traces, policies: Sequence[Policy]) -> tuple[ClassRow, ...]:
    """Of every class: its images and, per policy, accuracy and average MAdds; the middle policy's first gate's shares.

    A class without images has None, and no shares.
    """
    names = list(traces.net.card.classes) or [str(label) for label in range(int(traces.labels.max()) + 1)]
    outcomes = [traces.at(policy) for policy in policies]
    middle = outcomes[len(outcomes) // 2]
    rows = []
    for label, name in enumerate(names):
        mine = traces.labels == label
        there = bool(mine.any())
        shares = histograms(traces.net, middle.paths[mine])[0].shares if there else ()
        rows.append(
            ClassRow(
                name,
                int(mine.sum()),
                tuple(round(each.correct[mine].double().mean().item(), 4) if there else None for each in outcomes),
                tuple(round(each.madds[mine].double().mean().item(), 0) if there else None for each in outcomes),
                tuple(round(share, 4) for share in shares),
            )
        )
    return tuple(rows)


def choices(net: Described) -> list[WidthPath]:
    """The uniform paths of the routing space and its widest, which is one of them unless gates have different lists."""
    return list(dict.fromkeys([*net.candidates, net.routing.widest]))


def difficulties(traces: Traces) -> dict[str, Tensor]:
    """Easy: the slimmest candidate is right. Hard: none is. Dependent: only wider ones are."""
    right = torch.stack([traces.right(path) for path in choices(traces.net)], 1)
    easy, hard = right[:, 0], ~right.any(1)
    return {"easy": easy, "dependent": ~easy & ~hard, "hard": hard}


def oracle(traces: Traces) -> Point:
    """A router that knows the narrowest candidate that is right, and takes the slimmest where none is."""
    right = torch.stack([traces.right(path) for path in choices(traces.net)], 1)
    costs = torch.tensor([traces.table.madds(path) for path in choices(traces.net)])
    narrowest = right.int().argmax(1)
    return Point(Stat(costs[narrowest].double().mean().item()), Stat(right.any(1).double().mean().item()))


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


Corner = tuple[float, float, WidthPath]


def concave(points: Sequence[Corner]) -> list[Corner]:
    """The corners of the upper concave hull, as far as it rises."""
    kept: list[Corner] = []
    for point in sorted(points):
        while len(kept) > 1 and slope(kept[-2], kept[-1]) <= slope(kept[-2], point):
            kept.pop()
        kept.append(point)
    rising = kept[:1]
    for point in kept[1:]:
        if point[1] > rising[-1][1]:
            rising.append(point)
    return rising


def slope(a: Corner, b: Corner) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def health(net: Described, row: BudgetRow, when: str) -> list[str]:
    """What is wrong with the routes of a row, and what to do."""
    found = []
    for point, gate in enumerate(row.gates):
        share = max(gate.shares)
        if share > COLLAPSED and len(net.spec.routing[point]) > 1:
            found.append(
                f"gate {point} sends {share:.1%} of the images to width {gate.shares.index(share)} {when}: "
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
