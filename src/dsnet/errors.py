"""The errors of the package, and values outside their limits."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A file that cannot be read as what it should be; the message names the file and the remedy."""


class DataError(ValueError):
    """Data that cannot be used; the message names the file or folder and the remedy."""


class ResultError(ValueError):
    """A result that cannot be read; the message names the file, the field and the remedy."""


class RoutingError(ValueError):
    """Scores that cannot decide anything, or a wish that no route fulfils."""


class TrainingError(ValueError):
    """Training cannot go on; the message says where it stands and what to do."""


def must(name: str, value: object, holds: bool, limit: str) -> None:
    """A ValueError that names value and limit, unless the limit `holds`: must("lr", lr, lr > 0, "be positive")."""
    if not holds:
        raise ValueError(f"{name} is {value}; it must {limit}")
