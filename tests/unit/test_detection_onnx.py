"""Every runner of a detector answers as the detector does: cached parts, ONNX file, bundle."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor

from dsnet import DynamicRunner, export_bundle, export_onnx, open_runner
from dsnet.card import Card
from dsnet.errors import RoutingError
from dsnet.manifest import Policy
from dsnet.models import count, eager, extract, route
from dsnet.routers import Budget, RouterSpec
from dsnet.runtime.runner import Runner
from dsnet.tasks.detection.detector import Detector
from support.detectors import pictures, random_detector
from support.networks import assert_close

GATE, BOUND = RouterSpec("gate", "kl"), RouterSpec("gate", "kl", bound=True)
ROUTED = [
    ("ds_mobilenet_v1_small", 64, GATE),
    ("ds_mobilenet_v1_small", 100, GATE),
    ("ds_resnet_tiny", 64, GATE),
    ("ds_resnet_tiny", 64, BOUND),
    ("inverted", 64, GATE),
]
EVERY = ["ds_mobilenet_v1_small", "ds_resnet_tiny", "ds_efficientnet_b0", "mobilenet_v1", "residual"]


def routed_detector(
    name: str = "ds_mobilenet_v1_small", *, size: int = 64, router: RouterSpec = GATE, **options: object
) -> Detector:
    return random_detector(name, router=router, size=size, **options).float()  # type: ignore[arg-type]


def runners(detector: Detector, folder: Path) -> Iterator[Runner]:
    yield DynamicRunner(detector)
    yield open_runner(export_onnx(detector, folder / "model.onnx"), threads=1)
    yield open_runner(export_bundle(detector, folder / "bundle"), threads=1)


def boxes_at(detector: Detector, x: Tensor, path: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        return detector.boxes_of(detector(x, path))


def clear(detector: Detector, scores: list[Tensor], paths: Tensor, policy: Policy) -> Tensor:
    """Samples whose decisions are not close: the best two values differ by more than rounding can."""
    prices = eager(detector).prices(detector.spec.image_size)
    sure = torch.ones(len(paths), dtype=torch.bool)
    for point, seen in enumerate(scores):
        for row, path in enumerate(paths.tolist()):
            at = torch.from_numpy(prices.at(point, path[point - 1] if point else 0))
            best = (seen[row].double() - policy.lam * at).topk(2).values
            sure[row] &= bool(best[0] - best[1] > 1e-4)
    return sure


@pytest.mark.parametrize(("name", "size", "router"), ROUTED)
def test_every_runner_routes_and_answers_as_the_detector(
    name: str, size: int, router: RouterSpec, tmp_path: Path
) -> None:
    detector, x = routed_detector(name, size=size, router=router), pictures(10, size).float()
    found, taken = list(runners(detector, tmp_path)), set()
    for lam in (-1.0, -0.25, 0.0, 0.25, 1.0):
        policy = Policy(lam)
        expected = route(detector, x, policy)
        sure = clear(detector, expected.scores, expected.paths, policy)
        assert sure.float().mean() >= 0.7
        for runner in found:
            actual = runner.run(x, policy)
            assert torch.equal(actual.paths[sure], expected.paths[sure]), runner.runtime
            assert torch.equal(actual.madds[sure], expected.madds[sure]), runner.runtime
            for key in ("boxes", "scores"):
                assert_close(actual.outputs[key][sure], expected.outputs[key][sure], 1e-4)
        taken |= set(map(tuple, expected.paths.tolist()))
    assert len(taken) > 1
    uniform = detector.space.uniform
    for runner in found:
        answers, gate = runner.survey(x[:2], uniform)
        for path, answer in zip(uniform, answers, strict=True):
            for mine, theirs in zip(answer.values(), boxes_at(detector, x[:2], path), strict=True):
                assert_close(torch.as_tensor(mine), theirs, 1e-4)
        assert gate is not None
        assert_close(torch.as_tensor(gate), expected.scores[0][:2], 1e-3)  # their spread is small: rounding shows


@pytest.mark.parametrize("name", EVERY)
def test_a_static_file_is_the_extracted_and_the_sliced_detector(name: str, tmp_path: Path) -> None:
    detector = random_detector(name).float()
    x = pictures(3).float()
    for path in dict.fromkeys([detector.space.slimmest, detector.space.widest]):
        file = open_runner(export_onnx(detector, tmp_path / "path.onnx", path=path), threads=1)
        assert file.manifest.kind == "static"
        assert list(file.manifest.space) == [path]
        assert not file.manifest.routes
        plain = extract(detector, path, fold=True)
        for batch in (1, 3):
            with torch.no_grad():
                deltas, logits = plain(x[:batch])
            answer = file.run_path(x[:batch], path).outputs.values()
            extracted = detector.boxes_of(detector(x[:batch], path)._replace(deltas=deltas, logits=logits))
            for mine, cut, sliced in zip(answer, extracted, boxes_at(detector, x[:batch], path), strict=True):
                assert_close(mine, sliced, 1e-4)
                assert_close(mine, cut.detach(), 1e-4)


@pytest.mark.parametrize("name", ["us_mobilenet_v1", "ds_resnet_tiny"])
def test_a_detector_without_a_gate_becomes_a_file_of_widths(name: str, tmp_path: Path) -> None:
    detector, x = random_detector(name).float(), pictures(1).float()
    file = open_runner(export_onnx(detector, tmp_path / "widths.onnx"), threads=1)
    ends = [detector.space.slimmest, detector.space.widest]
    answers, gate = file.survey(x, ends)
    assert gate is None
    for path, answer in zip(ends, answers, strict=True):
        for mine, theirs in zip(answer.values(), boxes_at(detector, x, path), strict=True):
            assert_close(torch.as_tensor(mine), theirs, 1e-4)
    with pytest.raises(ValueError, match="has not learned to route"):
        file.run(x, Policy())


def test_taps_may_stand_in_any_order_and_before_the_choice_only(tmp_path: Path) -> None:
    x = pictures(2).float()
    for taps in (("block11", "block5", "block13"), ("block5",)):
        detector = routed_detector(taps=taps)
        for runner in runners(detector, tmp_path):
            answer = runner.run_path(x, (3,)).outputs.values()
            for mine, theirs in zip(answer, boxes_at(detector, x, (3,)), strict=True):
                assert_close(mine, theirs, 1e-4)


def with_budgets(detector: Detector) -> Detector:
    table = count(detector)
    ends = (((0,), 0.5), (detector.space.widest, -0.5))
    budgets = tuple(Budget(table.madds(path, dynamic=True), lam, 0.5, 64) for path, lam in ends)
    detector.card = Card(("a", "b", "c"), detector.card.preprocessing, budgets)
    return detector


def test_budgets_caps_and_defaults_are_the_detectors(tmp_path: Path) -> None:
    detector, x = with_budgets(routed_detector()), pictures(8).float()
    live, file, bundle = runners(detector, tmp_path)
    for knobs in ({"budget": 0.9}, {"budget": "0.9", "max_width": 2}, {"max_width": 1}, {}):
        policy = live.policy(**knobs)  # type: ignore[arg-type]
        for runner in (file, bundle):
            assert runner.policy(**knobs) == policy  # type: ignore[arg-type]
            assert torch.equal(runner.run(x, policy).paths, live.run(x, policy).paths)
    cheap = open_runner(export_onnx(detector, tmp_path / "cheap.onnx", budget=0.8, max_width=2))
    assert cheap.policy() == live.policy(0.8, 2)
    session = onnxruntime.InferenceSession(str(tmp_path / "cheap.onnx"))
    expected = live.run(x, cheap.policy()).paths
    free = {"budget": np.float32([-1]), "max_width": np.int64([-1]), "pin": np.int64([-1])}
    found = [session.run(["path"], {"image": image.numpy(), **free})[0] for image in x.split(1)]
    assert np.array_equal(np.stack(found), expected.numpy())
    with pytest.raises(RoutingError, match="max_width 0 is below the slimmest"):
        export_onnx(routed_detector(routing=[1, 3]), tmp_path / "never.onnx", max_width=0)
    assert not (tmp_path / "never.onnx").exists()


def test_the_file_says_what_it_is(tmp_path: Path) -> None:
    detector = with_budgets(routed_detector(routing=[0, 2, 5]))
    for where in (export_onnx(detector, tmp_path / "a.onnx"), export_bundle(detector, tmp_path / "bundle")):
        held, live = open_runner(where).manifest, detector.manifest()
        assert held.task == "detection"
        assert (held.costs, held.widths, held.routers, held.classes) == (
            live.costs,
            live.widths,
            live.routers,
            live.classes,
        )
        assert list(held.space) == [(0,), (2,), (5,)]
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    about = session.get_modelmeta().custom_metadata_map
    assert json.loads(about["classes"]) == ["a", "b", "c"]
    assert json.loads(about["dsnet.manifest"])["widths"][-1]["madds"] == count(detector).widest
    whole, widest = (export_onnx(detector, tmp_path / "b.onnx", path=path) for path in (None, (5,)))
    assert whole.stat().st_size <= 1.3 * widest.stat().st_size


def test_what_a_file_lacks_is_refused(tmp_path: Path) -> None:
    detector, x = routed_detector(routing=[0, 2]), pictures(2).float()
    file = open_runner(export_onnx(detector, tmp_path / "a.onnx"))
    with pytest.raises(ValueError, match=r"path \(5,\) is not in this file, which holds 2 paths"):
        file.run_path(x, (5,))
    with pytest.raises(ValueError, match="takes 64; resize"):
        file.run_path(torch.zeros(1, 3, 32, 32), (0,))
    single = open_runner(export_onnx(detector, tmp_path / "one.onnx", path=(2,)))
    with pytest.raises(ValueError, match=r"holds one path and cannot route; pin the path \(2,\)"):
        single.run(x, Policy())
    with pytest.raises(ValueError, match="leave budget, max_width, max_size and window out"):
        export_onnx(detector, tmp_path / "two.onnx", path=(2,), budget=0.5)
    with pytest.raises(ValueError, match="keeps its own, 64"):
        export_onnx(detector, tmp_path / "two.onnx", image_size=96)
    with pytest.raises(ValueError, match="eval mode"):
        export_onnx(routed_detector().train(), tmp_path / "two.onnx")
    with torch.no_grad():
        detector.heads.deltas[0].layer.bias[0] = torch.nan
    with pytest.raises(ValueError, match=r"heads.deltas.0.layer.bias holds NaN"):
        export_onnx(detector, tmp_path / "two.onnx")


def test_wrong_cards_are_named(tmp_path: Path) -> None:
    detector = routed_detector()
    detector.card = replace(detector.card, budgets=())
    with pytest.raises(RoutingError, match="no calibrated budgets"):
        export_onnx(detector, tmp_path / "a.onnx", budget=0.5)
