"""EfficientNet-Lite with ImageNet weights, if its packages are installed."""

from __future__ import annotations

import pytest
import torch

import dsnet
from dsnet.slimming.pretrained import PRETRAINED


def test_wrong_wishes() -> None:
    with pytest.raises(ValueError, match="exists with weights only; say pretrained=True"):
        dsnet.create_model("efficientnet_lite0")
    with pytest.raises(ValueError, match="has no pretrained weights; choose from efficientnet_lite0"):
        dsnet.create_model("resnet50", pretrained=True)
    with pytest.raises(ValueError, match="takes num_classes and image_size, not routing"):
        dsnet.create_model("efficientnet_lite0", pretrained=True, routing=[0, 1])


@pytest.mark.slow
@pytest.mark.parametrize("name", PRETRAINED)
def test_the_widest_path_is_the_packages_own_module(name: str) -> None:
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra pretrained")
    pytest.importorskip(PRETRAINED[name].weights, reason="needs the extra pretrained")
    net = dsnet.create_model(name, pretrained=True, image_size=96)
    x = torch.randn(2, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted = PRETRAINED[name].model(96)(x)
        assert (net(x, net.space.widest) - wanted).abs().max() < 1e-5 * (wanted.max() - wanted.min())
    other = dsnet.create_model(name, pretrained=True, image_size=96, num_classes=7)
    assert other(x, (0,)).shape == (2, 7)
