"""The double-headed gate: an attention head that scales channels and a slimming head that scores widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.nn.slicing import GlobalPool, SliceLinear, Width
from dsnet.space import Channels

ACTIVATIONS = {"relu": F.relu, "relu6": F.relu6, "silu": F.silu}
Activation = Literal["relu", "relu6", "silu"]


@dataclass(frozen=True)
class GateSpec:
    """How every gate of a network is built.

    attention: `tanh` is the paper's 1 + tanh, the identity when fresh; `sigmoid` is squeeze-excite.
    slimming: what sits at a choice point: `one_hot` scores, one `scalar`, or None (no routing).
    shared: the slimming head reads the attention head's first layer W1, or has one of its own.
    reduction: hidden size = widest input / reduction, where a stage does not set it.
    """

    attention: Literal["tanh", "sigmoid"] = "tanh"
    activation: Activation = "relu"
    reduction: int = 4
    slimming: Literal["one_hot", "scalar"] | None = "one_hot"
    shared: bool = True

    def __post_init__(self) -> None:
        for name, value, known in (
            ("attention", self.attention, ("tanh", "sigmoid")),
            ("activation", self.activation, tuple(ACTIVATIONS)),
            ("slimming", self.slimming, ("one_hot", "scalar", None)),
        ):
            if value not in known:
                raise ValueError(f"gate {name} {value!r} is unknown; choose from {', '.join(map(repr, known))}")
        if self.reduction < 1:
            raise ValueError(f"gate reduction is {self.reduction}; it must be at least 1")


class Gate(nn.Module):
    """Average pool -> W1 -> W3 scales the input; W1 -> W2 scores the widths (equations 6 to 9).

    The hidden size follows the widest input and is never sliced; W1's columns and W3's rows are.
    """

    def __init__(self, spec: GateSpec, channels: Channels, hidden: int, candidates: int | None = None) -> None:
        super().__init__()
        self.attention, self.activation = spec.attention, ACTIVATIONS[spec.activation]
        self.pool = GlobalPool(channels)
        self.reduce = SliceLinear(channels, Channels.of(hidden))  # W1
        self.expand = SliceLinear(Channels.of(hidden), channels)  # W3
        if spec.attention == "tanh":
            nn.init.zeros_(self.expand.weight)
            assert self.expand.bias is not None
            nn.init.zeros_(self.expand.bias)
        self.slimming = (
            None if candidates is None or spec.slimming is None else SlimmingHead(spec, channels, hidden, candidates)
        )

    def forward(self, x: Tensor, width: Width) -> tuple[Tensor, Tensor]:
        """The scaled input, and the code that the slimming head reads."""
        pooled = self.pool(x, width)  # [B, C]
        hidden = self.activation(self.reduce(pooled, width, 0))
        excitation = self.expand(hidden, 0, width)
        attention = 1 + torch.tanh(excitation) if self.attention == "tanh" else torch.sigmoid(excitation)
        code = pooled if self.slimming is not None and self.slimming.reduce is not None else hidden
        return x * attention[:, :, None, None], code


class SlimmingHead(nn.Module):
    """Raw scores [B, R] over the R candidate widths of the routing space (W2; no bias, as released)."""

    def __init__(self, spec: GateSpec, channels: Channels, hidden: int, candidates: int) -> None:
        super().__init__()
        self.candidates, self.activation = candidates, ACTIVATIONS[spec.activation]
        self.scalar = spec.slimming == "scalar"
        self.reduce = None if spec.shared else SliceLinear(channels, Channels.of(hidden))
        self.score = SliceLinear(Channels.of(hidden), Channels.of(1 if self.scalar else candidates), bias=False)

    def forward(self, code: Tensor, width: Width) -> Tensor:
        if self.reduce is not None:
            code = self.activation(self.reduce(code, width, 0))
        scores = self.score(code, 0, 0)
        if not self.scalar:
            return scores
        # p = sigmoid(s) in steps between neighbouring widths: scores_k = -(p - k/(R-1))^2 / s0, s0 = 1/(R-1)^2.
        steps = torch.arange(self.candidates, device=code.device, dtype=code.dtype)
        return -((torch.sigmoid(scores) * (self.candidates - 1) - steps) ** 2)
