"""What it costs to verify an export when it is opened.

    python benchmarks/opening.py [--repeats 12] [--export docs/results/opening]

Files and bundles of three networks are opened and run once, on one image at the widest path, with one thread: with the
digests checked, without, and without once more. The candidates are interleaved, and times are processor times, because
other programs do not change these. Files are in the cache of the system. Writes PREFIX.json and PREFIX.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import dsnet
from dsnet.files import size_of
from dsnet.latency.measure import noise
from dsnet.latency.timing import machine, ratio, summary
from dsnet.report.tables import human, markdown_table
from dsnet.runtime import bundle, seal
from dsnet.runtime.onnx import open_onnx
from dsnet.schema import plain

NETWORKS = ("ds_mobilenet_v1_tiny", "ds_mobilenet_v1", "ds_resnet50")
CHECKED, TRUSTED, AGAIN = "checked", "trusted", "trusted again"


def used(where: Path) -> None:
    """Open an export and run it once."""
    runner = open_onnx(where, threads=1)
    runner.run_path(noise(runner.manifest, 1), runner.paths[-1])


def stated(file: Path) -> str:
    """The digest that a file claims to have."""
    with file.open("rb") as stream:
        stream.seek(-seal.HEX, 2)
        return stream.read().decode()


def trusting(where: Path) -> None:
    with patch.object(seal, "checked", stated), patch.object(bundle, "check_file", lambda file, digest: None):
        used(where)


def in_turns(calls: Mapping[str, Callable[[], None]], repeats: int) -> dict[str, list[float]]:
    """Processor seconds of each call, in an order that rotates; a first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for round in range(repeats + 1):
        for name in order:
            begun = time.process_time()
            calls[name]()
            if round:
                times[name].append(time.process_time() - begun)
        order.append(order.pop(0))
    return times


def measured(name: str, folder: Path, repeats: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    net = dsnet.create_model(name).eval()
    rows = []
    for kind, place in (
        ("file", dsnet.export_onnx(net, folder / f"{name}.onnx")),
        ("bundle", dsnet.export_bundle(net, folder / name)),
    ):
        calls = {CHECKED: partial(used, place), TRUSTED: partial(trusting, place), AGAIN: partial(trusting, place)}
        times = in_turns(calls, repeats)
        ratios = {key: ratio(times[key], times[TRUSTED]) for key in (CHECKED, AGAIN)}
        typical = {key: summary(found).p50 for key, found in times.items()}
        rows.append({"model": name, "kind": kind, "bytes": size_of(place), "milliseconds": typical, "ratios": ratios})
    return rows


def cells(row: dict[str, Any]) -> list[str]:
    times = (f"{row['milliseconds'][key]:.0f}" for key in (TRUSTED, CHECKED))
    ratios = (f"{row['ratios'][key]:.3f}" for key in (CHECKED, AGAIN))
    return [row["model"], row["kind"], human(row["bytes"]), *times, *ratios]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--export", type=Path, default=None)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [row for name in NETWORKS for row in measured(name, Path(folder), args.repeats)]
    about = machine()
    columns = ["<model", "<export", "bytes", "ms, trusted", "ms, checked", "checked / trusted", "A/A"]
    lines = [
        "# What it costs to verify an export",
        "",
        "Processor time of opening an export and running one image at the widest path on one thread, with digests",
        "checked and without. Networks have 1,000 classes and fresh weights.",
        "",
        *markdown_table(columns, map(cells, rows)),
        "",
        f"Made by `python benchmarks/opening.py --repeats {args.repeats}` with dsnet {about.dsnet}, onnxruntime",
        f"{about.onnxruntime} on {about.machine}, candidates interleaved; ratios are medians of the rounds.",
    ]
    print("\n".join(lines))
    if args.export is not None:
        held = {**plain(about), "repeats": args.repeats, "rows": rows}
        args.export.with_suffix(".json").write_text(json.dumps(held, indent=1) + "\n")
        args.export.with_suffix(".md").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
