"""Why the widest width of a supernet is behind a static network of its size, and which recipe closes the gap.

Trains static networks and supernets that differ from the packaged config in a few keys, with one seed, and compares
them on calibration images only. A finished run is not trained again, and an interrupted one goes on. The page shows
every run that has begun, so a run that falls behind may be stopped.

    python benchmarks/widest.py OUT --root DATA [--only NAME ...] [--show] [--gradients RUN] [--export PREFIX]

--gradients compares the gradient of the widest's loss with that of all losses, at the training state of a run.
"""

from __future__ import annotations

import argparse
import json
import random
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dsnet.api import train
from dsnet.config import CONFIG
from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.dataset import Batch, Data
from dsnet.data.splits import check_data
from dsnet.models import Supernet
from dsnet.report.tables import markdown_table
from dsnet.tasks import STATE, load, read_config
from dsnet.tasks.classification.accuracy import accuracy
from dsnet.tasks.classification.task import new_network, task
from dsnet.training import IEB
from dsnet.training.ieb import Drawn
from dsnet.training.state import load_state

Keys = Mapping[str, Any]
FOUND, METRICS, RESULT = "widest.json", "metrics.jsonl", "results/test.json"
SEEN = 20  # batches of training images, without augmentation, that a network is measured on too
EARLY = 3  # the epoch at which runs that were stopped are compared with the others


class Alone(IEB):
    """The widest of a supernet trained by itself: a static network with the supernet's attention heads."""

    def forward(self, images: Tensor, labels: Tensor, drawn: Drawn, teacher: Supernet) -> dict[str, Tensor]:
        return {"widest": self.label_loss(self.net(images, self.net.space.widest), labels, 1.0)}


def changed(lr: float, weight: float = 1.0, *more: Keys) -> Keys:
    return dict(ChainMap({"optim.lr": lr, "ieb.weight": weight}, *map(dict, more)))


STATIC: Keys = {"model.name": "mobilenet_v1_tiny"}
ADAMW: Keys = {"optim.name": "adamw", "optim.weight_decay": 0.05}
RUNS: dict[str, Keys] = {
    **{f"static-lr{lr}": changed(lr, 1.0, STATIC) for lr in (0.025, 0.05, 0.1, 0.2)},
    **{f"alone-lr{lr}": changed(lr) for lr in (0.05, 0.1)},
    **{f"supernet-lr{lr}": changed(lr) for lr in (0.025, 0.05, 0.1)},
    **{f"supernet-lr{lr}-weight0.33": changed(lr, 0.33) for lr in (0.05, 0.1, 0.2)},
    "supernet-lr0.1-weight0.5": changed(0.1, 0.5),
    "supernet-lr0.1-weight0.2": changed(0.1, 0.2),
    "supernet-lr0.1-weight0.33-paths1": changed(0.1, 0.33, {"ieb.paths": 1}),
    "supernet-lr0.1-weight0.33-inplace": changed(0.1, 0.33, {"ieb.teacher": "inplace"}),
    "static-adamw0.004": changed(0.004, 1.0, STATIC, ADAMW),
    "supernet-adamw0.004-weight0.33": changed(0.004, 0.33, ADAMW),
}


def trained(name: str, folder: Path, root: str, seed: int) -> None:
    """Train a run, or go on with it."""
    print(f"{name}: {dict(RUNS[name])}", flush=True)
    stage = Alone if name.startswith("alone") else IEB
    with patch("dsnet.tasks.classification.task.IEB", stage):
        if (folder / STATE).exists():
            train(resume=folder)
        else:
            fixed = {"data.root": root, "seed": seed, "stage": "supernet"}
            train(config="cifar10_ds_mobilenet_v1_tiny", out=folder, **{**fixed, **RUNS[name]})


def measure(folder: Path, root: str) -> dict[str, Any]:
    """Accuracy of every width on calibration images and on training images."""
    data: Data = task.open_data(read_config(folder / CONFIG), root)
    check_data(folder, data)
    net = load(folder, "classification").eval()
    paths = list(net.space)
    seen: Iterator[Batch] = islice(plain_batches(data.train, task.batch), SEEN)
    return {
        "calibration": accuracy(net, plain_batches(data.calibration, task.batch), paths),
        "training": accuracy(net, seen, paths),
    }


def described(folder: Path, root: str) -> dict[str, Any]:
    """What is known of a run: its course, and the accuracies of its network once it is finished."""
    rows = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    course = [{key: row[key] for key in row if key.startswith(("loss/", "calibration/"))} for row in rows]
    if not (folder / RESULT).exists():
        return {"epochs": course}
    if not (folder / FOUND).exists():
        (folder / FOUND).write_text(json.dumps(measure(folder, root), indent=1) + "\n")
    return {"epochs": course, **json.loads((folder / FOUND).read_text())}


def regions(name: str, weight: Tensor, counts: Sequence[int]) -> dict[str, Tensor]:
    """The parts of a weight by the sub-networks that use them; of the widths behind the choice, pointwise ones only.

    counts: Channels of every width.
    """
    if name.startswith("front"):
        return {"front, used by all": weight.flatten()}
    if weight.shape[:2] != (counts[-1], counts[-1]):
        return {}
    used = torch.zeros(weight.shape[:2], dtype=torch.long)
    used[: counts[-2], : counts[-2]], used[: counts[0], : counts[0]] = 1, 2
    users = ("the widest only", "the widest and random ones", "all")
    return {f"pointwise, used by {who}": weight[used == which].flatten() for which, who in enumerate(users)}


def gradients(folder: Path, root: str, batches: int) -> dict[str, dict[str, float]]:
    """Mean gradients over some batches: the ratio of their norms, all losses to the widest's, and the cosine between
    the widest's loss and the others."""
    config, state = read_config(folder / CONFIG), load_state(folder / STATE)
    data: Data = task.open_data(config, root)
    nets = [new_network(config, data), new_network(config, data)]
    for net, key in zip(nets, ("net", "ema"), strict=True):
        net.load_state_dict(state[key])
    net, teacher = nets[0].train(), nets[1].eval()
    stage, rng = IEB(net, replace(config.ieb, weight=1.0)), random.Random(0)
    named = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    found = {side: {name: torch.zeros_like(weight) for name, weight in named.items()} for side in ("widest", "others")}
    for batch in islice(TrainBatches(data.train, 128, 1, 0).epoch(0), batches):
        losses = stage(batch.images, batch.labels, stage.draw(rng), teacher)
        widest = losses.pop("widest")
        for side, loss in (("widest", widest), ("others", torch.stack(list(losses.values())).sum())):
            given = torch.autograd.grad(loss, list(named.values()), retain_graph=side == "widest")
            for name, gradient in zip(named, given, strict=True):
                found[side][name] += gradient / batches
    counts = [net.spec.channels(path)[-1] for path in net.space]
    grouped: dict[str, dict[str, list[Tensor]]] = {}
    for side, mine in found.items():
        for name, gradient in mine.items():
            for where, values in regions(name, gradient, counts).items():
                grouped.setdefault(where, {"widest": [], "others": []})[side].append(values)
    table = {}
    for where, sides in grouped.items():
        one, more = (torch.cat(sides[side]) for side in ("widest", "others"))
        ratio = (one + more).norm() / one.norm()
        table[where] = {"ratio": ratio.item(), "cosine": torch.cosine_similarity(one, more, dim=0).item()}
    return table


def row_of(name: str, found: Mapping[str, Any]) -> list[str]:
    course = found["epochs"]
    early = course[EARLY - 1] if len(course) >= EARLY else {}
    cells = [f"{early['loss/widest']:.3f}" if early else ""]
    several = not name.startswith(("static", "alone"))
    for end in ("slimmest", "widest"):
        said = early and (several or end == "widest")
        cells.append(f"{100 * early[f'calibration/{end}']:.1f}" if said else "")
    if "calibration" not in found:
        return [name, *cells, "", "", f"stopped after {len(course)}", ""]
    held, seen = ([100 * value for value in found[key]] for key in ("calibration", "training"))
    narrow = [f"{held[0]:.1f}", f"{sum(held) / len(held):.1f}"] if several else ["", ""]
    return [name, *cells, *narrow, f"{held[-1]:.1f}", f"{seen[-1]:.1f}"]


def page(found: Mapping[str, Any]) -> list[str]:
    columns = ["<run", f"loss, epoch {EARLY}", "slimmest", "widest", "slimmest, end", "mean of widths", "widest, end"]
    rows = [row_of(*item) for item in found["runs"].items()]
    lines = [
        "# Recipes of stage I, and the widest width against a static network",
        "",
        "Runs on CIFAR-10 with one seed, 14 epochs, batches of 128. Names give the learning rate, and the weight of "
        "the losses of all sub-networks except the widest (`ieb.weight`; 1 if not given). *static* is "
        "mobilenet_v1_tiny, *alone* the widest of ds_mobilenet_v1_tiny trained without the other widths. Accuracies "
        f"are percentages of the calibration images: those of the moving average after epoch {EARLY}, and those of "
        f"the saved network; the last column is of {SEEN * task.batch:,} training images without augmentation. The "
        "loss is that of the widest.",
        "",
        *markdown_table([*columns, "widest, training images"], rows),
    ]
    if gradients := found.get("gradients"):
        rows = [[part, f"{row['ratio']:.2f}", f"{row['cosine']:.2f}"] for part, row in gradients["parts"].items()]
        lines += [
            "",
            f"Gradients of {gradients['run']} after epoch {gradients['epoch']}, averaged over {gradients['batches']} "
            "batches, with weight 1: how much longer the gradient of all losses is than that of the widest's loss, and "
            "the cosine between the widest's loss and the other losses.",
            "",
            *markdown_table(["<weights", "all losses / widest", "cosine"], rows),
        ]
    return [*lines, "", "Made by `python benchmarks/widest.py`; every figure is in the JSON beside this page."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--root", default="data", help="folder of cifar-10-batches-bin")
    parser.add_argument("--only", nargs="+", choices=RUNS, default=list(RUNS), metavar="NAME", help="some of the runs")
    parser.add_argument("--show", action="store_true", help="train nothing; show the runs that have begun")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gradients", type=Path, metavar="RUN", help="run whose training state is looked at")
    parser.add_argument("--batches", type=int, default=25, help="number of batches that gradients are averaged over")
    parser.add_argument("--export", type=Path, help="write PREFIX.json and PREFIX.md")
    args = parser.parse_args()
    runs = {}
    for name in args.only:
        folder = args.out / name
        if not args.show and not (folder / RESULT).exists():
            trained(name, folder, args.root, args.seed)
        if (folder / METRICS).exists() and (folder / METRICS).read_text():
            runs[name] = described(folder, args.root)
    found: dict[str, Any] = {"runs": runs}
    if args.gradients:
        epoch = len((args.gradients / METRICS).read_text().splitlines())
        parts = gradients(args.gradients, args.root, args.batches)
        found["gradients"] = {"run": args.gradients.name, "epoch": epoch, "batches": args.batches, "parts": parts}
    print("\n".join(page(found)))
    if args.export:
        args.export.with_name(args.export.name + ".json").write_text(json.dumps(found, indent=1) + "\n")
        args.export.with_name(args.export.name + ".md").write_text("\n".join(page(found)) + "\n")


if __name__ == "__main__":
    main()
