"""Sorting channels changes their order and nothing else."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch

from dsnet.models.parts import uncalibrated
from dsnet.nn import SliceBatchNorm2d, SliceGroupNorm
from dsnet.training import recalibrate
from dsnet.weights.sorting import IMPORTANCES, order_of, sort_channels, spaces
from support.networks import CHOOSING, MODELS, assert_close, images, randomised

# Every family as the dynamic, slimmable and static networks that it has, with each kind of norm and gate; tiny where
# such a network is registered. The other full-size networks repeat the law and are slow.
QUICK = {
    *product((name for name in MODELS if name.endswith("tiny")), IMPORTANCES),
    ("s_resnet50", "scale"),
    ("resnet50", "l1"),
}
CASES = [
    pytest.param(name, by, {}, marks=() if (name, by) in QUICK else pytest.mark.slow, id=f"{name}-{by}")
    for name, by in product(MODELS, IMPORTANCES)
]
CASES += [pytest.param("ds_resnet_tiny", by, {"shared": False}, id=f"ds_resnet_tiny-own-{by}") for by in IMPORTANCES]


@pytest.mark.parametrize(("name", "by", "options"), CASES)
def test_the_widest_network_computes_what_it_did(name: str, by: str, options: dict[str, bool]) -> None:
    net = randomised(name, **options)
    x = images(net, batch=2)
    before = copy.deepcopy(net.state_dict())
    with torch.no_grad():
        logits, scores = net.run_scored(x, net.space.widest)
        sort_channels(net, by)
        sorted_logits, sorted_scores = net.run_scored(x, net.space.widest)
    assert_close(sorted_logits, logits)
    for old, new in zip(scores, sorted_scores, strict=True):
        assert (old is None) == (new is None)
        if old is not None and new is not None:
            assert_close(new, old)
    assert not all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


@pytest.mark.parametrize("by", IMPORTANCES)
@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "ds_efficientnet_tiny"])
def test_importance_falls_and_sorting_twice_changes_nothing(name: str, by: str) -> None:
    net = sort_channels(randomised(name), by)
    for space in spaces(net):
        groups = space.importance(by).view(-1, space.group)
        assert (groups.diff(dim=1) <= 1e-9).all()
        assert (groups.sum(1).diff() <= 1e-9).all()
    before = copy.deepcopy(net.state_dict())
    sort_channels(net, by)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.state_dict().items())


def test_every_tensor_but_the_classes_belongs_to_a_space() -> None:
    for name in CHOOSING:
        net = randomised(name)
        moved = {id(layer) for s in spaces(net) for layer in [*s.writers, *s.gate_rows, *s.depthwise, *s.norms]}
        layers = {id(m) for m in net.modules() if hasattr(m, "weight")}
        heads = {id(head.score) for head in net.slimming_heads()}
        assert layers - moved == heads | {id(net.head.classifier)}


def test_groups_stay_together() -> None:
    importance = torch.tensor([1.0, 2.0, 9.0, 0.0, 3.0, 4.0])
    assert order_of(importance, 1).tolist() == [2, 5, 4, 1, 0, 3]
    assert order_of(importance, 2).tolist() == [2, 3, 5, 4, 1, 0]
    net = randomised("ds_resnet_tiny")
    assert all(s.group == 4 for s in spaces(net) if any(isinstance(norm, SliceGroupNorm) for norm in s.norms))


def test_statistics_of_slimmer_widths_count_as_never_calibrated() -> None:
    net = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32)
    assert not uncalibrated(net, net.space)
    sort_channels(net)
    assert uncalibrated(net, net.space) == [(k,) for k in range(5)]
    recalibrate(net, [images(net, batch=8)])
    assert not uncalibrated(net, net.space)
    fixed = [m for m in net.front.modules() if isinstance(m, SliceBatchNorm2d)]
    assert all(bool((norm.num_batches_tracked > 0).all()) for norm in fixed)


def test_an_unknown_importance_is_refused() -> None:
    with pytest.raises(ValueError, match="importance 'l2' is unknown; choose from l1, scale"):
        sort_channels(randomised("ds_resnet_tiny"), "l2")  # type: ignore[arg-type]
