"""Routers besides the paper's slimming heads: heads that score the widths from a classifier's logits, and the early
classifier, which reads the map at the first choice."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.nn.layers import GridPool, SliceLinear, StandardLinear
from dsnet.nn.slicing import Shape
from dsnet.routers import RouterSpec
from dsnet.space import Channels

SIDE = 4  # the early classifier reads the means of a grid of this side
SORTED = 10  # largest probabilities that a scoring head reads


def link(spec: RouterSpec, raw: Tensor) -> Tensor:
    """Turn raw outputs [B, R] into scores from which prices can be subtracted."""
    if spec.kind == "threshold":
        return raw
    if spec.targets == "correctness":
        return raw.sigmoid()
    return -F.softplus(raw) if spec.targets == "kl" else raw


class ScoringHead(nn.Module):
    """Raw scores [B, R] of R candidates, from the logits [B, classes] of a classifier that has run.

    It reads the log-probabilities, the largest probabilities in order, and the entropy, all standardised. With `hidden`
    units it has two layers. With 0 its scores have rank one: a_k + b_k h(x), where h is linear.
    """

    def __init__(self, classes: int, candidates: int, hidden: int) -> None:
        super().__init__()
        self.top, self.linear = min(classes, SORTED), hidden == 0
        self.reduce = StandardLinear(Channels.of(classes + self.top + 1), Channels.of(hidden or 1))
        self.score = SliceLinear(Channels.of(hidden or 1), Channels.of(candidates))
        if self.linear:
            assert self.score.bias is not None
            nn.init.ones_(self.score.weight)
            nn.init.zeros_(self.score.bias)

    def features(self, logits: Tensor) -> Tensor:
        log_probs = logits.log_softmax(1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs).sum(1, keepdim=True)
        return torch.cat([log_probs.clamp_min(-10) / 5, probs.topk(self.top, dim=1).values, entropy], 1)

    def forward(self, logits: Tensor) -> Tensor:
        hidden = self.reduce(self.features(logits), 0, 0)
        return self.score(hidden if self.linear else F.relu(hidden), 0, 0)

    def madds(self, shape: Shape = ()) -> int:
        return self.reduce.madds(shape, 0, 0) + self.score.madds(shape, 0, 0)


class ThresholdHead(nn.Module):
    """The slimmest path scores its top probability, one wider path scores 1, the others are never taken.

    So a price on MAdds is a threshold on the top probability. `width` is the position of the wider path; it is chosen
    on held-out data.
    """

    NEVER = -1e9  # so low that no lambda can outweigh it

    def __init__(self, candidates: int) -> None:
        super().__init__()
        self.candidates = candidates
        self.width: Tensor
        self.register_buffer("width", torch.tensor(candidates - 1))

    def forward(self, logits: Tensor) -> Tensor:
        top = logits.softmax(1).max(1, keepdim=True).values
        wider = torch.arange(1, self.candidates, device=top.device) == self.width
        worth = torch.where(wider, 1.0, self.NEVER).to(top.dtype)
        return torch.cat([top, worth.expand(len(top), -1)], 1)

    def madds(self, shape: Shape = ()) -> int:
        return 0


ProbeHead = ScoringHead | ThresholdHead
"""Raw scores [B, R] of R candidate paths, from the logits [B, classes] of the slimmest one."""


def probe_head(spec: RouterSpec | None, classes: int, candidates: int) -> ProbeHead | None:
    """The head that a probing router adds to a network; None for other routers."""
    if spec is None or not spec.probes:
        return None
    return ScoringHead(classes, candidates, spec.hidden) if spec.kind == "cheap_first" else ThresholdHead(candidates)


class EarlyClassifier(nn.Module):
    """Logits [B, classes] from a map [B, C, H, W] of any size: averaged to 4 x 4, standardised, and read by one linear
    layer, or by two with `hidden` units between them."""

    def __init__(self, channels: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.pool = GridPool(Channels.of(channels), SIDE)
        read = Channels.of(channels * SIDE**2)
        self.reduce = StandardLinear(read, Channels.of(hidden)) if hidden else None
        self.classifier = (
            SliceLinear(Channels.of(hidden), Channels.of(classes))
            if hidden
            else StandardLinear(read, Channels.of(classes))
        )

    def classify(self, pooled: Tensor) -> Tensor:
        """Logits from the pooled map [B, C * 16], which is all that training needs to keep of an image."""
        if self.reduce is not None:
            pooled = F.relu(self.reduce(pooled, 0, 0))
        return self.classifier(pooled, 0, 0)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify(self.pool(x, 0))

    @property
    def reads(self) -> StandardLinear:
        """The layer that reads the pooled map."""
        first = self.classifier if self.reduce is None else self.reduce
        assert isinstance(first, StandardLinear)
        return first


class EarlyRouter(nn.Module):
    """The early classifier, the head that scores the candidates from its logits, and the weights that combine its
    answer with that of a width (exit_first): u_k log p_exit + v_k log p_k, one pair for each width of the router.

    With several image sizes, one early classifier reads the maps of all of them, and answers are not combined.
    """

    def __init__(self, spec: RouterSpec, channels: int, classes: int, candidates: int, *, sized: bool = False) -> None:
        super().__init__()
        assert spec.early is not None
        self.classifier = EarlyClassifier(channels, classes, spec.early)
        self.head = ScoringHead(classes, candidates, spec.hidden)
        self.exit_weights: Tensor | None
        self.width_weights: Tensor | None
        combines, widths = spec.exits and not sized, candidates - 1
        self.register_buffer("exit_weights", torch.zeros(widths) if combines else None)  # u
        self.register_buffer("width_weights", torch.ones(widths) if combines else None)  # v

    def combined(self, exit_logits: Tensor, logits: Tensor, position: int) -> Tensor:
        """The answer for images that went on to the width at a position among the router's widths."""
        if self.exit_weights is None:
            return logits
        assert self.width_weights is not None
        u, v = self.exit_weights[position], self.width_weights[position]
        return u * exit_logits.log_softmax(1) + v * logits.log_softmax(1)


def early_router(
    spec: RouterSpec | None, channels: int, classes: int, candidates: int, *, sized: bool = False
) -> EarlyRouter | None:
    """The module that a router with an early classifier adds to a network; None for other routers."""
    return None if spec is None or spec.early is None else EarlyRouter(spec, channels, classes, candidates, sized=sized)


def of_router(name: str) -> bool:
    """Whether a tensor of a network belongs to its router, by its name."""
    return name.startswith(("probe.", "early.")) or ".slimming." in name
