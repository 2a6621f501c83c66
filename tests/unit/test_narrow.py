"""A network whose router chooses from fewer widths: the same weights, the same scores, fewer candidates."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from dsnet.errors import RoutingError
from dsnet.export.onnx import export_onnx
from dsnet.manifest import Policy
from dsnet.models import DynamicRunner, route
from dsnet.models.narrow import narrowed
from dsnet.nn import RouterSpec
from dsnet.runtime.onnx import open_onnx
from dsnet.space import is_exit
from support.networks import assert_close, kinds_of, randomised, routed_net, router_net, varied

CHEAP_FIRST, GATE = RouterSpec("cheap_first", "correctness"), RouterSpec("gate", "correctness")
EXIT_FIRST = RouterSpec("exit_first", "correctness", early=0)
EVERY = [
    ("ds_mobilenet_v1_tiny", CHEAP_FIRST, (0, 2, 5)),
    ("ds_mobilenet_v1_tiny", GATE, (1, 4)),
    ("ds_mobilenet_v1_tiny", EXIT_FIRST, (1, 3, 5)),
    ("ds_resnet_tiny", GATE, (0, 2)),
    ("ds_resnet_tiny", EXIT_FIRST, (0, 1, 3)),
]


def called(value: object) -> str:
    return value.kind if isinstance(value, RouterSpec) else str(value)


@pytest.mark.parametrize(("name", "router", "widths"), EVERY, ids=called)
def test_scores_and_answers_are_those_of_the_whole_network(
    name: str, router: RouterSpec, widths: tuple[int, ...], tmp_path: Path
) -> None:
    net = routed_net(name, router)
    few, x = narrowed(net, widths), varied(net, 12)
    policy = Policy(0.05)
    routed, whole = route(few, x, policy), route(net, x, policy)
    assert {width for path in routed.paths.tolist() for width in path if not is_exit(tuple(path))} <= set(widths)
    columns = [0] * router.exits + [router.exits + width for width in widths]
    assert torch.allclose(routed.scores[0], whole.scores[0][:, columns], atol=1e-5)
    for row, path in enumerate(map(tuple, routed.paths.tolist())):
        if not router.exits:  # those of exit_first are combined with the exit's
            with torch.no_grad():
                assert_close(routed.logits[row], net(x[row : row + 1], path)[0], 1e-4)
    file = open_onnx(export_onnx(few, tmp_path / "few.onnx", image_size=x.shape[-1]))
    for runner in (DynamicRunner(few), file):
        found = runner.run(x, policy)
        assert np.array_equal(np.asarray(found.paths), routed.paths)
        assert_close(torch.as_tensor(found.logits), routed.logits, 1e-4)


def test_a_narrowed_file_has_no_branches_for_other_widths(tmp_path: Path) -> None:
    net = routed_net("ds_mobilenet_v1_tiny", GATE)
    for widths in (range(6), (0, 5)):
        graph = onnx.load(export_onnx(narrowed(net, widths), tmp_path / "file.onnx")).graph
        assert kinds_of(graph).count("If") == len(widths)  # one of them for the classifier's further columns


@pytest.mark.parametrize(
    ("router", "widths", "message"),
    [
        (GATE, (0, 6), "width 6 is not among those that the router may choose: [0, 1, 2, 3, 4, 5]"),
        (GATE, (3,), "leave nothing to choose"),
        (CHEAP_FIRST, (1, 5), "reads the answer of its slimmest width, 0"),
        (RouterSpec("threshold"), (0, 1), "escalates to position 5"),
    ],
    ids=called,
)
def test_widths_that_cannot_be_kept_are_refused(router: RouterSpec, widths: tuple[int, ...], message: str) -> None:
    with pytest.raises(RoutingError) as error:
        narrowed(router_net("ds_mobilenet_v1_tiny", router), widths)
    assert message in str(error.value)


def test_a_network_without_a_router_is_refused() -> None:
    with pytest.raises(RoutingError, match="has not learned to route"):
        narrowed(randomised("ds_mobilenet_v1_tiny"), (0, 1))
