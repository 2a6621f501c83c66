"""Checks that an exported file gives the same outputs as the network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dsnet.manifest import Manifest
from dsnet.models import eager
from dsnet.pictures import as_batch
from dsnet.routing.route import Outputs
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath

LIMIT = 1e-3  # of the largest difference between files of floats and the network
ROUNDED = 0.3  # of the root mean square of what rounding to codes changes; trained networks stay far below


def taken(net: Any, image: Tensor, path: WidthPath) -> Outputs:
    """The network's outputs for an image that its router sends along a path."""
    runner, router = eager(net), net.manifest().router
    if not router.combines:
        return runner.run_path(image, path).outputs
    return runner.run_forced(image, np.full((1, len(path)), router.candidates.index(path))).outputs


def inputs(manifest: Manifest, images: Tensor | None) -> tuple[Tensor, Any]:
    """Inputs of the network, and what its file is given for them. images: like `difference`."""
    shape = (2, manifest.in_channels, manifest.image_size, manifest.image_size)
    if not manifest.raw:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) if images is None else images
        return x, x
    if images is None:
        rng, (_, _, height, width) = np.random.default_rng(0), shape
        pictures = [rng.integers(0, 256, (height + more, 2 * width + more, 3), np.uint8) for more in (0, 3)]
    else:
        pictures = pictures_of(images.numpy(), manifest)
    return torch.from_numpy(as_batch(pictures, replace(manifest, raw=False))), pictures


def pictures_of(images: np.ndarray, manifest: Manifest) -> list[np.ndarray]:
    """Inputs of a network [B, C, S, S] as pictures, uint8 [S, S, 3]."""
    mean, std = (np.reshape(part, (-1, 1, 1)) for part in (manifest.preprocessing.mean, manifest.preprocessing.std))
    pixels = (255 * (images * std + mean)).clip(0, 255).round().astype(np.uint8)
    whole = (np.broadcast_to(each.transpose(1, 2, 0), (*each.shape[1:], 3)) for each in pixels)
    return [np.ascontiguousarray(each) for each in whole]


def difference(net: Any, runner: Runner, images: Tensor | None = None) -> float:
    """How much the outputs of file and network differ, relative to the outputs' standard deviation: at most, or in the
    root mean square if the file is quantised.

    It is taken at the exit, the slimmest and the widest path, or at the lowest and the highest budget if no path can be
    pinned. Raises a ValueError if it is too large.

    images: Images to compare on, like those that a quantised file was made for; noise by default.
    """
    manifest = runner.manifest
    x, given = inputs(manifest, images)
    if manifest.pins:
        exits = [path for path in manifest.space.exits if path in manifest.pinnable]
        held = manifest.pinnable if manifest.space.sized else [manifest.space.slimmest, manifest.space.widest]
        ends = list(dict.fromkeys([*exits, held[0], held[-1]]))
        exported, live = runner.survey(given, ends)[0], eager(net).survey(x, ends)[0]
    else:
        exported, live = [], []
        for budget in (manifest.router.budgets[0], manifest.router.budgets[-1]) if manifest.router else ():
            for row, image in enumerate(x.split(1)):
                routed = runner.run(given[row : row + 1], runner.policy(budget.madds))
                exported.append(routed.outputs)
                live.append(taken(net, image, tuple(routed.paths[0].tolist())))
    rounded, largest = manifest.precision == "int8", 0.0
    for answer, expected in zip(exported, live, strict=True):
        for name, wanted in expected.items():
            off = (torch.as_tensor(answer[name]) - wanted).abs() / wanted.std()
            largest = max(largest, float(off.square().mean().sqrt() if rounded else off.max()))
    limit = ROUNDED if rounded else LIMIT
    if not largest < limit:
        raise ValueError(
            f"the outputs of {runner.runtime} differ from the network's by {largest:.2g} standard deviations; "
            f"the limit is {limit:g}"
        )
    return largest
