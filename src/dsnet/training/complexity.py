"""The expected MAdds of a network whose widths are mixed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dsnet.cost import CostTable
from dsnet.models.devices import exact


def constants(table: CostTable, *, dynamic: bool = True) -> list[Tensor]:
    """The MAdds from every width to the next [K, L] at each choice point, and those of the head [K]."""
    steps = [
        [[cost.madds + (router[j].madds if dynamic else 0) for cost in row] for j, row in enumerate(step)]
        for step, router in zip(table.steps, table.routers, strict=True)
    ]
    return [torch.tensor(rows, dtype=torch.float64) for rows in (*steps, [head.madds for head in table.heads])]


def expected(
    table: CostTable, mixes: Sequence[Tensor], *, dynamic: bool = True, known: Sequence[Tensor] | None = None
) -> Tensor:
    """MAdds [B] under one mix [B, K] per choice point. They are differentiable, and exact on one-hot mixes.

    known: The `constants` on the device of the mixes, where they are needed often.
    """
    if not table.steps:
        raise ValueError("the network has no choice points; use madds(())")
    if len(mixes) != len(table.steps):
        raise ValueError(
            f"got {len(mixes)} mixes but the network has {len(table.steps)} choice points; give one for each"
        )
    for point, (mix, step) in enumerate(zip(mixes, table.steps, strict=True)):
        if mix.shape != (len(mixes[0]), len(step[0])):
            raise ValueError(
                f"mix {point} has shape {tuple(mix.shape)}; expected {(len(mixes[0]), len(step[0]))}, "
                f"one weight per sample and width"
            )
    if dynamic and table.probe is not None:
        return _expected_probing(table, mixes)
    mixes = [exact(mix) for mix in mixes]
    total = mixes[0].new_full((len(mixes[0]),), float(table.front.madds))
    before = total.new_ones(len(total), 1)
    *steps, heads = known or [held.to(total.device) for held in constants(table, dynamic=dynamic)]
    for costs, after in zip(steps, mixes, strict=True):
        total = total + torch.einsum("bi,ij,bj->b", before, costs, after)
        before = after
    return total + before @ heads


def _expected_probing(table: CostTable, mixes: Sequence[Tensor]) -> Tensor:
    """Expected MAdds of a router that probes: every sample runs the slimmest candidate; those that choose another path
    run the rest of it as well."""
    assert table.probe is not None
    slim = torch.stack([exact(mix[:, width]) for mix, width in zip(mixes, table.probed, strict=True)]).prod(0)
    rest = expected(table, mixes, dynamic=False) - table.shared.madds
    return table.probe.madds + rest - slim * (table.madds(table.probed) - table.shared.madds)
