"""Accuracy gained by sorting channels.

A supernet is given the weights of a trained network, and its batch-norm statistics are recalibrated on training images.
The accuracy of every width is measured on the test split, before any fine-tuning. Random orders of the channels serve
as a baseline.

    python benchmarks/sorting.py RUN [RUN ...] [--to ds_mobilenet_v1_tiny] [--export docs/results/sorting]

A RUN should hold a network that was trained at one width, such as mobilenet_v1_tiny (`dsnet reproduce main` trains
some). The slim widths of a supernet are already trained in their present order, so sorting can only harm them.
"""

from __future__ import annotations

import argparse
import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dsnet.config import CONFIG
from dsnet.data.batches import plain_batches
from dsnet.data.splits import check_data
from dsnet.models import Supernet, model_spec
from dsnet.models.count import count
from dsnet.report.tables import human, markdown_table
from dsnet.tasks import load, read_config
from dsnet.tasks.classification.accuracy import accuracy
from dsnet.tasks.classification.task import calibration_images, task
from dsnet.training import recalibrate
from dsnet.weights.sorting import IMPORTANCES, order_of, sort_channels, spaces
from dsnet.weights.transfer import transfer


@torch.no_grad()
def shuffled(net: Supernet, seed: int) -> Supernet:
    """The same network with its channels in a random order, as a baseline."""
    net, generator = deepcopy(net), torch.Generator().manual_seed(seed)
    for space in spaces(net):
        space.permute(order_of(torch.rand(len(space.importance("l1")), generator=generator), space.group))
    return net


def measure(run: Path, name: str, root: str | None, orders: int) -> dict[str, Any]:
    """Top-1 of every uniform path, for each order of the channels."""
    config = read_config(run / CONFIG)
    data = task.open_data(config, root)
    check_data(run, data)
    source = load(run, "classification")
    wishes = {"num_classes": source.spec.num_classes, "in_channels": source.spec.in_channels}
    spec = replace(model_spec(name, **wishes), activation=source.spec.activation)
    images = list(calibration_images(data, config))
    batches = list(plain_batches(data.test, 256))
    table = count(spec, data.image_size)
    rows = []
    candidates = {"none": source} | {by: sort_channels(deepcopy(source), by) for by in IMPORTANCES}
    candidates |= {f"random {seed}": shuffled(source, seed) for seed in range(orders)}
    for order, network in candidates.items():
        torch.manual_seed(0)
        net, report = transfer(network, spec)
        recalibrate(net, images)
        measured = accuracy(net, batches, net.space.uniform)
        rows.append({"order": order, "top1": [round(top1, 4) for top1 in measured]})
    return {
        "source": source.spec.name,
        "seed": config.seed,
        "target": name,
        "madds": [table.madds(path) for path in spec.space.uniform],
        "limits": report.limits,
        "rows": rows,
    }


def page(results: list[dict[str, Any]]) -> list[str]:
    """A table of every width of each run, and the gain of `l1` and `scale` at the slimmest."""
    lines = ["# What sorting channels gains before any fine-tuning", ""]
    lines += [
        "Top-1 (%) on the test split, batch-norm statistics recalibrated, nothing trained after the transfer.",
        "",
    ]
    for result in results:
        found = {row["order"]: row["top1"] for row in result["rows"]}
        chance = [tops for order, tops in found.items() if order.startswith("random")]
        rows = [[f"`{order}`", *(f"{100 * top:.1f}" for top in found[order])] for order in ("none", *IMPORTANCES)]
        ends = [f"{100 * min(column):.1f} to {100 * max(column):.1f}" for column in zip(*chance, strict=True)]
        rows.append([f"{len(chance)} random orders", *ends])
        lines += [f"## {result['source']} onto {result['target']}, seed {result['seed']}", ""]
        lines += [*markdown_table(["<order", *map(human, result["madds"])], rows), ""]
        gains = [f"`{by}` {100 * (found[by][0] - found['none'][0]):+.1f}" for by in IMPORTANCES]
        lines += [f"At the slimmest width, over the order that training left: {', '.join(gains)} points.", ""]
    return [*lines, "Made by `python benchmarks/sorting.py`; every figure is in the JSON beside this page."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--to", default="ds_mobilenet_v1_tiny")
    parser.add_argument("--root", help="folder of the data, if it was moved")
    parser.add_argument("--orders", type=int, default=4, help="number of random orders to compare with")
    parser.add_argument("--export", type=Path, help="write PREFIX.json and PREFIX.md")
    args = parser.parse_args()
    results = [measure(run, args.to, args.root, args.orders) for run in args.runs]
    print("\n".join(page(results)))
    if args.export:
        args.export.with_name(args.export.name + ".json").write_text(json.dumps(results, indent=1) + "\n")
        args.export.with_name(args.export.name + ".md").write_text("\n".join(page(results)) + "\n")


if __name__ == "__main__":
    main()
