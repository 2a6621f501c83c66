"""Micro-batches of a server: within the bound by the table's own estimate, and nobody starves."""

from __future__ import annotations

import random
from functools import cache

import pytest

from dsnet.manifest import Manifest, RouterSpec
from dsnet.results import Setting
from dsnet.routing.micro import Waiting, batch_time, micro_batch
from dsnet.routing.pieces import SIZES, Costs, PartTime, PieceTimes, step_madds
from dsnet.space import WidthPath
from support.networks import EARLY, ROUTERS, routed_net

NETS = [
    ("ds_mobilenet_v1_tiny", ROUTERS[0]),
    ("ds_mobilenet_v1_tiny", EARLY[0]),
    ("ds_mobilenet_v1_tiny", RouterSpec("slim_first", "correctness")),
    ("ds_resnet_tiny", ROUTERS[0]),
]


@cache
def manifest(place: int) -> Manifest:
    return routed_net(*NETS[place]).manifest()


def costs(about: Manifest, *, call: float, image: float) -> Costs:
    """Costs as if every call took a time of its own, and every image one that grows with the MAdds."""
    table = about.table

    def part(madds: int) -> PartTime:
        return PartTime(madds, tuple(call + image * madds / table.widest * size for size in SIZES))

    ends = [[step_madds(table, point, width) for width in (0, -1)] for point in range(len(table.steps))]
    segments = tuple((part(slim), part(wide)) for slim, wide in ends)
    return Costs(PieceTimes(Setting("", 0, "", 1, ""), part(table.front.madds), segments), table)


def paths_of(about: Manifest) -> list[WidthPath]:
    assert about.router is not None
    return about.router.candidates if about.router.spec.single else list(about.router.routing)


@pytest.mark.parametrize("place", range(len(NETS)))
def test_a_batch_stays_within_the_bound_unless_one_image_does_not(place: int) -> None:
    about, rng = manifest(place), random.Random(place)
    paths, sizes, alone = paths_of(about), set(), 0
    for _ in range(60):
        held = costs(about, call=rng.random(), image=rng.uniform(0.5, 5))
        workers, bound = rng.randint(1, 3), rng.uniform(1, 30)
        queue = [Waiting(rng.choice(paths), rng.uniform(-10, 60)) for _ in range(rng.randint(1, 20))]
        batch = micro_batch(queue, held, about.router, bound=bound, workers=workers, most=8)

        def took(places: list[int]) -> float:
            return batch_time([queue[one].path for one in places], held, about.router, workers)  # noqa: B023

        urgent = min(queue, key=lambda one: one.slack)
        assert queue[batch[0]] is urgent
        assert len(set(batch)) == len(batch) <= 8
        assert len(batch) == 1 or took(batch) <= bound
        if took(batch[:1]) <= urgent.slack:
            assert took(batch) <= urgent.slack
            bound = min(bound, urgent.slack)
        if workers == 1 and len(batch) < 8:  # with several threads, one more image may shorten the plan
            left = set(range(len(queue))) - set(batch)
            assert all(took([*batch, one]) > bound for one in left)
        sizes.add(len(batch))
        alone += took(batch) > bound
    assert len(sizes) > 3
    assert alone > 0


def test_an_image_is_counted_with_what_its_path_runs() -> None:
    about = manifest(0)
    held, paths = costs(about, call=0.0, image=1.0), paths_of(about)
    times = [batch_time([path], held, about.router) for path in paths]
    assert times == sorted(times)
    assert times[0] < times[-1]
    for place in (1, 2):  # the exit runs the front alone; a router that probes runs the slimmest for all
        other = manifest(place)
        held = costs(other, call=0.0, image=1.0)
        first, *_, last = (batch_time([path], held, other.router) for path in paths_of(other))
        probe = held.path(paths_of(other)[0])[0] if place == 2 else 0.0
        assert first == pytest.approx(held.front[0] + probe)
        assert last == pytest.approx(held.front[0] + probe + held.path(paths_of(other)[-1])[0])
    for many in (2, 7, 20):
        assert batch_time([paths[-1]] * many, held, about.router, workers=2) < batch_time(
            [paths[-1]] * many, held, about.router
        )


def test_nobody_starves() -> None:
    """A wide image waits in a flood of slim ones that are due sooner and would fill every batch."""
    about = manifest(0)
    held, (slim, *_, wide) = costs(about, call=0.1, image=5.0), paths_of(about)
    now, due, bound, soon = 0.0, 200.0, 12.0, 30.0
    flood = [Waiting(slim, soon)] * 20
    while True:
        queue = [*flood, Waiting(wide, due - now)]  # the flood never ends
        batch = micro_batch(queue, held, about.router, bound=bound)
        if 20 in batch:
            break
        now += batch_time([queue[one].path for one in batch], held, about.router)
        assert now < due, "the wide image was never taken"
    assert now >= due - soon - bound  # the flood was more urgent until then


def test_bad_bounds_are_refused() -> None:
    about = manifest(0)
    held = costs(about, call=0.1, image=1.0)
    assert micro_batch([], held, about.router, bound=5.0) == []
    for options, name in (({"bound": 0.0}, "bound"), ({"bound": 1.0, "workers": 0}, "workers")):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            micro_batch([Waiting((0,), 1.0)], held, about.router, **options)  # type: ignore[arg-type]
