"""What the processes of test_distributed.py run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import torch

from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.errors import TrainingError
from dsnet.models import Supernet, model_spec
from dsnet.training import IEB, IEBConfig, Loop, OptimConfig, start
from dsnet.training.distributed import average_statistics, process_group, rank, world

torch.set_num_threads(1)


def torchrun(
    *words: str, ranks: int = 2, restarts: int = 0, seconds: float = 200, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a command in several processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"]
    return subprocess.run(
        [*launch, f"--max_restarts={restarts}", *words],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment},
        text=True,
        capture_output=True,
        timeout=seconds * (1 + restarts),
    )


FAILURES = {"die": signal.SIGKILL, "hang": signal.SIGSTOP}
STEPS = ("group", "bypass", "batch", "boxes")  # what one_step knows


def make_loop(model: str, folder: Path, size: int) -> Loop:
    torch.manual_seed(0)
    data = open_dataset(DataConfig())
    net = Supernet(model_spec(model, in_channels=1, image_size=16)).double()
    config = OptimConfig(batch_size=size, lr=0.01)
    batches = TrainBatches(data.train, size, seed=0, rank=rank(), world=world())
    return Loop(IEB(net, IEBConfig()), batches, config, folder=folder, seed=0, momentum=0.9)


def make_detection_loop(folder: Path) -> Loop:
    from dsnet.data.boxes import BoxAugmentConfig
    from dsnet.data.voc import DetectionDataConfig
    from dsnet.tasks.detection.config import DetectionConfig
    from dsnet.tasks.detection.stages import WidthsConfig, WidthsStage
    from dsnet.tasks.detection.task import new_detector, task

    torch.manual_seed(0)
    same = BoxAugmentConfig(colour=0, expand=1, crop=False, flip=False)  # ranks would augment differently
    config = DetectionConfig(
        backbone=str(folder.parent / "backbone"),
        projection=16,
        pyramid=16,
        data=DetectionDataConfig(root=str(folder.parent / "voc"), image_size=64, augment=same),
        optim=OptimConfig(batch_size=8, lr=0.01),
    )
    data = task.open_data(config)
    stage = WidthsStage(new_detector(config, data).double(), WidthsConfig())
    batches = TrainBatches(data.train, 8, seed=0, rank=rank(), world=world())
    return Loop(stage, batches, config.optim, folder=folder, seed=0, momentum=0.9)


def one_step(what: str, folder: Path, half: int | None = None) -> dict[str, torch.Tensor]:
    """Gradients, statistics and losses of a first step. half: of what rank `half` of two would see."""
    model = "ds_mobilenet_v1_tiny" if what == "batch" else "ds_resnet_tiny"
    loop = make_detection_loop(folder) if what == "boxes" else make_loop(model, folder, 64)
    if what == "bypass":
        loop.wrapped = loop.stage
    loop.stage.train()
    batch = next(iter(loop.batches.epoch(0)))
    if half is not None:
        batch = replace(batch, images=batch.images[half::2], labels=batch.labels[half::2])
    losses = loop.step(replace(batch, images=batch.images.double()))
    average_statistics(loop.net)
    found = {f"grad.{name}": p.grad for name, p in loop.net.named_parameters() if p.grad is not None}
    found |= {f"stat.{name}": b for name, b in loop.net.named_buffers() if "running" in name}
    return found | {"losses": torch.tensor(list(losses.values()), dtype=torch.float64)}


def steps(folder: Path) -> None:
    """Everything that needs two processes and a step or two of each."""
    for what in STEPS:
        found = one_step(what, folder)
        if rank() == 0:
            torch.save(found, folder / f"{what}.pt")
    nan(folder)
    (folder / f"agreed{rank()}.json").write_text(json.dumps(agreements(folder)))


def agreements(folder: Path) -> dict[str, str]:
    """What a process is told about folders and data that are, or are not, those of the other."""
    start.PATIENCE = 2

    def told(call: Callable[[], object]) -> str:
        try:
            return str(call())
        except ValueError as error:
            return str(error)

    def opened(root: Path) -> str:
        return open_dataset(DataConfig("folder", root=str(root))).fingerprint

    def mine() -> str:
        if rank() != 0:
            raise AssertionError("only the first process opens the data")
        return open_dataset(DataConfig()).fingerprint

    return {
        "same": told(lambda: start.check_shared(folder / "both", resume=True)),
        "other": told(lambda: start.check_shared(folder / f"own{rank()}", resume=False)),
        "some": told(lambda: start.check_shared(folder / "both", resume=rank() == 0)),
        "missing": told(lambda: start.opened_once(lambda: opened(folder / "none"))),
        "opened": told(lambda: start.opened_once(mine)),
    }


def nan(folder: Path) -> None:
    loop = make_loop("ds_resnet_tiny", folder, 64)
    first, second, *_ = loop.batches.epoch(0)
    loop.step(replace(first, images=first.images.double()))
    before = [t.clone() for t in (*loop.net.state_dict().values(), *loop.ema.net.state_dict().values())]
    poison = torch.nan if rank() == 1 else 1.0
    try:
        loop.step(replace(second, images=second.images.double() * poison))
        message = "went on"
    except TrainingError as error:
        message = str(error)
    after = [*loop.net.state_dict().values(), *loop.ema.net.state_dict().values()]
    untouched = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    (folder / f"nan{rank()}.txt").write_text(f"{message}\nuntouched: {untouched}\n")


def fail(signal_: signal.Signals, folder: Path, words: list[str]) -> int:
    """dsnet train, in which rank 1 gets a signal at a step of its first life: it dies or hangs."""
    from dsnet.cli import main

    fatal = int(os.environ["DSNET_TEST_STEP"])
    real = Loop.step

    def step(self: Loop, batch: object) -> dict[str, float]:
        if rank() == 1 and self.progress.step == fatal and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            print(f"signal at {time.time()}", flush=True)
            os.kill(os.getpid(), signal_)
        return real(self, batch)  # type: ignore[arg-type]

    Loop.step = step  # type: ignore[method-assign, assignment]
    return main(["train", "--out", str(folder), *words])


def train(place: Path, words: dict[str, list[str]]) -> None:
    """Train a classifier and a detector. Every rank notes the median by which its gate tells hard images."""
    from dsnet.cli import main
    from dsnet.tasks.detection.stages import GatesStage

    real = GatesStage.__init__

    def noted(self: GatesStage, net: object, *, median: float) -> None:
        real(self, net, median=median)  # type: ignore[arg-type]
        (place / f"median{rank()}.txt").write_text(repr(median))

    GatesStage.__init__ = noted  # type: ignore[method-assign]
    for name, mine in words.items():
        with (place / f"{name}{rank()}.out").open("w") as out, redirect_stdout(out):
            assert main(["train", "--out", str(place / name), *mine]) == 0


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what in FAILURES:
        sys.exit(fail(FAILURES[what], Path(where), rest))
    with process_group():
        steps(Path(where))
        train(Path(where), json.loads(rest[0]))
