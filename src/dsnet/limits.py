"""Values outside their limits."""

from __future__ import annotations


def must(name: str, value: object, holds: bool, limit: str) -> None:
    """A ValueError that names value and limit, unless the limit `holds`: must("lr", lr, lr > 0, "be positive")."""
    if not holds:
        raise ValueError(f"{name} is {value}; it must {limit}")
