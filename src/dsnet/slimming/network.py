"""`slim`: the one function that users call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dsnet.errors import SlimError
from dsnet.models.sizes import at_sizes
from dsnet.models.supernet import Supernet
from dsnet.slimming.convert import Affine, Cut, built, check_same, plan
from dsnet.slimming.observe import settle
from dsnet.slimming.report import SlimReport, report
from dsnet.slimming.sort import Importance, sort_members
from dsnet.slimming.widths import MULTIPLE, WIDTHS, Share, pairs


def slim(
    model: nn.Module,
    example: Tensor,
    widths: Sequence[Share] = WIDTHS,
    cut: Cut = None,
    *,
    images: Tensor | None = None,
    sort: Importance | None = None,
    multiple: int = MULTIPLE,
    overrides: Mapping[str, Sequence[Share]] | None = None,
    sizes: Sequence[int] = (),
    affine: Affine = "shared",
    name: str | None = None,
) -> Supernet:
    """Turn a CNN into a supernet. Its widest path computes what the CNN computes; narrower paths share its weights.

    Args:
        model: The CNN, with trained weights. torch.export must be able to record it.
        example: An image [1, channels, size, size], or several. Only the shape matters.
        widths: Shares of the channels, slimmest first, the last 1. A pair is for hidden and residual channels.
        cut: Where the front ends that all widths share: the name of a module, or a share of the MAdds. With several, a
            gate at each chooses the width of what follows; this needs group or layer norms.
        images: Some images as the network takes them, about 300; they tell which channels matter.
        sort: Importance by which channels are sorted: `components` (the default with images; channels between linear
            layers become principal components), `activation` (with images), `scale` (without), `l1`, or `none`.
        multiple: Channels are rounded to multiples of this number.
        overrides: Shares for the channels that a layer writes, by the layer's name.
        sizes: Image sizes that the network runs at, smallest first; the last is that of the example. With several, the
            widths may be 1 alone.
        affine: Whether all widths share the scale and shift of a batch norm, or each `width` has its own.
        name: Name of the network.
    """
    options: dict[str, Any] = {"images": images, "sort": sort, "multiple": multiple, "overrides": overrides}
    return slim_with_report(model, example, widths, cut, sizes=sizes, affine=affine, name=name, **options)[0]


def slim_with_report(
    model: nn.Module,
    example: Tensor,
    widths: Sequence[Share] = WIDTHS,
    cut: Cut = None,
    *,
    images: Tensor | None = None,
    sort: Importance | None = None,
    multiple: int = MULTIPLE,
    overrides: Mapping[str, Sequence[Share]] | None = None,
    sizes: Sequence[int] = (),
    affine: Affine = "shared",
    name: str | None = None,
) -> tuple[Supernet, SlimReport]:
    """`slim`, and what it found: the groups with their widths, and what is fixed and why."""
    if images is not None and (images.dim() != 4 or images.shape[1:] != example.shape[1:] or not len(images)):
        raise SlimError(f"images have shape {tuple(images.shape)}; give [N, {', '.join(map(str, example.shape[1:]))}]")
    pairs(widths, least=1 if sizes else 2)
    if sizes and sizes[-1] != example.shape[-1]:
        raise SlimError(
            f"the largest of the image sizes {list(sizes)} must be that of the example, {example.shape[-1]} px"
        )
    if sizes and isinstance(cut, Sequence) and not isinstance(cut, str) and len(cut) > 1:
        raise SlimError(f"there are {len(cut)} cuts and {len(sizes)} image sizes; give one cut, or one size")
    found = plan(model, example, widths, cut=cut, multiple=multiple, overrides=overrides, affine=affine)
    generator = torch.Generator().manual_seed(0)
    seen = torch.randn(4, *example.shape[1:], generator=generator) if images is None else images
    sort_members(found, sort or ("scale" if images is None else "components"), images)
    settle(found, found.norms, seen)
    net = built(found, name or type(model).__name__.lower())
    error = check_same(model, net, example)
    summary = report(found, net, error)
    return at_sizes(net, sizes) if sizes else net, summary
