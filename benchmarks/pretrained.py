"""Import check of the pretrained networks: agreement with the package's own module, and top-1 on Imagenette.

    python benchmarks/pretrained.py --data imagenette/val [--images 500] [--export docs/results/pretrained.json]

The 1000-class head is restricted to the ten classes of Imagenette, whose images were in the training set of these
weights: the numbers show that weights and preprocessing are right, and nothing else.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from dsnet.slimming.create import create_model
from dsnet.slimming.pretrained import PRETRAINED

CLASSES = {
    "n01440764": 0,
    "n02102040": 217,
    "n02979186": 482,
    "n03000684": 491,
    "n03028079": 497,
    "n03394916": 566,
    "n03417042": 569,
    "n03425413": 571,
    "n03445777": 574,
    "n03888257": 701,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--models", nargs="+", default=["efficientnet_lite0"])
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--sizes", type=int, nargs="+", default=[112, 224])
    parser.add_argument("--export", type=Path)
    args = parser.parse_args()
    rows = [check(name, size, args.data, args.images) for name in args.models for size in args.sizes]
    for row in rows:
        print(row)
    if args.export is not None:
        args.export.write_text(json.dumps(rows, indent=1))


@torch.no_grad()
def check(name: str, size: int, data: Path, most: int) -> dict[str, object]:
    """Compare the widest path with the package's own module on images."""
    from dataclasses import asdict

    from dsnet.images import ImageFile, prepare

    net, original = create_model(name, pretrained=True, image_size=size), PRETRAINED[name].model(size)
    files = sorted(data.glob("*/*"))
    chosen = [files[int(place)] for place in np.linspace(0, len(files) - 1, min(most, len(files)))]
    about = {"size": size, "channels": 3, **asdict(net.card.preprocessing)}
    indices = torch.tensor(list(CLASSES.values()))
    right = worst = spread = 0.0
    for start in range(0, len(chosen), 16):
        part = chosen[start : start + 16]
        x = torch.from_numpy(np.stack([prepare(ImageFile(file), **about) for file in part]))
        ours, theirs = net(x, net.space.widest), original(x)
        worst = max(worst, float((ours - theirs).abs().max()))
        spread = max(spread, float(theirs.max() - theirs.min()))
        labels = torch.tensor([list(CLASSES).index(file.parent.name) for file in part])
        right += float((ours[:, indices].argmax(1) == labels).sum())
    top1, error = right / len(chosen), worst / spread
    return {"model": name, "size": size, "images": len(chosen), "top1": top1, "difference_of_spread": error}


if __name__ == "__main__":
    main()
