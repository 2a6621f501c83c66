"""Opening data of ImageNet's size: what it takes a process before it trains, for a folder of files and for shards.

    python benchmarks/listing.py [--images 1281000] [--place FOLDER] [--out docs/results/bench_listing.json]

The files are empty and the shards have no content, because opening reads neither. `first` is the process that lists
them, or reads the index, and takes the fingerprint; `others` get what it found in the form in which it is sent.
`seconds` are processor times of opening, and of drawing the order of an epoch, of one process with one thread;
`megabytes` is what the process grows by, without pages of files. Waiting for a disk or a network does not count:
`--place` names a folder on the file system in question, and `clock` is the time that passed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from dsnet.data.packing import write_index, write_table
from dsnet.data.shards import Index, Shard
from dsnet.latency.timing import machine
from dsnet.schema import plain

IMAGES, TEST, IN_SHARD = 1_281_000, 50_000, 1000
CLASSES = [f"n{number:08d}" for number in range(1000)]

OPENING = """
import json, pickle, sys, time
import torch
from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset

def held():
    (line,) = (line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024 / 1e6

torch.set_num_threads(1)
kind, root, sent = sys.argv[1:]
before, began, clock = held(), time.process_time(), time.perf_counter()
if kind == "sent":
    data = pickle.loads(open(sent, "rb").read())
else:
    data = open_dataset(DataConfig(kind, root=root, image_size=224, calibration=0.01))
    fingerprint = data.fingerprint
batches = TrainBatches(data.train, 512, seed=0)
opened, memory, clock = time.process_time() - began, held() - before, time.perf_counter() - clock
order = batches.order(0)
ordered = time.process_time() - began - opened
if kind != "sent":
    open(sent, "wb").write(pickle.dumps(data))
print(json.dumps({
    "images": len(data.train), "seconds": opened, "clock": clock, "order, seconds": ordered, "megabytes": memory,
}))
"""


def write_files(place: Path, images: int = IMAGES) -> None:
    """A folder of empty files, in the layout of ImageNet."""
    for split, each in (("train", images // len(CLASSES)), ("val", TEST // len(CLASSES))):
        for name in CLASSES:
            folder = place / split / name
            folder.mkdir(parents=True)
            for number in range(each):
                os.close(os.open(folder / f"{name}_{number:05d}.JPEG", os.O_CREAT))


def write_shards(place: Path, images: int = IMAGES) -> None:
    """Shards without content, and their index."""
    rng, parts = np.random.default_rng(0), {}
    for kind, count in (("train", images), ("test", TEST)):
        numbers = range(-(-count // IN_SHARD))
        shards = [Shard(f"{kind}-{number:06d}.tar", IN_SHARD, 512 * IN_SHARD, "0" * 64) for number in numbers]
        for shard in shards:
            with (place / shard.name).open("wb") as file:
                file.truncate(shard.bytes)
        labels = rng.integers(0, len(CLASSES), count).tolist()
        rows = [(label, 100, 0, 512 * (1 + number % IN_SHARD)) for number, label in enumerate(labels)]
        parts[kind] = write_table(place, kind, rows, shards, len(CLASSES))  # type: ignore[arg-type]
    write_index(place, Index("shards", 1, CLASSES, parts))  # type: ignore[arg-type]


def opened(kind: str, root: Path, sent: Path) -> dict[str, float]:
    """What a process takes that opens the data. kind: folder, shards, or sent for the others of the job."""
    command = [sys.executable, "-c", OPENING, kind, str(root), str(sent)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--place", type=Path, help="where the files are made, and deleted again")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, Any] = {"classes": len(CLASSES)}
    for kind, write in (("folder", write_files), ("shards", write_shards)):
        with tempfile.TemporaryDirectory(dir=args.place) as place:
            root, sent = Path(place) / "data", Path(place) / "sent"
            root.mkdir()
            write(root, args.images)
            found = {"first": opened(kind, root, sent), "others": opened("sent", root, sent)}
        result[kind] = {who: {key: round(value, 2) for key, value in one.items()} for who, one in found.items()}
    result["machine"] = plain(machine())
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
