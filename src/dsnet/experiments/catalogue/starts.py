"""The pretrained network as it is converted for `slim` and `sizes`, and the static networks that both compare with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsnet.experiments.catalogue.slim_points import STATIC
from dsnet.experiments.layout import Row
from dsnet.experiments.recipe import STARTS, Recipe, Scale
from dsnet.models import Supernet
from dsnet.slimming.network import slim
from dsnet.slimming.pretrained import PRETRAINED
from dsnet.slimming.sources import read_images
from dsnet.slimming.widths import MULTIPLE, Share
from dsnet.tasks import save

NARROW_FIRST, SMALL_FIRST, BOTH_FIRST = "slim", "sizes", "sizes_both"  # what the networks may run as
EVEN_FIRST = "slim_16"  # as NARROW_FIRST, with channels in multiples of 16, which INT8 wants
NARROW = ((0.35, 0.5), (0.5, 0.75), (0.75, 0.75), 1.0)  # shares of hidden and residual channels
WIDTHS: dict[str, Sequence[Share]] = {
    NARROW_FIRST: NARROW,
    EVEN_FIRST: NARROW,
    SMALL_FIRST: (1.0,),
    BOTH_FIRST: ((0.5, 0.75), 1.0),
}
SIZED = (SMALL_FIRST, BOTH_FIRST)
SWEEP = (2e-4, 1e-4, 2e-3)  # learning rates of the static network besides that of the recipe
FAR = (1e-4, 2e-3)  # of these, tried with one seed


def sweep_label(lr: float) -> str:
    return f"static, learning rate {lr:g}"


def static_rows() -> list[Row]:
    """The network that is fine-tuned alone, at full width and the largest size, with several learning rates."""
    alone = {"ieb.only": 0}
    rows = [Row(STATIC, Recipe("sizes_static", alone, start=SMALL_FIRST))]
    for lr in SWEEP:
        recipe = Recipe("sizes_sweep", {**alone, "optim.lr": lr}, start=SMALL_FIRST, seed=0 if lr in FAR else None)
        rows.append(Row(sweep_label(lr), recipe))
    return rows


def convert(scale: Scale, out: Path, root: str | None, names: Sequence[str]) -> None:
    """Convert the networks that runs start from, unless they are there."""
    for name in names:
        folder = out / STARTS / name
        if not folder.is_dir():
            sizes = tuple(scale.bases[name].keys["model.sizes"]) if name in SIZED else ()
            multiple = 16 if name == EVEN_FIRST else MULTIPLE
            save(converted(scale, root, WIDTHS[name], sizes, multiple=multiple), folder)


def converted(
    scale: Scale, root: str | None, widths: Sequence[Share], sizes: Sequence[int], *, multiple: int = MULTIPLE
) -> Supernet:
    """EfficientNet-Lite0 with its ImageNet weights, or, at scale smoke, a network that is new."""
    size = int(scale.bases[NARROW_FIRST].keys["model.image_size"])
    if scale.name == "smoke":
        torch.manual_seed(0)
        shares = widths if widths == (1.0,) else (0.5, 1.0)
        return slim(tiny(), torch.zeros(1, 3, size, size), shares, sizes=sizes, name="tiny")
    known = PRETRAINED["efficientnet_lite0"]
    model, name = known.model(size), "efficientnet_lite0"
    if len(widths) == 1:  # nothing is narrowed
        net = slim(model, torch.zeros(1, 3, size, size), widths, sizes=sizes, name=name)
    else:
        images = read_images(Path(root or "") / scale.folders[NARROW_FIRST] / "train", 3, size, known.preprocessing)
        how: dict[str, Any] = {"sort": "components", "affine": "width", "sizes": sizes, "name": name}
        how["multiple"] = multiple
        net = slim(model, images[:1], widths, images=images, **how)
    net.card = replace(net.card, preprocessing=known.preprocessing)
    return net


def tiny() -> torch.nn.Module:
    def conv(cin: int, cout: int, stride: int) -> list[torch.nn.Module]:
        layer = torch.nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        return [layer, torch.nn.BatchNorm2d(cout), torch.nn.ReLU()]

    body = [*conv(3, 16, 2), *conv(16, 64, 2), *conv(64, 64, 1)]
    return torch.nn.Sequential(*body, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(64, 10))
