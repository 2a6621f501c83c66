"""Numbers of a router that are fitted to calibration images by Newton's method, two for each width."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

STEPS = 50
RIDGE = 1e-3  # of the mean loss; keeps the numbers finite where the images could be told apart without error
Derivatives = Callable[[np.ndarray], tuple[float, np.ndarray, np.ndarray]]
"""Numbers -> mean loss, gradient and Hessian."""


def fit_margins(margin: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The a and b [R] with which sigmoid(a_k + b_k * margin) is the likeliest chance that candidate k is right.

    margin: One number [N] for each image. right: Which candidates [N, R] are right.
    """
    centre, spread = float(margin.mean()), float(margin.std()) or 1.0
    inputs = np.stack([np.ones(len(margin)), (margin - centre) / spread], 1)
    fitted = [newton(logistic(inputs, column.astype(np.float64)), np.zeros(2)) for column in right.T]
    slopes = np.array([numbers[1] / spread for numbers in fitted])
    return np.array([numbers[0] for numbers in fitted]) - slopes * centre, slopes


def fit_combination(early: np.ndarray, wide: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The u and v with which softmax(u * early + v * wide) makes the labels [N] likeliest.

    early, wide: Log-probabilities [N, classes] of two answers.
    """
    answers = np.stack([early, wide], 2).astype(np.float64)
    u, v = newton(multinomial(answers, labels, np.array([0.0, 1.0])), np.array([0.0, 1.0])).tolist()
    return u, v


def logistic(inputs: np.ndarray, goal: np.ndarray, ridge: float = RIDGE) -> Derivatives:
    """The loss of sigmoid(inputs @ numbers) as the chance of a goal [N] of 0 or 1."""

    def at(numbers: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        raw = inputs @ numbers
        chance = 0.5 * (1 + np.tanh(raw / 2))
        loss = float(np.mean(np.logaddexp(0, raw) - goal * raw)) + ridge / 2 * float(numbers @ numbers)
        gradient = inputs.T @ (chance - goal) / len(goal) + ridge * numbers
        curvature = (inputs * (chance * (1 - chance))[:, None]).T @ inputs / len(goal)
        return loss, gradient, curvature + ridge * np.eye(len(numbers))

    return at


def multinomial(answers: np.ndarray, labels: np.ndarray, prior: np.ndarray) -> Derivatives:
    """The loss of softmax(answers [N, classes, numbers] @ numbers) for labels [N]. The ridge pulls towards `prior`."""
    true = answers[np.arange(len(labels)), labels]  # [N, numbers]

    def at(numbers: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        raw = answers @ numbers
        raw -= raw.max(1, keepdims=True)
        log_probs = raw - np.log(np.exp(raw).sum(1, keepdims=True))
        probs = np.exp(log_probs)
        mean = np.einsum("nc,ncp->np", probs, answers)
        off = numbers - prior
        loss = -float(log_probs[np.arange(len(labels)), labels].mean()) + RIDGE / 2 * float(off @ off)
        second = np.einsum("nc,ncp,ncq->pq", probs, answers, answers) / len(labels)
        curvature = second - mean.T @ mean / len(labels)
        return loss, (mean - true).mean(0) + RIDGE * off, curvature + RIDGE * np.eye(len(numbers))

    return at


def newton(derivatives: Derivatives, start: np.ndarray) -> np.ndarray:
    """The numbers where a convex loss is lowest. A step that would raise the loss is halved."""
    numbers = start
    loss, gradient, curvature = derivatives(numbers)
    for _ in range(STEPS):
        step = np.linalg.solve(curvature, gradient)
        while np.abs(step).max() > 1e-9:
            found = derivatives(numbers - step)
            if found[0] <= loss:
                break
            step = step / 2
        else:
            break
        numbers, (loss, gradient, curvature) = numbers - step, found
    return numbers
