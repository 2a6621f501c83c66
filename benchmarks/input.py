"""How fast images reach a training: the loader beside bare processes, and what it costs the main process.

    python benchmarks/input.py data/imagenette [--cifar data] [--images 512] [--out docs/results/bench_input.json]

Photographs are enlarged to 500 x 375 pixels and read with the augmentation of the ImageNet recipes (a random crop of
224 pixels, flip, two operations of RandAugment). `bare` is what processes reach that only call the loader on their
share of the images and throw the batches away; `loader` is the same number of processes behind torch's DataLoader, as a
training uses it. `shards` is the loader on shards of the same files, and `webdataset` the library of that name on the
same shards, with the same decoding and augmentation, where it is installed. All take turns. `second half` is the time
until the first batch of the second half of an epoch, as a resumed run waits for it. Rates per core and of the main
process are processor times, so that other programs do not count; so is the share of an epoch on CIFAR-10 that is lost
to input, of which the main process loads the images between its steps.

The main process takes the pixels of a batch out of the memory that it shares with the loading ones (`main process`),
and they are normalised on the device of the training (`device`): on a GPU that is not the main process's work, on a CPU
it is. `bytes` are what goes to the device.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

import torch
from PIL import Image

from dsnet.config import merged, packaged, read_yaml
from dsnet.data.augment import AugmentConfig, to_tensor
from dsnet.data.batches import TrainBatches, raw_batches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Split
from dsnet.data.labelled import Loader, open_dataset
from dsnet.data.packing import pack
from dsnet.data.shards import Shards
from dsnet.images import ImageFile
from dsnet.latency.timing import machine
from dsnet.runs.folder import RunFolder
from dsnet.runs.train import make_loop
from dsnet.schema import plain
from dsnet.tasks import config_from, named
from dsnet.training.memory import keep_memory

BATCH = 64
CPU = torch.device("cpu")
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


def loaded(batches: TrainBatches, epoch: int) -> tuple[float, float, float]:
    """Images per second behind the DataLoader, and the milliseconds of processor time that each batch takes the main
    process and the device, which is the same processor here."""
    split, main, device, count = batches.split, 0.0, 0.0, 0
    began = time.perf_counter()
    before = time.process_time()
    for batch in raw_batches(split, batches.jobs(epoch), batches.workers):
        taken = time.process_time()
        split.finished(batch)
        done = time.process_time()
        main, device, before, count = main + taken - before, device + done - taken, done, count + 1
    return count * BATCH / (time.perf_counter() - began), 1000 * main / count, 1000 * device / count


def library(source: Shards, loader: Loader, workers: int) -> Callable[[], Iterable[object]] | None:
    """Epochs of the webdataset library; None where it is not installed. Its images lie behind a shuffle of 1,000."""
    try:
        import webdataset
    except ImportError:
        return None

    def read(sample: dict[str, bytes]) -> tuple[torch.Tensor, int]:
        image = ImageFile(Path(str(sample["__key__"])), data=sample["jpg"])
        return to_tensor(loader.fitted(random.getrandbits(30), 0, image)), int(sample["cls"])

    places = [source.place(shard) for shard in source.shards]
    dataset = webdataset.WebDataset(places, shardshuffle=len(places)).shuffle(1000).map(read).batched(BATCH)
    behind = webdataset.WebLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=True)
    return lambda: iter(behind)


def rate_of(epoch: Iterable[object], images: int) -> float:
    began = time.perf_counter()
    for _ in epoch:
        pass
    return images / (time.perf_counter() - began)


def second_half(epoch: Iterator[object], passed: int) -> float:
    """Seconds until the first batch behind those that are passed over."""
    began = time.perf_counter()
    next(islice(epoch, passed, None))
    return time.perf_counter() - began


def compared(split: Split, workers: int, repeats: int) -> dict[str, float]:
    """The loader on shards beside the one on files, and beside the webdataset library."""
    with tempfile.TemporaryDirectory() as place:
        assert isinstance(split.loader, Loader)
        config = replace(split.loader.config, calibration=0.1)
        pack(config, Path(place) / "shards", images=64)
        packed = open_dataset(replace(config, dataset="shards", root=f"{place}/shards")).train
        source = packed.source
        assert isinstance(source, Shards)
        files, shards = (TrainBatches(one, BATCH, 0, workers) for one in (split, packed))
        other, count = library(source, split.loader, workers), len(shards) * BATCH
        for start in (files.epoch(0), shards.epoch(0), other() if other else ()):  # starts the processes
            rate_of(start, 1)
        rows, waits = [], []
        for number in range(1, repeats + 1):
            rows.append(
                (loaded(files, number)[0], loaded(shards, number)[0], rate_of(other(), count) if other else 0.0)
            )
            half = len(shards) // 2
            mine = second_half(shards.epoch(number, half), 0)
            waits.append((mine, second_half(iter(other()), half) if other else 0.0))
    found = {"shards / files": round(median(shards / files for files, shards, _ in rows), 3)}
    if other is not None:
        found["webdataset / shards"] = round(median(library / shards for _, shards, library in rows), 3)
        found["second half, shards, s"] = round(median(mine for mine, _ in waits), 3)
        found["second half, webdataset, s"] = round(median(theirs for _, theirs in waits), 3)
    return found


def lost(root: Path, steps: int) -> float:
    """Share of the processor time of an epoch of ds_mobilenet_v1_tiny on CIFAR-10 that goes into its input."""
    recipe = read_yaml(packaged()["cifar10_ds_mobilenet_v1_tiny"])
    config = config_from(merged(recipe, {"data": {"root": str(root), "workers": 0}, "threads": 1}))
    task = named(config.task)
    with tempfile.TemporaryDirectory() as place:
        data = task.open_data(config)
        plan = task.plans(config, data, Path(place), resume=False)[0]
        loop = make_loop(plan, task.begin(config, data, again=None), data, RunFolder(Path(place), task), config, CPU)
        assert loop is not None
        loop.stage.train()
        batches, loading, learning = loop.batches.epoch(0), [], []
        for _ in range(steps):
            began = time.process_time()
            batch = next(batches)
            loaded_at = time.process_time()
            loop.step(batch)
            loading.append(loaded_at - began)
            learning.append(time.process_time() - loaded_at)
    return median(loading[1:]) / (median(loading[1:]) + median(learning[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=Path)
    parser.add_argument("--cifar", type=Path, help="folder of cifar-10-batches-bin")
    parser.add_argument("--steps", type=int, default=20, help="of the training on CIFAR-10")
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
        size = split.loader(split.ids[:BATCH], 0).images.nbytes
        beside = compared(split, args.workers, args.repeats)
    share = {} if args.cifar is None else {"CIFAR-10, share lost to input": round(lost(args.cifar, args.steps), 4)}
    result = {
        "images": len(split),
        "workers": args.workers,
        "loader / bare": round(median(ours[0] / alone[0] for alone, ours in rows), 3),
        "images/s per core": round(median(alone[1] for alone, _ in rows), 1),
        "main process, ms per batch of 64": round(median(ours[1] for _, ours in rows), 2),
        "device, ms per batch of 64": round(median(ours[2] for _, ours in rows), 2),
        "bytes per batch of 64": size,
        **beside,
        **share,
        "machine": plain(machine()),
    }
    print(json.dumps(result, indent=1))
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
