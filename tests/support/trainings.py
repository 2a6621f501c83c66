"""Small trainings of both stages on a device, as the loop runs them on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsnet.data.batches import Batches, TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Split
from dsnet.data.labelled import Loader
from dsnet.data.sources import Arrays
from dsnet.models import create_model
from dsnet.training import IEB, SGS, IEBConfig, Loop, OptimConfig, SGSConfig, with_fresh_router
from dsnet.training.cache import fresh_reads, make_cache
from dsnet.training.ieb import Stage
from dsnet.training.loop import READS
from dsnet.training.measured import measured, standardise_gates
from support.networks import randomised

TINY = "ds_mobilenet_v1_tiny"
CONFIG = OptimConfig(epochs=2, batch_size=6, warmup_epochs=0, lr=0.01)
Make = Callable[[torch.device], tuple[Stage[Any], Batches]]


def noise(device: torch.device) -> TrainBatches:
    """Two batches of pixels."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=generator)
    loader = Loader(Arrays(pixels, torch.arange(12) % 7), DataConfig(), 16, (0.5,) * 3, (0.25,) * 3)
    return TrainBatches(Split(loader, torch.arange(12)), 6, seed=0, device=device)


def loop_of(make: Make, folder: Path, device: torch.device, config: OptimConfig, *, reads: int = READS) -> Loop[Any]:
    """A loop as on a GPU."""
    stage, batches = make(device)
    loop: Loop[Any] = Loop(stage, batches, config, folder=folder, seed=0, momentum=0.9, device=device, reads=reads)
    loop.stage.train()
    return loop


def first_stage(device: torch.device, *, name: str = TINY, **more: Any) -> tuple[IEB, TrainBatches]:
    torch.manual_seed(0)
    weights = torch.linspace(0.5, 1.5, 7) if more else None
    guide = randomised(TINY, dtype=torch.float32) if more else None
    net = create_model(name, num_classes=7)
    return IEB(net, IEBConfig(**more), class_weights=weights, guide=guide), noise(device)


def second_stage(
    device: torch.device, config: SGSConfig, *, cached: bool, name: str | None = None
) -> tuple[SGS, Batches]:
    net = randomised(name or (TINY if cached else "ds_resnet_tiny"), dtype=torch.float32).to(device)
    torch.manual_seed(0)
    net = with_fresh_router(net, replace(net.spec, router=config.spec))
    batches: Any = noise(device)
    if cached:
        batches = make_cache(net, batches, 2, display=False)
        return SGS(net, config, measured(net, config, batches.reads(net))), batches
    some = list(batches.epoch(0))
    known = measured(net, config, fresh_reads(net, some))
    if not config.spec.single:
        standardise_gates(net, some)
    return SGS(net, config, known), batches
