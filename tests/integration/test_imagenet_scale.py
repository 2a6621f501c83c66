"""The paper's recipes for ImageNet: their data opens quickly, and every one of them runs at full size."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsnet.data.packing import index_shards, write_index, write_table
from dsnet.data.shards import HEAD, Index, Shard
from dsnet.tasks import read_config
from support.ranks import torchrun

pytestmark = pytest.mark.slow
RECIPES = ("imagenet_ds_mobilenet_v1", "imagenet_ds_efficientnet_b0", "imagenet_ds_resnet50")
CLASSES = [f"n{number:08d}" for number in range(1000)]
IMAGES = 1_281_000

# What a process does with the data before it trains. Those behind the first get it in the form in which it is sent.
OPENING = """
import json, pickle, resource, sys, time
import torch
from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset

def held():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

torch.set_num_threads(1)
kind, root, sent = sys.argv[1:]
before, began = held(), time.process_time()
if kind == "sent":
    data = pickle.loads(open(sent, "rb").read())
else:
    data = open_dataset(DataConfig(kind, root=root, image_size=224, calibration=0.01))
    fingerprint = data.fingerprint
batches = TrainBatches(data.train, 512, seed=0)
opened, memory = time.process_time() - began, held() - before
order = batches.order(0)
ordered = time.process_time() - began - opened
if kind != "sent":
    open(sent, "wb").write(pickle.dumps(data))
print(json.dumps({"images": len(data.train), "seconds": opened, "order": ordered, "megabytes": memory}))
"""


def opened(kind: str, root: Path, sent: Path) -> dict[str, float]:
    """Processor seconds and megabytes of a process that opens the data."""
    command = [sys.executable, "-c", OPENING, kind, str(root), str(sent)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    print(kind, found)
    return found


def check(found: dict[str, float]) -> None:
    assert found["seconds"] <= 5
    assert found["megabytes"] <= 400
    assert found["order"] <= 2


def test_a_folder_of_imagenets_size_opens_in_seconds(tmp_path: Path) -> None:
    for split, each in (("train", IMAGES // 1000), ("val", 50)):
        for name in CLASSES:
            folder = tmp_path / "files" / split / name
            folder.mkdir(parents=True)
            for number in range(each):
                os.close(os.open(folder / f"{name}_{number:05d}.JPEG", os.O_CREAT))
    for kind in ("folder", "sent"):
        found = opened(kind, tmp_path / "files", tmp_path / "sent")
        assert found["images"] == IMAGES - 1000 * round(IMAGES / 1000 * 0.01)
        check(found)


def test_shards_of_imagenets_size_open_in_seconds(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = {}
    for kind, count in (("train", IMAGES), ("test", 50_000)):
        shards = [Shard(f"{kind}-{number:06d}.tar", 1000, 512_000, "0" * 64) for number in range(count // 1000)]
        for shard in shards:
            with (tmp_path / shard.name).open("wb") as file:
                file.truncate(shard.bytes)
        labels = rng.integers(0, 1000, count).tolist()
        rows = [(label, 100, 0, 512 * (1 + number % 1000)) for number, label in enumerate(labels)]
        parts[kind] = write_table(tmp_path, kind, rows, shards, 1000)  # type: ignore[arg-type]
    write_index(tmp_path, Index("shards", 1, CLASSES, parts))  # type: ignore[arg-type]
    assert (tmp_path / HEAD).stat().st_size < 500_000
    for kind in ("shards", "sent"):
        found = opened(kind, tmp_path, tmp_path / "sent")
        assert found["images"] >= 0.98 * IMAGES
        check(found)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of pictures of ImageNet's usual size, of a few of its thousand classes."""
    place = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for kind, shards, each in (("train", 4, 4), ("calibration", 1, 4), ("test", 1, 4)):
        for shard in range(shards):
            with tarfile.open(place / f"{kind}-{shard}.tar", "w") as tar:
                for number in range(each):
                    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), np.uint8))
                    picture, label = io.BytesIO(), str(int(rng.integers(1000))).encode()
                    small.resize((500, 375), Image.Resampling.BICUBIC).save(picture, "JPEG", quality=90)
                    for suffix, data in (("jpg", picture.getvalue()), ("cls", label)):
                        info = tarfile.TarInfo(f"{kind}{shard}{number}.{suffix}")
                        info.size = len(data)
                        tar.addfile(info, io.BytesIO(data))
    patterns = {"train": "train-{0..3}", "calibration": "calibration-0", "test": "test-0"}
    index_shards({kind: f"{place}/{name}.tar" for kind, name in patterns.items()}, place / "index", classes=CLASSES)  # type: ignore[misc]
    return place / "index"


@pytest.mark.parametrize(("ranks", "amp"), [(1, "none"), (2, "none"), (1, "bf16")])
@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_takes_two_steps_of_both_stages(
    recipe: str, ranks: int, amp: str, photos: Path, tmp_path: Path
) -> None:
    """In single precision, and in the recipe's own, which is bf16."""
    words = ["--data.dataset", "shards", "--data.root", str(photos), "--data.workers", "1", "--threads", "1"]
    for optim in ("optim", "sgs_optim"):
        words += [f"--{optim}.steps", "2", f"--{optim}.batch_size", "2"]
        words += [f"--{optim}.amp", "none"] if amp == "none" else []
    words += ["--recalibration", "2", "--out", str(tmp_path / "run")]
    done = torchrun("-m", "dsnet", "train", "--config", recipe, *words, ranks=ranks, seconds=1500)
    assert done.returncode == 0, done.stderr[-3000:]
    config = read_config(tmp_path / "run" / "config.yaml")
    assert config.optim.amp == config.sgs_optim.amp == amp
    result = json.loads((tmp_path / "run" / "results" / "test.json").read_text())
    assert result["images"] == 4
    assert len(result["classes"]) == 1000
    assert result["dynamic"] is not None
    for below in (".", "gate"):
        lines = (tmp_path / "run" / below / "metrics.jsonl").read_text().splitlines()
        assert json.loads(lines[-1])["step"] == 2
