"""Compiles the blocks of a network for training."""

from __future__ import annotations

from torch import nn

from dsnet.models.build import Segment
from dsnet.nn import Block
from dsnet.nn.norm import SliceNorm


def compile_blocks(net: nn.Module, backend: str) -> None:
    """Compile every block separately, and those that start a segment in their three parts, because paths that share a
    beginning part there. Each width needs its own graph, so the limits on recompilation are raised."""
    import torch._dynamo

    backends = torch._dynamo.list_backends(exclude_tags=())
    if backend not in backends:
        raise ValueError(f"optim.compile {backend!r} is unknown; choose from {', '.join(backends)}")
    widths = max((len(norm.channels) for norm in net.modules() if isinstance(norm, SliceNorm)), default=1)
    limit = 4 * widths * widths
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
    torch._dynamo.config.accumulated_recompile_limit = max(
        torch._dynamo.config.accumulated_recompile_limit, 3 * limit * sum(isinstance(m, Block) for m in net.modules())
    )
    starting = {module.first for module in net.modules() if isinstance(module, Segment)}
    for module in net.modules():
        if module in starting:
            module.compile_parts(backend=backend, dynamic=False)
        elif isinstance(module, Block):
            module.compile(backend=backend, dynamic=False)
