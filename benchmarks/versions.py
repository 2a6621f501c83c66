"""Steps of both stages beside those of an older version, in processor time.

    git worktree add ../dsnet-0.1 b5ae144        # the last commit of 0.1
    python benchmarks/versions.py ../dsnet-0.1 [--repeats 15] [--out docs/results/bench_versions.json]

A step is all that the training loop does with a batch: losses, gradients, optimiser, moving average. Every candidate
lives in a process of its own with one thread, and the processes take their steps in turns. `older again` is a second
process of the older version; its ratio shows the noise. `now, memory given back` leaves out what a training does with
the C library's memory (`dsnet.training.memory`). Ratios are medians over the rounds. Routers learn with the options
that the older version had, and all candidates start from the same seed: `same losses` says whether their losses are
equal to the last bit in every step. Those of gates are not: since 0.1 their guidance is added up over the gates, where
it was averaged, and rounded differently.
"""

from __future__ import annotations

import argparse
import json
import os
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
    counted = rounds[WARM:]
    ratios = {
        f"{name} / older": round(median(one[name]["ms"] / one["older"]["ms"] for one in counted), 3)
        for name in CANDIDATES[1:]
    }
    same = all(found["losses"] == one["older"]["losses"] for one in rounds for found in one.values())
    return {"older, ms": round(median(one["older"]["ms"] for one in counted), 1), **ratios, "same losses": same}


def version_of(checkout: Path) -> str:
    """Version and commit of the sources in a folder."""
    code = "from dsnet.version import __version__, commit; print(__version__, commit())"
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve() / "src")}
    words = [sys.executable, "-c", code]
    return subprocess.run(words, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("older", type=Path, help="checkout of the older version")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--serve", nargs=3, metavar=("STAGE", "MODEL", "NAME"), help=argparse.SUPPRESS)
    args = parser.parse_args()
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
    result["machine"] = plain(machine())
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
