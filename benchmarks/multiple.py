"""To which multiple should `dsnet slim` round channels? MAdds and milliseconds of every width, in floats and INT8.

    python benchmarks/multiple.py [--multiples 8 16 32] [--repeats 60] [--export docs/results/multiple]

EfficientNet-Lite0 is converted at 112 px with the widths of `dsnet reproduce slim`, once for each multiple. Nothing is
trained and the ranges of maps come from noise, because the time depends on neither. One image on one thread, one static
file for each width; all files of a width take turns, and the clock counts processor time. Needs dsnet[pretrained].
Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from turns import in_turns, write_page

from dsnet import export_onnx, quantisation, slim
from dsnet.latency.timing import Call, machine
from dsnet.models import Supernet, count
from dsnet.report.tables import markdown_table
from dsnet.runtime.engine import open_session
from dsnet.slimming.pretrained import PRETRAINED

NETWORK, SIZE = "efficientnet_lite0", 112
WIDTHS = ((0.35, 0.5), (0.5, 0.75), (0.75, 0.75), 1.0)


def network(multiple: int) -> Supernet:
    example = torch.zeros(1, 3, SIZE, SIZE)
    return slim(PRETRAINED[NETWORK].model(SIZE), example, WIDTHS, multiple=multiple, affine="width", name=NETWORK)


def call(file: Path, x: torch.Tensor) -> Call:
    return partial(open_session(file, 1).run, ["logits"], {"image": x[:1].numpy()})


def rows(multiples: list[int], repeats: int, folder: Path) -> list[dict[str, Any]]:
    nets, x = {multiple: network(multiple) for multiple in multiples}, torch.randn(8, 3, SIZE, SIZE)
    quantised = {multiple: quantisation(net, x) for multiple, net in nets.items()}
    found = []
    for width in range(len(WIDTHS)):
        calls: dict[tuple[int, str], Call] = {}
        for multiple, net in nets.items():
            for kind, int8 in (("fp32", None), ("int8", quantised[multiple])):
                file = export_onnx(net, folder / f"{multiple}-{kind}.onnx", path=(width,), int8=int8)
                calls[multiple, kind] = call(file, x)
        times = in_turns(calls, repeats)
        for multiple, net in nets.items():
            row: dict[str, Any] = {"width": width, "multiple": multiple, "madds": count(net).madds((width,))}
            for kind in ("fp32", "int8"):
                row[kind] = {"median": median(times[multiple, kind]), "minimum": min(times[multiple, kind])}
            found.append(row)
    return found


def page(found: list[dict[str, Any]]) -> list[str]:
    lines = []
    for row in found:
        base = next(other for other in found if other["width"] == row["width"])
        cells = [str(row["width"]), str(row["multiple"]), f"{row['madds'] / 1e6:.1f}M"]
        for kind in ("fp32", "int8"):
            share = row[kind]["minimum"] / base[kind]["minimum"]
            cells += [f"{row[kind]['median']:.2f}", f"{share:.2f}"]
        lines.append([*cells, f"{1e9 * row['int8']['minimum'] / row['madds']:.1f}"])
    multiples = [row["multiple"] for row in found if row["width"] == 0]
    about = machine()
    widths = ", ".join(f"{width[0]:g}/{width[1]:g}" if isinstance(width, tuple) else f"{width:g}" for width in WIDTHS)
    return [
        "# Rounding of channels: multiples of " + ", ".join(map(str, multiples)),
        "",
        f"`python benchmarks/multiple.py`: {NETWORK} at {SIZE} px, converted with the hidden and residual widths "
        f"{widths}. Static files of each width in ONNX Runtime, one image, one thread, milliseconds of processor time, "
        "medians. Ratios are of minima, to the first multiple; the last column is nanoseconds of INT8 for a thousand "
        "MAdds.",
        "",
        f"dsnet {about.dsnet}, onnxruntime {about.onnxruntime} on {about.machine}.",
        "",
        *markdown_table(
            ["width", "multiple", "MAdds", "fp32 ms", "ratio", "INT8 ms", "ratio", "INT8 ns per 1000 MAdds"], lines
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--multiples", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--export", default=None)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = rows(args.multiples, args.repeats, Path(folder))
    lines = page(found)
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), {"rows": found}, lines)


if __name__ == "__main__":
    main()
