"""Norms that run at a width. Under a mix they also mask: channels beyond a sample's width become zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dsnet.errors import must
from dsnet.nn.slicing import Mix, Shape, Sliceable, Width, fill, leading, twin
from dsnet.schema import Typed
from dsnet.space import Channels

EPS = 1e-5
LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)  # orders of axes that move the channels of maps to the end, and back
TALLY: ContextVar[Counter[tuple[SliceBatchNorm2d, int]] | None] = ContextVar("TALLY", default=None)


@dataclass(frozen=True)
class NormSpec(Typed):
    """`batch` keeps statistics per width index; `group` has a fixed number of channels per group."""

    kind: Literal["batch", "group"] = "batch"
    group_size: int = 16

    def __post_init__(self) -> None:
        if self.kind not in ("batch", "group"):
            raise ValueError(f"norm {self.kind!r} is unknown; choose 'batch' or 'group'")
        must("group_size", self.group_size, self.group_size >= 1, "be at least 1")

    def build(self, channels: Channels) -> SliceNorm:
        return SliceBatchNorm2d(channels) if self.kind == "batch" else SliceGroupNorm(channels, self.group_size)


class SliceNorm(Sliceable):
    """Shared affine parameters over the widest channels; subclasses normalise."""

    prefix: Tensor

    def __init__(self, channels: Channels, eps: float = EPS) -> None:
        super().__init__()
        self.channels, self.eps = channels, eps
        self.weight = nn.Parameter(torch.ones(channels.max))
        self.bias = nn.Parameter(torch.zeros(channels.max))
        prefix = torch.zeros(len(channels), channels.max, dtype=torch.bool)
        for width, row in enumerate(prefix):  # quicker on the meta device than a comparison
            for start, stop in channels.ranges(width):
                row[start:stop] = True
        self.register_buffer("prefix", prefix, persistent=False)  # [K, C]: true on the channels of width k

    def forward(self, x: Tensor, width: Width) -> Tensor:
        return self.mixed(x, width) if isinstance(width, Mix) else self.sliced(x, width)

    def affine(self, width: int) -> tuple[Tensor, Tensor]:
        return leading(self.weight, self.channels, width), leading(self.bias, self.channels, width)

    def mask(self, mix: Mix) -> Tensor:
        """How much of each channel every sample has, [B, C, 1, 1]."""
        prefix = leading(self.prefix, self.channels, mix.widest, 1).to(mix.weights.dtype)
        return (mix.weights @ prefix)[:, :, None, None]

    def params(self, *widths: int) -> int:
        return 2 * self.channels[widths[0]]

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        return shape

    def sliced(self, x: Tensor, width: int) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not normalise")

    def mixed(self, x: Tensor, mix: Mix) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not mix")


class SliceBatchNorm2d(SliceNorm):
    """Batch norm with running statistics per width index and one shared affine.

    own: Whether every width index has affine parameters of its own.

    Attributes:
        anchored: Whether the widest keeps its statistics, and uses them in training too.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self, channels: Channels, momentum: float | None = 0.1, eps: float = EPS, *, own: bool = False
    ) -> None:
        super().__init__(channels, eps)
        self.own, self.anchored = own, False
        if own:
            self.weight = nn.Parameter(torch.ones(len(channels), channels.max))
            self.bias = nn.Parameter(torch.zeros(len(channels), channels.max))
        self.momentum = momentum  # None averages all batches with equal weight, as in torch
        # One row per width; entries beyond a row's width are never used.
        self.register_buffer("running_mean", torch.zeros(len(channels), channels.max))
        self.register_buffer("running_var", torch.ones(len(channels), channels.max))
        self.register_buffer("num_batches_tracked", torch.zeros(len(channels), dtype=torch.long))

    def at(self, width: int) -> dict[str, Tensor]:
        """The statistics and the affine parameters of a width."""
        rows = {"running_mean": self.running_mean[width], "running_var": self.running_var[width]}
        affine = {"weight": self.weight, "bias": self.bias}
        tensors = rows | ({name: tensor[width] for name, tensor in affine.items()} if self.own else affine)
        return {name: leading(tensor, self.channels, width) for name, tensor in tensors.items()}

    def sliced(self, x: Tensor, width: int) -> Tensor:
        momentum, training = 0.0, self.training and not (self.anchored and width == len(self.channels) - 1)
        if training:
            average = self.momentum is None
            momentum = 1 / (int(self.num_batches_tracked[width]) + 1) if average else self.momentum or 0.0
        held = self.at(width)
        y = F.batch_norm(x, **held, training=training, momentum=momentum, eps=self.eps)
        if training:
            self.count(width)
            if self.channels.parts:  # the statistics of a concatenation are copies
                with torch.no_grad():
                    self.running_mean[width].masked_scatter_(self.prefix[width], held["running_mean"])
                    self.running_var[width].masked_scatter_(self.prefix[width], held["running_var"])
        return y

    def count(self, width: int) -> None:
        """Count a batch of a width, or leave it to `counted_at_once`."""
        tally = None if torch.compiler.is_compiling() else TALLY.get()
        if tally is None or self.momentum is None:
            self.num_batches_tracked[width].add_(1)
        else:
            tally[self, width] += 1

    def folded(self) -> tuple[Tensor, Tensor]:
        """Scale S [K, C] and shift B [K, C] of every width in eval mode, zero beyond the width."""
        scale = self.weight * torch.rsqrt(self.running_var + self.eps)
        shift = self.bias - self.running_mean * scale
        return torch.where(self.prefix, scale, 0), torch.where(self.prefix, shift, 0)

    def mixed(self, x: Tensor, mix: Mix) -> Tensor:
        if self.training:
            raise RuntimeError("batch norm under a mix uses the statistics of each width: call net.eval() first")
        rows = (leading(row, self.channels, mix.widest, 1) for row in self.folded())
        scale, shift = (mix.weights @ row for row in rows)  # [B, C]
        return x * scale[:, :, None, None] + shift[:, :, None, None]

    def materialise(self, *widths: int) -> nn.Module:
        (width,) = widths
        norm = twin(self, self.weight, nn.BatchNorm2d, self.channels[width], eps=self.eps, momentum=self.momentum)
        return fill(norm, **self.at(width), num_batches_tracked=self.num_batches_tracked[width])

    def extra_repr(self) -> str:
        return f"{self.channels.counts}, momentum={self.momentum}, own={self.own}"


@contextmanager
def counted_at_once() -> Iterator[None]:
    """Let the batch norms in a `with` block count their batches at its end, all in one call. Each of their counters
    would be a kernel of its own on a GPU."""
    tally: Counter[tuple[SliceBatchNorm2d, int]] = Counter()
    token = TALLY.set(tally)
    try:
        yield
    finally:
        TALLY.reset(token)
        if tally:
            rows = [norm.num_batches_tracked[width] for norm, width in tally]
            torch._foreach_add_(rows, list(tally.values()))


class SliceGroupNorm(SliceNorm):
    """Group norm whose groups lie inside every width, so that slicing does not change their statistics."""

    def __init__(self, channels: Channels, group_size: int, eps: float = EPS) -> None:
        super().__init__(channels, eps)
        self.group_size = group_size
        if bad := [count for count in channels.counts if count % group_size]:
            raise ValueError(
                f"group norm with {group_size} channels per group cannot divide a width of {bad[0]} channels; "
                f"use multiples of {group_size} or a smaller group_size"
            )

    def sliced(self, x: Tensor, width: int) -> Tensor:
        groups, kind = self.channels[width] // self.group_size, x.device.type
        weight, bias = self.affine(width)
        if not torch.amp.is_autocast_available(kind) or not torch.is_autocast_enabled(kind):  # nothing on meta tensors
            return F.group_norm(x, groups, weight, bias, self.eps)
        # Autocast would run group norm in single precision, and keep maps of twice the size for the backward pass. Its
        # kernels sum in single precision all the same.
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            return F.group_norm(x.to(dtype), groups, weight.to(dtype), bias.to(dtype), self.eps)

    def mixed(self, x: Tensor, mix: Mix) -> Tensor:
        return self.sliced(x, mix.widest) * self.mask(mix)

    def materialise(self, *widths: int) -> nn.Module:
        count = self.channels[widths[0]]
        norm = twin(self, self.weight, nn.GroupNorm, count // self.group_size, count, eps=self.eps)
        weight, bias = self.affine(widths[0])
        return fill(norm, weight=weight, bias=bias)

    def extra_repr(self) -> str:
        return f"{self.channels.counts}, group_size={self.group_size}"


class SliceLayerNorm2d(SliceNorm):
    """Layer norm over the channels of every pixel of a map. Every width normalises over its own channels."""

    def sliced(self, x: Tensor, width: int) -> Tensor:
        weight, bias = self.affine(width)
        return F.layer_norm(x.permute(*LAST), weight.shape, weight, bias, self.eps).permute(*FIRST)

    def mixed(self, x: Tensor, mix: Mix) -> Tensor:
        mask = self.mask(mix)
        count = mask.sum(1, keepdim=True)
        centred = x - (x * mask).sum(1, keepdim=True) / count
        variance = (centred.square() * mask).sum(1, keepdim=True) / count
        weight, bias = (tensor[:, None, None] for tensor in self.affine(mix.widest))
        return (centred * torch.rsqrt(variance + self.eps) * weight + bias) * mask

    def materialise(self, *widths: int) -> nn.Module:
        weight, bias = self.affine(widths[0])
        norm = fill(twin(self, weight, nn.LayerNorm, len(weight), eps=self.eps), weight=weight, bias=bias)
        graph = fx.Graph()
        turned = graph.call_method("permute", (graph.placeholder("x"), *LAST))
        graph.output(graph.call_method("permute", (graph.call_module("norm", (turned,)), *FIRST)))
        return fx.GraphModule({"norm": norm}, graph, class_name="LayerNorm2d").train(self.training)

    def extra_repr(self) -> str:
        return f"{self.channels.counts}"
