"""A network at other image sizes than it was made for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dsnet.models.supernet import Supernet
from dsnet.nn.router import of_router


@torch.no_grad()
def at_sizes(net: Supernet, sizes: Sequence[int]) -> Supernet:
    """The same weights in a network that runs at these image sizes, smallest first, or at one if there are none.

    Every size begins with the statistics of the largest, but only those of the largest count as known. The router is
    not kept.
    """
    spec = replace(net.spec, router=None, sizes=tuple(sizes), **({"image_size": sizes[-1]} if sizes else {}))
    found = Supernet(spec).to(net.head.classifier.weight).train(net.training)
    state, before, after = found.state_dict(), net.spec.rows, spec.rows
    kept = {name: tensor for name, tensor in net.state_dict().items() if name in state or not of_router(name)}
    found.load_state_dict(
        {**state, **{name: spread(name, tensor, state[name], before, after) for name, tensor in kept.items()}}
    )
    found.card = replace(net.card, budgets=())
    return found


def spread(name: str, tensor: Tensor, wanted: Tensor, before: int, after: int) -> Tensor:
    """A tensor for another number of image sizes: the rows of statistics, and of affine parameters of their own, are
    those of the largest size before."""
    statistics = name.endswith(("running_mean", "running_var", "num_batches_tracked"))
    if not statistics and tensor.shape == wanted.shape:
        return tensor
    rows = tensor[before - 1 :: before].repeat_interleave(after, 0)
    if name.endswith("num_batches_tracked"):
        largest = torch.arange(len(rows), device=rows.device) % after == after - 1
        rows = torch.where(largest, rows, 0)
    assert rows.shape == wanted.shape, name
    return rows
