"""Networks on which laws mean something, and paths to state them over."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from torch import Tensor

from dsnet.data.dataset import Batch
from dsnet.models import Budget, Supernet, count, create_model, eager, list_models
from dsnet.nn import Gate, RouterSpec, ScoringHead, SliceBatchNorm2d, SliceNorm, ThresholdHead
from dsnet.routing.policy import Prices
from dsnet.routing.traces import Traces
from dsnet.slimming.network import slim
from dsnet.space import WidthPath
from dsnet.tasks.classification.accuracy import AccuracyScorer
from dsnet.training import recalibrate, with_fresh_router
from support.cnns import CNNS, SIZE

MODELS = list_models()
QUICK = {*(name for name in MODELS if name.endswith("tiny")), "ds_mobilenet_v1", "us_mobilenet_v1"}
CHOOSING = [name for name in MODELS if name.startswith(("ds_", "us_", "s_"))]


def quick(names: Sequence[str], *more: str) -> list[Any]:
    """Names for laws about numbers, which full-size networks repeat: all but a few of them, and `more`, are slow."""
    return [name if name in {*QUICK, *more} else pytest.param(name, marks=pytest.mark.slow) for name in names]


def randomised(name: str, *, seed: int = 0, dtype: torch.dtype = torch.float64, **options: object) -> Supernet:
    """A network in eval mode whose every parameter and buffer is random: of the registry, or a converted CNN.

    Fresh networks prove nothing: zero-initialised norms and identity gates switch residual branches off,
    and fresh statistics are equal at all widths.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in CNNS:
            net = slim(CNNS[name](), torch.zeros(1, 3, SIZE, SIZE), (0.3, 0.6, 1), name=name).to(dtype)
        else:
            net = create_model(name, num_classes=7, **options).to(dtype).eval()  # type: ignore[arg-type]
        randomise(net)
    return net


@torch.no_grad()
def randomise(net: Supernet) -> None:
    for module in net.modules():
        if isinstance(module, SliceNorm):
            module.weight.uniform_(0.5, 1.5)
            module.bias.normal_(0, 0.3)
        if isinstance(module, SliceBatchNorm2d):
            module.running_mean.normal_(0, 0.3)
            module.running_var.uniform_(0.5, 2.0)
            module.num_batches_tracked.random_(1, 100)
        if isinstance(module, Gate):
            module.expand.weight.normal_(0, 0.5)
            module.expand.bias.normal_(0, 0.5)
            if module.slimming is not None:
                module.slimming.score.weight.normal_(0, 0.5)
    net.head.classifier.bias.normal_()


def side(net: Supernet) -> int:
    """The smallest image side at which the last map still has more than one pixel."""
    return 2 * net.spec.stride


def images(net: Supernet, batch: int = 3, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    dtype = net.head.classifier.weight.dtype
    size = side(net)
    return torch.randn(batch, net.spec.in_channels, size, size, generator=generator, dtype=dtype)


def some_paths(net: Supernet, count: int = 3, seed: int = 0) -> list[WidthPath]:
    """Slimmest, widest and a few random paths."""
    rng = random.Random(seed)
    paths = [net.space.slimmest, net.space.widest, *(net.space.sample(rng) for _ in range(count))]
    return list(dict.fromkeys(paths))


def prices_of(net: Supernet, image_size: int | None = None) -> Prices:
    """What a router pays for each width."""
    return eager(net).prices(image_size or net.spec.image_size)


def assert_close(actual: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    """Difference relative to the spread of the expected values."""
    assert actual.shape == expected.shape
    assert torch.isfinite(expected).all()
    difference = (actual - expected).abs().max() / expected.std().clamp_min(1e-12)
    assert difference <= tolerance, f"differs by {difference:.3g} of the spread, more than {tolerance:g}"


def router_net(name: str, router: RouterSpec, *, routing: object = None, seed: int = 0) -> Supernet:
    """A random network with a random router whose scores tell the samples of `varied` apart."""
    net = randomised(name, routing=routing, seed=seed)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh = with_fresh_router(net, replace(net.spec, router=router))
        torch.manual_seed(seed + 1)
        x = varied(fresh, 16)
        entered = fresh.enter(x)
        if isinstance(fresh.probe, ScoringHead):
            raw = fresh.probe(fresh.run_paths(entered, fresh.candidates[:1])[0])
            spread = raw.std(0).clamp_min(1e-3)
            fresh.probe.score.weight /= spread[:, None]
            fresh.probe.score.bias.sub_(raw.mean(0)).div_(spread)
        if fresh.early is not None:
            spread_early(fresh, x)
        for point, head in enumerate(fresh.slimming_heads()):
            head.score.weight.normal_(0, 2)
            if point == 0 and entered.code is not None and head.reduce is None:
                mean = entered.code.mean(0)  # scores centred over the batch: no width wins for all
                head.score.weight -= (head.score.weight @ mean)[:, None] * mean / mean.square().sum()
    return fresh


def calibrated(name: str, router: RouterSpec, rows: int = 9) -> Supernet:
    """A random network with rows of budgets, a wide gap among them. Windows change as budgets rise."""
    net = router_net(name, router).float()
    if isinstance(net.probe, ThresholdHead):
        net.probe.width.fill_(2)
    size = side(net)
    low, high = (count(net, size).madds(net.candidates[end], dynamic=True) for end in (0, -1))
    places = [low + (high - low) * step / rows for step in range(rows + 1) if step not in (5, 6)]
    lams = np.random.default_rng(0).normal(0, 0.3, len(places))
    budgets = [Budget(madds, lam, 0.5, size) for madds, lam in zip(places, sorted(lams, reverse=True), strict=True)]
    if router.windows is not None:
        windows = [None, *net.manifest(size).routers[0].windows]
        budgets = [replace(row, window=windows[k // 2 % len(windows)]) for k, row in enumerate(budgets)]
    net.card = replace(net.card, budgets=tuple(budgets))
    return net


def routed_net(name: str, router: RouterSpec, *, routing: object = None) -> Supernet:
    """A random network that tells images apart, and a router that sends them different ways.

    Statistics are those of the images, or signals would fade from layer to layer.
    """
    net = randomised(name, routing=routing)
    x = varied(net, 16)
    for module in net.modules():
        if isinstance(module, Gate):
            torch.nn.init.constant_(module.reduce.bias, 0.3)  # type: ignore[arg-type]
    recalibrate(net, [x])
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        net = with_fresh_router(net, replace(net.spec, router=router)).eval()
        if isinstance(net.probe, ScoringHead):
            raw = net.probe(net(x, net.candidates[0]))
            net.probe.score.weight /= raw.std(0)[:, None]
            net.probe.score.bias.sub_(raw.mean(0)).div_(raw.std(0))
        if isinstance(net.probe, ThresholdHead):
            net.probe.width.fill_(2)
        if net.early is not None:
            spread_early(net, x)
        _, codes = net.run_coded(net.enter(x), net.routing.slimmest)
        for head, code in zip(net.slimming_heads(), codes, strict=True):
            if code is None:  # a bound gate does not decide
                continue
            mean = code.mean(0)
            head.score.weight.normal_()
            head.score.weight -= (head.score.weight @ mean)[:, None] * mean / mean.square().sum()
            head.score.weight /= (code @ head.score.weight.T).std(0)[:, None]
    return net.float()


def spread_early(net: Supernet, x: Tensor) -> None:
    """Give an early classifier's head scores that tell images apart, and an exit weights that matter."""
    early, entered = net.early, net.enter(x)
    assert early is not None
    early.classifier.reads.standardise(net.pooled_early(entered))
    logits = net.early_logits(entered)
    early.head.reduce.standardise(early.head.features(logits))
    early.head.score.weight.normal_(0, 2)
    raw = early.head(logits)
    early.head.score.weight /= raw.std(0)[:, None]
    early.head.score.bias.sub_(raw.mean(0)).div_(raw.std(0))
    early.head.score.weight *= torch.rand(raw.shape[1], 1, dtype=raw.dtype) + 0.5  # no two scores of rank one are equal
    if early.exit_weights is not None:
        early.exit_weights.uniform_(0.3, 1)
        early.width_weights.uniform_(0.3, 1)


def varied(net: Supernet, count: int, seed: int = 1) -> Tensor:
    """Images of different contrast and brightness: noise alone looks the same after pooling."""
    x = images(net, count, seed)
    generator = torch.Generator().manual_seed(seed)
    contrast, brightness = torch.rand(2, count, 1, 1, 1, generator=generator, dtype=x.dtype)
    return x * 3 * contrast + 6 * (brightness - 0.5)


EARLY = [
    RouterSpec("exit_first", "correctness", hidden=0, early=8),
    RouterSpec("gate", "try_best", hidden=6, early=0),
    RouterSpec("gate", "try_best", bound=True),
]
ROUTERS = [RouterSpec("gate"), RouterSpec("cheap_first", "correctness"), RouterSpec("cheap_first", "kl")]


def load_from(x: Tensor, labels: Tensor):
    return lambda ids: Batch(x[ids], labels[ids], ids)


def traces_on(net: Supernet, count: int = 40, seed: int = 1) -> Traces:
    x = varied(net, count, seed)
    labels = torch.randint(7, (count,), generator=torch.Generator().manual_seed(seed))
    load = load_from(x, labels)
    runner = eager(net)
    batches = (load(part) for part in torch.arange(count).split(16))
    scorer = AccuracyScorer(runner.manifest)
    return Traces(
        runner, batches, scorer, load=lambda parts: map(load, map(torch.from_numpy, parts)), image_size=side(net)
    )


def kinds_of(graph: onnx.GraphProto) -> list[str]:
    """The kinds of all nodes, those of branches included."""
    inner = [a.g for node in graph.node for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [node.op_type for node in graph.node] + [kind for each in inner for kind in kinds_of(each)]
