"""Steps of both stages beside those of an older version: processor time, and the operators of stage I.

    git worktree add ../dsnet-0.1 b5ae144        # the last commit of 0.1
    python benchmarks/versions.py ../dsnet-0.1 [--repeats 30] [--out docs/results/bench_versions.json]

A step is all that the training loop does with a batch: losses, gradients, optimiser, moving average. Every candidate
lives in a process of its own with one thread, and the processes take their steps in turns. `older again` is a second
process of the older version; its ratio shows the noise, and others are compared with the mean of both. `now, memory
given back` leaves out what a training does with the C library's memory (`dsnet.training.memory`). Ratios are medians
over the rounds. Routers learn with the options that the older version had, and all candidates start from the same seed:
`same losses` says whether their losses are equal to the last bit in every step. Those of gates are not: since 0.1 their
guidance is added up over the gates, where it was averaged, and rounded differently.

`operators` counts the calls of PyTorch's operators in a step of stage I, without those that only look at a tensor in
another way: in the losses and their gradients, and in the whole step, which on a GPU now reads its losses later and
has a fused optimiser. What a sliced or padded gradient takes counts twice: it is filled with zeros, then copied to.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

# Images of a batch and their size.
MODELS = {"ds_mobilenet_v1_tiny": (128, 32), "ds_mobilenet_v1_small": (32, 96), "ds_resnet_tiny": (64, 32)}
STAGES = ("stage I", "stage II, gate", "stage II, slim_first")
CANDIDATES = ("older", "now", "now, memory given back", "older again")
COUNTED = ("ds_mobilenet_v1", "ds_resnet50")
VIEWS = {"view", "slice", "alias", "detach", "t", "transpose", "permute", "expand", "unsqueeze", "squeeze", "select"}
VIEWS |= {"as_strided"}
TWICE = ("slice_backward", "constant_pad_nd")
WARM = 2  # steps that are not counted
HERE = Path(__file__).parents[1]


def serve(stage: str, model: str, name: str) -> None:
    """Take a step for each line of input, and print its milliseconds and losses. Runs in both versions."""
    import torch

    from dsnet.training import Loop, OptimConfig

    torch.set_num_threads(1)
    if name == "now":
        from dsnet.training.memory import keep_memory

        keep_memory()
    torch.manual_seed(0)
    batch, size = MODELS[model]
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    one: Any = SimpleNamespace(images=images, labels=labels, skipped=[])
    with tempfile.TemporaryDirectory() as folder:
        epoch: Any = range(100)  # of which the loop only asks the length
        config = OptimConfig(epochs=1000)
        loop: Any = Loop(stage_of(stage, model), epoch, config, folder=Path(folder), seed=0, momentum=0.99)
        loop.stage.train()
        for _ in sys.stdin:
            began = time.process_time()
            losses = loop.step(one)
            spent = time.process_time() - began
            told = {"ms": 1000 * spent, "losses": {name: float(loss).hex() for name, loss in losses.items()}}
            print(json.dumps(told), flush=True)


def count(model: str) -> None:
    """Print the numbers of operators of a step of stage I. Runs in both versions."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from dsnet.training import Loop, OptimConfig

    class Operators(TorchDispatchMode):
        calls = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = func.overloadpacket.__name__
            self.calls += 0 if name in VIEWS else 2 if name in TWICE else 1
            return func(*args, **(kwargs or {}))

    torch.set_num_threads(1)
    torch.manual_seed(0)
    stage = stage_of("stage I", model).train()
    teacher = copy.deepcopy(stage.net).eval()
    images, labels = torch.randn(2, 3, 64, 64), torch.tensor([0, 1])
    with Operators() as losses:
        found = stage(images, labels, stage.draw(random.Random(0)), teacher)
        torch.stack(list(found.values())).sum().backward()
    one: Any = SimpleNamespace(images=images, labels=labels, skipped=[])
    seldom = {"reads": 50} if "reads" in inspect.signature(Loop.__init__).parameters else {}
    with tempfile.TemporaryDirectory() as folder:
        epoch: Any = range(100)
        options: dict[str, Any] = {"folder": Path(folder), "seed": 0, "momentum": 0.99, **seldom}
        loop: Any = Loop(stage, epoch, OptimConfig(epochs=1000), **options)
        loop.step(one)  # makes the optimiser's state
        with Operators() as whole:
            loop.step(one)
    print(json.dumps({"losses and gradients": losses.calls, "whole step": whole.calls}))


def stage_of(stage: str, model: str) -> Any:
    """A stage of training, of either version."""
    from dsnet.models import create_model
    from dsnet.training import IEB, SGS, IEBConfig, SGSConfig, with_fresh_router

    net = create_model(model, num_classes=10)
    if stage == "stage I":
        return IEB(net, IEBConfig())
    try:
        from dsnet.training.sgs_config import BEFORE
    except ImportError:  # an older version has no other options
        BEFORE = {}
    config = SGSConfig(stage.split(", ")[1], **BEFORE)  # type: ignore[arg-type]
    return SGS(with_fresh_router(net, replace(net.spec, router=config.spec)), config)


def started(checkout: Path, stage: str, model: str, name: str) -> subprocess.Popen[str]:
    """A process of the version in `checkout` that waits for lines."""
    words = [sys.executable, __file__, str(checkout), "--serve", stage, model, name]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def asked(process: subprocess.Popen[str]) -> dict[str, Any]:
    """One step of a process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise SystemExit("a process ended; its error is above")
    found: dict[str, Any] = json.loads(line)
    return found


def compared(older: Path, stage: str, model: str, repeats: int) -> dict[str, Any]:
    """Ratios to the older version, and whether the losses are its."""
    processes = {name: started(older if name.startswith("older") else HERE, stage, model, name) for name in CANDIDATES}
    try:
        rounds = []
        order = list(CANDIDATES)
        for _ in range(WARM + repeats):
            rounds.append({name: asked(processes[name]) for name in order})
            order.append(order.pop(0))
    finally:
        for process in processes.values():
            process.communicate()
    times = [{name: found["ms"] for name, found in one.items()} for one in rounds[WARM:]]
    both = [(one["older"] + one["older again"]) / 2 for one in times]
    ratios = {
        f"{name} / older": round(median(one[name] / older for one, older in zip(times, both, strict=True)), 3)
        for name in ("now", "now, memory given back")
    }
    ratios["older again / older"] = round(median(one["older again"] / one["older"] for one in times), 3)
    same = all(found["losses"] == one["older"]["losses"] for one in rounds for found in one.values())
    return {"older, ms": round(median(both), 1), **ratios, "same losses": same}


def said(checkout: Path, *words: str) -> str:
    """What Python prints with the version in `checkout`."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def version_of(checkout: Path) -> str:
    """Version and commit of the sources in a folder."""
    return said(checkout, "-c", "from dsnet.version import __version__, commit; print(__version__, commit())")


def counted(older: Path, model: str) -> dict[str, Any]:
    """The operators of a step in both versions."""
    before, now = (json.loads(said(place, __file__, str(place), "--count", model)) for place in (older, HERE))
    return {
        name: {"older": calls, "now": now[name], "now / older": round(now[name] / calls, 3)}
        for name, calls in before.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("older", type=Path, help="checkout of the older version")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=3, metavar=("STAGE", "MODEL", "NAME"), help=argparse.SUPPRESS)
    parser.add_argument("--count", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.count:
        count(args.count)
        return
    if args.serve:
        serve(*args.serve)
        return
    if not (args.older / "src" / "dsnet").is_dir():
        parser.error(f"{args.older} is not a checkout of dsnet: it has no folder src/dsnet")
    from dsnet.latency.timing import machine
    from dsnet.schema import plain

    result: dict[str, Any] = {"older": version_of(args.older), "repeats": args.repeats}
    result["steps"] = {
        f"{stage}, {model}": compared(args.older, stage, model, args.repeats)
        for stage in STAGES
        for model in args.models
    }
    result["operators"] = {model: counted(args.older, model) for model in COUNTED}
    result["machine"] = plain(machine())
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
