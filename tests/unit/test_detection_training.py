"""Stages of a detector: what is trained, what gates learn, and what budgets do with it."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dsnet.data.batches import plain_batches
from dsnet.data.voc import DetectionDataConfig, open_detection_data
from dsnet.manifest import Policy
from dsnet.models import eager, route
from dsnet.prediction.answers import Detections
from dsnet.routers import RouterSpec
from dsnet.routing.calibration import calibrate
from dsnet.routing.traces import Traces
from dsnet.runs.dynamic import evaluate_dynamic
from dsnet.runs.evaluate import row_of
from dsnet.tasks.detection.scorer import PrecisionScorer
from dsnet.tasks.detection.stages import GatesConfig, GatesStage, WidthsConfig, WidthsStage, goals, median_gap
from dsnet.training import OptimConfig, learning_rate
from support.detectors import pictures, random_detector
from support.folders import voc_folder

EXCESS = GatesConfig(targets="excess").spec
TRY_BEST = GatesConfig(targets="try_best").spec
OBJECTS = torch.tensor([[[0.1, 0.1, 0.5, 0.6, 0, 0], [0, 0, 0, 0, -1, 0]], [[0.4, 0.3, 0.9, 0.9, 2, 0]] * 2])


def test_every_step_trains_widest_slimmest_and_a_random_width() -> None:
    detector = random_detector()
    stage = WidthsStage(detector, WidthsConfig(paths=2)).train()
    for seed in range(20):
        drawn = stage.draw(random.Random(seed))
        assert drawn[:2] == [(5,), (0,)]
        assert len(drawn) == 4
        assert all(0 < width < 5 for (width,) in drawn[2:])
    losses = stage(pictures(2), OBJECTS, drawn, detector)
    assert set(losses) == {"widest", "slimmest", "random1", "random2"}
    torch.stack(list(losses.values())).sum().backward()
    for name, parameter in detector.named_parameters():
        frozen = ("norm" in name and name.startswith("backbone.")) or ".slimming." in name or ".head." in name
        assert parameter.requires_grad != frozen, name
        assert (parameter.grad is not None) == parameter.requires_grad, name


def test_the_slimmest_is_drawn_like_the_others_where_the_config_says_so() -> None:
    detector = random_detector()
    stage = WidthsStage(detector, WidthsConfig(slimmest=False)).train()
    drawn = [stage.draw(random.Random(seed)) for seed in range(60)]
    assert all(widest == (5,) for widest, _ in drawn)
    assert {width for _, (width,) in drawn} == {0, 1, 2, 3, 4}
    assert set(stage(pictures(2), OBJECTS, drawn[0], detector)) == {"widest", "random1"}
    with pytest.raises(ValueError, match=r"widths\.paths"):
        WidthsConfig(paths=0, slimmest=False)


def test_a_frozen_backbone_gets_no_gradients_and_everything_behind_it_does() -> None:
    detector = random_detector()
    stage = WidthsStage(detector, WidthsConfig(backbone=False)).train()
    losses = stage(pictures(2), OBJECTS, stage.draw(random.Random(0)), detector)
    torch.stack(list(losses.values())).sum().backward()
    for name, parameter in detector.named_parameters():
        assert (parameter.grad is None) == name.startswith("backbone."), name


def test_a_static_detector_has_one_loss() -> None:
    detector = random_detector("mobilenet_v1")
    stage = WidthsStage(detector, WidthsConfig())
    assert stage.draw(random.Random(0)) == [()]
    assert set(stage(pictures(2), OBJECTS, [()], detector)) == {"widest"}


def test_a_detector_learns_one_picture_by_heart() -> None:
    detector = random_detector().float()
    x, objects = pictures(2).float(), OBJECTS
    stage = WidthsStage(detector, WidthsConfig(paths=0)).train()
    optimizer = torch.optim.SGD([p for p in detector.parameters() if p.requires_grad], lr=0.01, momentum=0.9)
    found = []
    for _ in range(25):
        optimizer.zero_grad()
        loss = torch.stack(list(stage(x, objects, [(5,), (0,)], detector).values())).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 10.0)
        optimizer.step()
        found.append(loss.item())
    assert found[-1] < 0.5 * found[0]


def test_hard_images_are_those_above_the_median_gap() -> None:
    slim, middle, wide = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([2.0, 1.0, 0.5]), torch.tensor([1.0, 1.0, 1.0])
    assert goals(TRY_BEST, [slim, middle, wide], 0.5).tolist() == [2, 0, 2]
    assert goals(TRY_BEST, [slim, middle, wide], 1.5).tolist() == [2, 0, 0]
    assert goals(EXCESS, [slim, middle, wide], 0.0).tolist() == [[2, 1, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("router", [EXCESS, TRY_BEST])
def test_gates_learn_and_nothing_else_does(router: RouterSpec) -> None:
    detector = random_detector(router=router).float()
    stage = GatesStage(detector, median=0.0).train()
    assert not detector.training
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in stage.parameters() if p.requires_grad], lr=0.01)
    first = stage(pictures(2).float(), OBJECTS, None, detector)["guidance"]
    first.backward()
    optimizer.step()
    changed = {name for name, tensor in detector.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed
    assert all(".slimming." in name for name in changed)


def test_gates_with_several_choice_points_are_refused() -> None:
    with pytest.raises(ValueError, match="more than one choice point"):
        GatesStage(random_detector("ds_resnet_tiny", router=TRY_BEST), median=0.0)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Traces:
    root = voc_folder(tmp_path_factory.mktemp("voc"), {"train": 4, "test": 10}, colours=("red", "blue", "green"))
    data = open_detection_data(DetectionDataConfig(root=str(root), image_size=64, calibration_share=0.5))
    detector = random_detector(router=TRY_BEST).float()
    detector.card = replace(detector.card, classes=("a", "b", "c"))
    assert isinstance(median_gap(detector, plain_batches(data.train, 2)), float)
    runner = eager(detector)
    return Traces(runner, plain_batches(data.test, 4), PrecisionScorer(runner.manifest))


@pytest.mark.parametrize("lam", [-2.0, 0.0, 2.0])
def test_remembered_routes_are_the_real_ones(traces: Traces, lam: float) -> None:
    outcome = traces.at(Policy(lam))
    assert len(outcome.paths) == len(traces.scores[()]) == 10
    spent = [traces.table.madds(tuple(path), dynamic=True) for path in outcome.paths.tolist()]
    assert outcome.madds.tolist() == spent


def test_a_perfect_detector_has_a_precision_of_one(traces: Traces) -> None:
    scorer = traces.scorer
    perfect = [
        Detections(truth.boxes, torch.ones(len(truth.classes)), truth.classes) for truth in scorer.truths.values()
    ]
    assert scorer.precision(perfect) == (1.0, [1.0, 1.0, 1.0])


def test_evaluation_has_a_row_per_width_and_per_budget(traces: Traces) -> None:
    detector = traces.runner.parts.owner
    detector.card = replace(detector.card, budgets=calibrate(traces, 5))
    rows = [row_of(traces, path, detector.space.widest) for path in detector.space.uniform]
    assert all(sum(row.parts.values()) == row.madds for row in rows)
    assert all(list(row.more) == ["a", "b", "c"] for row in rows)
    dynamic = evaluate_dynamic(traces)
    assert [row.name for row in dynamic.rows] == ["S", "M", "L"]
    madds = [row.madds.mean for row in dynamic.rows]
    assert madds == sorted(madds)
    assert all(sum(row.gates[0].shares) == pytest.approx(1) for row in dynamic.rows)
    assert all(row.p50.mean <= row.p95.mean for row in dynamic.rows)
    assert all(row.gain.mean == 100 * (row.score.mean - row.hull.mean) for row in dynamic.rows)
    assert dynamic.auc is None
    assert not dynamic.difficulty
    for place, row in enumerate(dynamic.rows):  # mAP is the mean of the classes that have objects
        scores = [each.scores[place] for each in dynamic.classes if each.images]
        assert sum(score or 0 for score in scores) / len(scores) == pytest.approx(row.score.mean, abs=1e-4)
    assert all(row.to_full is not None for row in rows[:-1])
    widest = evaluate_dynamic(traces, [1.0], paths=detector.space.uniform).rows[0]
    assert len(widest.to_paths) == 6
    (capped,) = evaluate_dynamic(traces, [1.0], max_width=0).rows
    assert capped.asked == traces.table.widest
    assert capped.gates[0].shares == (1, 0, 0, 0, 0, 0)


def test_routing_and_traces_agree(traces: Traces, tmp_path: Path) -> None:
    root = voc_folder(tmp_path, {"train": 4, "test": 10}, colours=("red", "blue", "green"))
    data = open_detection_data(DetectionDataConfig(root=str(root), image_size=64, calibration_share=0.5))
    batch = next(plain_batches(data.test, 10))
    routed = route(traces.runner.parts.owner, batch.images, Policy(0.0))
    assert routed.paths.tolist() == traces.at(Policy(0.0)).paths.tolist()


def test_the_papers_schedule_falls_at_its_milestones() -> None:
    config = OptimConfig(epochs=300, lr=0.004, schedule="steps", gamma=0.1, milestones=(200, 250), warmup_epochs=0)
    rates = [learning_rate(config, epoch * 10 + 9, 10) for epoch in (0, 199, 200, 249, 250, 299)]
    assert rates == pytest.approx([0.004, 0.004, 0.0004, 0.0004, 0.00004, 0.00004])
    with pytest.raises(ValueError, match=r"belong to optim\.schedule steps"):
        OptimConfig(milestones=(3,))
