"""A step of stage I: its processor time with and without kept memory, its operators, and its reads of the device.

    python benchmarks/train_step.py [--repeats 3] [--steps 12] [--out docs/results/bench_train_step.json]

Every candidate runs in processes of its own, because the C library's options hold for a whole process; the candidates
take turns, and the ratio is of medians of processor times. `operators` counts the calls of PyTorch's operators in the
forward passes of student and teacher and in the backward pass: each is at least one kernel on a GPU. `reads` counts
values that the host reads from the device (`item`, `tolist`, `bool`) in one step of the training loop as on a GPU, and
after some steps: each of them waits for everything before it.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Split
from dsnet.data.labelled import Loader
from dsnet.data.sources import Arrays
from dsnet.latency.timing import machine
from dsnet.models import create_model
from dsnet.schema import plain
from dsnet.training import IEB, IEBConfig, Loop, OptimConfig
from dsnet.training.loop import READS
from dsnet.training.memory import keep_memory

TIMED = {"ds_mobilenet_v1_tiny": (128, 32), "ds_mobilenet_v1_small": (32, 96), "ds_resnet_tiny": (64, 32)}
COUNTED = ("ds_mobilenet_v1", "ds_resnet50")
VIEWS = ("view", "slice", "alias", "detach", "t", "transpose", "permute", "expand", "unsqueeze", "select", "as_strided")


class Operators(TorchDispatchMode):
    """Counts calls of operators, without those that only look at a tensor in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        self.calls += name not in VIEWS
        return func(*args, **(kwargs or {}))


@contextmanager
def reads() -> Iterator[list[str]]:
    """The names of the calls that read a tensor's values into Python."""
    found: list[str] = []
    names = ("item", "tolist", "__bool__", "__float__", "__int__", "cpu", "numpy")
    before = {name: getattr(torch.Tensor, name) for name in names}

    def counting(name: str) -> Any:
        def call(self: torch.Tensor, *args: Any, **options: Any) -> Any:
            found.append(name)
            return before[name](self, *args, **options)

        return call

    try:
        for name in names:
            setattr(torch.Tensor, name, counting(name))
        yield found
    finally:
        for name, method in before.items():
            setattr(torch.Tensor, name, method)


def noise(batch: int, size: int) -> TrainBatches:
    """One batch of noise, for the training loop."""
    source = Arrays(torch.randint(0, 256, (batch, 3, size, size), dtype=torch.uint8), torch.randint(0, 10, (batch,)))
    loader = Loader(source, DataConfig(), size, (0.5,) * 3, (0.25,) * 3)
    return TrainBatches(Split(loader, torch.arange(batch)), batch, seed=0)


def stage_of(model: str) -> IEB:
    torch.manual_seed(0)
    return IEB(create_model(model, num_classes=10), IEBConfig())


def timed(model: str, steps: int) -> float:
    """Milliseconds of processor time of a typical step."""
    torch.set_num_threads(1)
    batch, size = TIMED[model]
    with tempfile.TemporaryDirectory() as folder:
        batches = noise(batch, size)
        (one,) = batches.epoch(0)
        loop: Loop[Any] = Loop(
            stage_of(model), batches, OptimConfig(epochs=1000), folder=Path(folder), seed=0, momentum=0.99
        )
        spent = []
        for _ in range(steps):
            began = time.process_time()
            loop.step(one)
            spent.append(time.process_time() - began)
    return 1000 * median(spent[2:])


def counted(model: str) -> dict[str, int]:
    """Operators of the losses and their gradients, and reads of the loop around them."""
    stage = stage_of(model)
    teacher = copy.deepcopy(stage.net).eval()
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([0, 1])
    with Operators() as found:
        losses = stage(images, labels, stage.draw(random.Random(0)), teacher)
        torch.stack(list(losses.values())).sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        batches = noise(2, 64)
        (one,) = batches.epoch(0)
        config = OptimConfig(epochs=1000)
        loop: Loop[Any] = Loop(stage, batches, config, folder=Path(folder), seed=0, momentum=0.99, reads=READS)
        loop.step(one)
        with Operators() as whole, reads() as read:
            loop.step(one)
        with reads() as later:
            loop.read()
    counts = {"operators": found.calls, "operators of the whole step": whole.calls, "reads": len(read)}
    return {**counts, f"reads after {READS} steps": len(later)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "KEPT"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        if args.one[1] == "kept":
            keep_memory()
        print(timed(args.one[0], args.steps))
        return
    result: dict[str, Any] = {"steps": {}, "counts": {name: counted(name) for name in COUNTED}}
    for model in TIMED:
        spent: dict[str, list[float]] = {"given back": [], "kept": []}
        for _ in range(args.repeats):
            for name, found in spent.items():
                words = [sys.executable, __file__, "--steps", str(args.steps), "--one", model, name]
                found.append(float(subprocess.run(words, check=True, capture_output=True, text=True).stdout))
        given, kept = (median(values) for values in spent.values())
        result["steps"][model] = {"given back, ms": round(given, 1), "kept / given back": round(kept / given, 3)}
    result["machine"] = plain(machine())
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
