"""Recorded scores and outputs of a router on a set of images, to try any lambda without running the network again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from dsnet.cost import PathCosts
from dsnet.manifest import Manifest, Policy
from dsnet.routers import Router
from dsnet.routing.parts import as_array
from dsnet.routing.policy import Prices, decide
from dsnet.routing.route import combined
from dsnet.routing.scorer import Scorer
from dsnet.routing.survey import Alone, Batch, Seen, Surveyed, Team, Went
from dsnet.space import EXIT, WidthPath


@dataclass(frozen=True)
class Outcome:
    """The routes of N images under a policy: paths [N, points] and MAdds [N].

    answers: What a scorer knows the answer of each image by; see `Traces.answer_of`.
    """

    paths: np.ndarray
    madds: np.ndarray
    answers: np.ndarray

    @property
    def spent(self) -> float:
        """Average MAdds."""
        return float(self.madds.astype(np.float64).mean())


class Traces:
    """The router's scores by prefix of the path, and the outputs by path. Both are filled as policies need them.

    The first pass records the outputs of all `paths` and the scores of the first decision. This is enough for a router
    with a single decision. With several gates, images are run again along paths that have not been run yet.

    The processes of a team run every world-th batch and tell each other what it left behind, so that each of them holds
    what a single process would, to the digit.
    """

    def __init__(
        self,
        runner: Surveyed,
        batches: Iterable[Batch],
        scorer: Scorer,
        *,
        paths: Sequence[WidthPath] = (),
        load: Callable[[Sequence[np.ndarray]], Iterable[Batch]] | None = None,
        image_size: int | None = None,
        routed: bool = True,
        team: Team | None = None,
    ) -> None:
        """batches: those of this process, whose number is its rank, its rank + world and so on. load: batches of the
        samples with these numbers. routed: whether policies will be tried; if false, only `paths` are run."""
        self.runner, self.scorer, self.load, self.routed = runner, scorer, load, routed
        self.team = team or Alone()
        self.image_size = image_size or self.manifest.image_size
        self.paths = list(dict.fromkeys([*paths, *self.needed()]))
        self.scores: dict[WidthPath, np.ndarray] = {}
        rank, world = self.team.rank, self.team.world
        mine = [self._survey(rank + number * world, batch) for number, batch in enumerate(batches) if len(batch.images)]
        batches_seen = sorted(self.team.gathered(mine), key=lambda seen: seen.number)
        if not batches_seen:
            raise ValueError("there are no images to evaluate")
        count = 0
        for seen in batches_seen:
            rows = np.arange(count, count + len(seen.ids))
            for path, taken in seen.taken.items():
                scorer.add(path, rows, taken, seen.labels)
            count += len(rows)
        self.ids = np.concatenate([seen.ids for seen in batches_seen])
        self.origin = np.repeat([seen.number for seen in batches_seen], [len(seen.ids) for seen in batches_seen])
        first = [seen.scores for seen in batches_seen if seen.scores is not None]
        if first:
            self.scores[()] = np.concatenate(first)
        self.known = {path: np.ones(count, bool) for path in self.paths}

    @property
    def manifest(self) -> Manifest:
        return self.runner.manifest

    @property
    def router(self) -> Router | None:
        return self.manifest.router if self.routed and self.manifest.routes else None

    @property
    def combined(self) -> list[WidthPath]:
        """The paths whose answers a router combines with that of the exit; the exit is the first of them."""
        return self.router.candidates if self.router is not None and self.router.combines else []

    def answer_of(self, path: WidthPath) -> WidthPath:
        """What the scorer knows the answer of a routed image by: its path. Behind an exit_first router the answer is
        not that of the path alone, and has one more entry."""
        return (*path, EXIT) if self.combined else path

    def needed(self) -> list[WidthPath]:
        """The paths that routing and its evaluation always need."""
        if self.router is None:
            return []
        widest = [] if self.router.spec.candidates else [self.router.routing.widest]
        return [*self.manifest.uniform, *self.router.candidates, *widest]

    @property
    def prices(self) -> Prices:
        return self.runner.prices(self.image_size)

    @property
    def table(self) -> PathCosts:
        return self.runner.table(self.image_size)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def belief(self) -> np.ndarray:
        """The router's confidence [N] in the slimmest candidate, from the scores of its first decision."""
        assert self.router is not None
        return slimmest_score(self.router.spec.targets, self.scores[()])

    def right(self, path: WidthPath, *, routed: bool = False) -> np.ndarray:
        """Which images [N] a path gets right, on its own or as the router's choice; all of them must have been run."""
        right = self.scorer.right(self.answer_of(path) if routed else path)
        assert right is not None
        return right

    def correct(self, outcome: Outcome) -> np.ndarray:
        """Which images [N] are right along the paths of an outcome."""
        correct_rows = np.zeros(len(self), bool)
        for path, rows in by_path(outcome.paths):
            correct_rows[rows] = self.right(path, routed=True)[rows]
        return correct_rows

    def alike(self, path: WidthPath) -> np.ndarray:
        """The paths [N, points] of a network that takes one path for every image."""
        return np.tile(np.array(path, np.int64), (len(self), 1))

    def score(self, outcome: Outcome) -> float:
        """The metric of an outcome."""
        return self.scorer.along(outcome.answers)

    def at(self, policy: Policy, some: np.ndarray | None = None) -> Outcome:
        """The route of every image, or of the images of some rows, under a policy, and its cost."""
        some = np.arange(len(self)) if some is None else some
        paths, unknown = self._walk(policy, some)
        if len(unknown):
            self._run(unknown, policy)
            paths, unknown = self._walk(policy, some)
            assert not len(unknown)
        madds = np.zeros(len(some), np.int64)
        for path, rows in by_path(paths):
            madds[rows] = self.prices.spent(path)
        return self.outcome(paths, madds)

    def outcome(self, paths: np.ndarray, madds: np.ndarray) -> Outcome:
        """The outcome of given routes."""
        answers = np.pad(paths, ((0, 0), (0, 1)), constant_values=EXIT) if self.combined else paths
        return Outcome(paths, madds, answers)

    def _walk(self, policy: Policy, some: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Paths [N, points] from recorded scores, and the rows whose scores or outputs have not been recorded yet."""
        router, prices = self.router, self.prices
        assert router is not None
        if router.spec.single:
            chosen = decide(self.scores[()][some], prices.at(0, 0), policy, prices.allowed(0, policy))
            return np.array(router.candidates, np.int64)[chosen], np.zeros(0, np.int64)
        routing = router.routing.choices
        paths = np.zeros((len(self), len(routing)), np.int64)
        unknown: list[np.ndarray] = []

        def descend(rows: np.ndarray, prefix: WidthPath) -> None:
            if len(prefix) == len(routing):
                unknown.append(rows[~self.known[prefix][rows]] if prefix in self.known else rows)
                return
            if prefix not in self.scores:
                unknown.append(rows)
                return
            scores = self.scores[prefix][rows]
            known = ~np.isnan(scores).any(1)
            unknown.append(rows[~known])
            rows, point = rows[known], len(prefix)
            allowed = prices.allowed(point, policy)
            chosen = decide(scores[known], prices.at(point, prefix[-1] if prefix else 0), policy, allowed)
            for position in np.unique(chosen):
                group, width = rows[chosen == position], routing[point][position]
                paths[group, point] = width
                descend(group, (*prefix, width))

        descend(some, ())
        return paths[some], np.concatenate(unknown)

    def _survey(self, number: int, batch: Batch) -> Seen:
        """Run a batch along all paths."""
        answers, scores = self.runner.survey(batch.images, self.paths)
        found = dict(zip(self.paths, answers, strict=True))
        for path in self.combined:
            assert self.router is not None
            found[self.answer_of(path)] = combined(self.router, path, found[self.combined[0]], found[path])
        taken = {path: self.scorer.take(outputs, batch.labels) for path, outputs in found.items()}
        labels = as_array(batch.labels)
        return Seen(number, as_array(batch.ids), labels, taken, None if scores is None else as_array(scores))

    def _run(self, rows: np.ndarray, policy: Policy) -> None:
        """Run images under a policy, those of a batch together, and record their scores and outputs."""
        assert self.load is not None, "images behind several gates are run again: give `load`"
        rows = np.sort(rows)
        groups = {int(number): rows[self.origin[rows] == number] for number in np.unique(self.origin[rows])}
        mine = {number: part for number, part in groups.items() if number % self.team.world == self.team.rank}
        batches = self.load([self.ids[part] for part in mine.values()])
        found = [
            went
            for (number, part), batch in zip(mine.items(), batches, strict=True)
            for went in self._go(number, part, batch, policy)
        ]
        for went in sorted(self.team.gathered(found), key=lambda went: went.number):
            self.scorer.add(went.path, went.rows, went.taken, went.labels)
            self.known.setdefault(went.path, np.zeros(len(self), bool))[went.rows] = True
            for point, scores in enumerate(went.scores):
                empty = np.full((len(self), scores.shape[1]), np.nan, scores.dtype)
                self.scores.setdefault(went.path[:point], empty)[went.rows] = scores

    def _go(self, number: int, rows: np.ndarray, batch: Batch, policy: Policy) -> Iterator[Went]:
        """Run images of one batch under a policy."""
        routed = self.runner.run(batch.images, policy)
        scores = [as_array(part) for part in routed.scores]
        for path, group in by_path(as_array(routed.paths)):
            labels = batch.labels[group]
            taken = self.scorer.take({name: array[group] for name, array in routed.outputs.items()}, labels)
            yield Went(number, path, rows[group], as_array(labels), taken, [part[group] for part in scores])


def by_path(paths: np.ndarray) -> list[tuple[WidthPath, np.ndarray]]:
    """The paths that occur among [N, points], and the rows of each."""
    if not paths.shape[1]:
        return [((), np.arange(len(paths)))]
    distinct, inverse = np.unique(paths, axis=0, return_inverse=True)
    return [
        (tuple(path), np.flatnonzero(inverse.reshape(-1) == number)) for number, path in enumerate(distinct.tolist())
    ]


def slimmest_score(targets: str, scores: np.ndarray) -> np.ndarray:
    """A router's confidence [N] in the slimmest candidate, given the scores [N, R] of its first decision."""
    if targets in ("correctness", "kl"):
        return scores[:, 0]
    shifted = scores - scores.max(1, keepdims=True)
    return shifted[:, 0] - np.log(np.exp(shifted).sum(1))


def widest_gain(scores: np.ndarray) -> np.ndarray:
    """How much better than the slimmest candidate a router thinks the widest is [N], given the scores [N, R] of its
    first decision."""
    return scores[:, -1].astype(np.float64) - scores[:, 0]


def auc(scores: np.ndarray, positive: np.ndarray) -> float:
    """Area under the ROC curve: the chance that a positive outranks a negative, ties counting half."""
    count, negatives = int(positive.sum()), int((~positive).sum())
    if not count or not negatives:
        return 0.5
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = counts.cumsum().astype(np.float64) - (counts.astype(np.float64) - 1) / 2
    return float((ranks[inverse][positive].sum() - count * (count + 1) / 2) / (count * negatives))
