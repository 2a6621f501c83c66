"""The number of members that every group keeps at each width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm

from dsnet.errors import SlimError
from dsnet.slimming.groups import Groups, Layout
from dsnet.slimming.trace import Traced

WIDTHS = (0.25, 0.5, 0.75, 1.0)
MULTIPLE = 8
Share = float | tuple[float, float]
"""A share of the channels, or one of hidden and one of residual channels."""


def read_share(text: str) -> Share:
    """A share as users write it: 0.5, or 0.35/0.5 for hidden and residual channels."""
    try:
        numbers = [float(part) for part in text.split("/")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise SlimError(f"width {text!r} is not understood; give a share such as 0.5, or 0.35/0.5 (hidden/residual)")
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


def pairs(widths: Sequence[Share], *, least: int = 2) -> list[tuple[float, float]]:
    """The shares of hidden and residual channels at each width, checked. least: Smallest number of widths."""
    shares = [width if isinstance(width, tuple) else (float(width), float(width)) for width in widths]
    for number, share in enumerate(shares):
        if not all(0 < part <= 1 for part in share):
            raise SlimError(f"width {share} is not a share of the channels; it must lie in (0, 1]")
        if number and not all(old <= new for old, new in zip(shares[number - 1], share, strict=True)):
            raise SlimError(f"widths {list(widths)} fall; give them from the slimmest to the widest")
    if len(shares) < least or shares[-1] != (1, 1):
        raise SlimError(
            f"widths {list(widths)} must be at least two and end with 1, the original network; 1 alone needs several "
            f"image sizes"
        )
    return shares


def find_widths(
    traced: Traced,
    groups: Groups,
    layouts: Mapping[str, Layout],
    widths: Sequence[Share],
    *,
    multiple: int = MULTIPLE,
    overrides: Mapping[str, Sequence[Share]] | None = None,
) -> dict[int, tuple[int, ...]]:
    """Members of every group at each width. overrides: Shares of the groups that layers write, by their names."""
    shares = pairs(widths, least=1)
    if multiple < 1:
        raise SlimError(f"channels are rounded to multiples of {multiple}; it must be at least 1")
    units: dict[int, int] = {}  # channels that a member has, in the map where they are fewest
    for op in traced.ops:
        for layout in (layouts[op.name], op.inside or []):
            for group, channels in together(groups.resolve(layout)).items():
                units[group] = min(units.get(group, channels), channels)
    residual = {group for layout in groups.residual for group, _ in groups.resolve(layout)}
    own = overridden(traced, groups, layouts, overrides or {}, len(shares))
    found = {}
    for group, unit in units.items():
        total = groups.members[group]
        if group in groups.reasons:
            found[group] = (total,) * len(shares)
            continue
        step = lcm(unit, multiple) // unit
        kept = [share[group in residual] for share in own.get(group, shares)]
        found[group] = tuple(
            min(total, step * max(1, round(part * total / step))) if part < 1 else total for part in kept
        )
    check_apart(found, widths)
    return found


def together(layout: Layout) -> dict[int, int]:
    """The channels that each member of a group has in a map."""
    found: dict[int, int] = {}
    for group, factor in layout:
        found[group] = found.get(group, 0) + factor
    return found


def overridden(
    traced: Traced, groups: Groups, layouts: Mapping[str, Layout], overrides: Mapping[str, Sequence[Share]], count: int
) -> dict[int, list[tuple[float, float]]]:
    places = {name: op.name for op in traced.ops for name in (op.place, op.name)}
    found = {}
    for name, shares in overrides.items():
        if name not in places or len(shares) != count:
            known = ", ".join(op.name for op in traced.ops if op.kind in ("conv", "linear"))
            raise SlimError(f"widths of {name!r}: give {count} shares for a layer of the network ({known[:200]})")
        for group, _ in groups.resolve(layouts[places[name]]):
            found[group] = pairs(shares)
    return found


def check_apart(found: Mapping[int, tuple[int, ...]], widths: Sequence[Share]) -> None:
    if len(widths) > 1 and all(counts[0] == counts[-1] for counts in found.values()):
        raise SlimError(
            "no channels of the network can be slimmed: every group is fixed or too small; see the reasons with "
            "dsnet.slimming.report, choose an earlier cut, or leave all channels and give several image sizes (width 1)"
        )
    for number in range(len(widths) - 1):
        if all(counts[number] == counts[number + 1] for counts in found.values()):
            raise SlimError(
                f"widths {widths[number]} and {widths[number + 1]} give the same channels everywhere after rounding; "
                f"give shares that are further apart, or a smaller multiple"
            )
