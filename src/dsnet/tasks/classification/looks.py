"""The router of several image sizes: it looks at a cheap setting or at an exit first, and at another if it must.

Which settings it chooses from, and how its head scores them, is fitted on the calibration images.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from dsnet.hull import concave, level
from dsnet.models import Network, Supernet, count
from dsnet.nn import ScoringHead
from dsnet.routing.fitting import fit_margins, logistic, newton
from dsnet.space import WidthPath, is_exit
from dsnet.training import with_fresh_router
from dsnet.training.cache import Read, exit_logits
from dsnet.training.distributed import in_order

N = TypeVar("N", bound=Network)
FURTHER = 2  # settings besides the one that is looked at first, at most
PRIOR = 10.0  # strength of the belief that weights are small, in images; few images must not decide eleven weights
BUDGETS = 16  # budgets over which sets of settings are compared
LAMBDAS = np.concatenate([-np.geomspace(100, 1e-3, 40), [0.0], np.geomspace(1e-3, 100, 160)])


class Known(NamedTuple):
    """Of calibration images: the settings, the log-probabilities of their answers [N, R, classes], labels [N], and the
    MAdds of each setting.

    spec: That of the network; None where costs are all that is known of it.
    """

    settings: list[WidthPath]
    log_probs: Tensor
    labels: Tensor
    costs: np.ndarray
    spec: Any = None

    def looks(self, chosen: Sequence[int]) -> np.ndarray:
        """MAdds of the first look of a router, and of what each further setting adds. A setting of the same size goes
        on from the same map."""
        if self.spec is None:
            return self.costs[chosen]
        candidates = tuple(self.settings[place] for place in chosen)
        table = count(with_candidates(self.spec, candidates))
        spent = np.array([table.madds(path, dynamic=True) for path in candidates], np.float64)
        return np.concatenate([spent[:1], spent[1:] - spent[0]])

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
    """The answers of all settings that a network compares, and of its exits, on the images of all processes."""
    parts = in_order([(answers_of(net, seen).log_softmax(2).cpu(), labels.cpu()) for seen, labels in reads])
    table, settings = count(net.spec), net.candidates
    answers, labels = (torch.cat(column) for column in zip(*parts, strict=True))
    costs = np.array([table.madds(path) for path in settings], np.float64)
    return Known(settings, answers, labels, costs, net.spec)


def answers_of(net: Supernet, seen: Read) -> Tensor:
    """Logits [B, R, classes] of the exits and settings that a router may choose."""
    if net.early is None:
        return seen.answers
    return torch.cat([exit_logits(net, seen), seen.answers], 1)


def with_candidates(spec: N, candidates: Sequence[WidthPath]) -> N:
    """The spec of a network whose router chooses among these settings."""
    router = replace(spec.router, candidates=tuple(candidates))  # type: ignore[type-var]
    return replace(spec, router=router)  # type: ignore[type-var]


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
    """Average MAdds and accuracy of the head at many lambdas. Every image pays for the first look.

    costs: MAdds of the first look, and of what each other setting adds.
    """
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
    scores = head.scores(read_of(known.log_probs[:, chosen[0]]))
    points = curve(scores, right[:, chosen], known.looks(chosen), costs.max())
    fixed = [(cost, float(score)) for cost, score in zip(costs, right.mean(0), strict=True)]
    least = min(cost for cost, _ in points)
    budgets = np.linspace(costs.min(), costs.max(), BUDGETS)
    return float(np.mean([level(fixed if budget < least else points, budget) for budget in budgets]))


def chosen_settings(known: Known) -> list[WidthPath]:
    """The settings of the best router on the calibration images, cheapest first: corners of the hull of all settings,
    the most accurate among them, and at most `FURTHER` besides the first."""
    sets = exit_sets_of(known) if any(map(is_exit, known.settings)) else sets_of(known)
    best = max(sets, key=lambda chosen: worth(known, chosen))
    return [known.settings[place] for place in best]


def corners_of(known: Known, some: Sequence[int]) -> list[int]:
    """The corners of the hull of some settings, cheapest first."""
    accuracy = known.right.mean(0)
    points = [(known.costs[place], float(accuracy[place]), known.settings[place]) for place in some]
    return [known.settings.index(path) for _, _, path in concave(points)]


def sets_of(known: Known) -> list[list[int]]:
    """What a router may choose from that looks at a full setting first."""
    corners = corners_of(known, range(len(known.settings)))
    if len(corners) < 2:  # nothing is more accurate than the cheapest
        corners = [int(known.costs.argmin()), int(known.costs.argmax())]
    *others, last = corners
    return [[*some, last] for more in range(1, FURTHER + 1) for some in combinations(others, more)]


def exit_sets_of(known: Known) -> list[list[int]]:
    """What a router may choose from that looks at an exit first: any exit, the most accurate full setting, and corners
    of the hull of exits and settings between them."""
    costs, everywhere = known.costs, range(len(known.settings))
    *_, last = corners_of(known, [place for place in everywhere if not is_exit(known.settings[place])])
    corners, exits = corners_of(known, everywhere), [place for place in everywhere if is_exit(known.settings[place])]
    firsts = [place for place in exits if costs[place] < costs[last]] or exits[:1]
    return [
        [first, *some, last]
        for first in firsts
        for more in range(FURTHER)
        for some in combinations([place for place in corners if costs[first] < costs[place] < costs[last]], more)
    ]


@torch.no_grad()
def with_looks(net: Supernet, reads: Iterable[tuple[Read, Tensor]]) -> Supernet:
    """The network with a router that chooses among a few settings, fitted on calibration images."""
    seen = known(net, reads)
    candidates = chosen_settings(seen)
    found = with_fresh_router(net, with_candidates(net.spec, candidates)).eval()
    if net.early is not None and found.early is not None:
        found.early.classifier.load_state_dict(net.early.classifier.state_dict())
    head = found.probe if found.early is None else found.early.head
    if isinstance(head, ScoringHead):
        chosen = [seen.settings.index(path) for path in candidates]
        set_head(head, fitted(read_of(seen.log_probs[:, chosen[0]]), seen.right[:, chosen]))
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
