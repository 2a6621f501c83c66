"""Time of one step of stage I, with and without shared prefixes, and its share outside forward and backward passes.

`shared` is the step of dsnet, in which student and teacher each run one `forward_paths`. `separate` is the same step
with one call for each sub-network. Steps are interleaved in rotating order. Ratios are of medians; the A/A ratio shows
the noise. The share outside forward and backward passes is that of data loading, optimizer and moving average in a
shared step.

    python benchmarks/stage1.py [--model ds_mobilenet_v1] [--batch 16] [--size 224] [--repeats 10]
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import time
from statistics import median

import torch
from torch import Tensor

from dsnet.data.augment import AugmentConfig
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Batch, Split
from dsnet.data.labelled import Loader
from dsnet.data.sources import Arrays
from dsnet.models import Supernet, create_model
from dsnet.training import EMA, IEB, Drawn, IEBConfig, OptimConfig, make_optimizer


class SeparateIEB(IEB):
    """The same losses, with one call for each sub-network."""

    def forward(self, images: Tensor, labels: Tensor, drawn: Drawn, teacher: Supernet) -> dict[str, Tensor]:
        space, paths = self.net.space, drawn.paths
        wide, *middle, slim = [self.net(images, path) for path in (space.widest, *paths, space.slimmest)]
        with torch.no_grad():
            probs = [self.soften(teacher(images, path)) for path in (space.widest, *paths)]
        losses = {"widest": torch.nn.functional.cross_entropy(wide, labels)}
        for number, logits in enumerate(middle, start=1):
            losses[f"random{number}"] = self.distil(logits, probs[0])
        losses["slimmest"] = self.distil(slim, torch.stack(probs).mean(0))
        return losses


def load(split: Split, step: int, batch: int) -> Batch:
    start = step * batch % (len(split) - batch)
    return split.load(split.ids[start : start + batch], seed=step)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ds_mobilenet_v1")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=10)
    args = parser.parse_args()
    torch.manual_seed(0)
    net = create_model(args.model, num_classes=10).train()
    ema = EMA(net, 0.99)
    stages = {"shared": IEB(net, IEBConfig()), "separate": SeparateIEB(net, IEBConfig())}
    optimizer = make_optimizer(stages["shared"], OptimConfig(lr=0.001))
    pixels = torch.randint(0, 256, (4 * args.batch, 3, args.size, args.size), dtype=torch.uint8)
    source = Arrays(pixels, torch.randint(0, 10, (len(pixels),)))
    augment = AugmentConfig(crop="pad", flip=True)
    loader = Loader(source, DataConfig(augment=augment), args.size, (0.5,) * 3, (0.25,) * 3)
    split = Split(loader, torch.arange(len(source)))
    inner = [path for path in net.space if path not in (net.space.slimmest, net.space.widest)]
    times: dict[str, list[float]] = {"shared": [], "separate": [], "separate again": []}
    outside: list[float] = []
    order = list(times)
    for step in range(args.repeats + 1):
        drawn = Drawn(random.Random(step).sample(inner, 2))
        for name in order:
            stage = stages[name.removesuffix(" again")]
            began = time.perf_counter()
            batch = load(split, step, args.batch)
            loaded = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            torch.stack(list(stage(batch.images, batch.labels, drawn, ema.net).values())).sum().backward()
            computed = time.perf_counter()
            optimizer.step()
            ema.update(step)
            ended = time.perf_counter()
            if step > 0:  # the first round warms up
                times[name].append(ended - began)
                if name == "shared":
                    outside.append((ended - began - (computed - loaded)) / (ended - began))
        order.append(order.pop(0))
    typical = {name: median(values) for name, values in times.items()}
    print(
        json.dumps(
            {
                "model": args.model,
                "batch": args.batch,
                "size": args.size,
                "threads": torch.get_num_threads(),
                "images per second, shared": round(args.batch / typical["shared"], 1),
                "separate / shared": round(typical["separate"] / typical["shared"], 3),
                "A/A": round(typical["separate again"] / typical["separate"], 3),
                "share of time outside forward and backward": round(median(outside), 3),
                "peak memory of the process, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
