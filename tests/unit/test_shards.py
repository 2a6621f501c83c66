"""Shards hold what a folder holds, in an order that seed and epoch give, and whatever is wrong with them is named."""

from __future__ import annotations

import io
import json
import random
import shutil
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.client import IncompleteRead
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from dsnet.cli import main
from dsnet.data import remote
from dsnet.data.augment import AugmentConfig
from dsnet.data.batches import TrainBatches, plain_batches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Batch
from dsnet.data.labelled import open_dataset
from dsnet.data.packing import expanded, index_shards, pack
from dsnet.data.shards import HEAD, STREAMS, Shards, drawn
from dsnet.errors import DataError
from dsnet.files import with_digest
from support.folders import make_folder

AUGMENT = AugmentConfig(crop="resized", scale=(0.3, 1.0), flip=True, randaugment=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("folder") / "pets")


@pytest.fixture(scope="module")
def packed(folder: Path) -> Path:
    out = folder.parent / "shards"
    pack(DataConfig("folder", root=str(folder)), out, images=5)
    return out


@pytest.fixture
def copy(packed: Path, tmp_path: Path) -> Path:
    return shutil.copytree(packed, tmp_path / "shards")


def config_of(root: object, **keys: object) -> DataConfig:
    return DataConfig("shards", root=str(root), image_size=20, **keys)  # type: ignore[arg-type]


def pixels(batches: Iterator[Batch]) -> torch.Tensor:
    return torch.cat([batch.images for batch in batches])


def as_bag(batches: Iterator[Batch]) -> Counter[bytes]:
    return Counter(
        image.numpy().tobytes() + bytes([int(label)])
        for batch in batches
        for image, label in zip(batch.images, batch.labels, strict=True)
    )


def test_shards_hold_what_the_folder_holds_in_the_same_splits(folder: Path, packed: Path) -> None:
    files, shards = open_dataset(DataConfig("folder", root=str(folder), image_size=20)), open_dataset(config_of(packed))
    assert (files.classes, files.counts, files.mean) == (shards.classes, shards.counts, shards.mean)
    for name in ("calibration", "test"):
        ours, theirs = (list(plain_batches(data.split(name), 7)) for data in (shards, files))
        assert torch.equal(pixels(iter(ours)), pixels(iter(theirs))), (
            "evaluation sees the same images in the same order"
        )
        assert [batch.labels.tolist() for batch in ours] == [batch.labels.tolist() for batch in theirs]
    assert as_bag(plain_batches(shards.train, 7)) == as_bag(plain_batches(files.train, 7))
    assert shards.train.source is not shards.calibration.source


def test_the_same_folder_gives_the_same_shards(folder: Path, packed: Path, tmp_path: Path) -> None:
    pack(DataConfig("folder", root=str(folder), workers=1), tmp_path / "again", images=5)
    for file in packed.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes(), file.name
    pack(DataConfig("folder", root=str(folder)), tmp_path / "other", images=5, seed=1)
    assert (packed / "train.npy").read_bytes() != (tmp_path / "other" / "train.npy").read_bytes()


def test_names_with_dots_and_names_that_differ_in_their_suffix_stay_apart(tmp_path: Path) -> None:
    root = make_folder(tmp_path / "pets")
    cat = root / "train" / "cat"
    for name in ("a.b.jpg", "a_b.jpg", "a.c.jpg", "00.png"):
        shutil.copy(cat / "00.jpg", cat / name)
    index, _ = pack(DataConfig("folder", root=str(root)), tmp_path / "shards")
    assert sum(part.images for part in index.splits.values()) == 72 + 4
    for file in (tmp_path / "shards").glob("*.tar"):
        with tarfile.open(file) as tar:
            keys = Counter(member.name.split(".")[0] for member in tar)
        assert set(keys.values()) == {2}, "an image and its class"


# The order


@pytest.mark.parametrize("seed", range(12))
def test_an_order_holds_every_image_once_and_mixes_the_shards(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.randint(1, 60) for _ in range(rng.randint(1, 300))]
    shards = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    columns = rng.randint(1, min(300, len(shards)))
    order = drawn(shards, columns, torch.Generator().manual_seed(seed))
    assert order.shape == (len(shards) // columns, columns)
    assert len(order.unique()) == order.numel()
    assert torch.equal(order, drawn(shards, columns, torch.Generator().manual_seed(seed)))
    assert order.numel() < 20 or not torch.equal(order, drawn(shards, columns, torch.Generator().manual_seed(99)))


def test_ranks_read_different_shards_and_a_batch_is_drawn_from_many() -> None:
    shards = torch.arange(1281).repeat_interleave(100)
    order = drawn(shards, 512, torch.Generator().manual_seed(0))
    assert min(len(shards[row].unique()) for row in order) >= STREAMS * 0.9
    for world in (2, 4, 8, 16):
        mine = [set(shards[order[:, rank::world]].flatten().unique().tolist()) for rank in range(world)]
        shared = sum(map(len, mine)) - len(set().union(*mine))
        assert shared <= STREAMS, "only where a stream begins inside of a shard"
        assert max(map(len, mine)) <= 1281 / world + STREAMS


def test_batches_depend_on_seed_and_epoch_alone(packed: Path) -> None:
    """From any position, with any number of workers and processes, whatever the global generator did."""
    split = open_dataset(config_of(packed, augment=AUGMENT)).train
    unbroken = list(TrainBatches(split, 8, seed=5).epoch(3))
    torch.manual_seed(123)
    for workers in (0, 2):
        later = list(TrainBatches(split, 8, seed=5, workers=workers).epoch(3, start=1))
        for a, b in zip(later, unbroken[1:], strict=True):
            assert torch.equal(a.ids, b.ids)
            assert torch.equal(a.images, b.images)
    halves = [TrainBatches(split, 8, seed=5, rank=rank, world=2) for rank in (0, 1)]
    for full, a, b in zip(unbroken, *(half.epoch(3) for half in halves), strict=True):
        assert torch.equal(torch.stack([a.ids, b.ids], 1).flatten(), full.ids)
    other = next(iter(TrainBatches(split, 8, seed=5).epoch(4)))
    assert not torch.equal(other.ids, unbroken[0].ids)


# WebDataset


def test_the_webdataset_library_reads_our_shards_and_we_read_its(packed: Path, tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset", reason="the webdataset package is not installed")
    shards = sorted(map(str, packed.glob("train-*.tar")))
    found = list(webdataset.WebDataset(shards, shardshuffle=False).to_tuple("jpg", "cls"))
    source = open_dataset(config_of(packed)).train.source
    assert isinstance(source, Shards)
    assert [int(label) for _, label in found] == source.labels.tolist()
    assert [image for image, _ in found] == [source.image(number, 10**6).data for number in range(len(source))]
    with webdataset.ShardWriter(f"file:{tmp_path}/own-%03d.tar", maxcount=6, verbose=0) as writer:
        for number, (image, label) in enumerate(found):
            writer.write({"__key__": f"img{number:04d}", "jpg": image, "cls": int(label), "json": {"more": 1}})
    names = ("cat", "dog", "emu")
    index_shards({"train": f"{tmp_path}/own-{{000..005}}.tar"}, tmp_path / "index", classes=names)
    ours = open_dataset(config_of(tmp_path / "index")).train.source
    assert isinstance(ours, Shards)
    assert [ours.image(number, 10**6).data for number in range(len(ours))] == [image for image, _ in found]
    assert ours.labels.tolist() == source.labels.tolist()


def test_patterns_count_and_list() -> None:
    assert expanded("a/{train,val}-{08..10}.tar") == [
        f"a/{s}-{n}.tar" for s in ("train", "val") for n in ("08", "09", "10")
    ]
    assert expanded("one.tar") == ["one.tar"]
    for wrong in ("a-{1..}.tar", "a-{3..1}.tar", "a-{1..x}.tar", "a-{", "a-{}"):
        with pytest.raises(DataError, match="the pattern a-"):
            expanded(wrong)


def test_an_index_of_existing_shards_names_what_is_wrong_with_them(packed: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(next(packed.parent.rglob("*.jpg")), "x.jpg")
    for pattern, message in (
        (f"{tmp_path}/none-{{0..3}}.tar", "none-0.tar does not exist; mend the pattern"),
        (f"{tmp_path}/a.tar", "the image /x has no label; write its class into /x.cls"),
        (str(packed / HEAD), "cannot be read as an uncompressed tar"),
    ):
        with pytest.raises(DataError, match=message):
            index_shards({"train": pattern}, tmp_path / "out")
    with pytest.raises(DataError, match="a label is '2', which is none of the 2 classes"):
        index_shards({"train": f"{packed}/test-{{000000..000007}}.tar"}, tmp_path / "out", classes=("a", "b"))
    assert not (tmp_path / "out" / HEAD).exists()


# What is wrong with shards


def test_missing_and_damaged_shards_are_named_before_a_run_begins(copy: Path) -> None:
    shard = copy / "train-000002.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1000])
    with pytest.raises(
        DataError, match=r"1 of 7 shards are damaged or of another index: .*train-000002.tar has 1?\d,\d+"
    ):
        open_dataset(config_of(copy))
    shard.unlink()
    with pytest.raises(DataError, match=r"1 of 7 shards do not exist, the first is .*train-000002.tar; restore"):
        open_dataset(config_of(copy))


def test_any_changed_byte_of_an_image_is_found_and_can_be_skipped(copy: Path) -> None:
    rng = random.Random(0)
    split = open_dataset(config_of(copy)).train
    source = split.source
    assert isinstance(source, Shards)
    for _ in range(20):
        number = rng.randrange(len(source))
        shard, row = source.shards[int(source.shard_of(torch.tensor([number])))], source.table[number]
        place = int(row["offset"]) + rng.randrange(int(row["size"]))
        content = bytearray((copy / shard.name).read_bytes())
        content[place] ^= 1 << rng.randrange(8)
        original = (copy / shard.name).read_bytes()
        (copy / shard.name).write_bytes(content)
        with pytest.raises(
            DataError, match=rf"{shard.name}/train/\w+/\d+.jpg cannot be read as an image .*copy the shard"
        ):
            list(plain_batches(split, 8))
        skipping = open_dataset(config_of(copy, on_corrupt="skip")).train
        skipped = [name for batch in plain_batches(skipping, 8) for name in batch.skipped]
        assert len(skipped) == 1
        assert shard.name in skipped[0]
        (copy / shard.name).write_bytes(original)
    assert not [batch.skipped for batch in plain_batches(split, 8) if batch.skipped]


def test_a_wrong_index_is_refused(copy: Path, packed: Path) -> None:
    head = json.loads((copy / HEAD).read_text())
    rest = {key: value for key, value in head.items() if key != "digest"}

    def written(content: dict[str, object] | str) -> None:
        (copy / HEAD).write_text(content if isinstance(content, str) else json.dumps(content))

    part = rest["splits"]["train"]
    for content, message in (
        ({**head, "classes": ["a", "b", "c"]}, "does not match its digest"),
        (json.dumps(head)[:-30], "is truncated or not JSON"),
        ({**head, "version": 2}, "version"),
        (with_digest({**rest, "splits": {"test": rest["splits"]["test"]}}), "has no training images, only test"),
        (with_digest({**rest, "splits": {**rest["splits"], "train": {**part, "table": "test.npy"}}}), "not the table"),
        (with_digest({**rest, "splits": {**rest["splits"], "train": {**part, "shards": part["shards"][1:]}}}), "fit"),
        (with_digest({**rest, "classes": ["cat", "dog"]}), "does not fit"),
    ):
        written(content)
        with pytest.raises(DataError, match=message):
            open_dataset(config_of(copy))
    written(head)
    (copy / "train.npy").write_bytes((packed / "test.npy").read_bytes())
    with pytest.raises(DataError, match=r"train.npy is not the table that"):
        open_dataset(config_of(copy))
    (copy / "train.npy").unlink()
    with pytest.raises(DataError, match=r"train.npy does not exist, but .*shards.json names it"):
        open_dataset(config_of(copy))
    (copy / HEAD).unlink()
    with pytest.raises(DataError, match=r"shards.json does not exist; make shards of a folder of images with"):
        open_dataset(config_of(copy))


def test_a_share_that_the_shards_do_not_have_is_refused(packed: Path) -> None:
    open_dataset(config_of(packed, calibration=0.1))
    with pytest.raises(DataError, match=r"data.calibration is 0.01, but the shards .* with 0.1 set aside"):
        open_dataset(config_of(packed, calibration=0.01))


# Shards at a URL


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]


@pytest.fixture
def server(copy: Path) -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(copy))) as held:
        held.asked = []  # type: ignore[attr-defined]
        threading.Thread(target=held.serve_forever, daemon=True).start()
        yield held
        held.shutdown()


def asked(server: ThreadingHTTPServer) -> list[str]:
    return [path for path in server.asked if path.endswith(".tar")]  # type: ignore[attr-defined]


def test_shards_at_a_url_are_fetched_once_and_equal_those_on_disk(
    server: ThreadingHTTPServer, packed: Path, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    there = open_dataset(config_of(url, cache=str(tmp_path / "cache"), augment=AUGMENT))
    here = open_dataset(config_of(packed, augment=AUGMENT))
    assert there.fingerprint == here.fingerprint
    for workers in (0, 2, 0):
        ours = list(TrainBatches(there.train, 8, seed=0, workers=workers).epoch(1))
        for a, b in zip(ours, TrainBatches(here.train, 8, seed=0).epoch(1), strict=True):
            assert torch.equal(a.images, b.images)
    assert max(Counter(asked(server)).values()) == 1
    assert len(asked(server)) == 7


def test_the_store_makes_room_and_fetches_again(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{server.server_port}"
    size = 50_000  # bytes, of a few shards
    data = open_dataset(config_of(url, cache=str(tmp_path / "cache"), cache_size=size / 1e9))
    for _ in range(2):
        assert sum(len(batch.labels) for batch in plain_batches(data.train, 4)) == len(data.train)
        assert 0 < sum(file.stat().st_size for file in (tmp_path / "cache").glob("*.tar")) <= size
    assert len(asked(server)) > 7


def test_trouble_with_a_url_is_named(
    server: ThreadingHTTPServer, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    url = f"http://127.0.0.1:{server.server_port}"
    with pytest.raises(DataError, match=r"nothing/shards.json could not be fetched .*404"):
        open_dataset(config_of(f"{url}/nothing", cache=str(tmp_path / "cache")))
    data = open_dataset(config_of(url, cache=str(tmp_path / "cache")))
    shard = copy / "test-000000.tar"
    content = shard.read_bytes()
    shard.write_bytes(content[:-3] + b"abc")
    with pytest.raises(DataError, match=r"test-000000.tar could not be fetched \(it is damaged, or not the file"):
        list(plain_batches(data.test, 4))
    shard.write_bytes(content)
    assert sum(len(batch.labels) for batch in plain_batches(data.test, 4)) == len(data.test)
    with pytest.raises(DataError, match=r"foo://bar/shards.json cannot be opened"):
        open_dataset(config_of("foo://bar"))


def test_a_table_of_another_kind_is_refused(copy: Path) -> None:
    head = json.loads((copy / HEAD).read_text())
    del head["digest"]
    np.save(copy / "train.npy", np.zeros(3))
    from dsnet.files import file_digest

    head["splits"]["train"]["digest"] = file_digest(copy / "train.npy")
    (copy / HEAD).write_text(json.dumps(with_digest(head)))
    with pytest.raises(DataError, match="does not fit"):
        open_dataset(config_of(copy))


# The command


def test_the_command_writes_shards_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = make_folder(tmp_path / "pets")
    bad = root / "train" / "dog" / "03.jpg"
    bad.write_bytes(bad.read_bytes()[:300])
    out = tmp_path / "shards"
    assert main(["shards", str(root), str(out)]) == 2
    assert f"{bad} cannot be read as an image" in capsys.readouterr().err
    assert not (out / HEAD).exists()
    assert main(["shards", str(root), str(out), "--on_corrupt", "skip", "--images", "9"]) == 0
    shown = capsys.readouterr().out
    assert "train: 32 images in 4 shards" in shown
    assert f"damaged files that were left out: 1\n  {bad}\n" in shown
    assert f"dsnet train --data.dataset shards --data.root {out}" in shown
    assert main(["shards", str(root), str(out)]) == 2
    assert f"{out} already holds shards; choose another folder" in capsys.readouterr().err
    assert main(["train", "--data.root", str(out), "--out", str(tmp_path / "run")]) == 2
    assert f"{out} holds shards; train on them with --data.dataset shards" in capsys.readouterr().err
    assert main(["shards", f"{out}/train-{{000000..000003}}.tar", str(tmp_path / "b"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["index"]["classes"] == ["0", "1", "2"]
    assert len(open_dataset(replace(config_of(tmp_path / "b"), calibration=0.2)).train) < 32


@pytest.mark.parametrize("root", ["s3://bucket/data", "gs://bucket/data/", "https://host/data", "file:///data"])
def test_names_are_joined_to_any_kind_of_url(root: str) -> None:
    assert remote.joined(root, "shards.json") == f"{root.rstrip('/')}/shards.json"
    assert remote.joined(root, "http://other/a.tar") == "http://other/a.tar"
    above = root.rstrip("/").rpartition("/")[0] + "/other"
    assert remote.joined(root, "../other/a.tar") == f"{above}/a.tar"


def test_fetched_shards_are_not_held_open(server: ThreadingHTTPServer, tmp_path: Path) -> None:
    """A file that is open keeps its space after it is removed."""
    url = f"http://127.0.0.1:{server.server_port}"
    data = open_dataset(config_of(url, cache=str(tmp_path / "cache")))
    list(plain_batches(data.train, 4))
    held = [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()]
    assert not [place for place in held if place.startswith(str(tmp_path))]


def test_a_fetch_that_breaks_off_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    tries: list[int] = []

    def fetch() -> str:
        tries.append(1)
        if len(tries) < 3:
            raise IncompleteRead(b"")
        return "whole"

    assert remote.tried("http://host/a", fetch) == "whole"


def test_options_for_folders_are_refused_for_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option in (["--images", "3"], ["--calibration", "0.5"], ["--on_corrupt", "skip"], ["--labels", "x.csv"]):
        assert main(["shards", "a-{0..1}.tar", str(tmp_path / "out"), *option]) == 2
        assert f"{option[0]} is for a folder of images" in capsys.readouterr().err


def test_an_index_that_breaks_off_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote.time, "sleep", lambda seconds: None)
    answers = [b"who", b"whole"]

    class Answer(io.BytesIO):
        @property
        def length(self) -> int:
            return 5 - len(self.getvalue())

    monkeypatch.setattr(remote, "stream_of", lambda url: Answer(answers.pop(0)))
    assert remote.read_url("http://host/shards.json", "json") == b"whole"
