"""A GPU computes, trains and routes as the CPU does, but for rounding. Skipped where there is none.

What does not need one, such as where tensors are and how often the host waits, is in test_pretend_device.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import dsnet
from dsnet.models import create_model
from dsnet.models.cached import DynamicRunner
from dsnet.nn import RouterSpec
from dsnet.training import SGSConfig
from support.networks import EARLY, ROUTERS, router_net, varied
from support.trainings import CONFIG, TINY, Make, first_stage, loop_of, second_stage

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    """Convolutions in single precision; their inputs would be rounded to 10 bits."""
    before, torch.backends.cudnn.allow_tf32 = torch.backends.cudnn.allow_tf32, False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("name", [TINY, "ds_resnet_tiny"])
def test_a_network_answers_as_on_the_cpu(name: str) -> None:
    net = create_model(name).double().eval()
    x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    on_cpu = net(x, net.space.widest)
    on_gpu = net.to(GPU)(x.to(GPU), net.space.widest)
    assert torch.allclose(on_cpu, on_gpu.cpu(), atol=1e-9)


@pytest.mark.parametrize("router", [*ROUTERS[:2], EARLY[0]], ids=lambda router: router.kind)
def test_a_batch_is_routed_as_on_the_cpu(router: RouterSpec) -> None:
    net = router_net(TINY, router).float()
    x = varied(net, 24).float()
    expected = DynamicRunner(net).run(x)
    found = DynamicRunner(copy.deepcopy(net).to(GPU)).run(x.to(GPU))
    assert found.logits.device.type == GPU.type
    same = (found.paths.cpu() == expected.paths).all(1)
    assert same.float().mean() > 0.9  # rounding may tip a decision
    assert torch.allclose(found.logits.cpu()[same], expected.logits[same], atol=1e-3)


STAGES = {
    "stage I": first_stage,
    "gates": partial(second_stage, config=SGSConfig("gate", bound=False), cached=False),
    "cached": partial(second_stage, config=SGSConfig("cheap_first"), cached=True),
}


@pytest.mark.parametrize("make", STAGES.values(), ids=STAGES)
def test_losses_are_those_of_the_cpu(tmp_path: Path, make: Make) -> None:
    """Noise of the device's own generator differs, so the losses that it enters are left out."""
    losses = []
    for device in (CPU, GPU):
        loop = loop_of(make, tmp_path, device, CONFIG)
        for batch in loop.batches.epoch(0):
            found = loop.step(batch)
        loop.read()
        losses.append({name: float(loss) for name, loss in found.items()})
    drawn = {"classification", "complexity"}
    shared = [{name: loss for name, loss in one.items() if name not in drawn} for one in losses]
    assert shared[1] == pytest.approx(shared[0], rel=1e-2)


@pytest.mark.parametrize("amp", ["none", "bf16", "fp16"])
def test_a_whole_run_trains_and_is_evaluated(tmp_path: Path, amp: str) -> None:
    generator = np.random.default_rng(0)
    pixels = [(generator.integers(0, 256, (16, 16), np.uint8), number % 3) for number in range(60)]
    optim = {"steps": 4, "epochs": None, "batch_size": 16, "warmup_epochs": 0, "amp": amp, "channels_last": True}
    keys = {"sgs": {"router": "cheap_first"}, "optim": optim, "sgs_optim": optim}
    run = dsnet.train(dsnet.Datasets(pixels), TINY, tmp_path / "run", threads=1, device=str(GPU), **keys)
    assert run.evaluation is not None
    assert run.evaluation.dynamic is not None
    assert next(dsnet.load(run.folder).parameters()).device == CPU
