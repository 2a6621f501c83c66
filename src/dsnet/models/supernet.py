"""The supernet. Width is always an argument; every call is a loop over segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dsnet.models.build import build
from dsnet.models.card import Card, Preprocessing
from dsnet.models.segment import Features, Segment
from dsnet.models.spec import ModelSpec
from dsnet.nn import Mix, SlimmingHead, Width
from dsnet.space import Path, WidthSpace

Choose = Callable[[int, Tensor | None], Tensor]
"""(choice point, gate logits [B, R], or None without a slimming head) -> weights [B, R] over the routing space."""


class Supernet(nn.Module):
    """One set of weights that runs at every path of `space`.

    space: all paths. routing: the paths that the gates may choose. spec: rebuilds the network.
    card: class names, preprocessing and budgets, saved with the weights.
    """

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.card = Card(preprocessing=Preprocessing.for_channels(spec.in_channels))
        self.front, segments, self.head = build(spec)
        self.segments = nn.ModuleList(segments)

    @property
    def space(self) -> WidthSpace:
        return self.spec.space

    @property
    def routing(self) -> WidthSpace:
        return WidthSpace(self.spec.routing)

    @property
    def chain(self) -> list[Segment]:
        """The segments in order, typed."""
        return list(self.segments)  # type: ignore[arg-type]

    def slimming_heads(self) -> list[SlimmingHead]:
        return [module for module in self.modules() if isinstance(module, SlimmingHead)]

    def forward(self, x: Tensor, path: Sequence[int] = ()) -> Tensor:
        """Logits of the sub-network `path`."""
        self.check_input(x)
        return self.run(x, self.space.validate(path))

    def run(self, x: Tensor, path: Path) -> Tensor:
        """`forward` without its checks."""
        x, w_in = self.front(x, 0), 0
        for segment, w_out in zip(self.chain, path, strict=True):
            x, w_in = segment(x, w_in, w_out), w_out
        return self.head(x, w_in)

    def run_scored(self, x: Tensor, path: Path) -> tuple[Tensor, list[Tensor | None]]:
        """`run`, and the raw scores of each slimming head met on the way."""
        scores: list[Tensor | None] = []
        x, w_in = self.front(x, 0), 0
        for segment, w_out in zip(self.chain, path, strict=True):
            x = segment.enter(x, w_in)
            scaled, code = segment.attend(x, w_in)
            scores.append(segment.score(code, w_in))
            x, w_in = segment.body(x, scaled, w_in, w_out), w_out
        return self.head(x, w_in), scores

    def forward_features(self, x: Tensor, path: Sequence[int] = ()) -> Features:
        """The tapped feature maps of the sub-network `path`, by name, in the order of the network."""
        self.check_input(x)
        x, features = self.front.features(x, 0)
        w_in = 0
        for segment, w_out in zip(self.chain, self.space.validate(path), strict=True):
            x, more = segment.features(x, w_in, w_out)
            features, w_in = features | more, w_out
        return features

    def forward_paths(self, x: Tensor, paths: Sequence[Sequence[int]]) -> list[Tensor]:
        """Logits of several sub-networks on one batch, in the order of `paths`.

        What paths have in common is computed once: a common prefix, and a path that occurs twice.
        """
        self.check_input(x)
        wanted = [self.space.validate(path) for path in paths]
        logits: dict[Path, Tensor] = {}

        def descend(x: Tensor, prefix: Path) -> None:
            w_in = prefix[-1] if prefix else 0
            if len(prefix) == len(self.space):
                logits[prefix] = self.head(x, w_in)
                return
            segment = self.chain[len(prefix)]
            x = segment.enter(x, w_in)
            scaled, _ = segment.attend(x, w_in)
            below = [path[len(prefix)] for path in wanted if path[: len(prefix)] == prefix]
            for w_out in dict.fromkeys(below):
                descend(segment.body(x, scaled, w_in, w_out), (*prefix, w_out))

        if wanted:
            descend(self.front(x, 0), ())
        return [logits[path] for path in wanted]

    def forward_mixed(self, x: Tensor, choose: Choose) -> tuple[Tensor, list[Tensor | None], list[Tensor]]:
        """Every sample at its own widths, differentiably: (logits, gate logits, mixes).

        `choose` turns a gate's logits into weights [B, R] over the routing space, one-hot in the forward
        pass. All samples run at the widest candidate with channels masked; with one-hot weights this
        equals slicing. Returned mixes are [B, K] over all widths of each choice point, as CostTable takes them.
        """
        self.check_input(x)
        width: Width = 0
        x = self.front(x, width)
        gate_logits: list[Tensor | None] = []
        mixes: list[Tensor] = []
        for point, (segment, allowed) in enumerate(zip(self.chain, self.routing.choices, strict=True)):
            x = segment.enter(x, width)
            scaled, code = segment.attend(x, width)
            scores = segment.score(code, width)
            weights = choose(point, scores)
            if not isinstance(weights, Tensor) or weights.shape != (len(x), len(allowed)):
                given = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
                raise ValueError(
                    f"choose gave weights of shape {given} at choice point {point}; "
                    f"expected {(len(x), len(allowed))}, one per sample and width of the routing space"
                )
            mix = self.spread(weights.to(x.dtype), point)
            w_out = Mix(mix, widest=allowed[-1])
            x, width = segment.body(x, scaled, width, w_out), w_out
            gate_logits.append(scores)
            mixes.append(mix)
        return self.head(x, width), gate_logits, mixes

    def spread(self, weights: Tensor, point: int) -> Tensor:
        """Weights [B, R] over the routing space as a mix [B, K] over all widths, zero where routing never goes."""
        allowed = torch.tensor(self.routing.choices[point], device=weights.device)
        return weights.new_zeros(len(weights), self.spec.widths[point]).index_copy(1, allowed, weights)

    def check_input(self, x: Tensor) -> None:
        if x.dim() != 4 or x.shape[1] != self.spec.in_channels:
            raise ValueError(
                f"input has shape {tuple(x.shape)} but {self.spec.name!r} takes "
                f"[batch, {self.spec.in_channels}, height, width]; "
                f"reshape it, or create the model with other in_channels"
            )
        self.spec.check_size(*x.shape[2:])
