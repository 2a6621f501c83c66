"""The errors of the package, and the check that a value is within its limits."""

from __future__ import annotations


class CheckpointError(ValueError):
    """A file is damaged or of the wrong kind; the message names the file and the remedy."""


class DataError(ValueError):
    """Data that cannot be used; the message names the file or folder and the remedy."""


class ResultError(ValueError):
    """A result that cannot be read; the message names the file, the field and the remedy."""


class RoutingError(ValueError):
    """The router's scores are unusable, or no route meets the request."""


class TrainingError(ValueError):
    """Training cannot go on; the message says where it stands and what to do."""


def must(name: str, value: object, holds: bool, limit: str) -> None:
    """Raise a ValueError that names the value and the limit unless `holds`: must("lr", lr, lr > 0, "be positive")."""
    if not holds:
        raise ValueError(f"{name} is {value}; it must {limit}")
