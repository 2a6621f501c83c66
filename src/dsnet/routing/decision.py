"""The one decision rule: take the width whose score, less lambda times its price, is highest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from dsnet.cost import CostTable
from dsnet.errors import RoutingError
from dsnet.models import ModelSpec, Supernet
from dsnet.space import WidthPath


@dataclass(frozen=True)
class Policy:
    """What is asked of a router. lam: price of the widest network's MAdds in units of the scores; below zero it pays
    to be wide. max_width: hard cap on the width index. note: what was wished but cannot be had, in words."""

    lam: float = 0.0
    max_width: int | None = None
    note: str = ""


def decide(scores: Tensor, prices: Tensor, policy: Policy, allowed: Tensor | None = None) -> Tensor:
    """Positions [B] of the best candidates, given scores [B, R] and prices [R]; `allowed` [R] masks candidates.

    Equal values go to the slimmer candidate. Scores that are not finite raise: they would route at random.
    """
    if not bool(torch.isfinite(scores).all()):
        bad = int((~torch.isfinite(scores)).any(1).sum())
        raise RoutingError(
            f"the router's scores of {bad} of {len(scores)} inputs are not finite; "
            f"check the inputs for NaN, or train the router anew with a lower sgs_optim.lr"
        )
    values = scores.double() - policy.lam * prices.to(scores.device)
    if allowed is not None:
        values = values.masked_fill(~allowed.to(scores.device), -torch.inf)
    return values.argmax(1)


class Prices:
    """What each candidate of a decision would cost, as a share of the widest path's MAdds.

    At a gate: choosing width k from w_in and going on uniformly at k. With a router that probes: what a wider
    path costs beyond the probe, which is spent already.
    """

    def __init__(self, table: CostTable) -> None:
        self.table, self.spec = table, table.spec
        self._spent: dict[WidthPath, int] = {}
        if table.probe is not None:
            base = table.probe.madds
            prices = [(table.madds(path, dynamic=True) - base) / table.widest for path in self.spec.candidates]
            self.tables = [torch.tensor([prices], dtype=torch.float64)]
            return
        self.tables = []
        for point, step in enumerate(table.steps):
            rows = [
                [
                    (step[w_in][w_out].madds + rest(table, point, position)) / table.widest
                    for position, w_out in enumerate(self.spec.routing[point])
                ]
                for w_in in range(len(step))
            ]
            self.tables.append(torch.tensor(rows, dtype=torch.float64))

    @classmethod
    def of(cls, model: Supernet | ModelSpec, image_size: int | None = None) -> Prices:
        return cls(CostTable(model, image_size))

    def spent(self, path: WidthPath) -> int:
        """MAdds of a routed path, router included."""
        if path not in self._spent:
            self._spent[path] = self.table.madds(path, dynamic=True)
        return self._spent[path]

    def at(self, point: int, w_in: int) -> Tensor:
        """Prices [R] of the candidates."""
        return self.tables[point][w_in]

    def check_cap(self, max_width: int | None) -> None:
        """Refuse a cap that leaves some decision without a width."""
        for point in range(len(self.tables)):
            self.allowed(point, max_width)

    def allowed(self, point: int, max_width: int | None) -> Tensor | None:
        """Which candidates [R] a cap leaves."""
        if max_width is None:
            return None
        widths = widest_indices(self.spec, point)
        if max_width < min(widths):
            raise RoutingError(
                f"max_width {max_width} is below the slimmest width that {self.spec.name!r} may choose, {min(widths)}"
            )
        return torch.tensor([width <= max_width for width in widths])


def widest_indices(spec: ModelSpec, point: int) -> list[int]:
    """The widest index that each candidate of a decision uses."""
    if spec.router is not None and spec.router.probes:
        return [max(path) for path in spec.candidates]
    return list(spec.routing[point])


def rest(table: CostTable, point: int, position: int) -> int:
    """MAdds behind a choice point when every later one takes the same position in its list."""
    routing = table.spec.routing
    path: WidthPath = tuple(allowed[min(position, len(allowed) - 1)] for allowed in routing[point:])
    steps = table.steps[point + 1 :]
    later = sum(step[a][b].madds for step, (a, b) in zip(steps, pairwise(path), strict=True))
    slimming = sum(router[a].madds for router, a in zip(table.routers[point + 1 :], path, strict=False))
    return later + slimming + table.heads[path[-1]].madds
