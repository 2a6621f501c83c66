"""Evaluation by two processes beside one: processor time of the busiest process, and whether the digits are the same.

    python benchmarks/evaluation.py RUN [--root FOLDER] [--repeats 2] [--out docs/results/bench_evaluation.json]

RUN is a trained run, whose folder is only read. Every process has one thread, and one and two processes take turns. The
ratio is of medians of processor times: with a core for each process it is what the clock shows.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dsnet.latency.timing import machine
from dsnet.models import eager
from dsnet.results import as_json
from dsnet.runs.evaluate import evaluate
from dsnet.runs.folder import RunFolder
from dsnet.schema import plain
from dsnet.training.distributed import gathered, process_group, rank


def evaluated(run: Path, root: str | None) -> None:
    """Evaluate a run, in all processes of a job. The first one prints seconds of each process, and a digest."""
    torch.set_num_threads(1)
    folder = RunFolder.of(run)
    config, data = folder.opened(root)
    runner = eager(folder.load())
    with process_group():
        gathered([0])  # the processes begin together
        began = time.process_time()
        result = evaluate(runner, data, folder.task, config)
        seconds = gathered([time.process_time() - began])
        first = rank() == 0
    if first:
        told = {key: value for key, value in as_json(result).items() if key != "made"}
        digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
        print(json.dumps({"seconds": seconds, "digest": digest, "images": result.images, "rows": len(result.rows)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--root")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        evaluated(args.run, args.root)
        return
    words = [__file__, str(args.run), "--one", *(["--root", args.root] if args.root else [])]
    job = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", *words]
    found: dict[int, list[dict[str, Any]]] = {1: [], 2: []}
    for _ in range(args.repeats):
        for processes, command in ((1, [sys.executable, *words]), (2, job)):
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            found[processes].append(json.loads(done.stdout.splitlines()[-1]))
    one, two = (median(max(each["seconds"]) for each in held) for held in found.values())
    result = {
        "images": found[1][0]["images"],
        "paths": found[1][0]["rows"],
        "one process, s": round(one, 1),
        "two processes / one": round(two / one, 3),
        "same digits": len({each["digest"] for held in found.values() for each in held}) == 1,
        "machine": plain(machine()),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
