"""A trained network whose router chooses from fewer widths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dsnet.errors import RoutingError
from dsnet.nn.router import of_router


def narrowed(net: Any, widths: Sequence[int]) -> Any:
    """A copy of a network whose router chooses among these width indices only, by the scores that it has learned.

    It has no budgets: they must be calibrated again.
    """
    spec, router, chosen = net.spec, net.spec.router, sorted(set(widths))
    if router is None:
        raise RoutingError(f"this {spec.name} has not learned to route, so it has no widths to choose from")
    if getattr(spec, "sizes", ()):
        raise RoutingError(
            f"this {spec.name} runs at several image sizes, and a file holds the settings of its router only; leave "
            f"the widths out"
        )
    before, *others = spec.routing
    if any(allowed != before for allowed in others):
        raise RoutingError(
            f"routing {spec.routing} differs from gate to gate; its widths cannot be restricted together"
        )
    if unknown := [width for width in chosen if width not in before]:
        raise RoutingError(f"width {unknown[0]} is not among those that the router may choose: {list(before)}")
    if len(chosen) < 2:
        raise RoutingError(f"widths {chosen} leave nothing to choose; give at least two, or export one path")
    if router.probes and chosen[0] != before[0]:
        raise RoutingError(
            f"router {router.kind} reads the answer of its slimmest width, {before[0]}; keep it among the widths"
        )
    backbone = getattr(net, "backbone", net)
    if router.kind == "gate" and router.early is None and any(head.scalar for head in backbone.slimming_heads()):
        raise RoutingError("a scalar slimming head scores the whole range of its widths; none can be left out")
    fresh = spec.with_routing([chosen] * len(spec.routing)).build()
    fresh = fresh.to(next(net.parameters())).train(net.training)
    fresh.card = replace(net.card, budgets=())
    rows, shapes = [before.index(width) for width in chosen], fresh.state_dict()
    state = {name: kept(name, tensor, shapes[name], rows) for name, tensor in net.state_dict().items()}
    fresh.load_state_dict(state)
    return fresh


def kept(name: str, tensor: Tensor, wanted: Tensor, rows: Sequence[int]) -> Tensor:
    """A tensor of the network with fewer widths. rows: the positions of its widths in the whole network."""
    if name == "probe.width":  # the position of the width that a threshold router escalates to
        if int(tensor) not in rows:
            raise RoutingError(
                f"the threshold router escalates to position {int(tensor)} of its widths; keep that width"
            )
        return torch.tensor(rows.index(int(tensor)))
    if not of_router(name) or tensor.shape == wanted.shape:
        return tensor
    exits = len(wanted) - len(rows)  # the exit is one more candidate, before the widths
    return tensor[[*range(exits), *(exits + row for row in rows)]]
