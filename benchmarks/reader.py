"""What decoding JPEGs at a reduced scale costs and gains: time per picture, and accuracy with and without it.

Photographs are enlarged to 640 x 480 and to 2560 x 1920 pixels and saved as JPEGs. They have less detail than those of
a camera, on which the readers may differ more. Times of `reduced` (the reader of dsnet) and `whole` (the same reader,
decoding at full size) are processor times, interleaved in rotating order. Ratios are of medians, relative to `whole`;
that of `whole again` shows the noise. For the accuracy, a small network is trained on what each reader gives, and
tested with both, at 32 pixels, where the readers differ most. Last, how far the pixels of photographs that are not
enlarged are from those of `whole`, by the number of pixels that half the scale leaves for one of the result.

    python benchmarks/reader.py data/imagenette [--out docs/results/bench_reader.json]
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median

import numpy as np
import PIL
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from dsnet import images
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Data
from dsnet.data.labelled import open_dataset
from dsnet.images import ImageFile, centre_crop
from dsnet.models import Supernet, create_model

READERS = {"whole": math.inf, "whole again": math.inf, "reduced": images.GAP}
LEFT = (1.25, 1.5, 1.75, 2.0, 2.5)  # pixels that half the scale leaves for one of the result
SIDES = {"640 x 480": (640, 480), "2560 x 1920": (2560, 1920)}


@contextmanager
def reader(name: str) -> Iterator[None]:
    """Decode at a reduced scale, or whole: no image has an infinite number of pixels to spare."""
    before, images.GAP = images.GAP, READERS[name]
    try:
        yield
    finally:
        images.GAP = before


def enlarge(source: Path, target: Path, per_class: dict[str, int], side: tuple[int, int]) -> None:
    """Copies of some photographs of every class, enlarged."""
    for split, count in per_class.items():
        for folder in sorted((source / split).iterdir()):
            (target / split / folder.name).mkdir(parents=True)
            for file in sorted(folder.iterdir())[:count]:
                picture = Image.open(file).convert("RGB").resize(side, Image.Resampling.BICUBIC)
                picture.save(target / split / folder.name / f"{file.stem}.jpg", quality=90)


def times(files: list[Path], size: int, repeats: int) -> dict[str, float]:
    """Milliseconds of the processor from a file to a square of `size`, by reader, and the ratios to `whole`."""
    found: dict[str, list[float]] = {name: [] for name in READERS}
    order = list(READERS)
    for step in range(repeats + 1):
        for name in order:
            with reader(name):
                for file in files:
                    began = time.process_time()
                    centre_crop(ImageFile(file), size, crop=0.875, interpolation="bilinear")
                    if step > 0:  # the first round warms up
                        found[name].append(time.process_time() - began)
        order.append(order.pop(0))
    typical = {name: 1000 * median(values) for name, values in found.items()}
    ratios = {
        f"{name} / whole": round(value / typical["whole"], 3) for name, value in typical.items() if name != "whole"
    }
    return {**{f"{name}, ms": round(value, 2) for name, value in typical.items() if "again" not in name}, **ratios}


def distances(files: list[Path]) -> dict[str, dict[str, float]]:
    """Mean and 99th percentile of the distance between the pixels of a JPEG at half its scale and of the whole one, of
    255 levels."""
    found = {}
    for left in LEFT:
        off = []
        for file in files:
            with reader("whole"):
                size = int(0.875 * min(ImageFile(file).width, ImageFile(file).height) / (2 * left))
                whole = centre_crop(ImageFile(file), size, crop=0.875, interpolation="bilinear")
            half = ImageFile(file)
            half.decoded(2)
            reduced = centre_crop(half, size, crop=0.875, interpolation="bilinear")
            off.append(np.abs(np.asarray(whole, np.float64) - np.asarray(reduced, np.float64)).ravel())
        every = np.concatenate(off)
        found[f"{left:g}"] = {"mean": round(float(every.mean()), 2), "p99": round(float(np.quantile(every, 0.99)), 1)}
    return found


def loaded(data: Data, split: str, name: str) -> tuple[Tensor, Tensor]:
    with reader(name):
        batch = data.split(split).load(data.split(split).ids)
    return batch.images, batch.labels


def trained(x: Tensor, labels: Tensor, seed: int, epochs: int) -> Supernet:
    torch.manual_seed(seed)
    net = create_model("mobilenet_v1_tiny", num_classes=10, image_size=x.shape[-1])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=epochs * (len(x) // 64))
    for _ in range(epochs):
        for part in torch.randperm(len(x))[: len(x) // 64 * 64].view(-1, 64):
            some = x[part].flip(3) if torch.rand(()) < 0.5 else x[part]
            optimizer.zero_grad()
            F.cross_entropy(net(some, ()), labels[part]).backward()
            optimizer.step()
            schedule.step()
    return net.eval()


def accuracies(data: Data, seeds: int, epochs: int) -> dict[str, float]:
    """Mean accuracy over seeds, by the reader of training and of test, and how often both readers get one answer."""
    names = ("whole", "reduced")
    learn, test = ({name: loaded(data, split, name) for name in names} for split in ("train", "test"))
    scores: dict[str, list[float]] = {}
    for seed in range(seeds):
        for name in names:
            net = trained(*learn[name], seed, epochs)
            with torch.inference_mode():
                answers = {
                    other: torch.cat([net(part, ()).argmax(1) for part in x.split(256)])
                    for other, (x, _) in test.items()
                }
            for other, (_, labels) in test.items():
                scores.setdefault(f"trained {name}, tested {other}", []).append(
                    float((answers[other] == labels).double().mean())
                )
            same = float((answers["whole"] == answers["reduced"]).double().mean())
            scores.setdefault(f"trained {name}, same answer", []).append(same)
    return {key: round(mean(values), 4) for key, values in scores.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="folder of photographs with train/ and val/, one folder per class")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--train", type=int, default=200, help="training photographs per class")
    parser.add_argument("--test", type=int, default=200, help="test photographs per class")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seeds", type=int, default=3, help="trainings per reader; 0 measures times only")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    result: dict[str, object] = {"images": args.source.name, "train": 10 * args.train, "test": 10 * args.test}
    result |= {"epochs": args.epochs, "seeds": args.seeds, "gap": images.GAP}
    result |= {"pillow": PIL.__version__, "torch": torch.__version__, "machine": platform.machine()}
    with tempfile.TemporaryDirectory() as name:
        for side, pixels in SIDES.items():
            enlarge(args.source, Path(name, side), {"val": 2}, pixels)
            files = sorted(Path(name, side).rglob("*.jpg"))
            result[f"{side}, JPEG"] = {f"{size} px": times(files, size, args.repeats) for size in (32, 64, 112, 224)}
        some = sorted(args.source.glob("val/*/*.jpg"))
        result["levels from whole, by pixels left"] = distances(some[:: max(1, len(some) // 500)])
        if not args.seeds:
            print(json.dumps(result, indent=1))
            return
        enlarge(args.source, Path(name, "photos"), {"train": args.train, "val": args.test}, SIDES["640 x 480"])
        data = open_dataset(DataConfig("folder", root=str(Path(name, "photos")), image_size=32))
        result["accuracy, 640 x 480 to 32 px"] = accuracies(data, args.seeds, args.epochs)
    text = json.dumps(result, indent=1)
    print(text)
    if args.out:
        args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
