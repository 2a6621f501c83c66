"""What sorting channels gains: accuracy of every width of a supernet that was given the weights of a trained network,
before any fine-tuning. Batch-norm statistics are recalibrated on training images; accuracy is that of the test split.
Random orders of the channels show what chance gives.

    python benchmarks/sorting.py RUN [RUN ...] [--to ds_mobilenet_v1_tiny] > docs/results/bench_sorting.json

A RUN should hold a network that was trained at one width, such as mobilenet_v1_tiny (`dsnet reproduce main` trains
some): the slim widths of a supernet are trained as they stand, so that sorting can only spoil them.
"""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path as File
from typing import Any

import torch

from dsnet.checkpoint import load
from dsnet.cost import CostTable
from dsnet.data import plain_batches
from dsnet.evaluate import accuracy
from dsnet.foreign import sort_channels, transfer
from dsnet.foreign.sorting import IMPORTANCES, order_of, spaces
from dsnet.models import Supernet, model_spec
from dsnet.pipeline import CONFIG, calibration_images, check_data, open_data, read_config
from dsnet.training import recalibrate


@torch.no_grad()
def shuffled(net: Supernet, seed: int) -> Supernet:
    """The same network with its channels in a random order: what the order that training left is to be judged by."""
    net, generator = deepcopy(net), torch.Generator().manual_seed(seed)
    for space in spaces(net):
        space.permute(order_of(torch.rand(len(space.importance("l1")), generator=generator), space.group))
    return net


def measure(run: File, name: str, root: str | None, orders: int) -> dict[str, Any]:
    """Top-1 of every uniform path, for each order of the channels."""
    config = read_config(run / CONFIG)
    data = open_data(config, root)
    check_data(run, data)
    source = load(run)
    wishes = {"num_classes": source.spec.num_classes, "in_channels": source.spec.in_channels}
    spec = replace(model_spec(name, **wishes), activation=source.spec.activation)
    images = list(calibration_images(data, config))
    batches = list(plain_batches(data.test, 256))
    table = CostTable(spec, data.image_size)
    rows = []
    candidates = {"none": source} | {by: sort_channels(deepcopy(source), by) for by in IMPORTANCES}
    candidates |= {f"random {seed}": shuffled(source, seed) for seed in range(orders)}
    for order, network in candidates.items():
        torch.manual_seed(0)
        net, report = transfer(network, spec)
        recalibrate(net, images)
        measured = accuracy(net, batches, net.space.uniform)
        rows.append({"order": order, "top1": [round(row["top1"], 4) for row in measured]})
    return {
        "source": source.spec.name,
        "target": name,
        "madds": [table.madds(path) for path in spec.space.uniform],
        "limits": report.limits,
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=File)
    parser.add_argument("--to", default="ds_mobilenet_v1_tiny")
    parser.add_argument("--root", help="where the data is now, if it moved")
    parser.add_argument("--orders", type=int, default=4, help="random orders to compare with")
    args = parser.parse_args()
    print(json.dumps([measure(run, args.to, args.root, args.orders) for run in args.runs], indent=1))


if __name__ == "__main__":
    main()
