"""The display of training progress: a live bar on a terminal, plain lines elsewhere.

Where TensorBoard is installed (`pip install dsnet[tensorboard]`), its event files are written as well.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class Display:
    """A display that prints nothing, for tests and for ranks other than 0."""

    def start(self, steps: int, batches: int, done: int, step: int = 0) -> None: ...

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None: ...

    def epoch(self, line: Mapping[str, Any]) -> None: ...

    def stop(self, epoch: int, score: float) -> None:
        """Training stops early, because this epoch's score was not exceeded."""

    def close(self) -> None: ...


class Lines(Display):
    """One line per epoch, and one per minute within an epoch."""

    def start(self, steps: int, batches: int, done: int, step: int = 0) -> None:
        self.steps, self.epochs, self.batches, self.first = steps, -(-steps // batches), batches, step
        self.began = self.printed = time.monotonic()
        ragged = f"{steps} steps in " if steps % batches else ""
        resumed = f", resumed at step {step}" if step else ""
        print(f"training {ragged}{self.epochs} epochs of {batches} batches{resumed}", flush=True)

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None:
        now = time.monotonic()
        if now - self.printed >= 60:
            self.printed = now
            losses = " ".join(f"{name} {value:.3f}" for name, value in means.items())
            print(f"  batch {batch}/{self.batches}  loss: {losses}  {rate:.0f} images/s", flush=True)

    def epoch(self, line: Mapping[str, Any]) -> None:
        self.printed = time.monotonic()
        per_step = (time.monotonic() - self.began) / max(line["step"] - self.first, 1)
        left = per_step * (self.steps - line["step"])
        print(f"epoch {line['epoch']}/{self.epochs}  {summary(line)}  {clock(left)} left", flush=True)

    def stop(self, epoch: int, score: float) -> None:
        print(stopped(epoch, score), flush=True)


class Bar(Display):
    """A rich progress bar with the epoch's mean losses per sub-network."""

    def start(self, steps: int, batches: int, done: int, step: int = 0) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        self.epochs, self.batches, self.done, self.steps = -(-steps // batches), batches, done, steps
        self.progress = Progress(
            TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
        )
        self.task = self.progress.add_task(
            "", total=steps, completed=done * batches, epoch=done + 1, epochs=self.epochs, text=""
        )
        self.progress.start()

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None:
        text = "  ".join(f"{name} {value:.3f}" for name, value in means.items()) + f"  {rate:.0f} images/s"
        self.progress.update(self.task, completed=self.done * self.batches + batch, text=text)

    def epoch(self, line: Mapping[str, Any]) -> None:
        self.done = line["epoch"]
        self.progress.console.print(f"epoch {line['epoch']}/{self.epochs}  {summary(line)}", highlight=False)
        completed = min(self.done * self.batches, self.steps)
        self.progress.update(self.task, completed=completed, epoch=min(self.done + 1, self.epochs))

    def stop(self, epoch: int, score: float) -> None:
        self.progress.console.print(stopped(epoch, score), highlight=False)

    def close(self) -> None:
        if hasattr(self, "progress"):
            self.progress.stop()


class Board(Display):
    """Writes TensorBoard event files and forwards everything to another display."""

    def __init__(self, inner: Display, folder: Path) -> None:
        self.inner, self.folder = inner, folder

    def start(self, steps: int, batches: int, done: int, step: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(self.folder / "tensorboard"), purge_step=done + 1 if done else None)
        self.inner.start(steps, batches, done, step)

    def step(self, batch: int, means: Mapping[str, float], rate: float) -> None:
        self.inner.step(batch, means, rate)

    def epoch(self, line: Mapping[str, Any]) -> None:
        for name, value in line.items():
            if name not in ("epoch", "step"):
                self.writer.add_scalar(name, value, line["epoch"])
        self.writer.flush()
        self.inner.epoch(line)

    def stop(self, epoch: int, score: float) -> None:
        self.inner.stop(epoch, score)

    def close(self) -> None:
        if hasattr(self, "writer"):
            self.writer.close()
        self.inner.close()


@contextmanager
def counting(text: str, total: int, *, shown: bool = True) -> Iterator[Callable[[int], None]]:
    """Show the progress of work on `total` images: a bar on a terminal, a line per minute elsewhere. Yields a function
    that is told how many more are done."""
    if not shown:
        yield lambda more: None
        return
    if sys.stdout.isatty():
        from rich.progress import Progress

        with Progress() as bar:
            task = bar.add_task(text, total=total)
            yield lambda more: bar.advance(task, more)
        return
    began = printed = time.monotonic()
    done = 0

    def count(more: int) -> None:
        nonlocal done, printed
        done += more
        now = time.monotonic()
        if now - printed >= 60:
            printed = now
            print(f"  {done:,}/{total:,}  {clock((now - began) * (total - done) / done)} left", flush=True)

    print(text, flush=True)
    yield count
    print(f"  done in {clock(time.monotonic() - began)}", flush=True)


def make_display(folder: Path, *, rank: int) -> Display:
    if rank != 0:
        return Display()
    display = Bar() if sys.stdout.isatty() else Lines()
    return Board(display, folder) if find_spec("tensorboard") else display


def summary(line: Mapping[str, Any]) -> str:
    losses = " ".join(f"{k.removeprefix('loss/')} {v:.3f}" for k, v in line.items() if k.startswith("loss/"))
    scores = " ".join(
        f"{k.removeprefix('calibration/')} {v:.1%}" for k, v in line.items() if k.startswith("calibration/")
    )
    speed = f"lr {line['lr']:.4f}  {line['images_per_second']:.0f} images/s"
    return "  ".join([f"loss: {losses}", f"calibration: {scores}", *gates(line), speed])


def gates(line: Mapping[str, Any]) -> list[str]:
    """The entropy of every gate, and the share of the images at each of its widths."""
    found = []
    for key, bits in line.items():
        if key.endswith("/entropy"):
            name = key.removesuffix("/entropy")
            shares = "/".join(f"{100 * value:.0f}" for k, value in line.items() if k.startswith(f"{name}/share"))
            found.append(f"{name}: {bits:.2f} bits, {shares} %")
    return found


def stopped(epoch: int, score: float) -> str:
    return f"stopped early: the score on the calibration images was best in epoch {epoch} ({score:.1%})"


def clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"
