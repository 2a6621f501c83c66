"""Checks that an exported file gives the same outputs as the network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from dsnet.manifest import Manifest
from dsnet.models import eager
from dsnet.pictures import as_batch
from dsnet.routing.route import Outputs
from dsnet.runtime.runner import Runner
from dsnet.space import WidthPath

LIMIT = 1e-3


def taken(net: Any, image: torch.Tensor, path: WidthPath) -> Outputs:
    """The network's outputs for an image that its router sends along a path."""
    runner, router = eager(net), net.manifest().router
    if not router.spec.exits:
        return runner.run_path(image, path).outputs
    return runner.run_forced(image, np.full((1, len(path)), router.candidates.index(path))).outputs


def inputs(manifest: Manifest) -> tuple[torch.Tensor, Any]:
    """Two random inputs of the network, and what its file is given for them."""
    shape = (2, manifest.in_channels, manifest.image_size, manifest.image_size)
    if not manifest.raw:
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        return x, x
    rng, (_, _, height, width) = np.random.default_rng(0), shape
    pictures = [rng.integers(0, 256, (height + more, 2 * width + more, 3), np.uint8) for more in (0, 3)]
    return torch.from_numpy(as_batch(pictures, replace(manifest, raw=False))), pictures


def difference(net: Any, runner: Runner) -> float:
    """The largest difference between the outputs of network and file, relative to the outputs' standard deviation.

    It is taken at the exit, the slimmest and the widest path, or at the lowest and the highest budget if no path can be
    pinned. Raises a ValueError if it is too large.
    """
    manifest = runner.manifest
    x, given = inputs(manifest)
    if manifest.pins:
        exits = [manifest.space.exit_path] * manifest.space.exit
        ends = list(dict.fromkeys([*exits, manifest.space.slimmest, manifest.space.widest]))
        exported, live = runner.survey(given, ends)[0], eager(net).survey(x, ends)[0]
    else:
        exported, live = [], []
        for budget in (manifest.router.budgets[0], manifest.router.budgets[-1]) if manifest.router else ():
            for row, image in enumerate(x.split(1)):
                routed = runner.run(given[row : row + 1], runner.policy(budget.madds))
                exported.append(routed.outputs)
                live.append(taken(net, image, tuple(routed.paths[0].tolist())))
    largest = 0.0
    for answer, expected in zip(exported, live, strict=True):
        for name, wanted in expected.items():
            off = (torch.as_tensor(answer[name]) - wanted).abs().max() / wanted.std()
            largest = max(largest, float(off))
    if not largest < LIMIT:
        raise ValueError(
            f"the outputs of {runner.runtime} differ from the network's by {largest:.2g} standard deviations; "
            f"the limit is {LIMIT:g}"
        )
    return largest
