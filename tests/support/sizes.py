"""Networks with several image sizes, and images for them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from dsnet import export_bundle, export_onnx, open_runner
from dsnet.models import Supernet
from dsnet.routers import RouterSpec
from dsnet.runtime.runner import Runner
from dsnet.slimming.network import slim
from dsnet.space import WidthPath
from dsnet.tasks.classification.looks import fitted, read_of, set_head
from dsnet.training import recalibrate, with_fresh_router
from support.cnns import CNNS
from support.networks import randomise, randomised, some_paths

SIZES = (16, 20, 32)


def sized(name: str, dtype: torch.dtype = torch.float64) -> Supernet:
    return randomised(name, sizes=SIZES, dtype=dtype)


def pictures(count: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    """Smooth images of different contrast: their small copies look like them."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(count, 3, 8, 8, generator=generator, dtype=dtype)
    contrast = 4 * torch.rand(count, 1, 1, 1, generator=generator, dtype=dtype)
    return F.interpolate(coarse, SIZES[-1], mode="bilinear") * contrast


def settings(net: Supernet) -> list[WidthPath]:
    """The ends, some random settings, and the slimmest at every size."""
    each = [(size, *net.space.slimmest[1:]) for size in range(len(SIZES))]
    return list(dict.fromkeys([*some_paths(net, 2), *each]))


def routed(name: str, candidates: tuple[WidthPath, ...]) -> Supernet:
    """A random network with a router whose scores tell images apart."""
    net, x = sized(name), pictures(24)
    recalibrate(net, [x])
    spec = replace(net.spec, router=RouterSpec("cheap_first", "correctness", hidden=0, candidates=candidates))
    net = with_fresh_router(net, spec).eval()
    rng = np.random.default_rng(0)
    with torch.no_grad():
        read = read_of(net(x, candidates[0]).log_softmax(1))
        right = rng.random((len(x), len(candidates))) < np.linspace(0.3, 0.9, len(candidates))
        set_head(net.probe, fitted(read, right))
        net.probe.score.weight.copy_(torch.linspace(2, -2, len(candidates))[:, None])
        net.probe.score.bias.zero_()
        raw = net.probe.reduce(net.probe.features(net(x, candidates[0])), 0, 0)
        net.probe.reduce.bias -= raw.mean()
        net.probe.reduce.weight /= raw.std()
        net.probe.reduce.bias /= raw.std()
    return net.float()


def everywhere(net: Supernet, folder: Path, **options: Any) -> list[Runner]:
    file = export_onnx(net, folder / "model.onnx", **options)
    bundle = export_bundle(net, folder / "bundle", **options)
    return [open_runner(file, threads=1), open_runner(bundle, threads=1)]


def routed_by(net: Supernet, router: RouterSpec) -> Supernet:
    """A network with a fresh router, which is the same at every call."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return with_fresh_router(net, replace(net.spec, router=router)).eval()


CONVERTED = "grouped"  # of `support.cnns`, with all channels


def exiting(name: str, candidates: tuple[WidthPath, ...]) -> Supernet:
    """A random network whose router looks at an exit first, and whose scores tell images apart."""
    x = pictures(24)
    if name == CONVERTED:
        net = slim(CNNS[name](), torch.zeros(1, 3, SIZES[-1], SIZES[-1]), (1.0,), name=name, sizes=SIZES).double()
        randomise(net.eval())
    else:
        net = sized(name)
    recalibrate(net, [x])
    router = RouterSpec("exit_first", "correctness", hidden=0, early=8, candidates=candidates)
    net = routed_by(net, router)
    early = net.early
    assert early is not None
    with torch.no_grad():
        early.classifier.reads.standardise(net.pooled_early(net.enter(x, net.looked)))
        logits = net(x, candidates[0])
        set_head(early.head, fitted(read_of(logits.log_softmax(1)), np.ones((len(x), len(candidates)), bool)))
        early.head.reduce.weight[0, logits.shape[1]] = 1.0  # the largest probability
        early.head.score.weight.copy_(torch.linspace(2, -2, len(candidates))[:, None])
        early.head.score.bias.fill_(0.4)  # what lies between the ends is chosen, too
        early.head.score.bias[[0, -1]] = 0.0
        raw = early.head.reduce(early.head.features(logits), 0, 0)
        early.head.reduce.bias -= raw.mean()
        early.head.reduce.weight /= raw.std()
        early.head.reduce.bias /= raw.std()
    return net.float()
