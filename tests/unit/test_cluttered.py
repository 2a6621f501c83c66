"""Cluttered digits: the same on every call, of visible difficulty, and without a digit in two splits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from PIL import Image

from dsnet.data import cluttered, sources
from dsnet.data.cluttered import PIECES, SIDE, Drawings, cluttered_digits
from dsnet.data.config import DataConfig
from dsnet.data.labelled import open_dataset
from dsnet.data.splits import by_group
from dsnet.errors import DataError


@pytest.fixture(scope="module", autouse=True)
def few() -> Iterator[None]:
    """Fewer pictures of each digit than a run has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluttered, "TRAIN_DRAWINGS", 2)
        patch.setattr(cluttered, "TEST_DRAWINGS", 2)
        patch.setattr(sources, "cluttered", sources.cluttered.__wrapped__)
        yield


@pytest.fixture(scope="module")
def drawings(few: None) -> tuple[Drawings, Drawings]:
    return cluttered_digits()


def test_no_digit_is_on_both_sides_not_even_as_clutter(drawings: tuple[Drawings, Drawings]) -> None:
    train, test = drawings
    mine, others = set(train.digits), set(test.digits)
    pieces, test_pieces = (set(part.clutter[part.clutter >= 0]) for part in drawings)
    assert len(pieces) > 100
    assert len(test_pieces) > 100
    assert not (mine | pieces) & (others | test_pieces)
    assert not mine & pieces  # so that training pictures can be split by digit
    for part in drawings:
        assert not any(
            (part.labels[part.digits == digit] != label).any()
            for digit, label in zip(part.digits, part.labels, strict=True)
        )


def test_they_are_the_same_on_every_call_and_calibration_is_set_aside_by_digit(
    drawings: tuple[Drawings, Drawings],
) -> None:
    data = open_dataset(DataConfig(dataset="cluttered_digits"))
    assert (data.image_size, data.channels, len(data.classes)) == (SIDE, 1, 10)
    for part, split in zip(drawings, (data.train, data.test), strict=True):
        assert np.array_equal(split.source.images[:, 0], part.images)
        assert np.array_equal(split.source.labels, part.labels)
    digits, ids = drawings[0].digits, [split.ids.numpy() for split in (data.train, data.calibration)]
    learned, held = (digits[part] for part in ids)
    assert not set(learned) & set(held)
    assert sorted(np.concatenate(ids)) == list(range(len(digits)))
    assert len(held) == 2 * len(set(held))  # all pictures of a digit
    assert len(set(held)) == pytest.approx(len(set(digits)) / 10, rel=0.05)


def test_groups_stay_together_and_every_class_is_set_aside() -> None:
    groups = torch.tensor([4, 4, 7, 7, 2, 2, 9, 9, 5, 5, 1, 1])
    labels = torch.tensor([0] * 6 + [1] * 6)
    kept, aside = by_group(labels, groups, 0.3, seed=0)
    assert not set(groups[kept].tolist()) & set(groups[aside].tolist())
    assert labels[aside].bincount().tolist() == [2, 2]
    with pytest.raises(DataError, match="class 0 has only 1 image to split"):
        by_group(labels[4:], groups[4:], 0.3, seed=0)


def test_the_level_is_the_difficulty(drawings: tuple[Drawings, Drawings]) -> None:
    """The nearest mean picture of plain training digits reads plain test digits well, and wild ones badly."""
    train, test = drawings
    plain = train.levels < 0.3
    means = np.stack([train.images[plain & (train.labels == label)].mean(0).ravel() for label in range(10)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    right = (test.images.reshape(len(test.labels), -1) @ means.T).argmax(1) == test.labels
    shares = [right[(low <= test.levels) & (test.levels < low + 0.25)].mean() for low in (0, 0.25, 0.5, 0.75)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.75
    assert shares[-1] < 0.5
    number = (test.clutter >= 0).sum(1)
    assert number[test.levels < 0.1].mean() < 0.3
    assert number[test.levels > 0.9].mean() > 0.6 * PIECES


def test_the_plainest_pictures_show_their_digits(drawings: tuple[Drawings, Drawings]) -> None:
    from sklearn.datasets import load_digits

    digits, test = load_digits(), drawings[1]
    alike = []
    for row in np.argsort(test.levels)[:20]:
        assert test.labels[row] == digits.target[test.digits[row]]
        middle = Image.fromarray(test.images[row]).crop((5, 5, 27, 27)).resize((8, 8), Image.Resampling.BOX)
        alike.append(np.corrcoef(np.asarray(middle).ravel(), digits.images[test.digits[row]].ravel())[0, 1])
    assert min(alike) > 0.6
    assert np.mean(alike) > 0.85
