"""The decision rule: take the width with the highest score minus lambda times price."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from dsnet.cost import CostTable, PathCosts, SizedCosts
from dsnet.errors import RoutingError
from dsnet.manifest import Policy
from dsnet.routers import Router
from dsnet.space import WidthPath


def decide(scores: np.ndarray, prices: np.ndarray, policy: Policy, allowed: np.ndarray | None = None) -> np.ndarray:
    """Positions [B] of the best candidates, given scores [B, R] and prices [R]; `allowed` [R] masks candidates.

    Ties go to the slimmer candidate. Scores that are not finite raise an error, because they would route at random.
    """
    finite = np.isfinite(scores)
    if not finite.all():
        bad = int((~finite).any(1).sum())
        raise RoutingError(
            f"the router's scores of {bad} of {len(scores)} inputs are not finite; "
            f"check the inputs for NaN, or train the router anew with a lower sgs_optim.lr"
        )
    values = scores.astype(np.float64) - policy.lam * prices
    if allowed is not None:
        values[:, ~allowed] = -np.inf
    return values.argmax(1)


class Prices:
    """The price of each candidate of a decision, as a share of the widest path's MAdds.

    At a gate, it is the cost of choosing width k from w_in and continuing uniformly at k. With a router that decides
    once, it is the cost of a candidate beyond that of the first one.
    """

    def __init__(self, table: PathCosts, router: Router) -> None:
        self.table, self.router = table, router
        self._spent: dict[WidthPath, int] = {}
        self.tables: list[np.ndarray] = []
        if router.spec.single:
            base = table.madds(router.candidates[0], dynamic=True)
            prices = [(table.madds(path, dynamic=True) - base) / table.widest for path in router.candidates]
            self.tables.append(np.array([prices], np.float64))
            return
        assert isinstance(table, CostTable)  # gates choose widths at one image size
        for point, step in enumerate(table.steps):
            rows = [
                [
                    (step[w_in][w_out].madds + self.rest(point, position)) / table.widest
                    for position, w_out in enumerate(router.routing.choices[point])
                ]
                for w_in in range(len(step))
            ]
            self.tables.append(np.array(rows, np.float64))

    def rest(self, point: int, position: int) -> int:
        """MAdds behind a choice point when every later one takes the same position in its list."""
        table, routing = self.table, self.router.routing.choices
        assert isinstance(table, CostTable)
        path: WidthPath = tuple(allowed[min(position, len(allowed) - 1)] for allowed in routing[point:])
        steps = table.steps[point + 1 :]
        later = sum(step[a][b].madds for step, (a, b) in zip(steps, pairwise(path), strict=True))
        slimming = sum(router[a].madds for router, a in zip(table.routers[point + 1 :], path, strict=False))
        return later + slimming + table.heads[path[-1]].madds

    def spent(self, path: WidthPath) -> int:
        """MAdds of a routed path, including the router."""
        if path not in self._spent:
            self._spent[path] = self.table.madds(path, dynamic=True)
        return self._spent[path]

    def at(self, point: int, w_in: int) -> np.ndarray:
        """Prices [R] of the candidates."""
        return self.tables[point][w_in]

    def widths(self, point: int) -> list[int]:
        """The widest index that each candidate of a decision uses; that of the exit is below any cap."""
        if self.router.spec.single:
            return [max(self.router.routing.widths_of(path), default=0) for path in self.router.candidates]
        return list(self.router.routing.choices[point])

    def sizes(self) -> list[int]:
        """The image size of each candidate of a router that chooses among several sizes; nothing if there is one."""
        table, router = self.table, self.router
        if not isinstance(table, SizedCosts):
            return []
        return [table.tables[router.routing.size_of(path)].image_size for path in router.candidates]

    def check_cap(self, policy: Policy) -> None:
        """Refuse caps that leave a decision without any candidate."""
        for point in range(len(self.tables)):
            self.allowed(point, policy)

    def allowed(self, point: int, policy: Policy) -> np.ndarray | None:
        """Mask [R] of the candidates within the caps and the window; None if there is neither.

        A window that begins above the cap, or behind the end of a shorter list, leaves the widest candidate below it.
        The candidate that is looked at first must be within the caps.
        """
        if policy.max_width is None and policy.max_size is None and policy.window is None:
            return None
        widths = np.array(self.widths(point))
        positions, cap = np.arange(len(widths)), widths.max() if policy.max_width is None else policy.max_width
        within = widths <= cap
        if not (within[0] if self.router.probes else within.any()):
            raise RoutingError(f"max_width {cap} is below the slimmest width that the router may choose, {widths[0]}")
        if policy.max_size is not None:
            within &= self.small(policy.max_size)
        low, high = policy.window or (0, len(widths) - 1)
        return np.asarray(within & (positions >= min(low, within.sum() - 1)) & (positions <= high))

    def small(self, max_size: int) -> np.ndarray:
        """Mask [R] of the candidates that are within a cap on the image size."""
        sizes = self.sizes()
        if not sizes:
            raise RoutingError(
                f"max_size is {max_size}, but this network looks at one image size, {self.table.image_size} px; leave "
                f"max_size out"
            )
        if max_size < sizes[0]:
            raise RoutingError(
                f"max_size is {max_size}, but the router looks at {sizes[0]} px first; give at least {sizes[0]}, or "
                f"pin a smaller setting"
            )
        return np.array(sizes) <= max_size
