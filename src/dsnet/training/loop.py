"""The training loop: optimizer steps, the moving average, gradient sync, checkpoints and interruption.

A stage is a module that holds the net and returns named losses; the loop adds them up and calls backward once. The
stage's `draw` draws everything random in a step, from a generator that depends only on seed and step.
DistributedDataParallel wraps the stage, never the net: calling the net directly would skip gradient sync.
"""

from __future__ import annotations

import copy
import json
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dsnet.data.batches import Batches, seed_of
from dsnet.data.dataset import Batch
from dsnet.errors import TrainingError
from dsnet.files import write_whole
from dsnet.nn import Block
from dsnet.nn.norm import SliceNorm
from dsnet.training import distributed
from dsnet.training.average import EMA
from dsnet.training.display import Display
from dsnet.training.ieb import Stage
from dsnet.training.optim import OptimConfig, learning_rate, make_optimizer
from dsnet.training.state import load_state, random_state, save_state, set_random_state

N = TypeVar("N", bound=nn.Module)
MAX_SKIPS = 10
Validate = Callable[[N], dict[str, float]]


class Interrupted(Exception):
    """A signal stopped the training, after its state was saved."""

    def __init__(self, number: int, folder: Path) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name}, state saved; continue with --resume {folder}")
        self.number, self.exit_code = number, 128 + number


@dataclass
class Progress:
    """The position of a run. `batch` is the next batch of `epoch`; `sums` are losses over this epoch's batches so far.

    `skips` counts consecutive steps without a finite gradient, `skipped` lists damaged files, `stale` counts the epochs
    since the best score.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    skips: int = 0
    best: float = -1.0
    stale: int = 0
    skipped: list[str] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)


class Loop(Generic[N]):
    """Trains a stage. Rank 0 writes state/last.pt, state/best.pt and metrics.jsonl to `folder`.

    key: Name of the optimiser's config, for error messages. keep: Which moving average `run` returns.
    """

    def __init__(
        self,
        stage: Stage[N],
        batches: Batches,
        config: OptimConfig,
        *,
        folder: Path,
        seed: int,
        momentum: float,
        key: str = "optim",
        keep: Literal["best", "last"] = "best",
        save_steps: int | None = None,
        max_skipped: float | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.stage = stage.to(self.device)
        if config.channels_last:
            self.stage.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batches, self.config, self.folder, self.seed, self.keep = batches, config, folder, seed, keep
        self.save_steps, self.max_skipped, self.key = save_steps, max_skipped, key
        self.ema = EMA(stage.net, momentum)
        self.optimizer = make_optimizer(stage, config)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.amp == "fp16")
        self.progress = Progress()
        if config.compile is not None:
            compile_blocks(stage.net, config.compile)
        self.wrapped = distributed.wrap(stage)

    @property
    def net(self) -> N:
        return self.stage.net

    @property
    def total(self) -> int:
        """The number of optimiser steps of the whole training."""
        return self.config.total(len(self.batches))

    @property
    def ended(self) -> bool:
        """Whether all steps are done, or the score has not improved for too long. The last epoch must have ended."""
        progress, patience = self.progress, self.config.patience
        impatient = patience is not None and progress.stale >= patience
        return progress.batch == 0 and (progress.step >= self.total or impatient)

    def run(self, validate: Validate[N], display: Display, watch: Validate[N] = lambda net: {}) -> N:
        """Train to the end. Returns the last moving average, or the best one by the mean of `validate`'s values.

        watch: Further figures of the moving average, for the log.
        """
        with caught_signals() as caught:
            display.start(self.total, len(self.batches), self.progress.epoch, self.progress.step)
            if self.progress.step == 0:
                self.save()  # so that a run can be resumed even before its first checkpoint
            while not self.ended:
                self.stage.train()
                self.run_epoch(caught, display)
                self.end_epoch(validate, display, watch)
                self.check_signal(caught)
            if self.progress.step < self.total:
                display.stop(self.progress.epoch - self.progress.stale, self.progress.best)
        net = copy.deepcopy(self.ema.net)
        if distributed.rank() == 0:
            net.load_state_dict(load_state(self.folder / "state" / "best.pt")["net"])
        distributed.share(net)
        return net

    def run_epoch(self, caught: list[int], display: Display) -> None:
        progress = self.progress
        start = time.perf_counter()
        left = self.total - progress.step  # the last epoch may end early where the config counts steps
        for batch in islice(self.batches.epoch(progress.epoch, progress.batch), left):
            self.step(batch)
            progress.batch += 1
            now = time.perf_counter()
            progress.seconds, start = progress.seconds + now - start, now
            means = {name: total / progress.batch for name, total in progress.sums.items()}
            display.step(progress.batch, means, progress.batch * self.batches.batch_size / progress.seconds)
            self.check_signal(caught)
            if self.save_steps is not None and progress.step % self.save_steps == 0:
                self.save()

    def step(self, batch: Batch) -> dict[str, float]:
        """Take one optimizer step on one batch. Returns its losses."""
        progress, config = self.progress, self.config
        if self.max_skipped is not None:
            self.note_skipped(distributed.gathered(batch.skipped))
        if not len(batch.images):
            raise TrainingError(f"all images of a batch are damaged, at step {progress.step}; see data.on_corrupt")
        rate = learning_rate(config, progress.step, len(self.batches))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        done = progress.step / self.total
        self.optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        parts = list(zip(batch.images.chunk(config.accumulate), batch.labels.chunk(config.accumulate), strict=True))
        for number, (images, labels) in enumerate(parts):
            last = number == len(parts) - 1
            rng = random.Random(seed_of(self.seed, progress.step, 1))  # the same on every rank
            drawn = self.stage.draw(rng, done, part=number * distributed.world() + distributed.rank())
            wait = isinstance(self.wrapped, DistributedDataParallel) and not last
            with self.wrapped.no_sync() if wait else nullcontext():  # type: ignore[operator]
                images = images.to(self.device, non_blocking=True)
                if config.channels_last and images.dim() == 4:
                    images = images.contiguous(memory_format=torch.channels_last)
                with self.autocast():
                    losses = self.wrapped(images, labels.to(self.device, non_blocking=True), drawn, self.ema.net)
                share = len(images) / len(batch.images)
                self.scaler.scale(torch.stack(list(losses.values())).sum() * share).backward()
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0) + loss.detach() * share
        values = self.shared_losses(sums)
        if self.finite_gradients():
            self.scaler.step(self.optimizer)
            self.ema.update(progress.step)
        self.scaler.update()
        progress.step += 1
        for name, value in values.items():
            progress.sums[name] = progress.sums.get(name, 0.0) + value
        return values

    def autocast(self) -> Any:
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast(self.device.type, kinds.get(self.config.amp), enabled=self.config.amp != "none")

    def shared_losses(self, sums: dict[str, Tensor]) -> dict[str, float]:
        """The mean of each loss over all processes. A loss that is not finite in one of them stops them all."""
        local = torch.stack([loss.double() for loss in sums.values()])
        bad = (~local.isfinite()).double()
        summed = distributed.total(torch.cat([torch.nan_to_num(local), bad]))
        means, bad = summed.chunk(2)
        for name, count in zip(sums, bad.tolist(), strict=True):
            if count:
                raise TrainingError(
                    f"loss {name!r} is not finite at step {self.progress.step} (epoch {self.progress.epoch}); "
                    f"weights and moving average are untouched. "
                    f"Lower {self.key}.lr, add {self.key}.warmup_epochs, or check the data"
                )
        return dict(zip(sums, (means / distributed.world()).tolist(), strict=True))

    def finite_gradients(self) -> bool:
        """Unscale, check and clip the gradients. False means that the step must be skipped.

        Only fp16 scaling may skip steps, at most MAX_SKIPS in a row; otherwise such gradients are an error.
        """
        self.scaler.unscale_(self.optimizer)
        gradients = [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if bool(norm.isfinite()):
            if self.config.clip_norm is not None:
                params = [p for group in self.optimizer.param_groups for p in group["params"]]
                torch.nn.utils.clip_grads_with_norm_(params, self.config.clip_norm, norm)
            self.progress.skips = 0
            return True
        self.progress.skips += 1
        if not self.scaler.is_enabled() or self.progress.skips >= MAX_SKIPS:
            skips = f" for {self.progress.skips} steps in a row" if self.scaler.is_enabled() else ""
            raise TrainingError(
                f"the gradient is not finite at step {self.progress.step}{skips} (epoch {self.progress.epoch}); "
                f"weights and moving average are untouched. "
                f"Lower {self.key}.lr, set {self.key}.clip_norm, or use {self.key}.amp bf16"
            )
        return False

    def note_skipped(self, files: Sequence[str]) -> None:
        """Remember damaged files that were skipped. More than `max_skipped` are an error."""
        new = [file for file in dict.fromkeys(files) if file not in self.progress.skipped]
        self.progress.skipped += new
        limit = (self.max_skipped or 0.0) * len(self.batches.split)
        if new and len(self.progress.skipped) > limit:
            raise TrainingError(
                f"{len(self.progress.skipped)} of {len(self.batches.split)} training images are damaged, more than "
                f"data.max_skipped allows ({self.max_skipped or 0:.2%}); the first is {self.progress.skipped[0]}"
            )

    def end_epoch(self, validate: Validate[N], display: Display, watch: Validate[N]) -> None:
        progress = self.progress
        self.share_statistics()
        scores = validate(self.ema.net)
        images = progress.batch * self.batches.batch_size
        line = {
            "epoch": progress.epoch + 1,
            "step": progress.step,
            "lr": self.optimizer.param_groups[0]["lr"],
            **{f"loss/{name}": total / max(1, progress.batch) for name, total in progress.sums.items()},
            **{f"calibration/{name}": value for name, value in scores.items()},
            **watch(self.ema.net),
            "images_per_second": images / progress.seconds if progress.seconds else 0.0,
        }
        progress.history.append(line)
        score = sum(scores.values()) / max(1, len(scores))
        better = score >= progress.best or self.keep == "last"
        progress.stale = 0 if score > progress.best else progress.stale + 1
        progress.best = max(progress.best, score)
        progress.epoch, progress.batch, progress.sums, progress.seconds = progress.epoch + 1, 0, {}, 0.0
        if distributed.rank() == 0 and better:
            save_state(self.folder / "state" / "best.pt", {"net": self.ema.net.state_dict(), "epoch": progress.epoch})
        self.save()
        display.epoch(line)

    def share_statistics(self) -> None:
        """Average the running statistics over all ranks. Those of a frozen net are equal and would only be rounded."""
        if self.stage.updates_statistics:
            distributed.average_statistics(self.net)
            distributed.average_statistics(self.ema.net)

    def save(self) -> None:
        """Save everything that a resumed run needs, after averaging the statistics over all ranks."""
        self.share_statistics()
        if distributed.rank() != 0:
            return
        state = {
            "progress": asdict(self.progress),
            "net": self.net.state_dict(),
            "ema": self.ema.net.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scaler": self.scaler.state_dict(),
            "random": random_state(),
        }
        save_state(self.folder / "state" / "last.pt", state)
        lines = "".join(json.dumps(line) + "\n" for line in self.progress.history)
        write_whole(self.folder / "metrics.jsonl", lines.encode())
        if self.progress.skipped:
            write_whole(self.folder / "skipped.txt", "".join(f"{name}\n" for name in self.progress.skipped).encode())

    def resume(self) -> None:
        """Restore the state in state/last.pt. Every process reads it."""
        state = load_state(self.folder / "state" / "last.pt")
        self.net.load_state_dict(state["net"])
        self.ema.net.load_state_dict(state["ema"])
        self.optimizer.load_state_dict(state["optimizer"])
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        set_random_state(state["random"])
        self.progress = Progress(**state["progress"])

    def check_signal(self, caught: list[int]) -> None:
        """Save and stop if any process caught a signal."""
        number = max([0, *caught])
        if distributed.world() > 1:
            flag = torch.tensor([float(number)], dtype=torch.float64)  # gloo sends CPU tensors
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            number = int(flag.item())
        if number:
            self.save()
            raise Interrupted(number, self.folder)


def compile_blocks(net: nn.Module, backend: str) -> None:
    """Compile every block separately. Each width needs its own graph, so the limits on recompilation are raised."""
    import torch._dynamo

    backends = torch._dynamo.list_backends(exclude_tags=())
    if backend not in backends:
        raise ValueError(f"optim.compile {backend!r} is unknown; choose from {', '.join(backends)}")
    widths = max((len(norm.channels) for norm in net.modules() if isinstance(norm, SliceNorm)), default=1)
    limit = 4 * widths * widths
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, limit)
    torch._dynamo.config.accumulated_recompile_limit = max(
        torch._dynamo.config.accumulated_recompile_limit, limit * sum(isinstance(m, Block) for m in net.modules())
    )
    for module in net.modules():
        if isinstance(module, Block):
            module.compile(backend=backend, dynamic=False)


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Collect SIGTERM and SIGINT instead of ending. A second signal of the same kind ends the process as usual."""
    caught: list[int] = []
    before: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        caught.append(number)
        signal.signal(number, before[number])

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, note)
    except ValueError:  # only the main thread may handle signals
        before.clear()
    try:
        yield caught
    finally:
        for caught_number, handler in before.items():
            signal.signal(caught_number, handler)
