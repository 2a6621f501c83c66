"""SGD and its learning-rate schedules. A schedule is a function of the step, so it has no state to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dsnet.errors import must
from dsnet.nn import Gate, ProbeHead
from dsnet.schema import Typed


@dataclass(frozen=True)
class OptimConfig(Typed):
    """How weights are updated.

    Args:
        epochs: Passes over the training images.
        batch_size: Images per step, over all processes.
        lr: Learning rate of SGD after warm-up.
        momentum: Momentum of SGD.
        nesterov: Use Nesterov momentum, which looks one step ahead.
        weight_decay: Weight decay of all weights except those of gates.
        schedule: How the learning rate falls: cosine down to final * lr, exponential by gamma in every epoch, or steps
            by gamma at every milestone.
        warmup_epochs: Number of epochs over which the learning rate rises from zero.
        final: Last learning rate of the cosine schedule, as a share of lr.
        gamma: Factor of the learning rate, per epoch for the exponential schedule, per milestone for steps.
        milestones: Epochs after which the steps schedule multiplies the learning rate by gamma.
        accumulate: Number of backward passes that one batch is split into. More need less memory.
        clip_norm: Largest norm of the gradient. Larger gradients are scaled down. null switches clipping off.
        amp: Mixed precision of the networks. Losses stay in single precision.
        channels_last: Use the channels-last memory format. It is faster on GPUs, and on CPUs for depthwise
            convolutions.
        compile: Backend of torch.compile, such as inductor. By default nothing is compiled.
    """

    epochs: int = 25
    batch_size: int = 64
    lr: float = 0.03
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 1e-4
    schedule: Literal["cosine", "exponential", "steps"] = "cosine"
    warmup_epochs: float = 2.0
    final: float = 0.01
    gamma: float = 0.9
    milestones: tuple[int, ...] = ()
    accumulate: int = 1
    clip_norm: float | None = None
    amp: Literal["none", "bf16", "fp16"] = "none"
    channels_last: bool = False
    compile: str | None = None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "accumulate"):
            must(f"optim.{name}", getattr(self, name), getattr(self, name) >= 1, "be at least 1")
        if self.batch_size % self.accumulate:
            raise ValueError(
                f"optim.batch_size {self.batch_size} is not a multiple of optim.accumulate {self.accumulate}"
            )
        clip = self.clip_norm
        must("optim.lr", self.lr, self.lr > 0, "be positive")
        must("optim.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")
        must("optim.weight_decay", self.weight_decay, self.weight_decay >= 0, "be at least 0")
        must("optim.warmup_epochs", self.warmup_epochs, self.warmup_epochs >= 0, "be at least 0")
        must("optim.clip_norm", clip, clip is None or clip > 0, "be positive, or null")
        must("optim.gamma", self.gamma, 0 < self.gamma <= 1, "lie in (0, 1]")
        must("optim.final", self.final, 0 <= self.final <= 1, "lie in [0, 1]")
        if self.schedule not in ("cosine", "exponential", "steps"):
            raise ValueError(f"optim.schedule {self.schedule!r} is unknown; choose cosine, exponential or steps")
        if (self.schedule == "steps") != bool(self.milestones) or list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"optim.milestones {self.milestones} must rise, and belong to optim.schedule steps")
        if self.amp not in ("none", "bf16", "fp16"):
            raise ValueError(f"optim.amp {self.amp!r} is unknown; choose none, bf16 or fp16")
        if self.nesterov and self.momentum == 0:
            raise ValueError("optim.nesterov needs a momentum; set optim.nesterov to false")


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0."""
    warmup = round(config.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "exponential":
        return config.lr * config.gamma ** ((step - warmup) // steps_per_epoch)
    if config.schedule == "steps":
        return config.lr * config.gamma ** sum(step >= epoch * steps_per_epoch for epoch in config.milestones)
    progress = (step - warmup) / max(1, config.epochs * steps_per_epoch - warmup)
    return config.lr * (config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(module: nn.Module, config: OptimConfig) -> torch.optim.SGD:
    """SGD over all parameters that require gradients, without weight decay in gates and routers."""
    in_gates = {id(p) for gate in module.modules() if isinstance(gate, Gate | ProbeHead) for p in gate.parameters()}
    trained = [p for p in module.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if id(p) not in in_gates], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if id(p) in in_gates], "weight_decay": 0.0},
    ]
    nonempty = [group for group in groups if group["params"]]
    return torch.optim.SGD(nonempty, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
