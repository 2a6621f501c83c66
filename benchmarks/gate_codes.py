"""How well a gate can predict whether the slimmest sub-network is right, from the inputs that it has.

The paper's slimming head is one linear layer. It reads a few numbers, the code, which the attention head computes from
the channel means of a map. This benchmark fits heads on training images that predict, from the code and from richer
inputs, whether the slimmest sub-network is right, and measures their AUC on the test split. A gate with the same input
can hardly do better, whatever its training and targets. The same head is also trained with the optimiser of stage II
for several numbers of epochs, to show how long a gate must be trained to get there.

    python benchmarks/gate_codes.py SUPERNET [SUPERNET ...] [--export docs/results/gate_codes]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsnet.config import CONFIG
from dsnet.data.batches import plain_batches
from dsnet.data.dataset import Batch
from dsnet.data.splits import check_data
from dsnet.models import Supernet
from dsnet.nn.gate import Gate
from dsnet.report.tables import markdown_table
from dsnet.routing.traces import auc
from dsnet.tasks import load, read_config
from dsnet.tasks.classification.config import ClassificationConfig
from dsnet.tasks.classification.task import task

HIDDEN = 64
READS = {
    "code, linear (a shared head)": ("code", 0),
    f"code, {HIDDEN} hidden units": ("code", HIDDEN),
    f"channel means, {HIDDEN} hidden units": ("means", HIDDEN),
}
EPOCHS = (1, 2, 10)  # epochs of stage II to compare
PROBE = f"the slimmest's own logits, {HIDDEN} hidden units (as cheap-first)"


@torch.inference_mode()
def collect(net: Supernet, batches: Iterable[Batch]) -> dict[str, Any]:
    """Run the slimmest path. Returns the possible inputs of each gate, the logits, and whether they are right."""
    gates = [module for module in net.modules() if isinstance(module, Gate) and module.slimming is not None]
    means: list[Tensor] = []
    hooks = [gate.pool.register_forward_hook(lambda module, args, pooled: means.append(pooled)) for gate in gates]
    found: dict[str, list[Any]] = {"code": [], "means": [], "logits": [], "right": []}
    for batch in batches:
        means.clear()
        logits, codes = net.run_coded(net.enter(batch.images), net.space.slimmest)
        found["code"].append([code for code in codes if code is not None])
        found["means"].append(list(means))
        found["logits"].append(logits.sort(dim=1, descending=True).values)
        found["right"].append(logits.argmax(1) == batch.labels)
    for hook in hooks:
        hook.remove()
    by_point = {key: [torch.cat(parts) for parts in zip(*found[key], strict=True)] for key in ("code", "means")}
    return {**by_point, "logits": torch.cat(found["logits"]), "right": torch.cat(found["right"])}


def reached(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], hidden: int, epochs: int) -> float:
    """The AUC on `test` of a head fitted on `train`. Both are pairs of inputs and targets."""
    torch.manual_seed(0)
    mean, spread = train[0].mean(0), train[0].std(0) + 1e-5
    x, seen = ((part[0] - mean) / spread for part in (train, test))
    size = x.shape[1]
    head = nn.Sequential(nn.Linear(size, hidden), nn.ReLU(), nn.Linear(hidden, 1)) if hidden else nn.Linear(size, 1)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(256):
            loss = F.binary_cross_entropy_with_logits(head(x[rows])[:, 0], train[1][rows].float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.inference_mode():
        return round(auc(head(seen)[:, 0].numpy(), test[1].numpy()), 4)


def trained(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], points: int, widths: int, epochs: int) -> float:
    """The AUC on `test` of a slimming head trained as by dsnet 0.1, as one of `points` gates and on try_best only."""
    optim = ClassificationConfig().sgs_optim
    torch.manual_seed(0)
    head = nn.Linear(train[0].shape[1], widths, bias=False)
    optimizer = torch.optim.SGD(head.parameters(), optim.lr, optim.momentum, nesterov=optim.nesterov)
    for _ in range(epochs):
        for rows in torch.randperm(len(train[0])).split(128):
            goal = torch.where(train[1][rows], 0, widths - 1)
            loss = F.cross_entropy(head(train[0][rows]), goal) / points
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        optimizer.param_groups[0]["lr"] *= optim.gamma
    with torch.inference_mode():
        scores = head(test[0])
        return round(auc((scores[:, 0] - scores[:, -1]).numpy(), test[1].numpy()), 4)


def measure(run: Path, root: str | None, epochs: int) -> dict[str, Any]:
    config = read_config(run / CONFIG)
    data = task.open_data(config, root)
    check_data(run, data)
    net = load(run, "classification").eval()
    train, test = (collect(net, plain_batches(split, 256)) for split in (data.train, data.test))
    rows = {
        name: [
            reached((ours, train["right"]), (theirs, test["right"]), hidden, epochs)
            for ours, theirs in zip(train[key], test[key], strict=True)
        ]
        for name, (key, hidden) in READS.items()
    }
    for count in EPOCHS:
        rows[f"code, linear, as stage II of dsnet 0.1 trained it, epochs: {count}"] = [
            trained((ours, train["right"]), (theirs, test["right"]), len(train["code"]), widths, count)
            for ours, theirs, widths in zip(train["code"], test["code"], net.spec.widths, strict=True)
        ]
    probe = reached((train["logits"], train["right"]), (test["logits"], test["right"]), HIDDEN, epochs)
    return {
        "model": net.spec.name,
        "seed": config.seed,
        "epochs": config.optim.epochs,
        "right": round(test["right"].double().mean().item(), 4),
        "code": [code.shape[1] for code in train["code"]],
        "means": [means.shape[1] for means in train["means"]],
        "auc": {**rows, PROBE: [probe]},
    }


def page(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "# What a gate could know",
        "",
        "AUC on the test split of heads that were fitted, on training images, to tell whether the slimmest sub-network "
        "is right; 0.5 is chance. Every choice point is met along the slimmest path.",
        "",
    ]
    for result in results:
        points = [f"gate {point}" for point in range(len(result["code"]))]
        sizes = [f"{code} of {means}" for code, means in zip(result["code"], result["means"], strict=True)]
        rows = [["numbers in the code, of channels", *sizes]]
        for name, found in result["auc"].items():
            rows.append([name, *(f"{value:.3f}" for value in found), *[""] * (len(points) - len(found))])
        lines += [f"## {result['model']}, {result['epochs']} epochs, seed {result['seed']}", ""]
        lines += [f"The slimmest sub-network is right on {100 * result['right']:.1f} %.", ""]
        lines += [*markdown_table(["<what is read", *points], rows), ""]
    return [*lines, "Made by `python benchmarks/gate_codes.py`; every figure is in the JSON beside this page."]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--root", help="folder of the data, if it was moved")
    parser.add_argument("--epochs", type=int, default=10, help="number of epochs in which a head is fitted")
    parser.add_argument("--export", type=Path, help="write PREFIX.json and PREFIX.md")
    args = parser.parse_args()
    results = [measure(run, args.root, args.epochs) for run in args.runs]
    print("\n".join(page(results)))
    if args.export:
        args.export.with_name(args.export.name + ".json").write_text(json.dumps(results, indent=1) + "\n")
        args.export.with_name(args.export.name + ".md").write_text("\n".join(page(results)) + "\n")


if __name__ == "__main__":
    main()
