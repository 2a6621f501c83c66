"""Laws of detectors: sliced = extracted, together = alone, grouped = per sample, cost = what is counted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import dsnet
from dsnet.errors import CheckpointError
from dsnet.manifest import Policy
from dsnet.models import eager, extract, model_spec, route
from dsnet.models.count import count, count_parts
from dsnet.nn import RouterSpec, Sliceable
from dsnet.nn.tracing import materialise
from dsnet.schema import parse, parse_json, plain, to_json
from dsnet.tasks.detection.detector import NAMED, Detector
from dsnet.tasks.detection.spec import DetectorSpec
from support.detectors import pictures, random_detector, taps_of
from support.networks import assert_close

GATE = RouterSpec("gate", "try_best")
BACKBONES = ["ds_mobilenet_v1_small", "mobilenet_v1", "us_mobilenet_v1", "ds_resnet_tiny", "inverted", "residual"]


def ends(detector: Detector) -> list[tuple[int, ...]]:
    return list(dict.fromkeys([detector.space.slimmest, detector.space.widest]))


@pytest.mark.parametrize("name", BACKBONES)
@pytest.mark.parametrize("fold", [False, True])
def test_an_extracted_detector_equals_the_sliced_one(name: str, fold: bool) -> None:
    detector, x = random_detector(name), pictures()
    for path in ends(detector):
        plain = extract(detector, path, fold=fold)
        assert not any(isinstance(module, Sliceable) for module in plain.modules())
        for mine, theirs in zip(plain(x), detector(x, path), strict=True):
            assert_close(mine, theirs, 1e-6)
        params = sum(p.numel() for p in plain.parameters())
        assert fold or params == count(detector).params(path)


def test_parts_can_be_materialised_one_by_one() -> None:
    """What a runtime caches: the front for all widths, a branch for each width, neck and heads for all of them."""
    detector, x = random_detector(router=GATE), pictures()
    taps = detector.spec.taps

    def front(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        started = detector.start(x)
        scores = detector.backbone.chain[0].score(started.code, 0)
        assert scores is not None
        return started.scaled, scores, started.projected[taps[0]]

    def branch(scaled: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = detector.backbone.chain[0].first.body(scaled, scaled, 0, 3)
        return tuple(detector.rest(0, 3, y)[1].values())

    scaled, scores, first = materialise(detector, front)(x)
    others = materialise(detector, branch)(scaled)
    end = materialise(detector, lambda maps: tuple(detector.finish({tap: maps[k] for k, tap in enumerate(taps)})))
    for mine, theirs in zip(end((first, *others)), detector(x, (3,)), strict=True):
        assert_close(mine, theirs)
    assert_close(scores, route(detector, x).scores[0])


@pytest.mark.parametrize("name", BACKBONES)
def test_several_paths_at_once_equal_each_alone(name: str) -> None:
    detector, x = random_detector(name), pictures()
    for path, answer in zip(ends(detector), detector.forward_paths(x, ends(detector)), strict=True):
        for mine, theirs in zip(answer, detector(x, path), strict=True):
            assert_close(mine, theirs)


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_small", "ds_resnet_tiny", "inverted"])
@pytest.mark.parametrize("lam", [-1.0, 0.0, 1.0])
def test_grouped_routing_equals_routing_each_sample_alone(name: str, lam: float) -> None:
    detector, x = random_detector(name, router=GATE), pictures(8)
    routed = route(detector, x, Policy(lam))
    for row in range(len(x)):
        alone = route(detector, x[row : row + 1], Policy(lam))
        assert torch.equal(alone.paths[0], routed.paths[row])
        assert int(alone.madds[0]) == int(routed.madds[row])
        with torch.no_grad():
            sliced = detector.boxes_of(detector(x[row : row + 1], tuple(routed.paths[row].tolist())))
        for mine, single, fixed in zip(routed.outputs.values(), alone.outputs.values(), sliced, strict=True):
            assert_close(mine[row], single[0])
            assert_close(mine[row], fixed[0])


def test_samples_of_a_batch_take_different_ways() -> None:
    detector, x = random_detector(router=GATE), pictures(8)
    assert len(route(detector, x).paths.unique()) > 1
    capped = route(detector, x, Policy(max_width=1))
    assert int(capped.paths.max()) <= 1


@pytest.mark.parametrize("name", BACKBONES)
def test_cost_is_what_the_flop_counter_counts(name: str) -> None:
    detector = random_detector(name)
    table = count(detector)
    for path in ends(detector):
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            detector(pictures(1), path)
        assert table.cost(path).layers == counter.get_total_flops() // 2
        assert sum(cost.madds for cost in count_parts(detector, path, NAMED).values()) == table.madds(path)


def test_neck_and_heads_cost_the_same_at_every_width() -> None:
    detector = random_detector(router=GATE)
    slim, wide = (count_parts(detector, path, NAMED) for path in ((0,), (5,)))
    assert slim["neck"] == wide["neck"]
    assert slim["heads"] == wide["heads"]
    assert slim["projections"].madds < wide["projections"].madds
    assert slim["backbone"].madds < wide["backbone"].madds
    prices = eager(detector).prices(64).at(0, 0)
    assert bool((prices[1:] > prices[:-1]).all())


def test_the_papers_detectors_cost_what_the_documentation_says() -> None:
    spec = DetectorSpec(model_spec("ds_mobilenet_v1", image_size=300), 20)
    dynamic = count(spec)
    assert [round(dynamic.madds((width,)) / 1e9, 2) for width in (1, 7, 13)] == [2.56, 2.89, 3.36]
    static = count(DetectorSpec(model_spec("mobilenet_v1", image_size=300), 20))
    assert round(static.madds(()) / 1e9, 2) == 3.38
    assert spec.sides == (38, 19, 10, 5, 3, 1)


@pytest.mark.parametrize(
    ("size", "sides"), [(192, (24, 12, 6, 3, 2, 1)), (320, (40, 20, 10, 5, 3, 1)), (64, (8, 4, 2, 1, 1, 1))]
)
def test_other_image_sizes(size: int, sides: tuple[int, ...]) -> None:
    spec = DetectorSpec(model_spec("ds_mobilenet_v1_small", image_size=size), 2, projection=16, pyramid=16)
    assert spec.sides == sides
    detector = Detector(spec).eval()
    with torch.no_grad():
        deltas, logits = detector(torch.randn(1, 3, size, size), (0,))
    assert deltas.shape == (1, len(detector.priors), 4)
    assert logits.shape == (1, len(detector.priors), 3)


def test_answers_stand_in_the_order_of_the_priors() -> None:
    """A head that tells each place apart: a bias on one box of one map moves that box of all its places only."""
    detector = random_detector()
    boxes, sides = detector.spec.boxes, detector.spec.sides
    x = pictures(1)
    before = detector(x, (0,)).deltas
    with torch.no_grad():
        detector.heads.deltas[1].layer.bias[4 * 2 + 3] += 1  # map 1, box 2, height
    moved = (detector(x, (0,)).deltas - before)[0]
    start, count = boxes[0] * sides[0] ** 2, boxes[1] * sides[1] ** 2
    changed = moved.abs().sum(1).nonzero().flatten().tolist()
    assert changed == list(range(start + 2, start + count, boxes[1]))
    torch.testing.assert_close(moved[changed, 3], torch.ones(len(changed), dtype=torch.float64))


def test_the_backbones_batch_norm_stays_frozen() -> None:
    detector = random_detector().train()
    state = {name: tensor.clone() for name, tensor in detector.backbone.state_dict().items() if "norm" in name}
    sum(part.square().mean() for part in detector(pictures(), (2,))).backward()  # type: ignore[union-attr]
    torch.optim.SGD([p for p in detector.parameters() if p.requires_grad], lr=0.1, weight_decay=0.1).step()
    after = detector.backbone.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in state.items())
    assert isinstance(detector.neck.norm.layer, nn.GroupNorm)
    assert detector.neck.norm.layer.weight.grad is not None


def test_a_saved_detector_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    detector, x = random_detector(router=GATE), pictures()
    detector.card = replace(detector.card, classes=("a", "b", "c"))
    dsnet.save(detector, tmp_path)
    loaded = dsnet.load(tmp_path, "detection")
    assert loaded.spec == detector.spec
    assert loaded.card == detector.card
    for mine, theirs in zip(loaded.double()(x, (3,)), detector(x, (3,)), strict=True):
        assert torch.equal(mine, theirs)
    assert dsnet.load(tmp_path).spec == detector.spec
    with pytest.raises(CheckpointError, match="holds a network for detection, not for classification"):
        dsnet.load(tmp_path, "classification")


def test_files_of_other_networks_are_refused(tmp_path: Path) -> None:
    dsnet.save(dsnet.create_model("ds_mobilenet_v1_tiny"), tmp_path)
    with pytest.raises(CheckpointError, match="holds a network for classification, not for detection"):
        dsnet.load(tmp_path, "detection")


def test_specs_survive_json() -> None:
    spec = random_detector(router=GATE).spec
    assert parse_json(DetectorSpec, to_json(spec)) == spec
    with pytest.raises(ValueError, match="'colour' is unknown"):
        parse(DetectorSpec, {**plain(spec), "colour": "red"})


def test_wrong_specs_are_refused_at_birth() -> None:
    backbone = model_spec("ds_mobilenet_v1_tiny", image_size=64)
    with pytest.raises(
        ValueError, match="no maps named block5, block11, block13; choose taps from front, middle, last"
    ):
        DetectorSpec(backbone, 3)
    with pytest.raises(ValueError, match="positive multiple of 16"):
        DetectorSpec(backbone, 3, taps=taps_of(backbone), projection=20)
    with pytest.raises(ValueError, match="at least 1 kind of object"):
        DetectorSpec(backbone, 0, taps=taps_of(backbone))
    cheap_first = replace(backbone, router=RouterSpec("cheap_first", "correctness"))
    with pytest.raises(ValueError, match="use the router gate"):
        DetectorSpec(cheap_first, 3, taps=taps_of(backbone))
    exit_first = replace(backbone, router=RouterSpec("exit_first", "correctness", early=0))
    with pytest.raises(ValueError, match="images of a detector have no single class; use the router gate without"):
        DetectorSpec(exit_first, 3, taps=taps_of(backbone))


def test_inputs_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match=r"takes \[batch, 3, 64, 64\]; resize"):
        random_detector()(torch.randn(1, 3, 96, 96, dtype=torch.float64), (0,))
    with pytest.raises(ValueError, match="has not learned to route"):
        route(random_detector(), pictures())
