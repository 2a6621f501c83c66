"""dsnet recalibrate: batch-norm statistics of every width anew."""

from __future__ import annotations

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("run", help="a folder that `dsnet train` wrote")
    parser.add_argument("--images", type=int | None, default=None, help="training images to use; by default as trained")
    parser.add_argument("--root", type=str | None, default=None, help="where the data is now, if it moved")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of images")


def run(args: Namespace, parser: ArgumentParser) -> None:
    from dataclasses import replace

    from dsnet.checkpoint import load, save
    from dsnet.config import CONFIG, read_config
    from dsnet.data.splits import check_data
    from dsnet.tasks.assess import calibrate_budgets, calibration_images, open_data
    from dsnet.training import recalibrate

    folder = Path(args.run)
    net = load(folder)
    config = read_config(folder / CONFIG)
    if args.images is not None:
        config = replace(config, recalibration=args.images)
    data = open_data(config, args.root)
    check_data(folder, data)
    batches = recalibrate(net, calibration_images(data, config, seed=args.seed))
    if batches == 0:
        print(f"{net.spec.name} has no batch norm: there is nothing to recalibrate")
        return
    if net.spec.router is not None:
        calibrate_budgets(net, data, config)
    save(net, folder)
    print(f"{folder}: statistics of {net.space.size} widths averaged over {batches} batches; weights are unchanged")
    if net.spec.router is not None:
        print(f"{folder}: budgets of the router calibrated anew")
