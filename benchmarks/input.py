"""How fast images reach a training: the loader beside bare processes, and what it costs the main process.

    python benchmarks/input.py data/imagenette [--images 512] [--out docs/results/bench_input.json]

Photographs are enlarged to 500 x 375 pixels and read with the augmentation of the ImageNet recipes (a random crop of
224 pixels, flip, two operations of RandAugment). `bare` is what processes reach that only call the loader on their
share of the images and throw the batches away; `loader` is the same number of processes behind torch's DataLoader, as a
training uses it. Both take turns. Rates per core and of the main process are processor times, so that other programs do
not count.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from PIL import Image

from dsnet.data.augment import AugmentConfig
from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Split, open_dataset
from dsnet.latency.timing import machine
from dsnet.schema import plain
from dsnet.training.memory import keep_memory

BATCH = 64
IMAGENET = AugmentConfig(crop="resized", flip=True, randaugment=2, magnitude=9)


def enlarge(source: Path, target: Path, images: int) -> None:
    """Copies of the first photographs of every class, enlarged to the usual size of ImageNet's."""
    folders = sorted(folder for folder in (source / "train").iterdir() if folder.is_dir())
    each = -(-images // len(folders))
    for folder in folders:
        (target / folder.name).mkdir(parents=True)
        for file in sorted(folder.iterdir())[: each + 3]:
            picture = Image.open(file).convert("RGB").resize((500, 375), Image.Resampling.BICUBIC)
            picture.save(target / folder.name / f"{file.stem}.jpg", quality=90)


def load_share(split: Split, ids: torch.Tensor, done: multiprocessing.Queue) -> None:
    torch.set_num_threads(1)
    for number, part in enumerate(ids.split(BATCH)):
        split.loader(part, number)
    done.put(time.process_time())


def bare(split: Split, workers: int) -> tuple[float, float]:
    """Images per second of processes that load and throw away, and per second of processor time of one of them."""
    done: multiprocessing.Queue = multiprocessing.Queue()
    shares = [split.ids[number::workers] for number in range(workers)]
    processes = [multiprocessing.Process(target=load_share, args=(split, share, done)) for share in shares]
    began = time.perf_counter()
    for process in processes:
        process.start()
    spent = sum(done.get() for _ in processes)
    for process in processes:
        process.join()
    return len(split) / (time.perf_counter() - began), len(split) / spent


def loaded(batches: TrainBatches, epoch: int) -> tuple[float, float]:
    """Images per second behind the DataLoader, and milliseconds of the main process for each batch."""
    began, spent = time.perf_counter(), time.process_time()
    count = sum(1 for _ in batches.epoch(epoch))
    return count * BATCH / (time.perf_counter() - began), 1000 * (time.process_time() - spent) / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    with tempfile.TemporaryDirectory() as place:
        enlarge(args.source, Path(place) / "photos", args.images)
        config = DataConfig(
            "folder", root=f"{place}/photos", image_size=224, interpolation="bicubic", augment=IMAGENET, workers=2
        )
        split = open_dataset(config).train
        batches = TrainBatches(split, BATCH, 0, args.workers)
        loaded(batches, 0)  # starts the processes
        rows = [(bare(split, args.workers), loaded(batches, number + 1)) for number in range(args.repeats)]
    result = {
        "images": len(split),
        "workers": args.workers,
        "loader / bare": round(median(ours[0] / alone[0] for alone, ours in rows), 3),
        "images/s per core": round(median(alone[1] for alone, _ in rows), 1),
        "main process, ms per batch of 64": round(median(ours[1] for _, ours in rows), 2),
        "machine": plain(machine()),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
