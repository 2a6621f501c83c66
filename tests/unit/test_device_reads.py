"""How often a routed batch waits for its device: once for each decision, however many widths there are."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dsnet.models import eager
from dsnet.models.cached import DynamicRunner
from dsnet.nn import RouterSpec
from dsnet.routing.parts import likes
from dsnet.tasks.classification.accuracy import AccuracyScorer
from support.networks import EARLY, ROUTERS, router_net, varied
from support.pretend import DEVICE, pretended

CHECKS = 2  # reads of a batch: whether its images are extreme, and whether its answers are finite
RESULTS = 2  # copies to the device: the order of the answers, and the routes


@pytest.mark.parametrize(
    ("name", "router", "decisions"),
    [
        ("ds_mobilenet_v1_tiny", ROUTERS[0], 1),
        pytest.param("ds_mobilenet_v1_tiny", ROUTERS[1], 1, marks=pytest.mark.slow),
        ("ds_mobilenet_v1_tiny", EARLY[0], 1),
        ("ds_resnet_tiny", ROUTERS[0], 4),
    ],
    ids=lambda value: value.kind if isinstance(value, RouterSpec) else str(value),
)
def test_a_batch_waits_once_for_each_decision(name: str, router: RouterSpec, decisions: int) -> None:
    for routing in ([0, 3], None):
        net = router_net(name, router, routing=routing).float()
        x = varied(net, 24).float()
        with pretended() as account:
            x, net = x.to(DEVICE), net.to(DEVICE)
            for runner in [DynamicRunner(net), *([eager(net)] if routing else [])]:
                runner.run(x)  # builds the parts
                account.clear()
                found = runner.run(x)
                assert account.reads.total() == decisions + CHECKS
                assert account.sends.total() <= decisions + RESULTS
                assert len({tuple(path) for path in found.paths.tolist()}) > 1


def test_the_scores_of_a_path_are_read_once() -> None:
    net = router_net("ds_mobilenet_v1_tiny", ROUTERS[0]).float()
    scorer = AccuracyScorer(eager(net).manifest)
    logits, labels = torch.randn(24, net.spec.num_classes), torch.arange(24) % net.spec.num_classes
    expected = scorer.take({"logits": logits}, labels)
    with pretended() as account:
        found = scorer.take({"logits": logits.to(DEVICE)}, labels.to(DEVICE))
        assert account.reads.total() == 1
    assert np.array_equal(found.answers, expected.answers)
    assert np.array_equal(found.answers, logits.argmax(1).numpy())
    assert found.sums.tolist() == expected.sums.tolist()


def test_the_weights_of_an_exit_are_read_again_after_a_change() -> None:
    net = router_net("ds_mobilenet_v1_tiny", EARLY[0]).float()
    assert net.early is not None
    with pretended() as account:
        runner = eager(net.to(DEVICE))
        before = runner.manifest.routers[0].combine
        account.clear()
        assert runner.manifest.routers[0].combine == before
        assert not account.reads
        net.early.exit_weights[0] = 0.125
        assert runner.manifest.routers[0].combine[0][0] == 0.125
        net.early.exit_weights = torch.ones(len(before), device=DEVICE)
        assert [u for u, _ in runner.manifest.routers[0].combine] == [1.0] * len(before)


def test_arrays_of_all_kinds_cross_in_one_copy() -> None:
    generator = np.random.default_rng(0)
    kinds = (np.float32, np.int64, np.bool_, np.float64, np.int8)
    arrays = [(4 * generator.random((3, size))).astype(kind) for size, kind in enumerate(kinds)]
    with pretended() as account:
        found = likes(torch.zeros(1, device=DEVICE), arrays)
        assert account.sends.total() == 1
        assert all(tensor.device == DEVICE for tensor in found)
        for tensor, array in zip(found, arrays, strict=True):
            assert tensor.cpu().numpy().dtype == array.dtype
            assert np.array_equal(tensor.cpu().numpy(), array)
