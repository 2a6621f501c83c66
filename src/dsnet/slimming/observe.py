"""What flows through a converted network on some images, on its widest path."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from dsnet.models.supernet import Supernet
from dsnet.slimming.convert import Plan, built
from dsnet.slimming.trace import Op

CHUNK = 16  # images that are observed together


def observe(
    net: Supernet, names: Sequence[str], images: Tensor, of: Callable[[Tensor], list[Tensor]]
) -> dict[str, list[Tensor]]:
    """Sums over all pixels of what the layers of these names read. of: From channels [N, C] to what is summed."""
    sums: dict[str, list[Tensor]] = {}

    def hook(name: str) -> Callable[..., None]:
        def note(layer: object, args: tuple[Tensor, ...]) -> None:
            x = args[0].double()
            found = of(x if x.dim() == 2 else x.transpose(0, 1).flatten(1).T)
            sums[name] = [a + b for a, b in zip(sums[name], found, strict=True)] if name in sums else found

        return note

    modules = {name.rpartition(".")[2]: module for name, module in net.named_modules()}
    modules[net.head.name] = net.head.classifier
    handles = [modules[name].register_forward_pre_hook(hook(name)) for name in names]
    try:
        for chunk in images.split(CHUNK):
            net(chunk, net.space.widest)
    finally:
        for handle in handles:
            handle.remove()
    return sums


def moments(net: Supernet, names: Sequence[str], images: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean and variance of every channel that the layers of these names read."""
    sums = observe(net, names, images, lambda x: [torch.tensor(len(x)), x.sum(0), x.square().sum(0)])
    means = {name: (total / count, squares / count) for name, (count, total, squares) in sums.items()}
    return {name: (mean, (square - mean.square()).clamp_min(0)) for name, (mean, square) in means.items()}


@torch.no_grad()
def settle(plan: Plan, norms: Sequence[Op], images: Tensor) -> None:
    """Give norms that only add a shift the statistics of what they read, and the affine parameters that undo them.

    They still compute the same, but normalise when they are trained.
    """
    if not norms:
        return
    found = moments(built(plan, "unsettled"), [op.name for op in norms], images)
    for op in norms:
        mean, var = (moment.float() for moment in found[op.name])
        eps = float(op.options["eps"])  # type: ignore[arg-type]
        shift = op.tensors["bias"] - op.tensors["running_mean"]
        op.tensors = {"weight": (var + eps).sqrt(), "bias": mean + shift, "running_mean": mean, "running_var": var}
