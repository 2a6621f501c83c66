"""Time that shared prefixes save: one `forward_paths` of four sub-networks against four separate calls.

The candidates are interleaved in one run and compared by the ratio of their medians. The ratio of the separate calls to
themselves (A/A) shows the noise. The gradients of both are compared first.

    python benchmarks/forward_paths.py [--model ds_mobilenet_v1] [--batch 16] [--size 224] [--repeats 12]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from dsnet import create_model
from dsnet.models import Supernet
from dsnet.space import WidthPath


def shared(net: Supernet, x: Tensor, paths: list[WidthPath]) -> list[Tensor]:
    return net.forward_paths(x, paths)


def separate(net: Supernet, x: Tensor, paths: list[WidthPath]) -> list[Tensor]:
    return [net(x, path) for path in paths]


Forward = Callable[[Supernet, Tensor, list[WidthPath]], list[Tensor]]


def step(forward: Forward, net: Supernet, x: Tensor, paths: list[WidthPath]) -> float:
    """Time of one forward and backward pass in seconds."""
    net.zero_grad(set_to_none=True)
    start = time.perf_counter()
    torch.stack([out.square().mean() for out in forward(net, x, paths)]).sum().backward()
    return time.perf_counter() - start


def gradient_difference(net: Supernet, x: Tensor, paths: list[WidthPath]) -> float:
    """Largest difference between the gradients of the two candidates, relative to the largest gradient."""
    gradients = []
    for forward in (shared, separate):
        step(forward, net, x, paths)
        gradients.append([p.grad for p in net.parameters() if p.grad is not None])
    pairs = list(zip(*gradients, strict=True))
    return max(float((a - b).abs().max()) for a, b in pairs) / max(float(b.abs().max()) for _, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="ds_mobilenet_v1")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--repeats", type=int, default=12)
    args = parser.parse_args()
    torch.manual_seed(0)
    net = create_model(args.model).train()
    space = net.space
    inner = [path for path in space if path not in (space.slimmest, space.widest)]
    paths = [
        space.widest,
        *random.Random(0).sample(inner, 2),
        space.slimmest,
    ]  # distinct, because a duplicate costs nothing
    x = torch.randn(args.batch, 3, args.size, args.size)
    difference = gradient_difference(net, x, paths)
    times: dict[str, list[float]] = {"shared": [], "separate": [], "separate again": []}
    candidates: list[tuple[str, Forward]] = [("shared", shared), ("separate", separate), ("separate again", separate)]
    for _ in range(args.repeats):
        for name, forward in candidates:
            times[name].append(step(forward, net, x, paths))
        candidates.append(candidates.pop(0))  # rotate the order
    typical = {name: median(values) for name, values in times.items()}
    print(
        json.dumps(
            {
                "model": args.model,
                "paths": paths,
                "batch": args.batch,
                "size": args.size,
                "threads": torch.get_num_threads(),
                "seconds": {name: round(value, 4) for name, value in typical.items()},
                "separate / shared": round(typical["separate"] / typical["shared"], 3),
                "A/A": round(typical["separate again"] / typical["separate"], 3),
                "gradient difference": difference,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
