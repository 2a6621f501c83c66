"""Comparisons that are paired by image: intervals by the bootstrap, and verdicts that ask for more than a sign."""

from __future__ import annotations

import numpy as np

from dsnet.paired import of_samples

DRAWS = 2000
ROUNDING = 1e-9
RULE = (
    "Differences are paired by seed and by image, in points for accuracies. A direction holds if every seed shows it "
    "and the 95 % interval of the mean over seeds, by a bootstrap over the images, excludes zero. It does not hold if "
    "all of this is true of the opposite direction; otherwise there is no verdict."
)
SEEDS_ONLY, ONE_SEED = "seeds only", "one seed"
MORE = (
    "Intervals are in brackets. In every draw of the bootstrap the average MAdds, the hull of the widths and what is "
    "interpolated are computed again."
)
WITHOUT = {
    SEEDS_ONLY: "Seeds only: the runs did not keep what drawn images need, so there is no interval and no verdict.",
    ONE_SEED: "One seed: there is no verdict without a second training.",
}


def interval(differences: np.ndarray, *, draws: int = DRAWS, seed: int = 0) -> tuple[float, float]:
    """The 95 % interval of the mean of differences [seeds, images], by drawing images again with replacement."""
    each = differences.mean(0)
    rng = np.random.default_rng(seed)
    means = np.array([each[rng.integers(len(each), size=len(each))].mean() for _ in range(draws)])
    found = of_samples(float(each.mean()), means)
    return found.low[0], found.high[0]


def verdict(differences: np.ndarray) -> bool | None:
    """Whether differences [seeds, images] are positive (True) or negative (False) by `RULE`; None without a verdict."""
    return direction(differences.mean(1), interval(differences))


def direction(means: np.ndarray, ends: tuple[float, float]) -> bool | None:
    """Whether differences are positive or negative by `RULE`. means: of every seed; ends: of the interval."""
    low, high = ends
    if (means > ROUNDING).all() and low > ROUNDING:
        return True
    return False if (means < -ROUNDING).all() and high < -ROUNDING else None
