"""Extracts a sub-network as an ordinary module of torch.nn layers with its own contiguous weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dsnet.nn.tracing import materialise


def extract(net: Any, path: Sequence[int] = (), *, fold: bool = False) -> fx.GraphModule:
    """The sub-network `path` as a module that does not depend on the supernet; `fold` merges batch norm into
    convolutions.

    The result is in the mode of `net` (folding puts it into eval mode) and can be exported, compiled,
    pickled and fine-tuned like any other module; all its parameters require gradients.
    """
    path = net.space.validate(path)

    def call(x: Any) -> Any:
        outputs = net.run(x, path)
        return tuple(outputs) if isinstance(outputs, tuple) else outputs

    plain = materialise(net, call)
    return fold_batch_norm(plain) if fold else plain


def fold_batch_norm(plain: fx.GraphModule) -> fx.GraphModule:
    """Merge every batch norm into the convolution before it, if nothing else reads that convolution's output.

    The module is changed in place and put into eval mode.
    """
    plain.eval()
    modules = dict(plain.named_modules())
    for node in list(plain.graph.nodes):
        norm = modules.get(node.target) if node.op == "call_module" else None
        if not isinstance(norm, nn.BatchNorm2d):
            continue
        source = node.args[0]
        conv = modules.get(source.target)
        if not isinstance(conv, nn.Conv2d) or len(source.users) != 1:
            continue
        parent, _, leaf = source.target.rpartition(".")
        setattr(plain.get_submodule(parent), leaf, fuse_conv_bn_eval(conv, norm))
        node.replace_all_uses_with(source)
        plain.graph.erase_node(node)
    plain.delete_all_unused_submodules()
    plain.recompile()
    return plain
