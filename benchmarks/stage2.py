"""Speed of gate training: dsnet's stage II against a plain implementation, interleaved. Prints images/s and the ratio.

The plain implementation runs the slimmest, the widest and the masked network one after the other, each from the image
on. It computes gradients of everything and discards those that it does not need.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

import dsnet
from dsnet.cost import CostTable
from dsnet.models import Supernet
from dsnet.models.count import count
from dsnet.training import SGS, SGSConfig, with_fresh_router
from dsnet.training.complexity import expected
from dsnet.training.scores import straight_through
from dsnet.training.sgs import Draw


def plain_step(net: Supernet, table: CostTable, x: Tensor, labels: Tensor, seed: int) -> None:
    slim, _wide = net(x, net.routing.slimmest), net(x, net.routing.widest)
    generator = torch.Generator().manual_seed(seed)

    def choose(point: int, raw: Tensor | None) -> Tensor:
        assert raw is not None
        return straight_through(raw, 1.0, generator)

    logits, raws, mixes = net.forward_mixed(x, choose)
    goal = torch.where(slim.argmax(1) == labels, 0, net.spec.widths[0] - 1)
    guidance = torch.stack([F.cross_entropy(raw, goal) for raw in raws if raw is not None]).mean()
    complexity = (expected(table, mixes) / table.widest).square().mean()
    (F.cross_entropy(logits, labels) + 0.5 * complexity + guidance).backward()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ds_mobilenet_v1")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    torch.manual_seed(0)
    made = dsnet.create_model(args.model, image_size=args.image_size)
    ours = with_fresh_router(made, replace(made.spec, router=SGSConfig("gate").spec))
    stage, plain = SGS(ours, SGSConfig("gate")).train(), with_fresh_router(ours, ours.spec).eval()
    table, size = count(plain).whole, ours.spec.image_size
    x = torch.randn(args.batch, ours.spec.in_channels, size, size)
    labels = torch.randint(ours.spec.num_classes, (args.batch,))

    def our_step(seed: int) -> None:
        stage.zero_grad(set_to_none=True)
        torch.stack(list(stage(x, labels, Draw(seed, 1.0), ours).values())).sum().backward()

    def their_step(seed: int) -> None:
        plain.zero_grad(set_to_none=True)
        plain_step(plain, table, x, labels, seed)

    candidates: dict[str, Callable[[int], None]] = {"dsnet": our_step, "plain": their_step, "dsnet again": our_step}
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(args.repeats + 1):
        for name, step in candidates.items():
            start = time.perf_counter()
            step(repeat)
            if repeat:  # the first round warms up
                times[name].append(time.perf_counter() - start)
    rates = {name: args.batch / statistics.median(found) for name, found in times.items()}
    print(f"{args.model}, {size} px, batch {args.batch}, {torch.get_num_threads()} threads, median of {args.repeats}")
    for name, rate in rates.items():
        print(f"  {name:12s} {rate:8.1f} images/s")
    print(f"  dsnet / plain = {rates['dsnet'] / rates['plain']:.2f}, A/A = {rates['dsnet again'] / rates['dsnet']:.2f}")


if __name__ == "__main__":
    main()
