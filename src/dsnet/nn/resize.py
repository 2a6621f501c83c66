"""Images at smaller sizes: the same two matrix products in training, evaluation and exported files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor, fx, nn

from dsnet.nn.slicing import Shape, Sliceable


@cache
def resizing(source: int, target: int) -> np.ndarray:
    """The matrix [target, source] that resizes one side of an image, bilinear and antialiased: A @ image @ A.T.

    A pixel of the result is the mean of the pixels around its place, weighted by a triangle that is as wide as two of
    its own pixels (two of the source, if it enlarges).
    """
    scale = source / target
    reach = max(scale, 1.0)
    places = (np.arange(target)[:, None] + 0.5) * scale
    distance = np.abs(np.arange(source)[None] + 0.5 - places) / reach
    weights = np.maximum(0.0, 1.0 - distance)
    return np.asarray(weights / weights.sum(1, keepdims=True), np.float32)


class Resize(Sliceable):
    """An image of the largest size at one of several sizes. Its width is the index of the size."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        for number, size in enumerate(self.sizes[:-1]):
            matrix = torch.from_numpy(resizing(self.sizes[-1], size).copy())
            self.register_buffer(f"matrix{number}", matrix, persistent=False)

    def matrix(self, size: int) -> Tensor:
        found: Tensor = getattr(self, f"matrix{size}")
        return found

    def forward(self, x: Tensor, size: int) -> Tensor:
        if size == len(self.sizes) - 1:
            return x
        matrix = self.matrix(size)
        with torch.autocast(x.device.type, enabled=False):  # pixels keep their precision
            return matrix @ x.to(matrix.dtype) @ matrix.T

    def materialise(self, *widths: int) -> nn.Module:
        (size,) = widths
        if size == len(self.sizes) - 1:
            return nn.Identity()
        held, graph = nn.Module(), fx.Graph()
        held.register_buffer("matrix", self.matrix(size).clone())
        x = graph.placeholder("x")
        matrix = graph.get_attr("matrix")
        rows = graph.call_function(torch.matmul, (matrix, x))
        turned = graph.call_method("t", (matrix,))
        graph.output(graph.call_function(torch.matmul, (rows, turned)))
        return fx.GraphModule(held, graph, class_name="Resized").train(self.training)

    def madds(self, shape: Shape, *widths: int) -> int:
        """Multiply-adds per image; the shape is that of the largest size."""
        size, (_, channels, height, width) = self.sizes[widths[0]], shape
        return 0 if size == self.sizes[-1] else channels * size * width * (height + size)

    def out_shape(self, shape: Shape, *widths: int) -> Shape:
        side = self.sizes[widths[0]]
        return *shape[:2], side, side

    def extra_repr(self) -> str:
        return f"{self.sizes}"
