"""The training loop: optimizer steps, the moving average, gradient sync, checkpoints and interruption.

A stage is a module that holds the net and returns named losses; the loop adds them up and calls backward once. The
stage's `draw` draws everything random in a step, from a generator that depends only on seed and step.
DistributedDataParallel wraps the stage, never the net: calling the net directly would skip gradient sync.
"""

from __future__ import annotations

import copy
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from dsnet.data.batches import Batches, seed_of
from dsnet.data.dataset import Batch
from dsnet.errors import TrainingError
from dsnet.files import write_whole
from dsnet.models.devices import tuned
from dsnet.nn.norm import counted_at_once
from dsnet.training import distributed
from dsnet.training.average import EMA
from dsnet.training.compilation import compile_blocks
from dsnet.training.display import Display
from dsnet.training.ieb import Stage
from dsnet.training.interruption import Interrupted, caught_signals
from dsnet.training.ledger import NEVER, Entry, Ledger
from dsnet.training.optim import OptimConfig, learning_rate, make_optimizer
from dsnet.training.state import Progress, load_state, random_state, save_state, set_random_state

N = TypeVar("N", bound=nn.Module)
MAX_SKIPS = 10
READS = 50  # steps on a GPU
TOO_MUCH = "can't allocate memory|out of memory"  # what the CPU and Apple's GPUs say
Validate = Callable[[N], dict[str, float]]


class Loop(Generic[N]):
    """Trains a stage. Rank 0 writes state/last.pt, state/best.pt and metrics.jsonl to `folder`.

    key: Name of the optimiser's config, for error messages. keep: Which moving average `run` returns.
    reads: Steps from one time that the host reads losses, and whether they are finite, to the next. By default 1 on a
    CPU, and READS on a GPU, where every read waits for the device. With more than one, the optimiser decides on the
    device that a bad step changes nothing.
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
        reads: int | None = None,
    ) -> None:
        self.device = device or torch.device("cpu")
        self.stage = stage.to(self.device)
        if config.channels_last:
            self.stage.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.batches, self.config, self.folder, self.seed, self.keep = batches, config, folder, seed, keep
        self.save_steps, self.max_skipped, self.key = save_steps, max_skipped, key
        self.reads = reads or (READS if self.device.type == "cuda" else 1)
        self.ema = EMA(stage.net, momentum, statistics=stage.updates_statistics)
        self.optimizer = make_optimizer(stage, config, fused=self.reads > 1)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.amp == "fp16")
        self.progress, self.ledger = Progress(), Ledger(self.device)
        self.caught: list[int] = []  # signals
        self.damaged: list[str] = []  # files that were skipped since the last read
        self.entry, self.unread = Entry({}, None, NEVER, 0, 0), False
        if config.compile is not None:
            teachers = (getattr(stage, name, None) for name in ("guide", "original"))
            for net in (stage.net, self.ema.net, *teachers):
                if net is not None:
                    compile_blocks(net, config.compile)
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
        with caught_signals() as self.caught:
            display.start(self.total, len(self.batches), self.progress.epoch, self.progress.step)
            if self.progress.step == 0:
                self.save()  # so that a run can be resumed even before its first checkpoint
            while not self.ended:
                self.stage.train()
                self.run_epoch(display)
                self.end_epoch(validate, display, watch)
                self.stop_if(self.signalled())
            if self.progress.step < self.total:
                display.stop(self.progress.epoch - self.progress.stale, self.progress.best)
        net = copy.deepcopy(self.ema.net)
        if distributed.rank() == 0:
            net.load_state_dict(load_state(self.folder / "state" / "best.pt")["net"])
        distributed.share(net)
        return net

    def run_epoch(self, display: Display) -> None:
        progress = self.progress
        start = time.perf_counter()
        left = self.total - progress.step  # the last epoch may end early where the config counts steps
        self.ledger.begin(progress.sums, progress.skips)
        for batch in islice(self.batches.epoch(progress.epoch, progress.batch), left):
            with self.enough_memory(len(batch.images)), tuned(self.device):
                self.step(batch)
            progress.batch += 1
            now = time.perf_counter()
            progress.seconds, start = progress.seconds + now - start, now
            saves = self.save_steps is not None and progress.step % self.save_steps == 0
            if saves or progress.step % self.reads == 0:
                self.read()
                means = {name: total / progress.batch for name, total in progress.sums.items()}
                display.step(progress.batch, means, progress.batch * self.batches.batch_size / progress.seconds)
                self.stop_if(self.entry.signal if distributed.world() > 1 else max([0, *self.caught]))
            if saves:
                self.save()
        self.read()

    def step(self, batch: Batch) -> dict[str, Tensor]:
        """Take one optimizer step on one batch. Returns its losses, which may still be computed."""
        progress, config = self.progress, self.config
        self.damaged += batch.skipped
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
                with self.autocast(), counted_at_once():
                    losses = self.wrapped(images, labels.to(self.device, non_blocking=True), drawn, self.ema.net)
                share = len(images) / len(batch.images)
                self.scaler.scale(torch.stack(list(losses.values())).sum() * share).backward()
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0) + loss.detach() * share
        means, bad = self.ledger.note(sums, progress.step, self.caught)
        self.update(bad)
        progress.step += 1
        return dict(zip(sums, means, strict=True))

    @contextmanager
    def enough_memory(self, images: int) -> Iterator[None]:
        """An error about memory says which option needs less of it."""
        try:
            yield
        except RuntimeError as error:
            if not isinstance(error, torch.OutOfMemoryError) and not re.search(TOO_MUCH, str(error)):
                raise
            parts = self.config.accumulate
            raise TrainingError(
                f"{self.device} has not enough memory for {-(-images // parts)} images at once, at step "
                f"{self.progress.step}; set {self.key}.accumulate {2 * parts}, which gives the same batch in "
                f"{2 * parts} parts, or use more processes"
            ) from error

    def update(self, bad: Tensor) -> None:
        """Change the weights and their moving average, unless a loss or the gradient is not finite.

        With a read in every step, the host decides, and a bad step raises an error here. Otherwise the optimiser
        decides on the device, and the next read raises it; what bad steps leave in the moving average is never saved.
        """
        self.scaler.unscale_(self.optimizer)
        params = [p for group in self.optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.get_total_norm([p.grad for p in params if p.grad is not None])
        finite = norm.isfinite()
        self.ledger.judge(finite, self.progress.step)
        self.unread = True
        if self.reads == 1:
            self.read()
            if self.progress.skips:
                return self.scaler.update()
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(params, self.config.clip_norm, norm)
        if self.reads > 1 and not self.scaler.is_enabled():
            self.optimizer.found_inf = (bad | ~finite).float()  # type: ignore[attr-defined]
        self.scaler.step(self.optimizer)
        self.ema.update(self.progress.step)
        self.scaler.update()

    def read(self) -> None:
        """Read what the steps left on the device, unless it was read after the last one. Losses and gradients that are
        not finite are an error; fp16 scaling may skip steps, fewer than MAX_SKIPS in a row."""
        if not self.unread:
            return
        progress, self.unread = self.progress, False
        self.entry = entry = self.ledger.read()
        if self.max_skipped is not None:
            self.note_skipped(distributed.gathered(self.damaged))
        self.damaged = []
        progress.sums, progress.skips = entry.sums, entry.skips
        if entry.bad_loss is not None:
            step, name = entry.bad_loss
            raise TrainingError(
                f"loss {name!r} is not finite at step {step} (epoch {progress.epoch}); weights and moving average are "
                f"untouched. Lower {self.key}.lr, add {self.key}.warmup_epochs, or check the data"
            )
        scales = self.scaler.is_enabled()
        if entry.skips >= MAX_SKIPS or (entry.bad_gradient != NEVER and not scales):
            skips = f" for {entry.skips} steps in a row" if scales else ""
            step = progress.step if scales else entry.bad_gradient
            raise TrainingError(
                f"the gradient is not finite at step {step}{skips} (epoch {progress.epoch}); weights and moving "
                f"average are untouched. Lower {self.key}.lr, set {self.key}.clip_norm, or use {self.key}.amp bf16"
            )

    def autocast(self) -> Any:
        kinds = {"bf16": torch.bfloat16, "fp16": torch.float16}
        return torch.autocast(self.device.type, kinds.get(self.config.amp), enabled=self.config.amp != "none")

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
        self.ledger.begin({}, progress.skips)
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
        for group in self.optimizer.param_groups:  # the run may have begun on another device
            group["fused"] = self.reads > 1 or None
        if state["scaler"]:
            self.scaler.load_state_dict(state["scaler"])
        set_random_state(state["random"])
        self.progress = Progress(**state["progress"])
        self.ledger.begin(self.progress.sums, self.progress.skips)

    def signalled(self) -> int:
        """The number of a signal that any process caught, or 0."""
        return max(distributed.gathered([max([0, *self.caught])]))

    def stop_if(self, number: int) -> None:
        """Save and stop if there was a signal."""
        if number:
            self.save()
            raise Interrupted(number, self.folder)
