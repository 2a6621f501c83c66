"""Windows: runs of adjacent widths that decisions choose within."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dsnet.manifest import Budget, Card, Manifest, Policy, Router, from_metadata, to_metadata
from dsnet.models import route
from dsnet.nn import RouterSpec
from dsnet.schema import parse_json, to_json
from dsnet.space import WidthSpace
from support.networks import prices_of, router_net, varied

GATE = RouterSpec("gate", windows=3)
SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny"]


def test_the_family_is_every_run_of_adjacent_positions() -> None:
    def windows(size: int | None, *choices: tuple[int, ...]) -> list[tuple[int, int]]:
        return Router(RouterSpec("gate", windows=size), WidthSpace(choices)).windows

    assert windows(3, tuple(range(6))) == [(0, 2), (1, 3), (2, 4), (3, 5)]
    assert windows(2, (1, 3, 4)) == [(0, 1), (1, 2)], "positions in the list, not width indices"
    assert windows(9, (0, 1, 2)) == windows(None, (0, 1, 2)) == [(0, 2)]
    assert windows(2, (0, 1), (0, 1, 2)) == [(0, 1), (1, 2)], "of the longest list"


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RouterSpec("gate", windows=1), "size of a window is 1; it must be at least 2 widths"),
        (lambda: RouterSpec("slim_first", "correctness", windows=3), "slim_first; it must be a gate"),
        (lambda: Policy(window=(2, 1)), r"a window is \(2, 1\); it must be two positions from 0"),
        (lambda: Budget(1e6, 0.0, 0.5, 32, window=(-1, 1)), r"a window is \(-1, 1\)"),
    ],
)
def test_impossible_windows_are_refused(make: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("name", SMALL)
def test_decisions_lie_within_the_window_and_the_cap(name: str) -> None:
    net = router_net(name, GATE)
    x, last = varied(net, 16), net.spec.widths[0] - 1
    for low, high in net.manifest().routers[0].windows:
        for lam, end in ((-1e3, high), (1e3, low)):
            assert set(route(net, x, Policy(lam, window=(low, high))).paths.flatten().tolist()) == {end}
        for cap in range(last + 1):
            paths = route(net, x, Policy(0.0, cap, window=(low, high))).paths
            assert paths.min() >= min(low, cap)
            assert paths.max() <= min(high, cap)


def test_a_shorter_list_keeps_its_widest_width() -> None:
    net = router_net("ds_resnet_tiny", GATE, routing=[[0, 1], [0, 1, 2, 3], [0, 1, 2, 3], [1, 3]])
    prices = prices_of(net)
    policy = Policy(window=(2, 3))
    masks = [prices.allowed(point, policy) for point in range(4)]
    assert [None if mask is None else mask.tolist() for mask in masks] == [
        [False, True],
        [False, False, True, True],
        [False, False, True, True],
        [False, True],
    ]


def test_manifests_and_cards_keep_windows_and_older_ones_have_none() -> None:
    net = router_net("ds_mobilenet_v1_tiny", GATE)
    net.card = replace(net.card, budgets=(Budget(1e6, 0.5, 0.9, 32, window=(0, 2)), Budget(2e6, 0.1, 0.9, 32)))
    manifest = replace(net.manifest(), defaults=Policy(0.0, window=(1, 3)))
    assert from_metadata("file", to_metadata(manifest)) == manifest
    older = to_json(net.card).replace(', "window": [0, 2]', "").replace(', "window": null', "")
    assert "window" not in older
    assert {row.window for row in parse_json(Card, older, "card").budgets} == {None}
    spec = to_json(manifest).replace(', "windows": 3', "")
    router = parse_json(Manifest, spec, "manifest").router
    assert router is not None
    assert router.windows == [(0, 5)]
