"""Numbers that are fitted to calibration images."""

from __future__ import annotations

import numpy as np
import pytest

from dsnet.routing.fitting import fit_combination, fit_margins, logistic, multinomial


def test_margins_recover_planted_coefficients() -> None:
    rng = np.random.default_rng(0)
    margin = rng.uniform(0, 1, 40_000)
    a, b = np.array([-0.5, 0.4, 1.2]), np.array([3.0, 1.5, 0.3])
    right = rng.uniform(size=(len(margin), 3)) < 1 / (1 + np.exp(-(a + b * margin[:, None])))
    found_a, found_b = fit_margins(margin, right)
    np.testing.assert_allclose(found_a, a, atol=0.06)
    np.testing.assert_allclose(found_b, b, atol=0.12)


def test_margins_stay_finite_where_images_are_told_apart_without_error() -> None:
    margin = np.linspace(0, 1, 50)
    a, b = fit_margins(margin, np.stack([margin > 0.5, margin > -1, margin > 2], 1))
    assert np.isfinite([a, b]).all()
    assert b[0] > 5
    np.testing.assert_allclose(b[1:], 0, atol=1e-6)
    assert a[1] > 3 > -3 > a[2]
    a, b = fit_margins(np.ones(20), np.ones((20, 1), bool))  # a margin that does not vary
    assert np.isfinite([a, b]).all()


def test_combination_recovers_planted_weights() -> None:
    rng = np.random.default_rng(1)
    early, wide = (np.log(rng.dirichlet(np.ones(5), 20_000)) for _ in range(2))
    raw = 0.3 * early + 0.8 * wide
    labels = (raw + rng.gumbel(size=raw.shape)).argmax(1)
    assert fit_combination(early, wide, labels) == pytest.approx((0.3, 0.8), abs=0.03)


@pytest.mark.parametrize("kind", ["logistic", "multinomial"])
def test_derivatives_are_those_of_the_loss(kind: str) -> None:
    rng = np.random.default_rng(2)
    if kind == "logistic":
        at = logistic(rng.normal(size=(30, 2)), (rng.uniform(size=30) < 0.5).astype(np.float64))
    else:
        at = multinomial(rng.normal(size=(30, 4, 2)), rng.integers(4, size=30), np.array([0.0, 1.0]))
    numbers, small = np.array([0.3, -0.7]), 1e-5
    _, gradient, curvature = at(numbers)
    for axis, step in enumerate(np.eye(2) * small):
        above, below = at(numbers + step), at(numbers - step)
        assert gradient[axis] == pytest.approx((above[0] - below[0]) / (2 * small), rel=1e-5)
        np.testing.assert_allclose(curvature[axis], (above[1] - below[1]) / (2 * small), rtol=1e-5)
