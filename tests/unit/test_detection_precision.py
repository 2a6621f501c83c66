"""Average precision: cases worked by hand, and what no definition may break."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dsnet.tasks.detection import precision
from dsnet.tasks.detection.precision import (
    Detections,
    Truth,
    average_precision,
    mean_average_precision,
    ranked,
    resampled,
)

FAR = (100.0, 100.0, 110.0, 110.0)
BOX = (0.0, 0.0, 10.0, 10.0)
NEXT = (20.0, 0.0, 30.0, 10.0)


def found(*rows: tuple[tuple[float, ...], float, int]) -> Detections:
    boxes = torch.tensor([row[0] for row in rows]).view(-1, 4)
    return Detections(boxes, torch.tensor([row[1] for row in rows]), torch.tensor([row[2] for row in rows]))


def truth(*rows: tuple[tuple[float, ...], int, bool]) -> Truth:
    boxes = torch.tensor([row[0] for row in rows]).view(-1, 4)
    return Truth(
        boxes, torch.tensor([row[1] for row in rows]), torch.tensor([row[2] for row in rows], dtype=torch.bool)
    )


@pytest.mark.parametrize("rule", ["area", "11point"])
def test_a_perfect_detector_reaches_one(rule: str) -> None:
    truths = [truth((BOX, 0, False), (NEXT, 1, False)), truth((FAR, 0, False)), truth()]
    perfect = [
        found(*((tuple(b), 0.9, int(c)) for b, c in zip(t.boxes.tolist(), t.classes, strict=True))) for t in truths
    ]
    assert mean_average_precision(perfect, truths, 2, rule=rule) == (1.0, [1.0, 1.0])  # type: ignore[arg-type]


def test_a_curve_worked_by_hand() -> None:
    """Three objects; right, wrong, right: precision 1, 1/2, 2/3 at recall 1/3, 1/3, 2/3."""
    truths = [truth((BOX, 0, False), (NEXT, 0, False)), truth((BOX, 0, False))]
    mine = [found((BOX, 0.9, 0), (FAR, 0.8, 0)), found((BOX, 0.7, 0))]
    assert average_precision(mine, truths, 0, rule="area") == pytest.approx(1 / 3 + 2 / 9)
    # Recall 0 to 0.3 is reached with precision 1 (four points), 0.4 to 0.6 with 2/3 (three), the rest never.
    assert average_precision(mine, truths, 0, rule="11point") == pytest.approx((4 + 3 * 2 / 3) / 11)


def test_an_object_is_found_once() -> None:
    truths = [truth((BOX, 0, False))]
    assert average_precision([found((BOX, 0.9, 0), (BOX, 0.8, 0))], truths, 0) == 1.0  # a late double costs nothing
    truths = [truth((BOX, 0, False), (NEXT, 0, False))]
    doubled = [found((BOX, 0.9, 0), (BOX, 0.8, 0), (NEXT, 0.7, 0))]
    assert average_precision(doubled, truths, 0) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_a_detection_goes_to_the_object_that_it_overlaps_most() -> None:
    """As in the devkit: a second detection nearest to an object already found is wrong, though another is near."""
    near = (1.0, 0.0, 11.0, 10.0)
    truths = [truth((BOX, 0, False), (near, 0, False))]
    assert average_precision([found((BOX, 0.9, 0), (BOX, 0.8, 0))], truths, 0) == pytest.approx(0.5)


def test_difficult_objects_do_not_count() -> None:
    truths = [truth((BOX, 0, True), (NEXT, 0, False))]
    assert average_precision([found((BOX, 0.9, 0), (BOX, 0.8, 0), (NEXT, 0.7, 0))], truths, 0) == 1.0
    assert average_precision([found((NEXT, 0.7, 0))], truths, 0) == 1.0  # missing it costs nothing


def test_overlap_is_a_lower_limit() -> None:
    truths = [truth((BOX, 0, False))]
    half = (0.0, 0.0, 10.0, 5.0)
    assert average_precision([found((half, 0.9, 0))], truths, 0, overlap=0.5) == 1.0
    assert average_precision([found((half, 0.9, 0))], truths, 0, overlap=0.51) == 0.0


def test_classes_without_objects_are_left_out() -> None:
    mean, each = mean_average_precision([found((BOX, 0.9, 0), (BOX, 0.9, 1))], [truth((BOX, 0, False))], 3)
    assert mean == 1.0
    assert each[0] == 1.0
    assert all(math.isnan(value) for value in each[1:])
    assert math.isnan(mean_average_precision([found()], [truth()], 1)[0])


def test_nothing_found_is_zero() -> None:
    assert average_precision([found()], [truth((BOX, 0, False))], 0) == 0.0


def test_the_order_of_images_and_detections_does_not_matter() -> None:
    generator = torch.Generator().manual_seed(0)
    truths, mine = [], []
    for _ in range(20):
        boxes = torch.rand(5, 4, generator=generator) * 50
        boxes[:, 2:] += boxes[:, :2] + 1
        truths.append(Truth(boxes, torch.arange(5) % 2, torch.zeros(5, dtype=torch.bool)))
        noise = torch.randn(5, 4, generator=generator) * 4
        mine.append(Detections(boxes + noise, torch.rand(5, generator=generator), torch.arange(5) % 2))
    mixed = [Detections(d.boxes.flip(0), d.scores.flip(0), d.classes.flip(0)) for d in mine]
    for rule in ("area", "11point"):
        value = mean_average_precision(mine, truths, 2, rule=rule)  # type: ignore[arg-type]
        assert 0.05 < value[0] < 0.95
        assert value[1] == pytest.approx(mean_average_precision(mixed[::-1], truths[::-1], 2, rule=rule)[1])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="1 images but objects of 2"):
        mean_average_precision([found()], [truth(), truth()], 1)
    with pytest.raises(ValueError, match="rule 'voc' is unknown"):
        average_precision([found()], [truth()], 0, rule="voc")  # type: ignore[arg-type]


def test_cocos_format() -> None:
    from dsnet.tasks.detection.precision import coco_dataset, coco_results

    half = (0.25, 0.5, 0.75, 1.0)
    (thing,) = coco_dataset([truth(), truth((half, 1, True))], 2, 200)["annotations"]
    expected = {"id": 1, "image_id": 2, "category_id": 2, "bbox": [50, 100, 100, 100], "area": 10000, "iscrowd": 1}
    assert thing == expected
    (row,) = coco_results([found((half, 0.5, 0))], 200)
    assert row == {"image_id": 1, "category_id": 1, "bbox": [50, 100, 100, 100], "score": 0.5}


def test_coco_without_a_package_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "PACKAGES", (("no_such_package", "COCOeval"),))
    with pytest.raises(ValueError, match=r"install dsnet\[coco\], or use VOC's rules"):
        precision.coco_precision([found()], [truth()], 1, size=100)


HALF = (0.0, 0.0, 0.5, 0.5)
CORNER = (0.6, 0.6, 0.9, 0.9)


@pytest.fixture(params=precision.PACKAGES, ids=lambda package: package[0].split(".")[0])
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the packages that give COCO's figures, alone."""
    pytest.importorskip(request.param[0], reason=f"{request.param[0]} is an extra and not installed")
    monkeypatch.setattr(precision, "PACKAGES", (request.param,))


@pytest.mark.usefixtures("package")
def test_cocos_figures_worked_by_hand() -> None:
    def figures(mine: list[Detections], truths: list[Truth]) -> tuple[float, ...]:
        return tuple(precision.coco_precision(mine, truths, 1, size=200).values())

    one = [truth((HALF, 0, False))]
    assert figures([found((HALF, 0.5, 0))], one) == pytest.approx((1, 1, 1))
    shorter = (0.0, 0.0, 0.5, 0.36)  # overlaps by 0.72: right at 0.5, 0.55, ... 0.7
    assert figures([found((shorter, 0.5, 0))], one) == pytest.approx((0.5, 1, 0))
    assert figures([found()], one) == (0, 0, 0)
    # Right, wrong, right of three objects: precision 1 at recall 0 to 0.33, 2/3 at 0.34 to 0.66; of 101 points.
    truths = [truth((HALF, 0, False), (CORNER, 0, False)), truth((HALF, 0, False))]
    mine = [found((HALF, 0.9, 0), ((0.5, 0.0, 0.6, 0.1), 0.8, 0)), found((HALF, 0.7, 0))]
    assert figures(mine, truths) == pytest.approx([(34 + 33 * 2 / 3) / 101] * 3)
    difficult = [truth((HALF, 0, True), (CORNER, 0, False))]
    assert figures([found((HALF, 0.9, 0), (HALF, 0.8, 0), (CORNER, 0.7, 0))], difficult) == pytest.approx((1, 1, 1))
    assert all(math.isnan(value) for value in figures([found((HALF, 0.9, 0))], [truth((HALF, 0, True))]))
    with pytest.raises(ValueError, match="1 images but objects of 2"):
        figures([found()], [truth(), truth()])


@pytest.mark.usefixtures("package")
def test_cocos_precision_at_one_overlap_is_nearly_vocs() -> None:
    """They differ in how the curve is read, at 101 points or whole, and in what a second best overlap is worth."""
    generator = torch.Generator().manual_seed(0)
    truths, mine = [], []
    for _ in range(40):
        boxes = torch.rand(6, 4, generator=generator) * 0.5
        boxes[:, 2:] = boxes[:, :2] + 0.1 + boxes[:, 2:] / 2
        truths.append(Truth(boxes, torch.arange(6) % 2, torch.zeros(6, dtype=torch.bool)))
        noise = torch.randn(6, 4, generator=generator) * 0.03
        mine.append(Detections(boxes + noise, torch.rand(6, generator=generator), torch.arange(6) % 2))
    figures = precision.coco_precision(mine, truths, 2, size=300)
    for overlap, name in ((0.5, "map50"), (0.75, "map75")):
        vocs = mean_average_precision(mine, truths, 2, overlap=overlap)[0]
        assert 0.02 < vocs < 0.95
        assert figures[name] == pytest.approx(vocs, abs=0.02)
    assert figures["map75"] < figures["map"] < figures["map50"]


@pytest.mark.parametrize("rule", ["area", "11point"])
def test_a_resampled_set_scores_as_if_its_images_were_written_out(rule: str) -> None:
    rng = np.random.default_rng(0)
    truths, mine = [], []
    for _ in range(12):
        boxes = [tuple(corner + float(rng.uniform(0, 4)) for corner in BOX) for _ in range(4)]
        truths.append(truth(*((boxes[k], int(rng.integers(3)), bool(rng.random() < 0.2)) for k in range(2))))
        mine.append(found(*((box, float(rng.random()), int(rng.integers(3))) for box in boxes)))
    times = np.concatenate([np.ones((1, 12), np.int64), rng.multinomial(12, [1 / 12] * 12, size=4)])
    rankings = [ranked(mine, truths, label, overlap=0.5) for label in range(3)]
    for score, counts in zip(resampled(rankings, times, rule=rule), times, strict=True):  # type: ignore[arg-type]
        rows = [row for row, count in enumerate(counts.tolist()) for _ in range(count)]
        written = [mine[row] for row in rows], [truths[row] for row in rows]
        expected, _ = mean_average_precision(*written, 3, rule=rule)  # type: ignore[arg-type]
        assert score == pytest.approx(expected, abs=1e-3 if rule == "area" else 0.05)  # copies of an image tie
    assert resampled(rankings, times[:1], rule=rule)[0] == pytest.approx(  # type: ignore[arg-type]
        mean_average_precision(mine, truths, 3, rule=rule)[0]  # type: ignore[arg-type]
    )
