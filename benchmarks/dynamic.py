"""What the dynamic file costs next to a static file of the same path, in processor time, and what it takes in memory.

    python benchmarks/dynamic.py [--sessions 3] [--repeats 12] [--keep times] [--export docs/results/dynamic]

ds_mobilenet_v1 in floats and in INT8, and ds_resnet50 in floats, at 224 pixels, and EfficientNet-Lite0 at several image
sizes up to 112 pixels (with dsnet[pretrained]), with one image on one thread. Both files take turns. Where a session
puts its weights and maps in memory changes its time by some percent, so both are opened anew several times, and the
ratios of all sessions are shown. A second table has the time of both relative to sessions that ONNX Runtime opens by
default, with `enable_mem_reuse`. Processor time can be measured on a busy machine; the milliseconds of a quiet one are
in runtime.md. --keep times measures memory alone, and takes the times from PREFIX.json. Writes PREFIX.json and
PREFIX.md.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import stream
import torch
from stream import AGAIN, FIRST
from turns import in_turns, kept, write_page

from dsnet import export_onnx, quantisation
from dsnet.bench.candidates import Artefacts
from dsnet.latency.timing import Call, machine, ratio
from dsnet.manifest import Policy
from dsnet.models import Supernet, model_spec
from dsnet.nn import RouterSpec
from dsnet.report.tables import markdown_table
from dsnet.runtime.engine import open_session
from dsnet.runtime.onnx import IMAGE, FileRunner, knobs
from dsnet.schema import plain
from dsnet.space import WidthPath

CASES: list[tuple[str, str, list[WidthPath]]] = [
    ("ds_mobilenet_v1", "fp32", [(0,), (7,), (13,)]),
    ("ds_mobilenet_v1", "int8", [(0,), (7,), (13,)]),
    ("ds_resnet50", "fp32", [(0, 0, 0, 0), (1, 2, 0, 3), (3, 3, 3, 3)]),
    ("efficientnet_lite0", "fp32", [FIRST, AGAIN]),
    ("efficientnet_lite0", "int8", [FIRST, AGAIN]),
]


def network(name: str) -> Supernet:
    """A network with fresh weights, because the time does not depend on them."""
    torch.manual_seed(0)
    if name == "efficientnet_lite0":
        return stream.network(stream.SIZES)
    return Supernet(replace(model_spec(name), router=RouterSpec())).eval()


def by_default(file: Path) -> onnxruntime.InferenceSession:
    """A session with the memory plan that ONNX Runtime has by default."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def compared(
    name: str, precision: str, paths: list[WidthPath], sessions: int, repeats: int, folder: Path
) -> list[dict[str, Any]]:
    """The time of the dynamic file relative to the static one, for every path and session."""
    net = network(name)
    x = torch.randn(2, 3, net.spec.image_size, net.spec.image_size)
    int8 = quantisation(net, x) if precision == "int8" else None
    dynamic = export_onnx(net, folder / "dynamic.onnx", int8=int8)
    rows = []
    for path in paths:
        static, ratios, ms = export_onnx(net, folder / "static.onnx", path=path, int8=int8), [], []
        gains: dict[str, list[float]] = {"dynamic": [], "static": []}
        for _ in range(sessions):
            runner = FileRunner(dynamic, threads=1)
            feed = {IMAGE: x[:1].numpy()}
            pinned = {**feed, **knobs(runner.manifest, Policy(), path)}
            calls: dict[str, Call] = {
                "dynamic": partial(runner.session.run, None, pinned),
                "static": partial(open_session(static, 1).run, None, feed),
            }
            times = in_turns(calls, repeats)
            ratios.append(ratio(times["dynamic"], times["static"]))
            ms.append(float(np.median(times["static"])))
            for kind, file, given in (("dynamic", dynamic, pinned), ("static", static, feed)):
                both: dict[str, Call] = {"ours": calls[kind], "default": partial(by_default(file).run, None, given)}
                times = in_turns(both, repeats)  # not with the others: more sessions leave each of them less cache
                gains[kind].append(ratio(times["ours"], times["default"]))
        row = {"model": name, "precision": precision, "path": net.manifest().name_of(path)}
        rows.append({**row, "ratios": ratios, "static_ms": ms, "to_default": gains})
    return rows


def weights_of(graph: onnx.GraphProto) -> int:
    """Bytes of the weights of a graph and of its branches."""
    branches = [about.g for node in graph.node for about in node.attribute if about.HasField("g")]
    return sum(len(tensor.raw_data) for tensor in graph.initializer) + sum(map(weights_of, branches))


def prepared(file: Path, out: Path) -> int:
    """Bytes of the weights that ONNX Runtime cuts and reorders when it loads a file, before it packs any."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 4, str(out)
    onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return weights_of(onnx.load(out).graph)


def memory(folder: Path) -> list[dict[str, Any]]:
    """What each form of ds_mobilenet_v1 takes in memory, and how much of it are weights."""
    artefacts, rows = Artefacts(network("ds_mobilenet_v1"), folder), []
    for held in artefacts.weigh().artefacts:
        file = {"dynamic file": "dynamic.onnx", "INT8 dynamic file": "dynamic-int8.onnx"}.get(held.artefact)
        weights = None if file is None else prepared(folder / file, folder / "prepared.onnx")
        rows.append({**plain(held), "weights": weights})
    return rows


def timed(sessions: int, repeats: int) -> dict[str, Any]:
    """The times of both files in all cases, and on what they were measured."""
    rows = []
    with tempfile.TemporaryDirectory() as place:
        for name, precision, paths in CASES:
            rows += compared(name, precision, paths, sessions, repeats, Path(place))
    return {**plain(machine()), "ratios": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=12)
    parser.add_argument("--keep", choices=("times",))
    parser.add_argument("--export")
    args = parser.parse_args()
    results = kept(args.export) if args.keep else timed(args.sessions, args.repeats)
    with tempfile.TemporaryDirectory() as place:
        results["memory"] = memory(Path(place))
    cells = [
        [
            row["model"],
            row["precision"],
            row["path"],
            f"{np.median(row['static_ms']):.2f}",
            f"{np.median(row['ratios']):.3f}",
            f"{min(row['ratios']):.3f} to {max(row['ratios']):.3f}",
        ]
        for row in results["ratios"]
    ]
    columns = ["<model", "<precision", "<path", "static, CPU ms", "dynamic / static", "all sessions"]
    lines = ["# The dynamic file next to static files, in processor time", "", *markdown_table(columns, cells), ""]
    cells = [
        [row["model"], row["precision"], row["path"]]
        + [f"{np.median(row['to_default'][kind]):.3f}" for kind in ("dynamic", "static")]
        for row in results["ratios"]
    ]
    lines += ["## Without `enable_mem_reuse`, relative to ONNX Runtime's default", ""]
    lines += [*markdown_table(["<model", "<precision", "<path", "dynamic", "static"], cells), ""]
    cells = [
        [
            held["artefact"],
            f"{held['size'] / 1e6:.1f}",
            f"{held['memory'] / 1e6:.0f}",
            f"{held['memory'] / held['size']:.1f}x",
            "" if held["weights"] is None else f"{held['weights'] / 1e6:.0f}",
        ]
        for held in results["memory"]
    ]
    columns = ["<artefact", "file, MB", "memory, MB", "memory / file", "weights of every width, MB"]
    lines += ["## Memory of ds_mobilenet_v1, once every path has run", "", *markdown_table(columns, cells), ""]
    lines += [
        "Weights of every width: as ONNX Runtime cuts them out of those of the file. It packs the weights of quantised",
        "convolutions besides, and keeps both. The rest are its code, its own description of every node of every",
        "branch, and maps. [deploy.md](../deploy.md#without-dsnet) tells what was tried to lower it.",
        "",
    ]
    sessions = len(results["ratios"][0]["ratios"])
    lines += [
        f"One image, one thread, {sessions} sessions. Made by `python benchmarks/dynamic.py` with dsnet",
        f"{results['dsnet']}, onnxruntime {results['onnxruntime']} on {results['machine']}; every figure is in "
        "dynamic.json.",
    ]
    print("\n".join(lines))
    if args.export:
        write_page(Path(args.export), results, lines)


if __name__ == "__main__":
    main()
