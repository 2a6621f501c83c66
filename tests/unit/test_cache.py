"""Stage II on cached features: what batches of a cache hold, and whose images they are."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dsnet.data.batches import TrainBatches
from dsnet.data.config import AugmentConfig, DataConfig
from dsnet.data.dataset import Data, Split
from dsnet.data.labelled import open_dataset
from dsnet.errors import DataError
from dsnet.models import Supernet, model_spec
from dsnet.nn import RouterSpec
from dsnet.tasks import config_from
from dsnet.tasks.classification import router as task_router
from dsnet.tasks.classification.router import data_words
from dsnet.tasks.classification.task import new_network
from dsnet.training import cache, with_fresh_router
from dsnet.training.cache import CachedBatches, Moments, make_cache, read, rows_of, unpacked


@pytest.fixture(scope="module")
def digits() -> Data:
    return open_dataset(DataConfig(augment=AugmentConfig(crop="pad")))


@pytest.fixture(scope="module")
def net() -> Supernet:
    torch.manual_seed(0)
    spec = model_spec("ds_mobilenet_v1_tiny", in_channels=1, image_size=16)
    return Supernet(replace(spec, router=RouterSpec("exit_first", "correctness", 0, early=0))).eval()


def some(data: Data, count: int, **options: int) -> TrainBatches:
    return TrainBatches(Split(data.train.loader, data.train.ids[:count]), 16, seed=3, **options)


def test_batches_are_views_of_their_images_and_depend_on_the_seed_only(digits: Data, net: Supernet) -> None:
    batches = some(digits, 70)
    cache = make_cache(net, batches, 2, display=False)
    assert cache.rows.shape[:2] == (2, 70)
    assert not torch.equal(cache.rows[0], cache.rows[1])
    again = make_cache(net, batches, 2, display=False)
    assert torch.equal(cache.rows, again.rows)
    epochs = [list(cache.epoch(number)) for number in range(2)]
    assert [len(batch.ids) for batch in epochs[0]] == [16] * len(cache) == [16] * 4
    for number, batch in enumerate(again.epoch(1, start=2)):  # as a resumed run goes on
        assert torch.equal(batch.images, epochs[1][2 + number].images)
        assert torch.equal(batch.ids, epochs[1][2 + number].ids)
    place = {int(number): row for row, number in enumerate(batches.split.ids)}
    for batch in epochs[0]:
        for row, label, number in zip(batch.images, batch.labels, batch.ids, strict=True):
            views = cache.rows[:, place[int(number)]]
            assert any(torch.equal(row, view) for view in views)
            assert label == digits.train.source.labels[number]  # type: ignore[attr-defined]
    taken = [{int(i): row for b in epoch for i, row in zip(b.ids, b.images, strict=True)} for epoch in epochs]
    both = taken[0].keys() & taken[1].keys()
    assert both
    assert all(not torch.equal(taken[0][number], taken[1][number]) for number in both)  # the next epoch, the next view


def test_a_cache_holds_what_the_network_says(digits: Data, net: Supernet) -> None:
    """A view of an image that is not augmented is the image."""
    plain = replace(digits.train.loader.config.augment, crop="none", flip=False)  # type: ignore[attr-defined]
    loader = replace(digits.train.loader, config=replace(digits.train.loader.config, augment=plain))  # type: ignore[type-var]
    cache = make_cache(net, TrainBatches(Split(loader, digits.train.ids[:20]), 4, seed=0), 1, display=False)
    images = digits.train.load(digits.train.ids[:20]).images
    with torch.no_grad():
        seen = read(net, net.enter(images))
        kept = unpacked(net, cache.rows[0])
        torch.testing.assert_close(kept.seen, seen.seen)
        torch.testing.assert_close(kept.answers[:, 2], net(images, (2,)))
        torch.testing.assert_close(net.early.classifier.classify(kept.seen), net(images, (-2,)))


def test_processes_share_the_images(digits: Data, net: Supernet) -> None:
    caches = [make_cache(net, some(digits, 70, rank=rank, world=2), 1, display=False) for rank in range(2)]
    epochs = [list(cache.epoch(0)) for cache in caches]
    assert len(epochs[0]) == len(epochs[1]) == 4
    ids = [torch.cat([batch.ids for batch in epoch]) for epoch in epochs]
    assert [len(part) for part in ids] == [32, 32]
    assert len(torch.cat(ids).unique()) == 64


def test_damaged_files_are_left_out(digits: Data, net: Supernet) -> None:
    cache = make_cache(net, some(digits, 40), 1, display=False)
    known = cache.known.clone()
    known[5] = False
    short = CachedBatches(cache.batches, cache.rows, cache.labels, known, ("a.png",))
    seen = list(short.epoch(0))
    assert sum(len(batch.ids) for batch in seen) in (31, 32)
    assert digits.train.ids[5] not in torch.cat([batch.ids for batch in seen])
    assert seen[0].skipped == ("a.png",)
    assert sum(len(labels) for _, labels in short.reads(net)) == 39


def test_a_cache_that_is_too_large_is_refused(digits: Data, net: Supernet) -> None:
    with pytest.raises(
        DataError, match=r"needs [\d.e-]+ GB of memory, more than sgs\.cache_limit 1e-05; .*--sgs\.cache 0"
    ):
        make_cache(net, some(digits, 40), 3, limit=1e-5, display=False)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    ("router", "sizes"), [("cheap_first", None), ("gate", None), ("exit_first", None), ("exit_first", [8, 11, 16])]
)
def test_the_check_before_stage_one_counts_what_is_cached(
    digits: Data, tmp_path: Path, router: str, sizes: list[int] | None, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a cache that is too large is refused before anything is trained, and no other one is."""
    found = []
    monkeypatch.setattr(task_router, "check_size", lambda views, images, numbers, limit: found.append(numbers))
    sgs = {"router": router, **({"cache_folder": str(tmp_path)} if kept else {})}
    model = {"name": "ds_mobilenet_v1_tiny", **({"sizes": sizes} if sizes else {})}
    config = config_from({"data": {"dataset": "digits"}, "model": model, "sgs": sgs})
    plain = new_network(config, digits)
    task_router.check_cache(plain, digits, config)
    net = with_fresh_router(plain, config.routed(plain.spec)).eval()
    image = torch.zeros(1, digits.channels, digits.image_size, digits.image_size)
    assert found == [rows_of(net, image, kept=kept).shape[1]]


def test_kept_features_serve_every_router_on_the_same_network(digits: Data, net: Supernet, tmp_path: Path) -> None:
    batches = some(digits, 40)
    routers = (net.spec.router, RouterSpec("cheap_first", "correctness", 4), RouterSpec("gate", "try_best"))
    for router in routers:
        other = with_fresh_router(net, replace(net.spec, router=router)).eval()
        alone = make_cache(other, batches, 2, display=False)
        shared = make_cache(other, batches, 2, display=False, folder=tmp_path)
        for name in ("rows", "labels", "known"):
            assert torch.equal(getattr(alone, name), getattr(shared, name)), name
    (file,) = tmp_path.glob("*.safetensors")
    make_cache(net, batches, 2, display=False, folder=tmp_path, about="other augmentation")
    make_cache(net, replace(batches, seed=4), 2, display=False, folder=tmp_path)
    changed = copy.deepcopy(net)
    with torch.no_grad():
        changed.head.classifier.weight.mul_(2)
    make_cache(changed, batches, 2, display=False, folder=tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) == 4
    assert file.exists()


def test_a_gate_with_a_code_of_its_own_shares_no_features_with_others(digits: Data, tmp_path: Path) -> None:
    batches, gate = some(digits, 40), RouterSpec("gate", "try_best")
    spec = model_spec("ds_resnet_tiny", in_channels=1, image_size=16)
    supernet = Supernet(spec)
    assert spec.gate is not None
    for shared in (True, False):
        net = with_fresh_router(supernet, replace(spec, router=gate, gate=replace(spec.gate, shared=shared))).eval()
        alone = make_cache(net, batches, 1, display=False)
        kept = make_cache(net, batches, 1, display=False, folder=tmp_path)
        assert torch.equal(alone.rows, kept.rows)


def test_features_are_shared_wherever_the_data_is() -> None:
    data = DataConfig("cifar10", "here")
    assert data_words(data) == data_words(replace(data, root="there", workers=2))
    assert data_words(data) != data_words(replace(data, calibration=0.2))


def test_moments_of_parts_are_those_of_the_whole() -> None:
    torch.manual_seed(0)
    values = torch.randn(1000, 3) * torch.tensor([2.0, 1e-9, 0.5]) + torch.tensor([5.0, 1.0, 0.0])
    moments = Moments()
    for part in values.split(300):
        moments.add(part)
    mean, std = moments.mean_std()
    assert torch.allclose(mean, values.double().mean(0))
    assert torch.allclose(std[[0, 2]], values.double().std(0, correction=0)[[0, 2]])
    assert std[1] == 1


def test_trainings_side_by_side_make_a_cache_once(digits: Data, net: Supernet, tmp_path: Path) -> None:
    batches, made = some(digits, 40), []
    collected = cache.collect

    def counted(*args: Any, **options: Any) -> CachedBatches:
        made.append(1)
        return collected(*args, **options)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setattr(cache, "collect", counted)
        both = [pool.submit(make_cache, net, batches, 1, display=False, folder=tmp_path) for _ in range(2)]
        first, second = (found.result() for found in both)
    assert torch.equal(first.rows, second.rows)
    assert len(made) == 1
