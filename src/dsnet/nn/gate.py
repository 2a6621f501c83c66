"""The double-headed gate: an attention head that scales channels and a slimming head that scores widths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.errors import must
from dsnet.nn.layers import GlobalPool, SliceLinear, StandardLinear
from dsnet.nn.slicing import Shape, Width
from dsnet.nn.tracing import materialise
from dsnet.schema import Typed
from dsnet.space import Channels

ACTIVATIONS = {"relu": F.relu, "relu6": F.relu6, "silu": F.silu, "hardswish": F.hardswish}
Activation = Literal["relu", "relu6", "silu", "hardswish"]


@dataclass(frozen=True)
class GateSpec(Typed):
    """How every gate of a network is built.

    Args:
        attention: `tanh` is the paper's 1 + tanh, which is the identity before training. `sigmoid` is squeeze-excite.
        reduction: The hidden size is the widest input divided by it, unless a stage sets the size.
        slimming: The output of the slimming head: `one_hot` scores, one `scalar`, or None for no slimming head.
        shared: Whether the slimming head reads the attention head's first layer W1, or has a first layer of its own.
        standardised: Whether the slimming head reads standardised inputs and has a bias. The released network has
            neither.
        blocks: Which blocks have a gate: `all`, or only those that `choose`, the first behind each choice point.
    """

    attention: Literal["tanh", "sigmoid"] = "tanh"
    activation: Activation = "relu"
    reduction: int = 4
    slimming: Literal["one_hot", "scalar"] | None = "one_hot"
    shared: bool = True
    standardised: bool = False
    blocks: Literal["all", "choose"] = "all"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("blocks", self.blocks, ("all", "choose")),
            ("attention", self.attention, ("tanh", "sigmoid")),
            ("activation", self.activation, tuple(ACTIVATIONS)),
            ("slimming", self.slimming, ("one_hot", "scalar", None)),
        ):
            if value not in known:
                raise ValueError(f"gate {name} {value!r} is unknown; choose from {', '.join(map(repr, known))}")
        must("gate reduction", self.reduction, self.reduction >= 1, "be at least 1")


class Gate(nn.Module):
    """Average pool -> W1 -> W3 scales the input; W1 -> W2 scores the widths (equations 6 to 9).

    The hidden size depends on the widest input and is never sliced. W1's columns and W3's rows are sliced.
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

    def materialise(self, width: int) -> nn.Module:
        """The attention head at a width, as a plain module that scales its input."""
        return materialise(self, lambda x: self(x, width)[0])

    def madds(self, shape: Shape, width: int) -> int:
        """Multiply-adds of the attention head."""
        return self.reduce.madds(shape, width, 0) + self.expand.madds(shape, 0, width)

    def pools(self, shape: Shape, width: int) -> int:
        return self.pool.pools(shape, width)


class SlimmingHead(nn.Module):
    """Raw scores [B, R] over the R candidate widths of the routing space (W2)."""

    def __init__(self, spec: GateSpec, channels: Channels, hidden: int, candidates: int) -> None:
        super().__init__()
        self.candidates, self.activation = candidates, ACTIVATIONS[spec.activation]
        self.scalar = spec.slimming == "scalar"
        code, scores = Channels.of(hidden), Channels.of(1 if self.scalar else candidates)
        linear = StandardLinear if spec.standardised else SliceLinear
        self.reduce = None if spec.shared else linear(channels, code)
        if spec.standardised:
            self.score = linear(code, scores) if spec.shared else SliceLinear(code, scores)
        else:
            self.score = SliceLinear(code, scores, bias=False)

    def forward(self, code: Tensor, width: Width) -> Tensor:
        if self.reduce is not None:
            code = self.activation(self.reduce(code, width, 0))
        scores = self.score(code, 0, 0)
        if not self.scalar:
            return scores
        # p = sigmoid(s) in steps between neighbouring widths: scores_k = -(p - k/(R-1))^2 / s0, s0 = 1/(R-1)^2.
        position = torch.sigmoid(scores) * (self.candidates - 1)
        return torch.cat([-((position - k) ** 2) for k in range(self.candidates)], dim=1)

    def standardise(self, codes: Tensor) -> None:
        """Take the standardisation from samples [N, C] of the code; only where the spec asks for it."""
        first = self.score if self.reduce is None else self.reduce
        if isinstance(first, StandardLinear):
            first.standardise(codes)

    def materialise(self, width: int) -> nn.Module:
        """The head at a width of its input, as a plain module from code to scores."""
        return materialise(self, lambda code: self(code, width))

    def madds(self, shape: Shape, width: int) -> int:
        own = 0 if self.reduce is None else self.reduce.madds(shape, width, 0)
        return own + self.score.madds(shape, 0, 0)
