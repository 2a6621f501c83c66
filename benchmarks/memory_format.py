"""Time of one step of stage I in both memory formats (`optim.channels_last`), on one thread.

A step is the forward and backward pass of the student and the forward pass of its teacher. The formats are interleaved
in rotating order. Ratios are of medians, relative to the default format; the A/A ratio shows the noise.

    python benchmarks/memory_format.py [--batch 128] [--size 32] [--repeats 12]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from statistics import median

import torch

from dsnet.models import create_model
from dsnet.training import EMA, IEB, IEBConfig

MODELS = ("ds_mobilenet_v1_tiny", "us_mobilenet_v1_tiny", "mobilenet_v1_tiny", "ds_efficientnet_tiny", "ds_resnet_tiny")
FORMATS = {
    "default": torch.contiguous_format,
    "default again": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


def ratios(model: str, batch: int, size: int, repeats: int) -> dict[str, float]:
    """Time of a step in every format, as a share of the default's."""
    torch.manual_seed(0)
    images, labels = torch.randn(batch, 3, size, size), torch.randint(0, 10, (batch,))
    stages, inputs = {}, {}
    for name, kind in FORMATS.items():
        net = create_model(model, num_classes=10).train().to(memory_format=kind)  # type: ignore[call-overload]
        stages[name] = IEB(net, IEBConfig()), EMA(net, 0.99).net
        inputs[name] = images.contiguous(memory_format=kind)
    times: dict[str, list[float]] = {name: [] for name in FORMATS}
    order = list(FORMATS)
    for step in range(repeats + 1):
        for name in order:
            stage, teacher = stages[name]
            drawn = stage.draw(random.Random(step))
            stage.zero_grad(set_to_none=True)
            began = time.perf_counter()
            torch.stack(list(stage(inputs[name], labels, drawn, teacher).values())).sum().backward()
            if step > 0:  # the first round warms up
                times[name].append(time.perf_counter() - began)
        order.append(order.pop(0))
    typical = {name: median(values) for name, values in times.items()}
    return {name: round(value / typical["default"], 3) for name, value in typical.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = {model: ratios(model, args.batch, args.size, args.repeats) for model in MODELS}
    print(json.dumps({"torch": torch.__version__, **vars(args), "ratios": found}, indent=1))


if __name__ == "__main__":
    main()
