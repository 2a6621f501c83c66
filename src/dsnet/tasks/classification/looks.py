"""The router of a network with several image sizes: it looks at a cheap setting first, and at another if it must.

Which settings it chooses from, and how its head scores them, is fitted on the calibration images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dsnet.hull import concave, level
from dsnet.models import Supernet, count
from dsnet.nn import ScoringHead
from dsnet.routing.fitting import fit_margins, logistic, newton
from dsnet.space import WidthPath
from dsnet.training import with_fresh_router
from dsnet.training.cache import Read, compared

FURTHER = 2  # settings besides the one that is looked at first, at most
PRIOR = 10.0  # strength of the belief that weights are small, in images; few images must not decide eleven weights
BUDGETS = 16  # budgets over which sets of settings are compared
LAMBDAS = np.concatenate([-np.geomspace(100, 1e-3, 40), [0.0], np.geomspace(1e-3, 100, 160)])


class Known(NamedTuple):
    """Of calibration images: the settings, the log-probabilities of their answers [N, R, classes], labels [N], and the
    MAdds of each setting."""

    settings: list[WidthPath]
    log_probs: Tensor
    labels: Tensor
    costs: np.ndarray

    @property
    def right(self) -> np.ndarray:
        found: np.ndarray = (self.log_probs.argmax(2) == self.labels[:, None]).numpy()
        return found


class Fitted(NamedTuple):
    """The head of rank one that scores some settings: sigmoid(a_k + b_k h), where h is linear in what is read of the
    first answer: its largest probabilities in order, and its entropy."""

    mean: np.ndarray
    std: np.ndarray
    weights: np.ndarray
    a: np.ndarray
    b: np.ndarray

    def scores(self, read: np.ndarray) -> np.ndarray:
        raw = (read - self.mean) / self.std @ self.weights
        return np.asarray(0.5 * (1 + np.tanh((self.a + self.b * raw[:, None]) / 2)))


def known(net: Supernet, reads: Iterable[tuple[Read, Tensor]]) -> Known:
    """The answers of all settings that a network compares."""
    parts = [(seen.answers.log_softmax(2).cpu(), labels.cpu()) for seen, labels in reads]
    table, settings = count(net.spec.without_router()), compared(net)
    answers, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    return Known(settings, answers, labels, np.array([table.madds(path) for path in settings], np.float64))


def read_of(log_probs: Tensor) -> np.ndarray:
    """What the head reads of answers [N, classes], apart from the log-probabilities themselves."""
    classes = log_probs.shape[1]
    found: np.ndarray = ScoringHead(classes, 2, 0).features(log_probs)[:, classes:].double().numpy()
    return found


def fitted(read: np.ndarray, right: np.ndarray) -> Fitted:
    """The head for settings that are right or not [N, R]. Its h tells best whether the first of them is right."""
    mean, std = read.mean(0), np.maximum(read.std(0), 1e-3)
    inputs = np.concatenate([np.ones((len(read), 1)), (read - mean) / std], 1)
    ridge = PRIOR / len(read)
    weights = newton(logistic(inputs, right[:, 0].astype(np.float64), ridge), np.zeros(inputs.shape[1]))[1:]
    return Fitted(mean, std, weights, *fit_margins(inputs[:, 1:] @ weights, right))


def curve(scores: np.ndarray, right: np.ndarray, costs: np.ndarray, whole: float) -> list[tuple[float, float]]:
    """Average MAdds and accuracy of the head at many lambdas. Every image pays for the first look."""
    prices = np.concatenate([[0.0], costs[1:]])
    chosen = (scores[None] - LAMBDAS[:, None, None] * prices / whole).argmax(2)  # [L, N]
    images = np.arange(len(right))
    found: dict[float, float] = {}
    for row in chosen:
        spent, score = costs[0] + float(prices[row].mean()), float(right[images, row].mean())
        found[spent] = max(score, found.get(spent, 0.0))
    return list(found.items())


def worth(known: Known, chosen: Sequence[int]) -> float:
    """The mean accuracy over budgets between the cheapest and the largest setting of a router that chooses from some.
    Below its first look, that of fixed settings counts."""
    costs, right = known.costs, known.right
    head = fitted(read_of(known.log_probs[:, chosen[0]]), right[:, chosen])
    points = curve(head.scores(read_of(known.log_probs[:, chosen[0]])), right[:, chosen], costs[chosen], costs.max())
    fixed = [(cost, float(score)) for cost, score in zip(costs, right.mean(0), strict=True)]
    least = min(cost for cost, _ in points)
    budgets = np.linspace(costs.min(), costs.max(), BUDGETS)
    return float(np.mean([level(fixed if budget < least else points, budget) for budget in budgets]))


def chosen_settings(known: Known) -> list[WidthPath]:
    """The settings of the best router on the calibration images, cheapest first: corners of the hull of all settings,
    the most accurate among them, and at most `FURTHER` besides the first."""
    accuracy = known.right.mean(0)
    points = [
        (cost, float(score), path) for cost, score, path in zip(known.costs, accuracy, known.settings, strict=True)
    ]
    corners = [known.settings.index(path) for _, _, path in concave(points)]
    if len(corners) < 2:  # nothing is more accurate than the cheapest
        corners = [int(known.costs.argmin()), int(known.costs.argmax())]
    *others, last = corners
    sets = [[*some, last] for more in range(1, FURTHER + 1) for some in combinations(others, more)]
    best = max(sets, key=lambda chosen: worth(known, chosen))
    return [known.settings[place] for place in best]


@torch.no_grad()
def with_looks(net: Supernet, reads: Iterable[tuple[Read, Tensor]]) -> Supernet:
    """The network with a router that chooses among a few settings, fitted on calibration images."""
    seen = known(net, reads)
    candidates = chosen_settings(seen)
    router = replace(net.spec.router, candidates=tuple(candidates))
    found = with_fresh_router(net, replace(net.spec, router=router)).eval()
    if isinstance(found.probe, ScoringHead):
        chosen = [seen.settings.index(path) for path in candidates]
        set_head(found.probe, fitted(read_of(seen.log_probs[:, chosen[0]]), seen.right[:, chosen]))
    return found


def set_head(head: ScoringHead, numbers: Fitted) -> None:
    """Let a head of rank one compute what was fitted."""
    assert head.linear
    assert head.reduce.bias is not None
    assert head.score.bias is not None
    read = len(numbers.mean)  # behind the log-probabilities, which it does not read
    for tensor, value in ((head.reduce.mean, 0.0), (head.reduce.std, 1.0), (head.reduce.weight, 0.0)):
        tensor.fill_(value)
    head.reduce.bias.zero_()
    for tensor, values in ((head.reduce.mean, numbers.mean), (head.reduce.std, numbers.std)):
        tensor[-read:] = torch.from_numpy(values)
    head.reduce.weight[0, -read:] = torch.from_numpy(numbers.weights)
    head.score.weight.copy_(torch.from_numpy(numbers.b)[:, None])
    head.score.bias.copy_(torch.from_numpy(numbers.a))
