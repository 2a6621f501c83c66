"""RandAugment: the published strengths of its operations, and what each of them does to an image."""

from __future__ import annotations

import random

import numpy as np
import pytest
from PIL import Image

from dsnet.data.randaugment import NAMES, TABLE, RandAugment

# Arguments at magnitudes 0, 9 and 10: of the plain table, of the increasing one.
PUBLISHED = {
    "rotate": ([0, 27, 30], [0, 27, 30]),
    "posterise": ([0, 3.6, 4], [4, 0.4, 0]),
    "solarise": ([0, 230.4, 256], [256, 25.6, 0]),
    "solarise_add": ([0, 99, 110], [0, 99, 110]),
    "colour": ([0.1, 1.72, 1.9], [1, 1.81, 1.9]),
    "contrast": ([0.1, 1.72, 1.9], [1, 1.81, 1.9]),
    "brightness": ([0.1, 1.72, 1.9], [1, 1.81, 1.9]),
    "sharpness": ([0.1, 1.72, 1.9], [1, 1.81, 1.9]),
    "shear_x": ([0, 0.27, 0.3], [0, 0.27, 0.3]),
    "shear_y": ([0, 0.27, 0.3], [0, 0.27, 0.3]),
    "shift_x": ([0, 0.405, 0.45], [0, 0.405, 0.45]),
    "shift_y": ([0, 0.405, 0.45], [0, 0.405, 0.45]),
}
SIGNED = {"rotate", "shear_x", "shear_y", "shift_x", "shift_y"}


def photograph() -> Image.Image:
    rng = np.random.default_rng(0)
    small = rng.integers(20, 235, (6, 8, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((40, 30), Image.Resampling.BICUBIC)


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("increasing", [False, True])
def test_strengths_are_the_published_ones(name: str, increasing: bool) -> None:
    strength = TABLE[name][1][increasing]
    for level, expected in zip((0, 0.9, 1), PUBLISHED[name][increasing], strict=True):
        found = {round(strength.at(level, random.Random(seed)), 6) for seed in range(40)}
        mirrored = 2 * strength.start - expected
        both = name in SIGNED or (increasing and strength.signed)
        assert found == {
            round(max(strength.least, value), 6) for value in ({expected, mirrored} if both else {expected})
        }


def test_every_operation_is_listed_and_keeps_the_size() -> None:
    assert set(NAMES) == {*PUBLISHED, "auto_contrast", "equalise", "invert"}
    for name, (operation, strengths) in TABLE.items():
        for strength in strengths:
            for level in (0.0, 0.3, 1.0):
                changed = operation(photograph(), strength.at(level, random.Random(1)), (1, 2, 3))
                assert (changed.mode, changed.size) == ("RGB", (40, 30)), name


@pytest.mark.parametrize("name", ["rotate", "shear_x", "shear_y", "shift_x", "shift_y"])
def test_what_comes_into_view_is_filled(name: str) -> None:
    image = photograph()
    assert np.array_equal(np.asarray(TABLE[name][0](image, 0.0, (1, 2, 3))), np.asarray(image))
    strength = TABLE[name][1][0].at(1.0, random.Random(0))
    moved = np.asarray(TABLE[name][0](image, strength, (1, 2, 3)))
    assert (moved == (1, 2, 3)).all(-1).sum() > 50


def test_half_of_the_chosen_operations_are_applied_with_the_drawn_strength() -> None:
    image, changed = photograph(), 0
    for seed in range(200):
        changed += RandAugment(1, 9)(image, random.Random(seed)) is not image
    assert 80 <= changed <= 120
    drawn = [RandAugment(2, 9, spread=0.5).level(random.Random(seed)) for seed in range(500)]
    assert max(drawn) == 1.0
    assert min(drawn) >= 0.0
    assert 0.88 < np.mean(drawn) < 0.91
    assert RandAugment(2, 9).level(random.Random(0)) == 0.9
