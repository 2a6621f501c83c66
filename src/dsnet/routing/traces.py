"""What a router sees on a set of images, remembered, so that any lambda is tried without running the network again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dsnet.cost import CostTable
from dsnet.data.dataset import Batch
from dsnet.models import Card, ModelSpec, Supernet
from dsnet.routing.decision import Policy, Prices, decide
from dsnet.routing.route import Routed, check_routes, first_scores, route
from dsnet.space import WidthPath, WidthSpace

Load = Callable[[Tensor], Batch]
BATCH = 256


@dataclass(frozen=True)
class Outcome:
    """What a policy makes of N images: paths [N, points], correct [N], madds [N]."""

    paths: Tensor
    correct: Tensor
    madds: Tensor


class Described(Protocol):
    """A network, or whatever runs one."""

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def card(self) -> Card: ...

    @property
    def space(self) -> WidthSpace: ...

    @property
    def routing(self) -> WidthSpace: ...

    @property
    def candidates(self) -> list[WidthPath]: ...


class Traces:
    """Scores by the choices made before them, answers by path; both fill up as policies ask for them.

    One pass at the start gives the answers of all uniform paths and the scores of the first decision: all there is to
    know where only one decision is taken. Behind later gates, images are run again along paths not yet seen.
    """

    @torch.no_grad()
    def __init__(self, net: Described, batches: Iterable[Batch], load: Load, *, image_size: int) -> None:
        check_routes(net.spec)
        self.net, self.load = net, load
        self.table = CostTable(net.spec, image_size)
        self.prices = Prices(self.table)
        uniform = list(dict.fromkeys([*net.space.uniform, *net.candidates, net.routing.widest]))
        right: dict[WidthPath, list[Tensor]] = {path: [] for path in uniform}
        scores, kept, labels = [], [], []
        for batch in batches:
            if not len(batch.images):
                continue
            answers, first = self._look(batch.images, uniform)
            for path, logits in zip(uniform, answers, strict=True):
                right[path].append(logits.argmax(1).cpu() == batch.labels)
            scores.append(first.cpu())
            kept.append(batch.ids)
            labels.append(batch.labels)
        if not kept:
            raise ValueError("there are no images to route")
        self.ids, self.labels = torch.cat(kept), torch.cat(labels)
        self.scores: dict[WidthPath, Tensor] = {(): torch.cat(scores)}
        self.correct = {path: torch.cat(parts).to(torch.int8) for path, parts in right.items()}  # -1: not known yet

    def __len__(self) -> int:
        return len(self.ids)

    def _look(self, images: Tensor, paths: list[WidthPath]) -> tuple[list[Tensor], Tensor]:
        """Logits of several paths, the first candidate's among them, and the scores of the first decision."""
        net = self.net
        assert isinstance(net, Supernet)
        entered = net.eval().enter(images.to(device_of(net)))
        logits = net.run_paths(entered, paths)
        return logits, first_scores(net, logits[paths.index(net.candidates[0])], entered.code)

    def _route(self, images: Tensor, policy: Policy) -> Routed:
        assert isinstance(self.net, Supernet)
        return route(self.net, images.to(device_of(self.net)), policy, prices=self.prices)

    def right(self, path: WidthPath) -> Tensor:
        """Which images [N] a uniform path gets right."""
        return self.correct[path] == 1

    def at(self, policy: Policy) -> Outcome:
        """Where every image goes under a policy, and what comes of it."""
        paths, unknown = self._walk(policy)
        if len(unknown):
            self._run(unknown, policy)
            paths, unknown = self._walk(policy)
            assert not len(unknown)
        correct, madds = torch.zeros(len(self), dtype=torch.bool), torch.zeros(len(self), dtype=torch.long)
        for path in paths.unique(dim=0).tolist():
            rows = (paths == torch.tensor(path)).all(1)
            correct[rows] = self.correct[tuple(path)][rows] == 1
            madds[rows] = self.table.madds(path, dynamic=True)
        return Outcome(paths, correct, madds)

    def accuracy(self, outcome: Outcome) -> float:
        """How good an outcome is, in one number."""
        return outcome.correct.double().mean().item()

    def _walk(self, policy: Policy) -> tuple[Tensor, Tensor]:
        """Paths [N, points] by remembered scores, and the rows that they do not lead to a known answer."""
        spec = self.net.spec
        assert spec.router is not None
        if spec.router.probes:
            chosen = decide(self.scores[()], self.prices.at(0, 0), policy, self.prices.allowed(0, policy.max_width))
            return torch.tensor(spec.candidates)[chosen], torch.zeros(0, dtype=torch.long)
        paths = torch.zeros(len(self), len(spec.widths), dtype=torch.long)
        unknown: list[Tensor] = []

        def descend(rows: Tensor, prefix: WidthPath) -> None:
            if len(prefix) == len(spec.widths):
                unknown.append(rows[self.correct[prefix][rows] < 0] if prefix in self.correct else rows)
                return
            if prefix not in self.scores:
                unknown.append(rows)
                return
            scores = self.scores[prefix][rows]
            known = ~scores.isnan().any(1)
            unknown.append(rows[~known])
            rows, point = rows[known], len(prefix)
            allowed = self.prices.allowed(point, policy.max_width)
            chosen = decide(scores[known], self.prices.at(point, prefix[-1] if prefix else 0), policy, allowed)
            for position in chosen.unique().tolist():
                mine, width = rows[chosen == position], spec.routing[point][position]
                paths[mine, point] = width
                descend(mine, (*prefix, width))

        descend(torch.arange(len(self)), ())
        return paths, torch.cat(unknown)

    def _run(self, rows: Tensor, policy: Policy) -> None:
        """Run images along the paths that a policy leads them, and remember."""
        for part in rows.split(BATCH):
            batch = self.load(self.ids[part])
            routed = self._route(batch.images, policy)
            right = (routed.logits.argmax(1).cpu() == batch.labels).to(torch.int8)
            for path in map(tuple, routed.paths.unique(dim=0).tolist()):
                mine = (routed.paths == torch.tensor(path)).all(1)
                known = self.correct.setdefault(path, torch.full((len(self),), -1, dtype=torch.int8))
                known[part[mine]] = right[mine]
                for point, scores in enumerate(routed.scores):
                    empty = torch.full((len(self), scores.shape[1]), torch.nan, dtype=scores.dtype)
                    self.scores.setdefault(path[:point], empty)[part[mine]] = scores[mine].cpu()


def device_of(net: Supernet) -> torch.device:
    return net.head.classifier.weight.device
