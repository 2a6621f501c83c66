"""Pictures of all shapes, to be read and resized."""

from __future__ import annotations

import numpy as np

SHAPES = [(1, 1), (1, 40), (50, 1), (7, 3), (32, 32), (33, 31), (48, 64), (64, 48), (120, 90), (20, 300), (300, 20)]


def snapshots(count: int, *, seed: int = 0) -> list[np.ndarray]:
    """Colour pictures, uint8 [H, W, 3], whose shapes, contrast and brightness differ. Their pixels are coarse, so that
    they still differ after resizing."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        coarse = rng.normal(size=(8, 8, 3)) * rng.uniform(10, 160) + rng.uniform(0, 255)
        rows, columns = (np.sort(rng.integers(0, 8, rng.integers(20, 200))) for _ in range(2))
        found.append(coarse.clip(0, 255).astype(np.uint8)[rows][:, columns])
    return found
