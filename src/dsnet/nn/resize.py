"""Images at smaller sizes: the same operations in training, evaluation and exported files."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.nn.slicing import Shape, Sliceable
from dsnet.nn.tracing import as_graph

LONGEST = 32  # pixels of a block at the target size; blocks of more have too many weights


def triangles(places: np.ndarray, pixels: np.ndarray, scale: float) -> np.ndarray:
    """The weights [places, pixels] of an antialiased bilinear resizing along one side of an image.

    A pixel of the result is the mean of the pixels around its place, weighted by a triangle that is as wide as two of
    its own pixels (two of the source, if it enlarges).
    """
    distance = np.abs(pixels + 0.5 - (places[:, None] + 0.5) * scale) / max(scale, 1.0)
    weights = np.maximum(0.0, 1.0 - distance)
    return np.asarray(weights / weights.sum(1, keepdims=True))


@cache
def resizing(source: int, target: int) -> np.ndarray:
    """The matrix [target, source] that resizes one side of an image: A @ image @ A.T."""
    return triangles(np.arange(target), np.arange(source), source / target).astype(np.float32)


class Blocks(NamedTuple):
    """One side of an image as blocks of `step` pixels, each of which becomes as many pixels as there are `taps`.

    Attributes:
        taps: The weights [P, K] of each of P pixels. They reach `reach` pixels beyond the block, on both sides.
        cut: What is left of the weights of each pixel of the result within the image: 1 except close to the border.
    """

    step: int
    reach: int
    taps: np.ndarray
    cut: np.ndarray


@cache
def blocks(source: int, target: int) -> Blocks | None:
    """A side that becomes smaller in blocks; None if blocks would be so long that the matrix is better."""
    common = math.gcd(source, target)
    step, reach = source // common, (source + target - 1) // (2 * target)
    read = step + 2 * reach
    if target // common > LONGEST or 2 * read > source:
        return None
    taps = triangles(np.arange(target // common), np.arange(-reach, step + reach), source / target)
    inside = np.lib.stride_tricks.sliding_window_view(np.pad(np.ones(source), reach), read)[::step]
    return Blocks(step, reach, taps.astype(np.float32), (inside @ taps.T).reshape(-1))


class InBlocks(nn.Module):
    """Resizes by one strided convolution for each side, whose channels are the pixels of a block. What the border cut
    is made up for by a factor for each pixel."""

    rows: Tensor
    columns: Tensor
    factors: Tensor

    def __init__(self, found: Blocks, channels: int) -> None:
        super().__init__()
        self.step, self.reach, self.block = found.step, found.reach, len(found.taps)
        taps = torch.from_numpy(found.taps)
        self.groups = channels, channels * self.block
        self.register_buffer("rows", taps[:, None, :, None].repeat(channels, 1, 1, 1), persistent=False)
        self.register_buffer("columns", taps[:, None, None].repeat(self.groups[1], 1, 1, 1), persistent=False)
        factors = torch.from_numpy(1 / np.outer(found.cut, found.cut)).float()
        self.register_buffer("factors", factors, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.rows, None, (self.step, 1), (self.reach, 0), 1, self.groups[0])  # [B, C * P, T / P, S]
        x = F.conv2d(x, self.columns, None, (1, self.step), (0, self.reach), 1, self.groups[1])
        return F.pixel_shuffle(x, self.block) * self.factors

    @property
    def read(self) -> int:
        """Multiply-adds of a pixel of the result along one side."""
        return self.rows.shape[2]


class Dense(nn.Module):
    """Resizes by two matrix products."""

    matrix: Tensor

    def __init__(self, matrix: np.ndarray) -> None:
        super().__init__()
        self.register_buffer("matrix", torch.from_numpy(matrix.copy()), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.matrix @ x @ self.matrix.t()

    @property
    def read(self) -> int:
        return self.matrix.shape[1]


class Resize(Sliceable):
    """An image of the largest size at one of several sizes. Its width is the index of the size."""

    def __init__(self, sizes: Sequence[int], channels: int) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        self.ways = nn.ModuleList(way_of(self.sizes[-1], size, channels) for size in self.sizes)

    def forward(self, x: Tensor, size: int) -> Tensor:
        if size == len(self.sizes) - 1:
            return x
        way = self.ways[size]
        kind = "cpu" if x.is_meta else x.device.type  # autocast does not know meta tensors, which have shapes only
        with torch.autocast(kind, enabled=False):  # pixels keep their precision
            found: Tensor = way(x.to(next(way.buffers()).dtype))
            return found

    def materialise(self, *widths: int) -> nn.Module:
        return as_graph(copy.deepcopy(self.ways[widths[0]]), "Resized").train(self.training)

    def madds(self, shape: Shape, *widths: int) -> int:
        """Multiply-adds per image; the shape is that of the largest size."""
        size, held, channels = self.sizes[widths[0]], self.ways[widths[0]], shape[1]
        return channels * size * (self.sizes[-1] + size) * held.read if isinstance(held, InBlocks | Dense) else 0

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        side = self.sizes[widths[0]]
        return *shape[:2], side, side

    def extra_repr(self) -> str:
        return f"{self.sizes}"


def way_of(source: int, target: int, channels: int) -> nn.Module:
    """How images are resized: in blocks if the sizes have a common divisor that is large enough."""
    if source == target:
        return nn.Identity()
    found = blocks(source, target)
    return Dense(resizing(source, target)) if found is None else InBlocks(found, channels)
