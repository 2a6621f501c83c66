"""What runs a network for users: images in; logits, paths and MAdds out, in the caller's order."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from dsnet.models import Card, ModelSpec
from dsnet.routing import Policy, Prices, Routed, policy_for
from dsnet.routing.route import check_routes, check_square
from dsnet.space import WidthPath, WidthSpace


class Runner:
    """A network with its router, whatever executes it.

    spec: how the network is built. card: classes, preprocessing, budgets. runtime: what executes it, in words.
    """

    spec: ModelSpec
    card: Card
    runtime: str

    def __init__(self) -> None:
        self._prices: dict[int, Prices] = {}
        self._policies: dict[tuple[object, ...], tuple[Card, Policy]] = {}

    @property
    def routes(self) -> bool:
        """Whether each image can have a path of its own."""
        return self.spec.router is not None

    @property
    def image_size(self) -> int:
        """Pixels of the side of the images that it was trained, or exported, for."""
        return self.spec.image_size

    @property
    def space(self) -> WidthSpace:
        """The widths that it holds."""
        return self.spec.space

    @property
    def routing(self) -> WidthSpace:
        return WidthSpace(self.spec.routing)

    @property
    def candidates(self) -> list[WidthPath]:
        return self.spec.candidates

    @property
    def paths(self) -> Iterable[WidthPath]:
        """The paths that can be pinned, the widest last."""
        return self.space

    def __call__(
        self,
        x: Tensor,
        *,
        budget: str | float | None = None,
        max_width: int | None = None,
        path: Sequence[int] | None = None,
    ) -> Routed:
        """Run normalised images [B, C, H, W]: each along its own path, or all of them along a pinned one.

        budget: average MAdds to spend, such as '150M', or a share of the widest up to 1. max_width: cap on the index.
        """
        if path is None:
            policy = self.policy(budget, max_width, x.shape[-1])
            if policy.note:
                warnings.warn(policy.note, stacklevel=2)
            return self.run(x, policy)
        if budget is not None or max_width is not None:
            raise ValueError("a path pins the widths; leave budget and max_width out")
        return self.run_path(x, path)

    def run(self, x: Tensor, policy: Policy | None = None) -> Routed:
        """Each image along the path that the router picks for it; without a policy, at lambda 0."""
        check_routes(self.spec)
        if not self.routes:
            raise ValueError(f"{self.runtime} holds one path and cannot route; pin the path {next(iter(self.paths))}")
        self.check_input(x)
        policy, prices = policy or Policy(), self.prices(x.shape[-1])
        prices.check_cap(policy.max_width)
        if not len(x):
            empty = torch.zeros(0, self.spec.num_classes)
            return Routed(empty, torch.zeros(0, len(self.spec.widths), dtype=torch.long), torch.zeros(0).long(), [])
        return self._run(x, policy, prices)

    def run_path(self, x: Tensor, path: Sequence[int]) -> Routed:
        """Every image along one path, which is charged as a static network."""
        path = self.spec.space.validate(path)
        if path not in self.paths:
            held = list(self.paths)
            raise ValueError(
                f"path {path} is not in this file, which holds {len(held)} paths from {held[0]} to {held[-1]}; "
                f"choose one of them, or export the path as a file of its own"
            )
        self.check_input(x)
        logits = self._run_path(x, path) if len(x) else torch.zeros(0, self.spec.num_classes)
        madds = self.prices(x.shape[-1]).table.madds(path)
        paths = torch.tensor(path, dtype=torch.long).expand(len(x), -1)
        return Routed(logits, paths, torch.full((len(x),), madds), [])

    def policy(
        self, budget: str | float | None = None, max_width: int | None = None, image_size: int | None = None
    ) -> Policy:
        """`policy_for`, remembered."""
        key = (budget, max_width, image_size)
        card, policy = self._policies.get(key, (None, Policy()))
        if card is not self.card:
            policy = self._policy(budget, max_width, image_size)
            self._policies[key] = self.card, policy
        return policy

    def _policy(self, budget: str | float | None, max_width: int | None, image_size: int | None) -> Policy:
        return policy_for(self, budget, max_width=max_width, image_size=image_size)

    def prices(self, image_size: int) -> Prices:
        if image_size not in self._prices:
            self._prices[image_size] = Prices.of(self.spec, image_size)
        return self._prices[image_size]

    def check_input(self, x: Tensor) -> None:
        self.spec.check_input(x.shape)
        check_square(x.shape)
        if x.dtype != torch.float32:
            raise ValueError(
                f"input is {x.dtype} but {self.spec.name!r} runs in torch.float32; convert it, and normalise it as "
                f"the model's card says (dsnet.predict.prepare does for an image)"
            )
        if not bool(torch.isfinite(x.sum())) and not bool(torch.isfinite(x).all()):
            bad = int((~torch.isfinite(x)).flatten(1).any(1).sum())
            raise ValueError(f"{bad} of {len(x)} inputs hold NaN or infinite values; check how they were made")

    def _run(self, x: Tensor, policy: Policy, prices: Prices) -> Routed:
        raise TypeError(f"{type(self).__name__} does not route")

    def _run_path(self, x: Tensor, path: WidthPath) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not run")
