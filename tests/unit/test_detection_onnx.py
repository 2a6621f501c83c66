"""Detectors as ONNX files answer as they do in PyTorch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from detection_support import pictures, random_detector
from support import assert_close, randomised
from torch import Tensor

from dsnet import OnnxRunner, export_onnx
from dsnet.errors import CheckpointError, RoutingError
from dsnet.models import Budget, Card
from dsnet.nn import RouterSpec
from dsnet.routing import Policy, Prices
from dsnet.tasks.detection import (
    Detector,
    DetectorCost,
    OnnxDetector,
    detector_policy,
    export_detector,
    extract_detector,
    is_detector,
    route_detector,
)

GATE = RouterSpec("gate", "kl")
ROUTED = [("ds_mobilenet_v1_small", 64), ("ds_mobilenet_v1_small", 100), ("ds_resnet_tiny", 64)]
EVERY = ["ds_mobilenet_v1_small", "ds_resnet_tiny", "ds_efficientnet_b0", "mobilenet_v1"]


def routed_detector(name: str = "ds_mobilenet_v1_small", *, size: int = 64, **options: object) -> Detector:
    return random_detector(name, router=GATE, size=size, **options).float()  # type: ignore[arg-type]


def boxes_at(detector: Detector, x: Tensor, path: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return detector.boxes_of(detector(x, path))


def clear(detector: Detector, scores: list[Tensor], paths: Tensor, policy: Policy) -> Tensor:
    """Samples whose decisions are not close: the best two values differ by more than rounding can."""
    prices = Prices(DetectorCost(detector))
    sure = torch.ones(len(paths), dtype=torch.bool)
    for point, seen in enumerate(scores):
        for row, path in enumerate(paths.tolist()):
            best = (seen[row].double() - policy.lam * prices.at(point, path[point - 1] if point else 0)).topk(2).values
            sure[row] &= bool(best[0] - best[1] > 1e-4)
    return sure


@pytest.mark.parametrize(("name", "size"), ROUTED)
def test_the_dynamic_file_routes_and_answers_as_the_detector(name: str, size: int, tmp_path: Path) -> None:
    detector, x = routed_detector(name, size=size), pictures(10, size).float()
    file = OnnxDetector(export_detector(detector, tmp_path / "model.onnx"), threads=1)
    taken = set()
    for lam in (-1.0, -0.25, 0.0, 0.25, 1.0):
        policy = Policy(lam)
        expected = route_detector(detector, x, policy)
        sure = clear(detector, expected.scores, expected.paths, policy)
        assert sure.float().mean() >= 0.7
        boxes, scores, paths, madds = file.route(x, policy)
        assert torch.equal(paths[sure], expected.paths[sure])
        assert torch.equal(madds[sure], expected.madds[sure])
        for mine, theirs in zip((boxes, scores), detector.boxes_of(expected.answer), strict=True):
            assert_close(mine[sure], theirs[sure], 1e-4)
        taken |= set(map(tuple, paths.tolist()))
    assert len(taken) > 1
    for path in list(file.space.uniform):
        (answer,), gate = file.look(x[:2], [path])
        for mine, theirs in zip(answer, boxes_at(detector, x[:2], path), strict=True):
            assert_close(mine, theirs, 1e-4)
        assert gate is not None
        assert_close(gate, expected.scores[0][:2], 1e-3)  # their spread is 3e-3 of their size: rounding shows


@pytest.mark.parametrize("name", EVERY)
def test_a_static_file_is_the_extracted_and_the_sliced_detector(name: str, tmp_path: Path) -> None:
    detector = random_detector(name).float()
    x = pictures(3).float()
    for path in dict.fromkeys([detector.space.slimmest, detector.space.widest]):
        file = OnnxDetector(export_detector(detector, tmp_path / "path.onnx", path=path), threads=1)
        assert file.kind == "static"
        assert list(file.space) == [path]
        assert not file.routes
        plain = extract_detector(detector, path, fold=True)
        for batch in (1, 3):
            with torch.no_grad():
                deltas, logits = plain(x[:batch])
            (answer,), _ = file.look(x[:batch], [path])
            extracted = detector.boxes_of(detector(x[:batch], path)._replace(deltas=deltas, logits=logits))
            for mine, cut, sliced in zip(answer, extracted, boxes_at(detector, x[:batch], path), strict=True):
                assert_close(mine, sliced, 1e-4)
                assert_close(mine, cut.detach(), 1e-4)


@pytest.mark.parametrize("name", ["us_mobilenet_v1", "ds_resnet_tiny"])
def test_a_detector_without_a_gate_becomes_a_file_of_widths(name: str, tmp_path: Path) -> None:
    detector, x = random_detector(name).float(), pictures(1).float()
    file = OnnxDetector(export_detector(detector, tmp_path / "widths.onnx"), threads=1)
    for path in (detector.space.slimmest, detector.space.widest):
        (answer,), gate = file.look(x, [path])
        assert gate is None
        for mine, theirs in zip(answer, boxes_at(detector, x, path), strict=True):
            assert_close(mine, theirs, 1e-4)
    with pytest.raises(ValueError, match="has not learned to route"):
        file.route(x, Policy())


def test_taps_may_stand_in_any_order_and_before_the_choice_only(tmp_path: Path) -> None:
    x = pictures(2).float()
    for taps in (("block11", "block5", "block13"), ("block5",)):
        detector = routed_detector(taps=taps)
        file = OnnxDetector(export_detector(detector, tmp_path / "taps.onnx"), threads=1)
        (answer,), _ = file.look(x, [(3,)])
        for mine, theirs in zip(answer, boxes_at(detector, x, (3,)), strict=True):
            assert_close(mine, theirs, 1e-4)


def with_budgets(detector: Detector) -> Detector:
    table = DetectorCost(detector)
    ends = (((0,), 0.5), (detector.space.widest, -0.5))
    budgets = tuple(Budget(table.madds(path, dynamic=True), lam, 0.5, 64) for path, lam in ends)
    detector.card = Card(("a", "b", "c"), detector.card.preprocessing, budgets)
    return detector


def test_budgets_caps_and_defaults_are_the_detectors(tmp_path: Path) -> None:
    detector, x = with_budgets(routed_detector()), pictures(8).float()
    file = OnnxDetector(export_detector(detector, tmp_path / "a.onnx"))
    for knobs in ({"budget": 0.9}, {"budget": "0.9", "max_width": 2}, {"max_width": 1}, {}):
        mine, theirs = (detector_policy(one, **knobs) for one in (file, detector))  # type: ignore[arg-type]
        assert mine == theirs
        assert torch.equal(file.route(x, mine)[2], route_detector(detector, x, theirs).paths)
    cheap = OnnxDetector(export_detector(detector, tmp_path / "cheap.onnx", budget=0.8, max_width=2))
    assert detector_policy(cheap) == detector_policy(detector, 0.8, max_width=2)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(cheap.file), options)
    expected = route_detector(detector, x, detector_policy(cheap)).paths
    found = [session.run(["path"], {"image": image.numpy()})[0] for image in x.split(1)]
    assert np.array_equal(np.stack(found), expected.numpy())
    with pytest.raises(RoutingError, match="max_width 0 is below the slimmest"):
        export_detector(routed_detector(routing=[1, 3]), tmp_path / "never.onnx", max_width=0)
    assert not (tmp_path / "never.onnx").exists()


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    detector = with_budgets(routed_detector(routing=[0, 2, 5]))
    file = OnnxDetector(export_detector(detector, tmp_path / "a.onnx"))
    assert file.spec == detector.spec
    assert file.card == detector.card
    assert list(file.space) == [(0,), (2,), (5,)]
    about = file.session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["a", "b", "c"]
    assert json.loads(about["widths"])[-1] == {"path": [5], "madds": DetectorCost(detector).widest}
    assert is_detector(tmp_path / "a.onnx")
    whole, widest = (export_detector(detector, tmp_path / "b.onnx", path=path) for path in (None, (5,)))
    assert whole.stat().st_size <= 1.3 * widest.stat().st_size


def test_files_that_hold_something_else_are_refused(tmp_path: Path) -> None:
    detector, x = routed_detector(routing=[0, 2]), pictures(2).float()
    file = OnnxDetector(export_detector(detector, tmp_path / "a.onnx"))
    with pytest.raises(ValueError, match=r"path \(5,\) is not in .*a.onnx, which holds 2 paths"):
        file.look(x, [(5,)])
    with pytest.raises(ValueError, match=r"takes \[batch, 3, 64, 64\]; resize"):
        file.look(torch.zeros(1, 3, 32, 32), [(0,)])
    with pytest.raises(CheckpointError, match="holds a network for detection, not for classification"):
        OnnxRunner(tmp_path / "a.onnx")
    net = randomised("ds_mobilenet_v1_tiny").float()
    other = export_onnx(net, tmp_path / "net.onnx", image_size=32)
    assert not is_detector(other)
    assert not is_detector(tmp_path / "none.onnx")
    with pytest.raises(CheckpointError, match="holds a network for classification, not for detection"):
        OnnxDetector(other)
    (tmp_path / "broken.onnx").write_bytes(b"no")
    assert not is_detector(tmp_path / "broken.onnx")
    single = OnnxDetector(export_detector(detector, tmp_path / "one.onnx", path=(2,)))
    with pytest.raises(ValueError, match=r"holds one path and cannot route; pin the path \(2,\)"):
        single.route(x, Policy())
    with pytest.raises(ValueError, match="leave budget and max_width out"):
        export_detector(detector, tmp_path / "two.onnx", path=(2,), budget=0.5)
    with pytest.raises(ValueError, match="eval mode"):
        export_detector(routed_detector().train(), tmp_path / "two.onnx")
    with torch.no_grad():
        detector.heads.deltas[0].layer.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"heads.deltas.0.layer.bias holds NaN"):
        export_detector(detector, tmp_path / "two.onnx")


def test_wrong_cards_are_named(tmp_path: Path) -> None:
    detector = routed_detector()
    detector.card = replace(detector.card, budgets=())
    with pytest.raises(RoutingError, match="no calibrated budgets"):
        export_detector(detector, tmp_path / "a.onnx", budget=0.5)
