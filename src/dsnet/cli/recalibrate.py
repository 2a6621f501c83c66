"""dsnet recalibrate: recompute the batch-norm statistics of every width, and the budgets of the router."""

from __future__ import annotations

from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from dsnet.cli.arguments import Parser

if TYPE_CHECKING:
    import torch

    from dsnet.runs.folder import RunFolder


def add_arguments(parser: Parser) -> None:
    parser.add("run", "A folder that `dsnet train` wrote.")
    parser.add("--images", "Number of training images to use (default: as in training).", type=int)
    parser.add("--device")
    parser.add("--root")
    parser.add("--seed", "Seed for choosing the images (default: 0).", type=int, default=0)


def run(args: Namespace) -> None:
    from dsnet.runs.folder import RunFolder
    from dsnet.training.distributed import barrier, process_group, rank

    folder = RunFolder.of(Path(args.run))
    with process_group(device=args.device) as device, folder.held() if rank() == 0 else nullcontext():
        recalibrate_run(folder, args, device)
        barrier()


def recalibrate_run(run: RunFolder, args: Namespace, device: torch.device) -> None:
    """Recalibrate a run. Under torchrun all processes share the images, and the first one writes."""
    from dataclasses import replace

    from dsnet.tasks import calibrated, load, save
    from dsnet.tasks.classification.task import calibration_images, task
    from dsnet.training import recalibrate
    from dsnet.training.distributed import rank

    folder = run.folder
    net = load(folder, "classification", device=device)
    config, data = run.opened(args.root)
    if args.images is not None:
        config = replace(config, recalibration=args.images)
    images = calibration_images(data, config, seed=args.seed, device=net.device)
    batches = recalibrate(net, images, frozen=config.freeze == "front")
    routes = net.spec.router is not None
    if routes:
        net = calibrated(task, net, data, config)
    if rank() != 0:
        return
    if batches == 0 and not routes:
        print(f"{net.spec.name} has no batch norm and no router: there is nothing to recalibrate")
        return
    save(net, folder)
    if batches:
        print(f"{folder}: statistics of {net.space.size} widths averaged over {batches} batches; weights are unchanged")
    if routes:
        print(f"{folder}: budgets of the router recalibrated")
