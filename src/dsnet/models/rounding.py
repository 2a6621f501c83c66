"""How channel lists are made."""

from __future__ import annotations


def equispaced(first: int, step: int, widths: int) -> tuple[int, ...]:
    """The paper's equispaced channel group: consecutive widths differ by one constant."""
    return tuple(first + step * k for k in range(widths))


def divisible(count: float, by: int = 8) -> int:
    """The nearest multiple of `by`, at least `by`, and never more than a tenth below `count`."""
    rounded = max(by, int(count + by / 2) // by * by)
    return rounded if rounded >= 0.9 * count else rounded + by


def ladder(count: int, ratios: tuple[float, ...]) -> int | tuple[int, ...]:
    """`count` channels at each ratio; one ratio gives one number."""
    counts = tuple(divisible(count * ratio) for ratio in ratios)
    return counts if len(counts) > 1 else counts[0]


def scaled(name: str, width: float) -> str:
    """The display name of a static model at a width multiplier."""
    return name if width == 1 else f"{name}_x{width:g}"
