"""Optimisers and their learning-rate schedules. A schedule is a function of the step, so it has no state to save."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from dsnet.errors import must
from dsnet.nn import Gate, ScoringHead
from dsnet.nn.norm import SliceNorm
from dsnet.schema import Typed

# Of batch_size auto: smallest and largest batch, and the number of batches that an epoch should at least have.
AUTO_BATCH, AUTO_BATCHES = (16, 128), 20


@dataclass(frozen=True)
class OptimConfig(Typed):
    """How weights are updated.

    Args:
        name: Optimiser. Where adamw or sgd is asked for without lr or weight_decay, these are its usual ones: 0.001
            and 0.01 for adamw, 0.03 and 0.0001 for sgd.
        epochs: Passes over the training images.
        steps: Number of optimiser steps, instead of epochs. Small data needs as many steps as large data.
        batch_size: Images per step, over all processes. auto is 16 to 128, by the number of images.
        lr: Learning rate after warm-up.
        momentum: Momentum of SGD.
        nesterov: Use Nesterov momentum in SGD, which looks one step ahead.
        betas: Decay of the averages of the gradient and of its square, for AdamW.
        weight_decay: Weight decay, of what `decay` names.
        decay: Which weights decay: all but those of gates, or dense: weights of dense convolutions and linear layers
            only, as in the slimmable networks that the paper follows.
        schedule: How the learning rate falls: cosine down to final * lr, exponential by gamma in every epoch, or steps
            by gamma at every milestone.
        warmup_epochs: Number of epochs over which the learning rate rises from zero.
        warmup_steps: Number of steps over which the learning rate rises from zero, instead of warmup_epochs.
        final: Last learning rate of the cosine schedule, as a share of lr.
        gamma: Factor of the learning rate, per epoch for the exponential schedule, per milestone for steps.
        milestones: Epochs after which the steps schedule multiplies the learning rate by gamma.
        patience: Stop early, when the score on the calibration images has not improved for this many epochs. By
            default training goes on to its end.
        accumulate: Number of backward passes that one batch is split into. More need less memory.
        clip_norm: Largest norm of the gradient. Larger gradients are scaled down. null switches clipping off.
        amp: Mixed precision of the networks. Losses stay in single precision.
        channels_last: Use the channels-last memory format. It is faster on GPUs, except for networks with group norm,
            and on CPUs for depthwise convolutions.
        compile: Backend of torch.compile, such as inductor. By default nothing is compiled.
    """

    name: Literal["sgd", "adamw"] = "sgd"
    epochs: int | None = 25
    steps: int | None = None
    batch_size: int | Literal["auto"] = 64
    lr: float = 0.03
    momentum: float = 0.9
    nesterov: bool = True
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 1e-4
    decay: Literal["all", "dense"] = "all"
    schedule: Literal["cosine", "exponential", "steps"] = "cosine"
    warmup_epochs: float | None = 2.0
    warmup_steps: int | None = None
    final: float = 0.01
    gamma: float = 0.9
    milestones: tuple[int, ...] = ()
    patience: int | None = None
    accumulate: int = 1
    clip_norm: float | None = None
    amp: Literal["none", "bf16", "fp16"] = "none"
    channels_last: bool = False
    compile: str | None = None

    def __post_init__(self) -> None:
        if self.name not in ("sgd", "adamw"):
            raise ValueError(f"optim.name {self.name!r} is unknown; choose sgd or adamw")
        if (self.epochs is None) == (self.steps is None):
            raise ValueError(f"optim.epochs is {self.epochs} and optim.steps is {self.steps}; give one of them")
        if None not in (self.warmup_epochs, self.warmup_steps):
            raise ValueError(
                f"optim.warmup_epochs is {self.warmup_epochs} and optim.warmup_steps is {self.warmup_steps}; give one"
            )
        for name in ("epochs", "steps", "batch_size", "patience", "accumulate"):
            value = getattr(self, name)
            must(f"optim.{name}", value, value in (None, "auto") or value >= 1, "be at least 1")
        must("optim.betas", self.betas, all(0 <= beta < 1 for beta in self.betas), "lie in [0, 1)")
        if self.batch_size != "auto" and self.batch_size % self.accumulate:
            raise ValueError(
                f"optim.batch_size {self.batch_size} is not a multiple of optim.accumulate {self.accumulate}"
            )
        clip = self.clip_norm
        must("optim.lr", self.lr, self.lr > 0, "be positive")
        must("optim.momentum", self.momentum, 0 <= self.momentum < 1, "lie in [0, 1)")
        must("optim.weight_decay", self.weight_decay, self.weight_decay >= 0, "be at least 0")
        for name in ("warmup_epochs", "warmup_steps"):
            must(f"optim.{name}", getattr(self, name), (getattr(self, name) or 0) >= 0, "be at least 0")
        must("optim.clip_norm", clip, clip is None or clip > 0, "be positive, or null")
        must("optim.gamma", self.gamma, 0 < self.gamma <= 1, "lie in (0, 1]")
        must("optim.final", self.final, 0 <= self.final <= 1, "lie in [0, 1]")
        if self.schedule not in ("cosine", "exponential", "steps"):
            raise ValueError(f"optim.schedule {self.schedule!r} is unknown; choose cosine, exponential or steps")
        if (self.schedule == "steps") != bool(self.milestones) or list(self.milestones) != sorted(self.milestones):
            raise ValueError(f"optim.milestones {self.milestones} must rise, and belong to optim.schedule steps")
        if self.decay not in ("all", "dense"):
            raise ValueError(f"optim.decay {self.decay!r} is unknown; choose all or dense")
        if self.amp not in ("none", "bf16", "fp16"):
            raise ValueError(f"optim.amp {self.amp!r} is unknown; choose none, bf16 or fp16")
        if self.name == "sgd" and self.nesterov and self.momentum == 0:
            raise ValueError("optim.nesterov needs a momentum; set optim.nesterov to false")

    def batch(self, images: int, *, processes: int = 1) -> int:
        """The batch size for this number of training images. That of auto can be shared by the processes."""
        if self.batch_size != "auto":
            return self.batch_size
        low, high = AUTO_BATCH
        wanted = min(high, max(low, 2 ** int(math.log2(max(1, images // AUTO_BATCHES)))), images)
        unit = processes * self.accumulate
        return max(unit, wanted - wanted % unit)

    @property
    def length(self) -> dict[str, int]:
        """How long to train, as the config says it: in epochs or in steps."""
        length = {"epochs": self.epochs, "steps": self.steps}
        return {name: value for name, value in length.items() if value is not None}

    def total(self, steps_per_epoch: int) -> int:
        """The number of optimiser steps of the whole training."""
        if self.steps is not None:
            return self.steps
        assert self.epochs is not None
        return self.epochs * steps_per_epoch

    def warmup(self, steps_per_epoch: int) -> int:
        """The number of steps over which the learning rate rises."""
        return self.warmup_steps or round((self.warmup_epochs or 0) * steps_per_epoch)


def learning_rate(config: OptimConfig, step: int, steps_per_epoch: int) -> float:
    """The learning rate of optimizer step `step`, counted from 0."""
    warmup = config.warmup(steps_per_epoch)
    if step < warmup:
        return config.lr * (step + 1) / warmup
    if config.schedule == "exponential":
        return config.lr * config.gamma ** ((step - warmup) // steps_per_epoch)
    if config.schedule == "steps":
        return config.lr * config.gamma ** sum(step >= epoch * steps_per_epoch for epoch in config.milestones)
    progress = (step - warmup) / max(1, config.total(steps_per_epoch) - warmup)
    return config.lr * (config.final + (1 - config.final) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_optimizer(module: nn.Module, config: OptimConfig, *, fused: bool = False) -> torch.optim.Optimizer:
    """The optimiser of all parameters that require gradients, without weight decay in gates and routers.

    fused: Whether one kernel updates all weights, and leaves them alone where `found_inf` is set on the device.
    """
    spared = {id(p) for gate in module.modules() if isinstance(gate, Gate | ScoringHead) for p in gate.parameters()}
    trained = [p for p in module.parameters() if p.requires_grad]
    if config.decay == "dense":
        spared |= {id(p) for p in trained if not dense(p)}
        spared |= {id(p) for norm in module.modules() if isinstance(norm, SliceNorm) for p in norm.parameters()}
    groups = [
        {"params": [p for p in trained if id(p) not in spared], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if id(p) in spared], "weight_decay": 0.0},
    ]
    nonempty = [group for group in groups if group["params"]]
    if config.name == "adamw":
        return torch.optim.AdamW(nonempty, lr=config.lr, betas=config.betas, fused=fused or None)
    optimizer = torch.optim.SGD(
        nonempty, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov, fused=fused or None
    )
    if fused and config.momentum:  # or a first step that is skipped would leave whatever lay in the memory
        for parameter in trained:
            optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    return optimizer


def dense(weight: nn.Parameter) -> bool:
    """Whether a parameter is the weight of a linear layer or of a convolution that mixes channels."""
    return weight.dim() == 2 or (weight.dim() == 4 and weight.shape[1] > 1)
