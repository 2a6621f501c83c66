from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import signal
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from dsnet.data import augment
from dsnet.data.augment import Augment, AugmentConfig
from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.config import DataConfig
from dsnet.data.labelled import Loader, open_dataset
from dsnet.data.sources import FASHION_MNIST, Arrays
from dsnet.data.splits import stratified
from dsnet.errors import DataError
from dsnet.images import normalise, prepare, read_image
from support.folders import make_folder


def make_cifar(root: Path) -> Path:
    folder = root / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for name in [*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]:
        rows = rng.integers(0, 256, (10_000, 3073), np.uint8)
        rows[:, 0] = np.arange(10_000) % 10
        (folder / f"{name}.bin").write_bytes(rows.tobytes())
    return root


def make_idx(root: Path, *, packed: bool) -> Path:
    rng = np.random.default_rng(0)
    for name, count in (("train", 300), ("t10k", 60)):
        files = {
            f"{name}-images-idx3-ubyte": struct.pack(">4B3I", 0, 0, 8, 3, count, 28, 28) + rng.bytes(count * 784),
            f"{name}-labels-idx1-ubyte": struct.pack(">4BI", 0, 0, 8, 1, count) + bytes(k % 10 for k in range(count)),
        }
        for file, data in files.items():
            (root / (file + ".gz" * packed)).write_bytes(gzip.compress(data) if packed else data)
    return root


def test_digits_are_embedded_and_split_in_three() -> None:
    data = open_dataset(DataConfig())
    assert (data.image_size, data.channels, len(data.classes)) == (16, 1, 10)
    parts = [set(split.ids.tolist()) for split in (data.train, data.calibration, data.test)]
    assert [len(part) for part in parts] == [1295, 143, 359]
    assert len(set.union(*parts)) == 1797
    for split in (data.train, data.calibration, data.test):  # every class in its share
        counts = data.train.source.labels[split.ids].bincount(minlength=10)
        assert counts.min() > 0.8 * counts.max()
    again = open_dataset(DataConfig())
    assert torch.equal(again.calibration.ids, data.calibration.ids)
    assert not torch.equal(open_dataset(DataConfig(split_seed=1)).calibration.ids, data.calibration.ids)
    assert torch.equal(open_dataset(DataConfig(split_seed=1)).test.ids, data.test.ids)


def test_inputs_are_normalised() -> None:
    data = open_dataset(DataConfig())
    ids = data.test.ids[:50]
    assert np.array_equal(
        normalise(data.test.source.images[ids].numpy(), data.mean, data.std), data.test.load(ids).images
    )
    images = torch.cat([batch.images for batch in plain_batches(data.train, 200)])
    assert abs(float(images.mean())) < 1e-3
    assert abs(float(images.std()) - 1) < 1e-3


@pytest.mark.parametrize("shape", [(0, 3, 32, 32), (1, 1, 8, 8), (90, 3, 32, 32), (3, 3, 224, 200), (2, 3, 600, 400)])
def test_a_few_images_at_a_time_are_normalised_as_all_at_once(shape: tuple[int, ...]) -> None:
    pixels = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    mean, std = (0.485, 0.456, 0.406)[: shape[1]], (0.229, 0.224, 0.225)[: shape[1]]
    expected = augment.normalise(augment.to_float(pixels), mean, std)
    assert torch.equal(augment.network_input(pixels, mean, std), expected)
    last = pixels.contiguous(memory_format=torch.channels_last)
    assert torch.equal(augment.network_input(last, mean, std), expected)


def test_cifar10(tmp_path: Path) -> None:
    data = open_dataset(DataConfig("cifar10", root=str(make_cifar(tmp_path))))
    assert [len(s) for s in (data.train, data.calibration, data.test)] == [45_000, 5_000, 10_000]
    raw = np.frombuffer((tmp_path / "cifar-10-batches-bin" / "data_batch_2.bin").read_bytes(), np.uint8).reshape(
        -1, 3073
    )
    assert data.train.source.images[10_003].flatten().tolist() == raw[3, 1:].tolist()
    (tmp_path / "cifar-10-batches-bin" / "data_batch_3.bin").write_bytes(b"short")
    with pytest.raises(DataError, match=r"data_batch_3.bin has 5 bytes instead of 30730000"):
        open_dataset(DataConfig("cifar10", root=str(tmp_path)))
    with pytest.raises(DataError, match=r"data_batch_1.bin does not exist"):
        open_dataset(DataConfig("cifar10", root=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("packed", [True, False])
def test_idx(packed: bool, tmp_path: Path) -> None:
    data = open_dataset(DataConfig("idx", root=str(make_idx(tmp_path, packed=packed)), image_size=32))
    assert [len(s) for s in (data.train, data.calibration, data.test)] == [270, 30, 60]
    assert data.train.source.images.shape[1:] == (1, 32, 32)
    file = next(tmp_path.glob("t10k-images*"))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte.*(truncated|gzip)"):
        open_dataset(DataConfig("idx", root=str(tmp_path)))


@pytest.mark.skipif(not FASHION_MNIST.is_dir(), reason="Debian's dataset-fashion-mnist is not installed")
def test_debians_fashion_mnist_is_found_by_itself() -> None:
    data = open_dataset(DataConfig("fashion_mnist"))
    assert [len(s) for s in (data.train, data.calibration, data.test)] == [54_000, 6_000, 10_000]
    assert data.classes[9] == "Ankle boot"


def test_folders_with_and_without_a_test_split(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    data = open_dataset(DataConfig("folder", root=str(root), image_size=20))
    assert data.classes == ("cat", "dog", "emu")
    assert [len(s) for s in (data.train, data.calibration, data.test)] == [33, 3, 36]
    alone = open_dataset(DataConfig("folder", root=str(root / "train"), image_size=20))
    assert [len(s) for s in (alone.train, alone.calibration, alone.test)] == [27, 3, 6]
    batch = next(plain_batches(data.test, 8))
    assert batch.images.shape == (8, 3, 20, 20)
    (root / "train" / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty has no images"):
        open_dataset(DataConfig("folder", root=str(root)))
    with pytest.raises(DataError, match="is not a folder"):
        open_dataset(DataConfig("folder", root=str(tmp_path / "nowhere")))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_predictions_see_what_evaluation_sees(interpolation: Literal["nearest", "bilinear"], tmp_path: Path) -> None:
    """A file that is prepared without torch is, bit for bit, what the plain batches of training hold."""
    root = str(make_folder(tmp_path))
    config = DataConfig("folder", root=root, image_size=17, crop_ratio=0.8, interpolation=interpolation)
    data = open_dataset(config)
    batch = next(plain_batches(data.test, 6))
    files = sorted(Path(root, "val", "cat").iterdir())[:6]
    for file, x in zip(files, batch.images, strict=True):
        how = {"crop": 0.8, "interpolation": interpolation, "mean": data.mean, "std": data.std}
        seen = prepare(read_image(file), size=17, channels=3, fit="crop", **how)
        assert seen.dtype == np.float32
        assert np.array_equal(seen, x.numpy())


def test_a_corrupt_file_stops_or_is_listed(tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    bad = root / "train" / "dog" / "03.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    config = DataConfig("folder", root=str(root), image_size=20)
    with pytest.raises(DataError, match=r"train/dog/03.jpg cannot be read"):
        list(plain_batches(open_dataset(config).train, 8))
    data = open_dataset(replace(config, on_corrupt="skip"))
    for workers in (0, 2):
        batches = list(plain_batches(data.train, 8, workers=workers))
        skipped = [name for batch in batches for name in batch.skipped]
        assert skipped == [str(bad)]
        assert sum(len(batch.labels) for batch in batches) == len(data.train) - 1
        assert all(len(batch.images) == len(batch.labels) == len(batch.ids) for batch in batches)


AUGMENT = AugmentConfig(crop="resized", scale=(0.3, 1.0), flip=True, colour=0.2, erasing=0.3, randaugment=1)


@pytest.mark.parametrize("kind", ["digits", "folder"])
def test_batches_depend_on_seed_and_epoch_alone(kind: str, tmp_path: Path) -> None:
    """From any position, with 0 and 2 workers, whatever the global generator did."""
    if kind == "folder":
        config = DataConfig("folder", root=str(make_folder(tmp_path)), image_size=20, augment=AUGMENT)
    else:
        config = DataConfig(augment=replace(AUGMENT, crop="pad", pad=2, colour=0.0, randaugment=0))
    data = open_dataset(config)
    size = 8 if kind == "folder" else 300
    unbroken = list(TrainBatches(data.train, size, seed=5).epoch(3))
    torch.manual_seed(123)
    for workers in (0, 2):
        later = list(TrainBatches(data.train, size, seed=5, workers=workers).epoch(3, start=1))
        assert len(later) == len(unbroken) - 1
        for a, b in zip(later, unbroken[1:], strict=True):
            assert torch.equal(a.ids, b.ids)
            assert torch.equal(a.images, b.images)
    other = next(iter(TrainBatches(data.train, size, seed=5).epoch(4)))
    assert not torch.equal(other.ids, unbroken[0].ids)
    assert not torch.equal(other.images, unbroken[0].images)


def test_augmentation_differs_from_image_to_image() -> None:
    for channels in (1, 3):
        same = torch.randint(0, 256, (1, channels, 24, 24), dtype=torch.uint8).expand(12, -1, -1, -1).contiguous()
        source = Arrays(same, torch.zeros(12, dtype=torch.long))
        for config in (
            AugmentConfig(randaugment=8),
            AugmentConfig(colour=0.5),
            AugmentConfig(crop="pad"),
            AugmentConfig(crop="resized"),
            AugmentConfig(erasing=1.0),
            AugmentConfig(flip=True),
        ):
            load = Loader(source, DataConfig(augment=config), 24, (0.5,) * channels, (0.25,) * channels)
            found = {image.numpy().tobytes() for seed in range(3) for image in load(torch.arange(12), seed).images}
            assert len(found) >= (2 if config.flip else 12), config
            assert torch.equal(load(torch.arange(12), 1).images, load(torch.arange(12), 1).images)
            assert torch.equal(load(torch.arange(12), None).images, same)


def test_crops_and_flips_draw_as_in_earlier_versions() -> None:
    """So that a run can be repeated: the digest was taken from kornia's RandomCrop and RandomHorizontalFlip."""
    images = (torch.arange(6 * 3 * 12 * 12) * 37 % 251).view(6, 3, 12, 12).to(torch.uint8)
    augment = Augment(AugmentConfig(crop="pad", pad=3, flip=True), 12)
    found = b"".join(augment.batch(images, seed).numpy().tobytes() for seed in range(5))
    assert hashlib.sha256(found).hexdigest().startswith("2ce223d0e6cb616a")


def test_erasing_replaces_a_rectangle_of_some_images() -> None:
    images = torch.full((200, 3, 20, 20), 7, dtype=torch.uint8)
    changed = (Augment(AugmentConfig(erasing=0.25), 20, (0.5,) * 3, (0.2,) * 3).batch(images, 0) != images).any(1)
    assert 0.15 < changed.flatten(1).any(1).float().mean() < 0.35
    for one in changed[changed.flatten(1).any(1)]:
        rows, columns = one.any(1).nonzero(), one.any(0).nonzero()
        height, width = (int(found.max() - found.min() + 1) for found in (rows, columns))
        assert 0.9 * height * width <= one.sum() <= 0.5 * 400
        assert 0.15 < height / width < 7


def test_padding_moves_images_of_folders_too(tmp_path: Path) -> None:
    root = str(make_folder(tmp_path))
    data = open_dataset(DataConfig("folder", root=root, image_size=20, augment=AugmentConfig(crop="pad", pad=4)))
    ids = data.train.ids[:4]
    assert not torch.equal(data.train.load(ids, seed=1).images, data.train.load(ids).images)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_corrupt_file_is_named_in_one_line(workers: int, tmp_path: Path) -> None:
    root = make_folder(tmp_path)
    (root / "train" / "dog" / "03.jpg").write_bytes(b"broken")
    data = open_dataset(DataConfig("folder", root=str(root), image_size=20))
    with pytest.raises(DataError, match=r"train/dog/03.jpg cannot be read") as caught:
        list(plain_batches(data.train, 8, workers=workers))
    assert "Traceback" not in str(caught.value)


def loading(others: set[int | None]) -> set[int | None]:
    """The processes that were started, besides those of other tests."""
    return {child.pid for child in multiprocessing.active_children()} - others


def test_a_killed_loading_process_gets_a_clear_error(tmp_path: Path) -> None:
    others = loading(set())
    data = open_dataset(DataConfig("folder", root=str(make_folder(tmp_path / "images")), image_size=20))
    batches = plain_batches(data.train, 1, workers=1)
    next(batches)
    (child,) = loading(others)
    assert child is not None

    def kill() -> None:
        os.kill(child, signal.SIGKILL)  # the error comes wherever the main process is
        time.sleep(30)
        list(batches)

    with pytest.raises(DataError, match=r"a data-loading process was killed.*lower data.workers"):
        kill()
    assert len(list(plain_batches(data.train, 1, workers=1))) == len(data.train)  # by a new process


def test_loading_processes_live_as_long_as_their_split(tmp_path: Path) -> None:
    others = loading(set())
    data = open_dataset(DataConfig("folder", root=str(make_folder(tmp_path / "images")), image_size=20))
    seen = set()
    for epoch in range(3):
        for _ in TrainBatches(data.train, 4, seed=0, workers=1).epoch(epoch, start=1):
            seen |= loading(others)
            if epoch == 1:
                break  # an epoch that is left early does not disturb the next one
    assert len(seen) == 1
    both = zip(*(plain_batches(data.train, 4, workers=1) for _ in range(2)), strict=True)  # two at the same time
    assert all(torch.equal(one.images, other.images) for one, other in both)
    del data, both
    assert not loading(others)


def test_a_loading_process_that_hangs_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dsnet.data.batches.TIMEOUT", 1)
    data = open_dataset(DataConfig())
    monkeypatch.setattr(type(data.train.loader), "__call__", lambda *_: time.sleep(60))
    with pytest.raises(DataError, match="gave no batch for 1 seconds"):
        list(plain_batches(data.train, 100, workers=1))


FOLLOWED = """
import multiprocessing, sys
from dsnet.data.batches import plain_batches
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset

data = open_dataset(DataConfig("folder", root=sys.argv[1], image_size=20))
batches = plain_batches(data.train, 1, workers=2)
next(batches)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks for processes below /proc")
def test_loading_processes_do_not_outlive_a_killed_main_process(tmp_path: Path) -> None:
    root = str(make_folder(tmp_path / "images"))
    main = subprocess.Popen(
        [sys.executable, "-c", FOLLOWED, root], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert main.stdout is not None
    loaders = [Path("/proc") / pid for pid in main.stdout.readline().split()]
    assert loaders
    main.kill()
    main.wait()
    deadline = time.monotonic() + 60
    while any(alive(loader) for loader in loaders):
        assert time.monotonic() < deadline, "a loading process goes on without its main process"
        time.sleep(0.05)


def alive(process: Path) -> bool:
    try:
        return "\nState:\tZ" not in (process / "status").read_text()
    except OSError:
        return False


def test_the_fingerprint_knows_images_but_not_places(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "a")
    config = DataConfig("folder", root=str(root), image_size=20)
    before = open_dataset(config).fingerprint
    moved = root.rename(tmp_path / "b")
    assert open_dataset(replace(config, root=str(moved))).fingerprint == before
    (moved / "train" / "cat" / "00.jpg").rename(moved / "train" / "cat" / "new.jpg")
    assert open_dataset(replace(config, root=str(moved))).fingerprint != before


def test_splits_are_had_by_name() -> None:
    data = open_dataset(DataConfig())
    for name in ("train", "calibration", "test"):
        assert data.split(name) is getattr(data, name)
    for wrong in ("val", "split", "classes"):
        with pytest.raises(ValueError, match=f"split '{wrong}' is unknown; choose test, calibration or train"):
            data.split(wrong)


def test_augmentation_does_not_move_the_global_generator() -> None:
    data = open_dataset(DataConfig(augment=AugmentConfig(crop="pad", flip=True)))
    torch.manual_seed(0)
    state = torch.get_rng_state()
    next(iter(TrainBatches(data.train, 64, seed=0).epoch(0)))
    assert torch.equal(state, torch.get_rng_state())


def test_ranks_share_every_batch_and_every_sample_counts_once() -> None:
    data = open_dataset(DataConfig())
    whole = TrainBatches(data.train, 100, seed=1)
    halves = [TrainBatches(data.train, 100, seed=1, rank=rank, world=2) for rank in (0, 1)]
    for full, a, b in zip(whole.epoch(0), *(half.epoch(0) for half in halves), strict=True):
        assert sorted([*a.ids.tolist(), *b.ids.tolist()]) == sorted(full.ids.tolist())
    seen = [
        i for rank in (0, 1) for batch in plain_batches(data.test, 50, rank=rank, world=2) for i in batch.ids.tolist()
    ]
    assert sorted(seen) == data.test.ids.tolist()


def test_wrong_configs_are_refused() -> None:
    data = open_dataset(DataConfig())
    for call, message in (
        (lambda: DataConfig("mnist"), "data.dataset 'mnist' is unknown"),
        (lambda: DataConfig("cifar10"), "data.root is missing"),
        (lambda: DataConfig(calibration=0), "data.calibration is 0"),
        (lambda: AugmentConfig(crop="centre"), "augment.crop 'centre' is unknown"),
        (lambda: AugmentConfig(scale=(0.9, 0.1)), "augment.scale"),
        (lambda: TrainBatches(data.train, 5000, seed=0), "batch size 5000 is larger than the 1295 training images"),
        (lambda: TrainBatches(data.train, 5, seed=0, world=2), "cannot be shared by 2 processes"),
        (
            lambda: stratified(torch.tensor([0, 0, 1]), torch.arange(3), 0.1, seed=0),
            "the class 1 has only 1 image to split",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call()
