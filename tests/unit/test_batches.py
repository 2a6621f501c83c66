"""Batches: pieces, threads and rounding change the time, never the answer of the path that is reported."""

from __future__ import annotations

import hashlib
import threading
import time
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from dsnet import DynamicRunner, export_bundle, export_onnx
from dsnet.latency import pieces as measuring
from dsnet.manifest import Policy
from dsnet.models import Supernet
from dsnet.results import Setting
from dsnet.routers import RouterSpec
from dsnet.routing.pieces import SIZES, Costs, Group, PartTime, PieceTimes, cut, filled, makespan, rounded, times_of
from dsnet.routing.policy import decide
from dsnet.runtime.bundle import BundleRunner
from dsnet.runtime.onnx import open_onnx
from support.networks import EARLY, ROUTERS, assert_close, routed_net, side, varied

NETS = [
    *(("ds_mobilenet_v1_tiny", router) for router in (*ROUTERS, EARLY[0])),
    ("ds_resnet_tiny", ROUTERS[0]),
    ("ds_resnet_tiny", EARLY[2]),
]


def called(value: str | RouterSpec) -> str:
    return value if isinstance(value, str) else f"{value.kind}-{value.targets}{'-bound' * value.bound}"


def costs(runner: BundleRunner, *, call: float, image: float = 1.0) -> Costs:
    """Costs as if every call took a time of its own, and every image one that grows with the width."""
    setting = Setting("", 0, "", 1, "")

    def part(width: float) -> PartTime:
        return PartTime(int(100 * width), tuple(call + image * width * size for size in SIZES))

    table = runner.manifest.table
    held = Costs(PieceTimes(setting, part(1), tuple((part(1), part(2)) for _ in table.steps)), table)
    held.segments = [[filled(part(1 + width).ms) for width in range(len(step[0]))] for step in table.steps]
    return held


def bundle(net: Supernet, folder: Path, threads: int) -> BundleRunner:
    place = folder / "bundle"
    place = place if place.exists() else export_bundle(net, place, image_size=side(net))
    runner = open_onnx(place, threads=threads)
    assert isinstance(runner, BundleRunner)
    return runner


# how a batch is cut


def test_pieces_hold_every_image_and_finish_early() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        threads = int(rng.integers(1, 5))
        groups = [
            Group(int(rng.integers(1, 20)), float(rng.random() * 3) + float(rng.random() + 0.1) * np.arange(1, 9))
            for _ in range(rng.integers(1, 6))
        ]
        plan = cut(groups, threads)
        assert [sum(sizes) for sizes in plan] == [group.count for group in groups]
        assert all(1 <= size <= SIZES[-1] for sizes in plan for size in sizes)
        assert all(max(sizes) - min(sizes) <= 1 for sizes in plan)
        for limit in SIZES:
            other = [group.pieces(limit) for group in groups]
            times = (times_of(groups, one) for one in (plan, other))
            mine, theirs = (makespan(one, threads) for one in times)
            assert mine <= theirs + 1e-9


def test_a_group_uses_every_thread_and_the_best_size() -> None:
    share_work, share_cache = 1.0 + np.arange(1, 9), np.array([1.0, 3.0])
    assert cut([Group(8, share_work)], 1) == [[8]]
    assert cut([Group(8, share_work)], 2) == [[4, 4]]
    assert cut([Group(3, share_cache)], 1) == [[1, 1, 1]]  # two images together take longer than one after another
    assert cut([Group(5, None)], 4) == [[5]]
    assert makespan([3, 3, 2, 2, 2], 2) == 7  # the longest first: 3+2+2 and 3+2


def test_rounding_is_the_cheapest_way_to_join_groups() -> None:
    rng = np.random.default_rng(0)
    joins = 0
    for _ in range(60):
        chosen = rng.integers(0, 5, rng.integers(1, 12))
        call, image = rng.random() * 4, rng.random()

        def ms(position: int, call: float = call, image: float = image) -> np.ndarray:
            return call + image * (1 + position) * np.arange(1, 9)

        def total(positions: np.ndarray, ms=ms) -> float:
            taken, counts = np.unique(positions, return_counts=True)
            return sum(Group(int(n), ms(int(k))).work for k, n in zip(taken, counts, strict=True))

        found = rounded(chosen, ms)
        joins += int((found > chosen).any())
        assert (found >= chosen).all()
        assert set(found.tolist()) <= set(chosen.tolist())
        held = np.unique(chosen)
        for targets in product(held, repeat=len(held)):  # every way to send whole groups to chosen positions
            if all(target >= position for target, position in zip(targets, held, strict=True)):
                other = np.array(targets)[np.searchsorted(held, chosen)]
                assert total(found) <= total(other) + 1e-9
    assert joins > 10


# the answers


def random_positions(runner: BundleRunner, count: int, top: int = 99) -> np.ndarray:
    """Positions [count, points] among the candidates of each decision, up to the width `top`."""
    prices, rng = runner.prices(runner.manifest.image_size), np.random.default_rng(0)
    limits = [sum(width <= top for width in prices.widths(point)) for point in range(len(prices.tables))]
    return np.stack([rng.integers(0, limit, count) for limit in limits], 1)


def paths_at(runner: BundleRunner, positions: np.ndarray) -> list[list[int]]:
    router = runner.prices(runner.manifest.image_size).router
    if router.spec.single:
        return [list(router.candidates[row[0]]) for row in positions.tolist()]
    return [[w[k] for w, k in zip(router.routing.choices, row, strict=True)] for row in positions.tolist()]


@pytest.mark.parametrize(("name", "router"), NETS, ids=called)
def test_grouped_is_one_by_one(name: str, router: RouterSpec, tmp_path: Path) -> None:
    net = routed_net(name, router)
    x = varied(net, 11).float()
    alone = bundle(net, tmp_path, 1)
    positions = random_positions(alone, 11)
    each = [alone.run_forced(image, positions[row : row + 1]) for row, image in enumerate(x.split(1))]
    logits = torch.cat([one.logits for one in each])
    assert (torch.pdist(logits) > 0.01 * logits.std()).all()  # or an exchange of two images would not be seen
    for threads, call, image, count in ((1, 5.0, 0.01, 11), (3, 0.0, 1.0, 11), (3, 5.0, 0.01, 11), (2, 5.0, 0.01, 2)):
        runner = bundle(net, tmp_path, threads)
        runner._costs = costs(runner, call=call, image=image)
        routed = runner.run_forced(x[:count], positions[:count])
        assert routed.paths.tolist() == paths_at(alone, positions[:count])
        assert routed.madds.tolist() == [int(one.madds) for one in each[:count]]
        assert_close(routed.logits, logits[:count], 1e-4)
        for point, scores in enumerate(routed.scores):
            assert_close(scores, torch.cat([one.scores[point] for one in each[:count]]), 1e-4)
        free = runner.run(x[:count])
        assert free.paths.tolist() == [alone.run(image).paths[0].tolist() for image in x[:count].split(1)]
    path = alone.paths[-1]
    (found,), scores = runner.survey(x, [path])
    assert scores is not None
    assert len(scores) == 11
    assert_close(torch.from_numpy(found["logits"]), torch.cat([alone(i, path=path).logits for i in x.split(1)]), 1e-4)


@pytest.mark.parametrize(("name", "router"), NETS, ids=called)
@pytest.mark.parametrize("top", [99, 2])
def test_what_is_rounded_up_is_wider_and_true(name: str, router: RouterSpec, top: int, tmp_path: Path) -> None:
    net = routed_net(name, router)
    x = varied(net, 12).float()
    runner = bundle(net, tmp_path, 2)
    runner._costs = costs(runner, call=6.0)
    positions, prices = random_positions(runner, 12, top), runner.prices(side(net))
    routed = runner.run_forced(x, positions, round_up=True)
    chosen, ran = np.array(paths_at(runner, positions)), routed.paths.numpy()
    assert (ran >= chosen).all()
    assert (ran > chosen).any()
    assert ran.max() <= top
    for point in range(ran.shape[1]):
        assert set(ran[:, point].tolist()) <= set(chosen[:, point].tolist())
    if prices.router.probes or prices.router.spec.exits:  # an answer that is known already cannot be had for less
        assert (ran[positions[:, 0] == 0] == chosen[positions[:, 0] == 0]).all()
    assert routed.madds.tolist() == [prices.spent(tuple(path)) for path in ran.tolist()]
    places = {tuple(path): row for path, row in zip(chosen.tolist(), positions, strict=True)}
    for row, path in enumerate(map(tuple, ran.tolist())):
        if prices.router.spec.single:
            again = runner.run_forced(x[row : row + 1], places[path][None])
            assert_close(routed.logits[row : row + 1], again.logits, 1e-4)
        else:
            assert_close(routed.logits[row : row + 1], runner(x[row : row + 1], path=path).logits, 1e-4)


@pytest.mark.parametrize("cap", [None, 2])
def test_rounding_keeps_to_the_cap_and_to_the_scores(cap: int | None, tmp_path: Path) -> None:
    net = routed_net("ds_resnet_tiny", ROUTERS[0])
    x = varied(net, 12).float()
    runner = bundle(net, tmp_path, 2)
    runner._costs = costs(runner, call=6.0)
    policy, prices = Policy(max_width=cap), runner.prices(side(net))
    routed = runner.run(x, policy, round_up=True)
    wider = 0
    for point, scores in enumerate(routed.scores):
        for row, path in enumerate(routed.paths.tolist()):
            at = prices.at(point, path[point - 1] if point else 0)
            (position,) = decide(scores[row : row + 1].numpy(), at, policy, prices.allowed(point, policy))
            chosen = prices.router.routing.choices[point][position]
            assert chosen <= path[point] <= (99 if cap is None else cap)
            wider += path[point] > chosen
    assert wider


def test_rounding_is_asked_for_and_for_bundles_only(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", ROUTERS[0])
    x = varied(net, 6).float()
    runner = bundle(net, tmp_path, 1)
    runner._costs = costs(runner, call=100.0)
    assert len(runner(x).paths.unique()) > 1
    assert len(runner(x, round_up=True).paths.unique()) == 1  # with such costs all images run together
    with pytest.raises(ValueError, match="a path pins the widths"):
        runner(x, path=(1,), round_up=True)
    file = open_onnx(export_onnx(net, tmp_path / "model.onnx", image_size=side(net)))
    for other in (file, DynamicRunner(net)):
        with pytest.raises(ValueError, match="round_up joins groups of a batch, which"):
            other(x, round_up=True)


# the times


def test_times_are_measured_once_on_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSNET_CACHE", str(tmp_path / "cache"))
    net = routed_net("ds_resnet_tiny", ROUTERS[0])
    x = varied(net, 3).float()
    runner = bundle(net, tmp_path, 1)
    runner.run(x[:1])
    assert not (tmp_path / "cache").exists()  # a single image needs no plan
    runner.run(x)
    (file,) = (tmp_path / "cache" / "pieces").iterdir()
    held = runner.costs(3)
    assert held is not None
    for point in range(4):
        wide, slim = held.segment(point, 3), held.segment(point, 0)
        assert (np.diff(wide) >= 0).all()
        assert (wide >= slim[: len(wide)]).all()

    def again(*_: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patched:
        patched.setattr(measuring, "measure", again)
        bundle(net, tmp_path, 2).run(x)
    file.write_text("{")
    bundle(net, tmp_path, 1).run(x)
    assert len(file.read_text()) > 10


CLOCKS = (time.thread_time, time.process_time)


def test_other_threads_do_not_lengthen_measured_times() -> None:
    """Those of a server, which measures while it answers."""
    done = threading.Event()

    def busy() -> None:
        while not done.is_set():
            hashlib.sha256(bytes(2**22)).digest()  # without the interpreter's lock

    helper = threading.Thread(target=busy)
    helper.start()
    try:
        spent = {clock: measuring.fastest(lambda: hashlib.sha256(bytes(2**24)).digest(), clock) for clock in CLOCKS}
    finally:
        done.set()
        helper.join()
    assert spent[time.thread_time] < 0.75 * spent[time.process_time]
