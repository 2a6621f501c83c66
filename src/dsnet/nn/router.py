"""Alternatives to the paper's gate: a head reads the slimmest sub-network's logits and scores every width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.manifest import RouterSpec
from dsnet.nn.slicing import Shape, SliceLinear
from dsnet.space import Channels


def link(spec: RouterSpec, raw: Tensor) -> Tensor:
    """Turn raw outputs [B, R] into scores from which prices can be subtracted."""
    if spec.kind == "threshold":
        return raw
    if spec.targets == "correctness":
        return raw.sigmoid()
    return -F.softplus(raw) if spec.targets == "kl" else raw


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


def probe_head(spec: RouterSpec | None, classes: int, candidates: int) -> ProbeHead | None:
    """The head that a probing router adds to a network; None for gates, which are part of the network."""
    if spec is None or not spec.probes:
        return None
    return SlimFirstHead(classes, candidates, spec.hidden) if spec.kind == "slim_first" else ThresholdHead(candidates)
