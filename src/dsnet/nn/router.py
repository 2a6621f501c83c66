"""Routers beside the paper's gate: a head that reads the slimmest sub-network's answer and scores every width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.errors import must
from dsnet.nn.slicing import Shape, SliceLinear
from dsnet.space import Channels

KINDS = ("gate", "slim_first", "threshold")
TARGETS = ("try_best", "give_up", "narrowest", "correctness", "kl")
Kind = Literal["gate", "slim_first", "threshold"]
Targets = Literal["try_best", "give_up", "narrowest", "correctness", "kl"]


@dataclass(frozen=True)
class RouterSpec:
    """How a trained network chooses its widths, and what its scores mean.

    kind: `gate` scores widths before they run, by the slimming heads; `slim_first` runs the slimmest path and scores
    the uniform paths by its logits; `threshold` escalates where the slimmest path's top probability is low.
    targets: what the scores learned; `correctness` makes them probabilities, `kl` negative divergences.
    hidden: hidden units of the slim_first head.
    """

    kind: Kind = "gate"
    targets: Targets = "try_best"
    hidden: int = 32

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"router {self.kind!r} is unknown; choose from {', '.join(KINDS)}")
        if self.targets not in TARGETS:
            raise ValueError(f"targets {self.targets!r} are unknown; choose from {', '.join(TARGETS)}")
        good = type(self.hidden) is int and self.hidden >= 1
        must("the router's hidden size", repr(self.hidden), good, "be at least 1")

    @property
    def probes(self) -> bool:
        """Whether the slimmest path runs first, on every input."""
        return self.kind != "gate"

    def link(self, raw: Tensor) -> Tensor:
        """Raw outputs [B, R] as scores that a price can be taken from."""
        if self.kind == "threshold":
            return raw
        if self.targets == "correctness":
            return raw.sigmoid()
        return -F.softplus(raw) if self.targets == "kl" else raw


class ProbeHead(nn.Module):
    """Raw scores [B, R] of R candidate paths, from the logits [B, classes] of the slimmest one."""

    def madds(self, shape: Shape = ()) -> int:
        return 0

    def params(self) -> int:
        return sum(p.numel() for p in self.parameters())


class SlimFirstHead(ProbeHead):
    """Two layers on the log-probabilities, the largest probabilities in order, and the entropy."""

    SORTED = 10

    def __init__(self, classes: int, candidates: int, hidden: int) -> None:
        super().__init__()
        self.top = min(classes, self.SORTED)
        self.reduce = SliceLinear(Channels.of(classes + self.top + 1), Channels.of(hidden))
        self.score = SliceLinear(Channels.of(hidden), Channels.of(candidates))

    def forward(self, logits: Tensor) -> Tensor:
        log_probs = logits.log_softmax(1)
        probs = log_probs.exp()
        entropy = -(probs * log_probs).sum(1, keepdim=True)
        features = torch.cat([log_probs.clamp_min(-10) / 5, probs.topk(self.top, dim=1).values, entropy], 1)
        return self.score(F.relu(self.reduce(features, 0, 0)), 0, 0)

    def madds(self, shape: Shape = ()) -> int:
        return self.reduce.madds(shape, 0, 0) + self.score.madds(shape, 0, 0)


class ThresholdHead(ProbeHead):
    """The slimmest path is worth its top probability, one wider path is worth 1, the others are never taken.

    So a price on MAdds is a threshold on the top probability. Held-out data sets `width`, the position of that path.
    """

    NEVER = -1e9  # below what any lambda can pay for

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


def probe_head(spec: RouterSpec | None, classes: int, candidates: int) -> ProbeHead | None:
    """The head that a router adds to a network; gates are part of it already."""
    if spec is None or not spec.probes:
        return None
    return SlimFirstHead(classes, candidates, spec.hidden) if spec.kind == "slim_first" else ThresholdHead(candidates)
