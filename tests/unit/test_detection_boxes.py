"""Boxes, priors, matching and the multibox loss: laws and cases worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from dsnet.data.boxes import area, iou, to_centres, to_corners
from dsnet.prediction.answers import nms, select
from dsnet.tasks.detection.loss import IGNORED, Targets, decode, encode, match, match_all, multibox_loss, own_priors
from dsnet.tasks.detection.neck import prior_boxes


def random_boxes(count: int, seed: int = 0) -> Tensor:
    """Corners in the unit square, none of them empty."""
    generator = torch.Generator().manual_seed(seed)
    low = torch.rand(count, 2, generator=generator, dtype=torch.float64) * 0.7
    return torch.cat([low, low + 0.02 + 0.28 * torch.rand(count, 2, generator=generator, dtype=torch.float64)], 1)


def test_corners_and_centres_are_inverse() -> None:
    boxes = random_boxes(50)
    torch.testing.assert_close(to_corners(to_centres(boxes)), boxes)


def test_decoding_what_was_encoded_gives_the_boxes_back() -> None:
    boxes, priors = random_boxes(200), to_centres(random_boxes(200, seed=1))
    torch.testing.assert_close(decode(encode(boxes, priors), priors), boxes)
    assert encode(to_corners(priors), priors).abs().max() < 1e-9


def test_the_code_is_ssds() -> None:
    prior = torch.tensor([0.5, 0.5, 0.2, 0.4])
    box = to_corners(torch.tensor([0.52, 0.46, 0.4, 0.4]))
    expected = torch.tensor([0.02 / 0.2 / 0.1, -0.04 / 0.4 / 0.1, math.log(2) / 0.2, 0.0])
    torch.testing.assert_close(encode(box, prior), expected, atol=1e-5, rtol=1e-5)


def test_overlaps_worked_by_hand() -> None:
    one = torch.tensor([[0.0, 0.0, 2.0, 2.0]])
    others = torch.tensor([[1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 2.0, 2.0], [2.0, 0.0, 4.0, 2.0], [0.5, 0.5, 1.5, 1.5]])
    torch.testing.assert_close(iou(one, others), torch.tensor([[1 / 7, 1.0, 0.0, 0.25]]))
    empty = torch.zeros(1, 4)
    assert iou(empty, empty).item() == 0
    assert area(torch.tensor([1.0, 1.0, 0.0, 2.0])).item() == 0


def suppressed_one_by_one(boxes: Tensor, threshold: float) -> list[bool]:
    keep: list[int] = []
    for number in range(len(boxes)):
        if all(iou(boxes[number : number + 1], boxes[k : k + 1]).item() <= threshold for k in keep):
            keep.append(number)
    return [number in keep for number in range(len(boxes))]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [0.1, 0.45, 0.7])
def test_suppression_is_the_greedy_one(seed: int, threshold: float) -> None:
    boxes = random_boxes(120, seed)
    scores = torch.linspace(1, 0, 120)
    assert nms(boxes.numpy(), scores.numpy(), threshold).tolist() == suppressed_one_by_one(boxes, threshold)


def test_suppression_wants_sorted_scores() -> None:
    with pytest.raises(ValueError, match="sort boxes"):
        nms(random_boxes(3).numpy(), np.array([0.1, 0.9, 0.5]), 0.5)


def test_selection_suppresses_within_classes_only() -> None:
    boxes = np.array([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.9], [0.0, 0.0, 0.1, 0.1]])
    probs = np.array([[0.6, 0.4], [0.5, 0.4], [0.0005, 0.0005]])
    found = select(boxes, probs)
    assert found.scores.tolist() == pytest.approx([0.6, 0.4])
    assert found.classes.tolist() == [0, 1]
    assert found.boxes.tolist() == boxes[[0, 0]].tolist()
    assert len(select(boxes, probs, most=1)) == 1
    nothing = select(boxes, np.zeros((3, 2)))
    assert [len(part) for part in (nothing.boxes, nothing.scores, nothing.classes)] == [0, 0, 0]


def test_priors_of_300_pixels_are_those_of_ssd300() -> None:
    sides = (38, 19, 10, 5, 3, 1)
    priors = prior_boxes(sides)
    assert len(priors) == sum(side**2 * boxes for side, boxes in zip(sides, (6, 6, 6, 6, 4, 4), strict=True)) == 11620
    first = priors[:6]
    torch.testing.assert_close(first[:, :2], torch.full((6, 2), 0.5 / 38))
    expected = [(0.1, 0.1), (0.02**0.5,) * 2, (0.1 * 2**0.5, 0.1 / 2**0.5), (0.1 / 2**0.5, 0.1 * 2**0.5)]
    torch.testing.assert_close(first[:4, 2:], torch.tensor(expected))
    torch.testing.assert_close(priors[6, :2], torch.tensor([1.5, 0.5]) / 38)  # the next place of the same row
    assert priors.min() > 0
    assert priors[:, 2:].max() <= 1
    with pytest.raises(ValueError, match="3 scales"):
        prior_boxes((4, 2))


PRIORS = torch.tensor([[0.25, 0.25, 0.5, 0.5], [0.75, 0.25, 0.5, 0.5], [0.25, 0.75, 0.5, 0.5], [0.75, 0.75, 0.5, 0.5]])


def objects(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32).view(-1, 6)


def test_priors_answer_for_objects_that_they_overlap() -> None:
    classes, deltas = match(objects((0.0, 0.0, 0.5, 0.5, 4, 0)), PRIORS)
    assert classes.tolist() == [5, 0, 0, 0]
    assert deltas.abs().max() == 0


def test_every_object_gets_a_prior_of_its_own() -> None:
    small = (0.05, 0.05, 0.15, 0.15, 1, 0)  # overlaps no prior by half
    assert match(objects(small), PRIORS)[0].tolist() == [2, 0, 0, 0]
    # Both overlap the first prior most; the larger overlap is served first, the other takes its next best.
    twice = objects((0.1, 0.0, 0.6, 0.3, 0, 0), (0.0, 0.0, 0.52, 0.5, 1, 0))
    assert match(twice, PRIORS)[0].tolist() == [2, 1, 0, 0]
    overlaps = torch.tensor([[0.9, 0.2, 0.1], [0.8, 0.3, 0.1], [0.7, 0.6, 0.5]])
    assert own_priors(overlaps).tolist() == [0, 2, 1]
    assert own_priors(torch.tensor([[0.9, 0.2], [0.8, 0.3]])).tolist() == [0, 1]


def test_objects_that_no_free_prior_overlaps_get_none() -> None:
    assert own_priors(torch.tensor([[0.9, 0.2], [0.8, 0.3], [0.7, 0.6]])).tolist() == [0, -1, 1]
    assert own_priors(torch.tensor([[0.9, 0.0], [0.8, 0.0]])).tolist() == [0, -1]
    assert own_priors(torch.tensor([[0.0, 0.0]])).tolist() == [-1]


def test_difficult_objects_are_neither_learned_nor_background() -> None:
    classes, _ = match(objects((0.0, 0.0, 0.5, 0.5, 0, 1), (0.5, 0.5, 1.0, 1.0, 2, 0)), PRIORS)
    assert classes.tolist() == [IGNORED, 0, 0, 3]


def test_padding_and_images_without_objects_match_nothing() -> None:
    padded = torch.stack([objects((0, 0, 0, 0, -1, 0)), objects((0.5, 0.5, 1, 1, 0, 0))])
    targets = match_all(padded, PRIORS)
    assert targets.classes.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]
    assert match(torch.zeros(0, 6), PRIORS)[0].tolist() == [0, 0, 0, 0]


def test_the_loss_of_a_case_worked_by_hand() -> None:
    """One positive, five background priors and one that does not count: three of the background are hard."""
    classes = torch.tensor([[1, 0, 0, 0, 0, 0, IGNORED]])
    goal = torch.zeros(1, 7, 4)
    goal[0, 0] = torch.tensor([0.0, 1.0, 0.0, 0.0])
    deltas = torch.zeros(1, 7, 4)
    deltas[0, 0] = torch.tensor([0.5, 3.0, 0.0, 0.0])  # errors 0.5 and 2: 0.5 * 0.25 + (2 - 0.5)
    deltas[0, 3] = 100.0  # background has no box
    gap = torch.tensor([0.0, 0.0, 1.0, 2.0, 3.0, -5.0, 50.0])  # of the object's logit over the background's
    logits = torch.stack([torch.zeros(7), gap], 1)[None]
    loss = multibox_loss(deltas, logits, Targets(classes, goal))
    assert loss.localisation.item() == pytest.approx(0.125 + 1.5)
    wrong = [math.log(1 + math.exp(value)) for value in (0.0, 3.0, 2.0, 1.0)]  # the positive, then the hardest three
    assert loss.classification.item() == pytest.approx(sum(wrong), rel=1e-6)
    assert loss.positives.tolist() == [1]
    assert loss.total.item() == pytest.approx(0.125 + 1.5 + sum(wrong), rel=1e-6)


def test_images_without_objects_teach_their_three_hardest_priors() -> None:
    logits = torch.tensor([[[0.0, 0.0]] * 4 + [[0.0, 5.0]]])
    loss = multibox_loss(
        torch.zeros(1, 5, 4), logits, Targets(torch.zeros(1, 5, dtype=torch.long), torch.zeros(1, 5, 4))
    )
    assert loss.classification.item() == pytest.approx(math.log(1 + math.exp(5)) + 2 * math.log(2), rel=1e-5)
    assert loss.localisation.item() == 0
    assert torch.isfinite(loss.total)


def test_the_loss_of_a_batch_is_its_images_sums_over_all_positives() -> None:
    generator = torch.Generator().manual_seed(0)
    priors = prior_boxes((4, 2), (0.2, 0.5, 0.9), ((2.0,), (2.0,)))
    own = torch.stack([objects((0.1, 0.1, 0.4, 0.4, 0, 0)), objects((0.3, 0.2, 0.9, 0.8, 1, 0))])
    deltas = torch.randn(2, len(priors), 4, generator=generator)
    logits = torch.randn(2, len(priors), 3, generator=generator)
    both = multibox_loss(deltas, logits, match_all(own, priors))
    alone = [multibox_loss(deltas[k : k + 1], logits[k : k + 1], match_all(own[k : k + 1], priors)) for k in range(2)]
    for name in ("localisation", "classification", "positives"):
        torch.testing.assert_close(getattr(both, name), torch.cat([getattr(one, name) for one in alone]))
    torch.testing.assert_close(both.total, (both.localisation + both.classification).sum() / both.positives.sum())
    torch.testing.assert_close(both.each, torch.cat([one.total[None] for one in alone]))
