"""The paper's recipes for ImageNet: their data opens quickly, and every one of them runs at full size."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from dsnet.data.packing import index_shards
from dsnet.data.shards import HEAD
from dsnet.tasks import read_config
from support.benchmarks import benchmark
from support.ranks import torchrun

pytestmark = pytest.mark.slow
RECIPES = ("imagenet_ds_mobilenet_v1", "imagenet_ds_efficientnet_b0", "imagenet_ds_resnet50")

listing = benchmark("listing")


def images_opened(kind: str, root: Path, sent: Path) -> int:
    """The number of training images. They were opened in time and in little memory."""
    found = listing.opened(kind, root, sent)
    print(kind, found)
    assert found["seconds"] <= 5
    assert found["megabytes"] <= 400
    assert found["order, seconds"] <= 2
    return int(found["images"])


def test_a_folder_of_imagenets_size_opens_in_seconds(tmp_path: Path) -> None:
    listing.write_files(tmp_path / "files")
    for kind in ("folder", "sent"):
        images = images_opened(kind, tmp_path / "files", tmp_path / "sent")
        assert images == listing.IMAGES - 1000 * round(listing.IMAGES / 1000 * 0.01)


def test_shards_of_imagenets_size_open_in_seconds(tmp_path: Path) -> None:
    listing.write_shards(tmp_path)
    assert (tmp_path / HEAD).stat().st_size < 500_000
    for kind in ("shards", "sent"):
        assert images_opened(kind, tmp_path, tmp_path / "sent") >= 0.98 * listing.IMAGES


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
    index_shards(
        {kind: f"{place}/{name}.tar" for kind, name in patterns.items()}, place / "index", classes=listing.CLASSES
    )  # type: ignore[misc]
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
