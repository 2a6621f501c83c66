"""Several processes share the images of an evaluation and get what one would, to the digit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dsnet.data.batches import PlainImages
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Batch
from dsnet.data.labelled import open_dataset
from dsnet.models import Supernet, eager
from dsnet.nn import RouterSpec
from dsnet.routing.calibration import calibrate
from dsnet.routing.survey import Alone, Team
from dsnet.routing.traces import Traces
from dsnet.schema import plain
from dsnet.tasks.classification.accuracy import AccuracyScorer
from dsnet.training import recalibrate
from dsnet.training.average import batch_norms
from dsnet.training.recalibration import averaged, packed
from support.networks import EARLY, load_from, randomised, routed_net, side, varied

IMAGES, BATCH = 30, 6


class Thread:
    """A process of a team, played by a thread."""

    def __init__(self, rank: int, meeting: threading.Barrier, table: list[Any]) -> None:
        self.rank, self.world, self.meeting, self.table = rank, len(table), meeting, table

    def gathered(self, mine: Sequence[Any]) -> list[Any]:
        self.table[self.rank] = list(mine)
        self.meeting.wait(60)
        found = [item for part in self.table for item in part]
        self.meeting.wait(60)
        return found


def by_team(world: int, work: Callable[[Team], Any]) -> list[Any]:
    """What every process of a team returns."""
    meeting, table, found = threading.Barrier(world), [None] * world, [None] * world

    def run(rank: int) -> None:
        try:
            found[rank] = work(Thread(rank, meeting, table))
        except BaseException:
            meeting.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def told(net: Supernet, team: Team, *, mixed_up: bool = False) -> Any:
    """All that traces tell: budgets, scores of every path, and what the scorer holds."""
    labels = torch.randint(7, (IMAGES,), generator=torch.Generator().manual_seed(1))
    load, runner = load_from(varied(net, IMAGES, 1).float(), labels), eager(net)
    parts = torch.arange(IMAGES).split(BATCH)[team.rank :: team.world]
    parts = parts[::-1] if mixed_up else parts
    scorer = AccuracyScorer(runner.manifest)
    again = lambda ids: map(load, map(torch.from_numpy, ids))  # noqa: E731
    traces = Traces(runner, map(load, parts), scorer, load=again, image_size=side(net), team=team)
    budgets = calibrate(traces, 3)
    sums = {path: found.tolist() for path, found in scorer.sums.items()}
    scores = {path: found.tobytes() for path, found in traces.scores.items()}
    return plain(budgets), sums, scores, scorer.labels.tolist(), traces.ids.tolist()


ROUTERS = {
    "one decision": ("ds_mobilenet_v1_tiny", RouterSpec("gate")),
    "an exit": ("ds_mobilenet_v1_tiny", EARLY[0]),
    "several gates": ("ds_resnet_tiny", RouterSpec("gate")),
    "probing": ("ds_resnet_tiny", RouterSpec("cheap_first", "correctness")),
}


@pytest.mark.parametrize("kind", ROUTERS)
def test_a_team_holds_what_one_process_would(kind: str) -> None:
    net = routed_net(*ROUTERS[kind])
    alone = told(net, Alone())
    for world in (3,) if kind == "several gates" else (2, 3):
        for member in by_team(world, lambda team: told(net, team)):
            assert member == alone


def test_batches_of_other_numbers_are_noticed() -> None:
    net = routed_net(*ROUTERS["one decision"])
    assert by_team(2, lambda team: told(net, team, mixed_up=True))[0] != told(net, Alone())


def test_ranks_share_whole_batches_and_kept_images_are_not_decoded_again() -> None:
    data = open_dataset(DataConfig())
    parts = [PlainImages(data.test, 50, name="test", rank=rank, world=3, keep=10**8) for rank in range(3)]
    batches = [list(images.batches()) for images in parts]
    whole = list(PlainImages(data.test, 50, name="test").batches())
    for number, batch in enumerate(whole):
        assert torch.equal(batches[number % 3][number // 3].images, batch.images)
    again = [batches[1][0].ids[3:9].numpy(), batches[1][1].ids[::7].numpy()]
    expected = list(PlainImages(data.test, 50, name="test").load(again))
    object.__setattr__(data.test, "loader", Means(data))  # nothing can be loaded from here on
    for kept, other in zip(parts[1].load(again), expected, strict=True):
        assert torch.equal(kept.images, other.images)
        assert torch.equal(kept.labels, other.labels)
        assert torch.equal(kept.ids, other.ids)
    few = PlainImages(data.test, 50, name="test", keep=1)
    with pytest.raises(TypeError, match="not callable"):
        list(few.load(again))


class Counting:
    """A loader that notes the samples that it is asked for, of which one is damaged."""

    def __init__(self, loader: Any, damaged: int) -> None:
        self.loader, self.damaged, self.asked = loader, damaged, list[int]()
        self.mean, self.std, self.source = loader.mean, loader.std, loader.source

    def __call__(self, ids: torch.Tensor, seed: int | None) -> Batch:
        self.asked += ids.tolist()
        if self.damaged not in ids:
            return self.loader(ids, seed)
        return replace(self.loader(ids[ids != self.damaged], seed), skipped=("damaged.jpg",))


def test_only_images_that_are_not_kept_are_decoded_again() -> None:
    """Half of them fit; batches are those of a process that keeps nothing, in any order of the numbers."""
    data = open_dataset(DataConfig())
    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))
    parts = [part.numpy() for part in data.test.ids[order].split(40)] + [data.test.ids[:9].numpy()]
    damaged = int(data.test.ids[-1])
    loader = Counting(data.test.loader, damaged)
    object.__setattr__(data.test, "loader", loader)
    one = next(PlainImages(data.test, 50, name="test").batches())
    pixels = data.test.loader(one.ids, None).images.nbytes
    some = PlainImages(data.test, 50, name="test", keep=3 * pixels, max_skipped=0.5)
    list(some.batches())
    expected = list(PlainImages(data.test, 50, name="test").load(parts))
    loader.asked.clear()
    found = list(some.load(parts))
    assert sorted(loader.asked) == sorted(data.test.ids[150:].tolist())
    for mine, other in zip(found, expected, strict=True):
        assert torch.equal(mine.images, other.images)
        assert torch.equal(mine.labels, other.labels)
        assert torch.equal(mine.ids, other.ids)
        assert mine.skipped == other.skipped
    several = PlainImages(data.test, 50, name="test", keep=3 * pixels, max_skipped=0.5, workers=2)
    list(several.batches())
    for _ in range(2):  # the loading processes are free again
        assert all(torch.equal(a.images, b.images) for a, b in zip(several.load(parts), expected, strict=True))
    assert len(data.test.pools) == 1
    assert sum(damaged in batch.ids for batch in found) == 0
    assert sum(len(batch.skipped) for batch in found) == 1


class Means:
    """A loader that cannot load."""

    def __init__(self, data: Any) -> None:
        self.mean, self.std, self.source = data.mean, data.std, None


@pytest.mark.parametrize("kind", ["float", "double"])
def test_averaged_statistics_are_those_of_torch(kind: str) -> None:
    """Without a momentum, torch averages batch after batch."""
    dtype = getattr(torch, kind)
    norm = torch.nn.BatchNorm2d(5, momentum=None, dtype=dtype)
    single = torch.nn.BatchNorm2d(5, momentum=1.0, dtype=dtype)
    rows = []
    for seed in range(40):
        x = 3 * torch.randn(8, 5, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.3
        x = x.contiguous(memory_format=torch.channels_last) if seed % 3 == 0 else x
        norm(x), single(x)
        rows.append(torch.stack([single.running_mean, single.running_var]))
    expected, exact = torch.stack([norm.running_mean, norm.running_var]), torch.stack(rows).double().mean(0)
    tolerance = 4 * torch.finfo(dtype).eps  # some kernels round otherwise
    assert torch.allclose(averaged(rows), expected, rtol=tolerance, atol=0)
    assert torch.allclose(averaged(rows).double(), exact, rtol=4 * tolerance, atol=0)


def test_empty_batches_do_not_count_in_recalibration() -> None:
    nets = [randomised("ds_mobilenet_v1_tiny").float() for _ in range(2)]
    batches = [varied(nets[0], 4, seed).float() for seed in range(3)]
    assert recalibrate(nets[0], batches) == 3
    assert recalibrate(nets[1], [batches[0], batches[0][:0], batches[1], batches[0][:1], batches[2]]) == 3
    first, second = (packed(batch_norms(net)) for net in nets)
    assert torch.equal(first, second)
    assert np.isfinite(first.numpy()).all()
