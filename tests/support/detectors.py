"""Detectors on which laws mean something."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from dsnet.nn import RouterSpec
from dsnet.tasks.detection.detector import Detector, with_backbone
from dsnet.tasks.detection.spec import DetectorSpec
from support.networks import randomised

SIZE = 64


def random_detector(
    name: str = "ds_mobilenet_v1_small",
    *,
    router: RouterSpec | None = None,
    seed: int = 0,
    size: int = SIZE,
    taps: tuple[str, ...] | None = None,
    **options: object,
) -> Detector:
    """A detector in eval mode, in double precision, whose every parameter and buffer is random."""
    net = randomised(name, seed=seed, **options)
    backbone = replace(net.spec, image_size=size, router=router)
    spec = DetectorSpec(backbone, 3, taps=taps or taps_of(backbone), projection=32, pyramid=32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        detector = with_backbone(spec, net).eval()
        with torch.no_grad():
            for module in detector.neck.modules():
                if isinstance(module, nn.GroupNorm):
                    module.weight.uniform_(0.5, 1.5)
                    module.bias.normal_(0, 0.3)
            for parameter in detector.heads.parameters():
                parameter.normal_(0, 0.1)
            if router is not None:
                part_ways(detector)
    return detector


def part_ways(detector: Detector) -> None:
    """Take from the first gate's scores what all images have in common, so that images differ in their widths."""
    code = detector.start(pictures(8, detector.spec.image_size)).code
    gate = detector.backbone.chain[0].first.gate
    assert code is not None
    assert gate is not None
    assert gate.slimming is not None
    weight, mean = gate.slimming.score.weight, code.mean(0)
    weight.copy_(20 * (weight - (weight @ mean)[:, None] * mean / mean.square().sum()))


def pictures(batch: int = 3, size: int = SIZE) -> torch.Tensor:
    """Noise, from faint to strong."""
    noise = torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return noise * torch.linspace(0.2, 3, batch, dtype=torch.float64).view(-1, 1, 1, 1)


def taps_of(backbone: object) -> tuple[str, ...]:
    return tuple(backbone.taps)  # type: ignore[attr-defined]
