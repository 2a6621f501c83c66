"""What a stream of images takes through a network that looks small first, next to the static network.

    python benchmarks/stream.py [--images 100] [--repeats 5] [--export docs/results/stream]

EfficientNet-Lite0 with 100 classes looks at every image at 64 px, and again at 112 px where it is not sure; the same at
128 and 224 px. Its router is set so that a given share of the images is looked at twice, in a random order, because the
time depends on these shares and not on what was learned. All of it is one dynamic file, which runs the head of the
router and decides for each image. Both files get the images one after another, one image per call on one thread, and
take turns, so that each finds in the processor's cache what the images before left there. Needs dsnet[pretrained].
Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from turns import write_page

from dsnet import export_onnx, quantisation, slim
from dsnet.latency.timing import Call, interleaved, machine
from dsnet.models import Supernet
from dsnet.nn.router import ScoringHead
from dsnet.report.tables import markdown_table
from dsnet.routers import Budget, RouterSpec
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.slimming.pretrained import PRETRAINED

SIZES = (48, 64, 80, 96, 112)
FIRST, AGAIN = (1, 0), (4, 0)  # 64 and 112 px
TIMES = (1, 2)  # these sizes, and twice as large
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 1.0)  # of the images that are looked at again
KEEP, GO_ON = 1e3, 0.0  # lambdas at which the router keeps its first look, or always looks again
CLASSES = 100


def network(sizes: Sequence[int]) -> Supernet:
    """The network with a router whose lambda decides alone."""
    size = sizes[-1]
    model = PRETRAINED["efficientnet_lite0"].model(size)
    name, last = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)][-1]
    model.set_submodule(name, torch.nn.Linear(last.in_features, CLASSES))
    start = slim(model.eval(), torch.zeros(1, 3, size, size), (1.0,), sizes=sizes, name="efficientnet_lite0")
    router = RouterSpec("cheap_first", "correctness", hidden=0, candidates=(FIRST, AGAIN))
    net = Supernet(replace(start.spec, router=router))
    net.load_state_dict({**net.state_dict(), **start.state_dict()})
    head = net.probe
    assert isinstance(head, ScoringHead)
    assert head.score.bias is not None
    with torch.no_grad():
        head.score.weight.zero_()
        head.score.bias.copy_(torch.tensor([0.0, 1.0]))
    table = net.manifest().table
    spent = {KEEP: table.madds(FIRST, dynamic=True), GO_ON: table.madds(AGAIN, dynamic=True)}
    budgets = tuple(Budget(madds, lam, 0.0, size) for lam, madds in spent.items())
    net.card = replace(start.card, budgets=budgets)
    return net.eval()


def routed(file: FileRunner, again: np.ndarray) -> Call:
    """The dynamic file as a call with an image and its number, where `again` says which are looked at twice."""
    router = file.manifest.router
    assert router is not None
    least, most = (file.policy(budget=row.madds) for row in router.budgets)
    feeds = [knobs(file.manifest, policy) for policy in (least, most)]

    def call(image: np.ndarray, number: int) -> Any:
        return file.session.run(None, {IMAGE: image, **feeds[int(again[number])]})

    return call


def measured(sizes: Sequence[int], precision: str, count: int, repeats: int, folder: Path) -> list[dict[str, Any]]:
    """The mean time of a stream for every share of images that are looked at again, over that of the static network."""
    net = network(sizes)
    images = torch.randn(count, 3, sizes[-1], sizes[-1], generator=torch.Generator().manual_seed(0))
    int8 = quantisation(net, images[:8]) if precision == "int8" else None
    dynamic = FileRunner(export_onnx(net, folder / "dynamic.onnx", int8=int8), threads=1)
    static = open_session(export_onnx(net, folder / "static.onnx", path=AGAIN, int8=int8), 1)
    first = open_session(export_onnx(net, folder / "first.onnx", path=FIRST, int8=int8), 1)
    rng, calls = np.random.default_rng(0), dict[Any, Call]()
    calls["static"] = lambda image, number: static.run(None, {IMAGE: image})
    calls["first"] = lambda image, number: first.run(None, {IMAGE: image})
    for share in SHARES:
        again = rng.permutation(np.arange(count) < round(share * count))
        calls[share] = routed(dynamic, again)
        taken = [call_path(dynamic, calls[share], images, number) for number in range(min(count, 20))]
        assert taken == [AGAIN if each else FIRST for each in again[: len(taken)]]
    inputs = [(image.numpy(), number) for number, image in enumerate(images.split(1))]
    spent = interleaved(calls, repeats, inputs=inputs)
    mean = {key: 1e3 * float(np.median(np.reshape(found, (repeats, -1)), 0).mean()) for key, found in spent.items()}
    table = net.manifest().table
    whole, look = table.madds(AGAIN), table.madds(FIRST)
    rows = [("the first look as a static file", look / whole, mean["first"])]
    rows += [(f"{share:.0%} again", look / whole + share, mean[share]) for share in SHARES]
    return [
        {
            "sizes": [sizes[FIRST[0]], sizes[AGAIN[0]]],
            "precision": precision,
            "row": name,
            "madds": madds,
            "ms": ms,
            "share": ms / mean["static"],
        }
        for name, madds, ms in rows
    ]


def call_path(file: FileRunner, call: Call, images: torch.Tensor, number: int) -> tuple[int, ...]:
    """The path that an image took."""
    names = [slot.name for slot in file.session.get_outputs()]
    answer = dict(zip(names, call(images[number : number + 1].numpy(), number), strict=True))
    return tuple(answer["path"].reshape(-1).tolist())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--export")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as place:
        for times in TIMES:
            for precision in ("fp32", "int8"):
                sizes = [times * size for size in SIZES]
                results += measured(sizes, precision, args.images, args.repeats, Path(place))
    columns = ["<sizes", "<images", "MAdds", "ms, fp32", "ms, INT8"]
    cells = []
    for row in results:
        if row["precision"] == "fp32":
            same = (row["sizes"], row["row"])
            (int8,) = [r["share"] for r in results if r["precision"] == "int8" and (r["sizes"], r["row"]) == same]
            names = " and ".join(f"{size} px" for size in row["sizes"])
            cells.append([names, row["row"], f"{row['madds']:.3f}", f"{row['share']:.3f}", f"{int8:.3f}"])
    about = machine()
    lines = [
        "# A stream of images that are looked at small first",
        "",
        *markdown_table(columns, cells),
        "",
        "Shares of the static network at the larger size, in the same precision. EfficientNet-Lite0 with 100 classes,",
        "all of it in one dynamic file; a share of the images, in random order, is looked at again at the larger size.",
        f"One image per call, one thread; the mean over {args.images} images, each the median of {args.repeats} rounds",
        f"in turns. Made by `python benchmarks/stream.py` with dsnet {about.dsnet}, onnxruntime {about.onnxruntime}",
        f"on {about.machine}; every figure is in stream.json.",
    ]
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), {"rows": results}, lines)


if __name__ == "__main__":
    main()
