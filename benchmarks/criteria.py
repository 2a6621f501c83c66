"""By which importance should the channels of a pretrained network be sorted? What is left before any training.

    python benchmarks/criteria.py --data imagenette [--images 1000] [--export docs/results/criteria]

EfficientNet-Lite0 with ImageNet weights is converted at 112 px with parts of its hidden and residual channels, sorted
by each importance. The statistics of its batch norms are computed again for every width, on training images, and
nothing is trained. Shown is how often a width has the answer of the whole network among 1000 classes, and its accuracy
where the head is restricted to the ten classes of Imagenette. Their images were in the training set of the weights, so
only differences between rows mean something. Needs dsnet[pretrained]. Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from pretrained import CLASSES
from torch import Tensor
from turns import write_page

from dsnet import slim
from dsnet.latency.timing import machine
from dsnet.models.count import count
from dsnet.pictures import image_files
from dsnet.report.tables import markdown_table
from dsnet.slimming.pretrained import PRETRAINED
from dsnet.slimming.sort import IMPORTANCES, OBSERVED, Importance
from dsnet.slimming.sources import read_images
from dsnet.training.recalibration import recalibrate

NETWORK, SIZE = "efficientnet_lite0", 112
WIDTHS = (0.5, 0.75, 1.0)
SEEN, STATISTICS = 300, 960  # images that importance and statistics are computed from
BATCH = 32


@torch.no_grad()
def answers(net: Any, images: Tensor, width: int) -> Tensor:
    return torch.cat([net(part, (width,)) for part in images.split(BATCH)])


def row(sort: Importance, train: Tensor, test: Tensor, labels: Tensor) -> dict[str, Any]:
    """Agreement and accuracy of every width."""
    model = PRETRAINED[NETWORK].model(SIZE)
    seen = train[:: len(train) // SEEN][:SEEN] if sort in OBSERVED else None
    net = slim(model, train[:1], WIDTHS, images=seen, sort=sort, name=NETWORK)
    recalibrate(net, list(train.split(BATCH)))
    net.eval()
    whole = model.eval()
    with torch.no_grad():
        original = torch.cat([whole(part) for part in test.split(BATCH)])
    ten, table = torch.tensor(list(CLASSES.values())), count(net)
    found: dict[str, Any] = {"sort": sort, "widths": []}
    for width, share in enumerate(WIDTHS):
        logits = answers(net, test, width)
        found["widths"].append(
            {
                "channels": share,
                "madds": table.madds((width,)) / table.madds(net.space.widest),
                "agreement": float((logits.argmax(1) == original.argmax(1)).float().mean()),
                "top1": float((logits[:, ten].argmax(1) == labels).float().mean()),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--export")
    args = parser.parse_args()
    how = PRETRAINED[NETWORK].preprocessing
    train = read_images(args.data / "train", 3, SIZE, how, STATISTICS)
    test = read_images(args.data / "val", 3, SIZE, how, args.images)
    files = image_files([args.data / "val"])
    chosen = [files[int(place)] for place in torch.linspace(0, len(files) - 1, len(test), dtype=torch.float64)]
    labels = torch.tensor([list(CLASSES).index(file.parent.name) for file in chosen])
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    rows = [row(sort, train[order], test, labels) for sort in IMPORTANCES]
    slimmed = range(len(WIDTHS) - 1)
    names = [f"{WIDTHS[width]:g} of the channels" for width in slimmed]
    cells = [
        [
            f"`{found['sort']}`",
            *(f"{100 * found['widths'][width][what]:.1f}" for what in ("agreement", "top1") for width in slimmed),
        ]
        for found in rows
    ]
    columns = ["<sorted by", *(f"agreement, {name}" for name in names), *(f"top-1 of ten, {name}" for name in names)]
    costs = ", ".join(f"{rows[0]['widths'][width]['madds']:.2f}" for width in slimmed)
    whole, about = 100 * rows[0]["widths"][-1]["top1"], machine()
    lines = [
        "# Sorting the channels of a pretrained network",
        "",
        *markdown_table(columns, cells),
        "",
        f"Per cent of {len(test)} images of Imagenette, before any training; statistics of batch norms computed again.",
        f"The widths have {costs} of the MAdds. Agreement: the answer of the whole network among 1000 classes. Of ten,",
        f"the whole network has {whole:.1f} % with these statistics. Made by `python benchmarks/criteria.py` with",
        f"EfficientNet-Lite0 at {SIZE} px, dsnet {about.dsnet}, torch {about.torch}; every figure is in criteria.json.",
    ]
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), {"rows": rows, "images": len(test)}, lines)


if __name__ == "__main__":
    main()
