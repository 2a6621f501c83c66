"""Whether an exported file answers as the network does."""

from __future__ import annotations

from typing import Any

import torch

from dsnet.models import eager
from dsnet.runtime.runner import Runner

LIMIT = 1e-3


def difference(net: Any, runner: Runner) -> float:
    """The largest difference of answers between network and file at the slimmest and the widest path, relative to the
    answers' spread; refuses a wrong file."""
    manifest = runner.manifest
    shape = (2, manifest.in_channels, manifest.image_size, manifest.image_size)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ends = list(dict.fromkeys([manifest.space.slimmest, manifest.space.widest]))
    mine, theirs = runner.survey(x, ends)[0], eager(net).survey(x, ends)[0]
    found = 0.0
    for answer, expected in zip(mine, theirs, strict=True):
        for name, wanted in expected.items():
            off = (torch.as_tensor(answer[name]) - wanted).abs().max() / wanted.std()
            found = max(found, float(off))
    if not found < LIMIT:
        raise ValueError(f"{runner.runtime} answers otherwise than the network, by {found:.2g} of the answers' spread")
    return found
