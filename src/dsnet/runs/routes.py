"""Which widths and which answers images get: by gate, by difficulty and by class."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan

import numpy as np

from dsnet.manifest import Policy
from dsnet.results import Answers, ClassRow, ClassScore, Dynamic, Gate, Group
from dsnet.routers import Router
from dsnet.routing.traces import Outcome, Traces
from dsnet.space import EXIT, WidthPath

CONFUSIONS = 1000  # most pairs of classes that are kept


def histograms(traces: Traces, paths: np.ndarray) -> tuple[Gate, ...]:
    """For each choice point, the share of images at each width, and the entropy of these shares and the exit's in
    bits. The image size is the first choice where there are several."""
    gates = []
    for point, widths in enumerate(traces.table.space.choices):
        wide = paths[paths[:, point] != EXIT, point]
        shares = np.bincount(wide, minlength=len(widths)) / len(paths)
        every = np.array([1 - len(wide) / len(paths), *shares])
        entropy = -float((every * np.log2(np.clip(every, 1e-12, None))).sum())
        gates.append(Gate(tuple(shares.tolist()), max(0.0, entropy)))
    return tuple(gates)


def routed(traces: Traces, outcome: Outcome, members: np.ndarray) -> Group:
    """Average MAdds and gate distributions of the images of one difficulty."""
    if not members.any():
        return Group(None, ())
    madds = float(outcome.madds[members].astype(np.float64).mean())
    return Group(madds, tuple(gate.shares for gate in histograms(traces, outcome.paths[members])))


def choices(router: Router) -> list[WidthPath]:
    """The candidates of a router, and the widest path of its space in case gates have lists of different lengths."""
    widest = [] if router.spec.candidates else [router.routing.widest]
    return list(dict.fromkeys([*router.candidates, *widest]))


def difficulties(traces: Traces) -> dict[str, np.ndarray]:
    """Masks [N] of the easy images (the slimmest candidate is right), hard images (none is) and dependent images (only
    wider ones are). Empty if the metric does not judge single images."""
    assert traces.router is not None
    if traces.scorer.right(traces.router.candidates[0]) is None:
        return {}
    right = np.stack([traces.right(path, routed=True) for path in choices(traces.router)], 1)
    easy, hard = right[:, 0], np.logical_not(right.any(1))
    return {"easy": easy, "dependent": np.logical_not(easy | hard), "hard": hard}


def by_class(traces: Traces, policies: Sequence[Policy], best: int) -> tuple[ClassRow, ...]:
    """Number of images, accuracies and average MAdds of every class under each policy, and its shares at the first gate
    under the best policy. A class without images has None.
    """
    labels = traces.scorer.labels
    if labels is None:
        return by_object(traces, policies)
    names = list(traces.manifest.classes) or [str(label) for label in range(int(labels.max()) + 1)]
    outcomes = [traces.at(policy) for policy in policies]
    right = [traces.correct(outcome) for outcome in outcomes]
    classes = []
    for label, name in enumerate(names):
        rows = labels == label
        if not rows.any():
            classes.append(ClassRow(name, 0, (None,) * len(policies), (None,) * len(policies)))
            continue
        scores = tuple(round(float(correct[rows].astype(np.float64).mean()), 4) for correct in right)
        madds = tuple(round(float(outcome.madds[rows].astype(np.float64).mean()), 0) for outcome in outcomes)
        shares = tuple(round(share, 4) for share in histograms(traces, outcomes[best].paths[rows])[0].shares)
        classes.append(ClassRow(name, int(rows.sum()), scores, madds, shares))
    return tuple(classes)


def by_object(traces: Traces, policies: Sequence[Policy]) -> tuple[ClassRow, ...]:
    """Number of objects and score of every class under each policy. An image with objects of several classes has one
    route, so classes have no MAdds."""
    found = [traces.scorer.each(traces.at(policy).answers) for policy in policies]
    known = [each for each in found if each is not None]
    if not known or len(known) < len(found):
        return ()
    return tuple(
        ClassRow(name, objects, tuple(score_or_none(each[name][1]) for each in known), (None,) * len(known))
        for name, (objects, _) in known[0].items()
    )


def score_or_none(score: float) -> float | None:
    """A class without objects has no score."""
    return None if isnan(score) else round(score, 4)


def answers_of(
    traces: Traces, widest: WidthPath, dynamic: Dynamic | None, outcome: Outcome | None
) -> tuple[Answers, ...]:
    """The answers of the full network, and of the dynamic network at its best budget. Empty without class labels."""
    labels, answered = traces.scorer.labels, traces.scorer.answered
    networks: list[tuple[int | None, np.ndarray | None]] = [(None, answered(traces.alike(widest)))]
    if dynamic is not None and outcome is not None:
        networks.append((dynamic.shown, answered(outcome.answers)))
    count = traces.manifest.num_classes
    return tuple(
        judged(labels, answers, count, budget)
        for budget, answers in networks
        if labels is not None and answers is not None
    )


def judged(labels: np.ndarray, answers: np.ndarray, count: int, budget: int | None) -> Answers:
    """Precision, recall and F1 of every class, and its wrong answers."""
    right = np.bincount(labels[labels == answers], minlength=count).tolist()
    held, given = (np.bincount(each, minlength=count).tolist() for each in (labels, answers))
    classes = tuple(
        ClassScore(
            images=total,
            precision=round(hits / told, 4) if told else None,
            recall=round(hits / total, 4) if total else None,
            f1=round(2 * hits / (told + total), 4) if told + total else None,
        )
        for hits, total, told in zip(right, held, given, strict=True)
    )
    pairs, images = np.unique(np.stack([labels, answers], 1)[labels != answers], axis=0, return_counts=True)
    order = np.argsort(-images, kind="stable")[:CONFUSIONS]
    wrong = tuple((*pair, number) for pair, number in zip(pairs[order].tolist(), images[order].tolist(), strict=True))
    return Answers(budget, classes, wrong)
