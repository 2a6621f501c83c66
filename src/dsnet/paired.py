"""Differences of two scores on the same images, with their 95 % paired intervals."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dsnet.results import Difference

LEVEL = 0.95
DRAWS = 4000
DIGITS = 6


def of_correct(first: np.ndarray, second: np.ndarray) -> Difference:
    """The accuracy of the first network minus that of the second; both tell which images [N] they get right.

    A bootstrap over images. The difference of an image is -1, 0 or 1, so the resampled sums are drawn from a
    multinomial distribution of the three counts. One image is added to either side: otherwise a handful of images on
    which the networks differ, all on one side, would pass for a proof (Bonett and Price, 2012, for Wald's interval).
    """
    images = len(first)
    better, worse = int((first & ~second).sum()), int((second & ~first).sum())
    counts = np.array([worse + 1, images - better - worse, better + 1], np.float64)
    rng = np.random.default_rng([images, better, worse])
    drawn = rng.multinomial(images + 2, counts / counts.sum(), size=DRAWS)
    return of_samples((better - worse) / images, (drawn[:, 2] - drawn[:, 0]) / (images + 2))


def of_samples(mean: float, samples: np.ndarray) -> Difference:
    """A difference whose interval spans 95 % of resampled differences [R]."""
    low, high = np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    low, high = (round(end, DIGITS) for end in (min(low, mean), max(high, mean)))
    return Difference(round(mean, DIGITS), (low,), (high,))


@lru_cache(maxsize=2)
def redraws(images: int, count: int) -> np.ndarray:
    """How often every image occurs in each of `count` sets [count, images] that are drawn with replacement.

    They are the same sets for every network, so differences of resampled scores are paired by image.
    """
    rng = np.random.default_rng(0)
    return np.stack([rng.multinomial(images, [1 / images] * images).astype(np.uint16) for _ in range(count)])


def resampled_means(values: np.ndarray, count: int) -> np.ndarray:
    """The mean of values [N], then the means over sets of images that are drawn again [1 + count]."""
    values = values.astype(np.float64)
    return np.array([values.mean(), *(drawn @ values / len(values) for drawn in redraws(len(values), count))])


def wilson(share: float, images: int) -> tuple[float, float]:
    """The 95 % interval of an accuracy that was measured on this many images (Wilson's score interval)."""
    z = 1.959964
    middle = (share + z * z / (2 * images)) / (1 + z * z / images)
    half = z / (1 + z * z / images) * (share * (1 - share) / images + z * z / (4 * images * images)) ** 0.5
    return middle - half, middle + half
