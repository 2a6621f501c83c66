"""The number of members that every group keeps at each width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise
from math import lcm

from dsnet.errors import SlimError
from dsnet.slimming.groups import Groups, Layout
from dsnet.slimming.trace import Op, Traced

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


def read_overrides(texts: Sequence[str]) -> dict[str, list[Share]]:
    """Shares for single layers as users write them: features.3=0.5,0.75,1."""
    found: dict[str, list[Share]] = {}
    for text in texts:
        name, _, shares = text.rpartition("=")
        if not name or not shares:
            raise SlimError(f"override {text!r} is not understood; give LAYER=SHARES, such as features.3=0.5,0.75,1")
        if name in found:
            raise SlimError(f"override of {name!r} is given twice; give it once")
        found[name] = [read_share(part) for part in shares.split(",")]
    return found


def find_widths(
    traced: Traced,
    groups: Groups,
    layouts: Mapping[str, Layout],
    widths: Sequence[Share],
    *,
    multiple: int = MULTIPLE,
    overrides: Mapping[str, Sequence[Share]] | None = None,
    cuts: Sequence[int] = (0,),
) -> dict[int, tuple[int, ...]]:
    """Members of every group at each width.

    overrides: Shares of the groups that layers write, by their names. cuts: The numbers of the last operations before
    the gates.
    """
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
    if len(widths) > 1:
        for cut, end in pairwise([*cuts, len(traced.ops)]):
            layers = layers_of(traced, traced.ops[cut + 1 : end + 1])
            behind = {place: groups.resolve(layouts[name]) for name, place in layers.items()}
            check_sliced(found, groups, behind, traced.ops[cut], multiple)
            check_apart(found, behind, widths, multiple)
    return found


def together(layout: Layout) -> dict[int, int]:
    """The channels that each member of a group has in a map."""
    found: dict[int, int] = {}
    for group, factor in layout:
        found[group] = found.get(group, 0) + factor
    return found


def layers_of(traced: Traced, ops: Sequence[Op]) -> dict[str, str]:
    """The layers with weights among some operations, as users call them, by their own names."""
    return {op.name: op.place or op.name for op in ops if op.kind in ("conv", "linear")}


def overridden(
    traced: Traced, groups: Groups, layouts: Mapping[str, Layout], overrides: Mapping[str, Sequence[Share]], count: int
) -> dict[int, list[tuple[float, float]]]:
    layers = layers_of(traced, traced.ops)
    places = {name: op for op, place in reversed(layers.items()) for name in (place, op)}
    found: dict[int, list[tuple[float, float]]] = {}
    said: dict[int, str] = {}
    for name, shares in overrides.items():
        if name not in places:
            close = get_close_matches(name, places, 3) or list(layers.values())[:12]
            raise SlimError(
                f"override of {name!r}: there is no such layer; name a convolution or linear layer, such as "
                f"{', '.join(close)}"
            )
        if len(shares) != count:
            raise SlimError(
                f"override of {name!r}: {len(shares)} shares were given, but the network has {count} widths; give one "
                f"for each, the last 1"
            )
        try:
            mine = pairs(shares)
        except SlimError as error:
            raise SlimError(f"override of {name!r}: {error}") from error
        for group, _ in groups.resolve(layouts[places[name]]):
            if group in groups.reasons:
                raise SlimError(
                    f"override of {name!r}: its channels keep their full width, because {groups.reasons[group]}; leave "
                    f"it out"
                )
            if found.get(group, mine) != mine:
                raise SlimError(
                    f"override of {name!r}: it shares its channels with {said[group]!r}, which has other shares; "
                    f"override one of the two"
                )
            found[group], said[group] = mine, name
    return found


Behind = Mapping[str, Layout]
"""The layers behind the front, and the groups that they write."""


def check_sliced(found: Mapping[int, tuple[int, ...]], groups: Groups, behind: Behind, last: Op, multiple: int) -> None:
    """Refuse a network that slices no group behind a gate."""
    if any(found[group][0] < found[group][-1] for layout in behind.values() for group, _ in layout):
        return
    whys = [f"{name} ({why_whole(groups, layout, multiple)})" for name, layout in list(behind.items())[:3]]
    raise SlimError(
        f"no channels of the network can be slimmed: the cut is at {last.place or last.name!r}, and behind it "
        f"{'is ' + ', '.join(whys) if whys else 'are no weights'}; choose an earlier --cut or a smaller --multiple "
        f"than {multiple}, replace what needs all channels, or leave all of them and give several image sizes (width "
        f"1). Streams side by side up to the end cannot be slimmed"
    )


def why_whole(groups: Groups, layout: Layout, multiple: int) -> str:
    """Why a map keeps its full width."""
    reasons = [groups.reasons[group] for group, _ in layout if group in groups.reasons]
    size = sum(map(groups.size, layout))
    return reasons[0] if reasons else f"its {size} channels are too few for multiples of {multiple}"


def check_apart(found: Mapping[int, tuple[int, ...]], behind: Behind, widths: Sequence[Share], multiple: int) -> None:
    """Refuse widths that are equal in all groups."""
    for number in range(len(widths) - 1):
        if any(found[group][number] < found[group][number + 1] for layout in behind.values() for group, _ in layout):
            continue
        sizes = {
            name: [sum(factor * found[group][width] for group, factor in layout) for width in (number, -1)]
            for name, layout in behind.items()
            if any(found[group][0] < found[group][-1] for group, _ in layout)
        }
        name, (kept, whole) = max(sizes.items(), key=lambda item: item[1][1])
        raise SlimError(
            f"widths {widths[number]} and {widths[number + 1]} give the same channels everywhere after rounding to "
            f"multiples of {multiple}: the widest layer, {name!r}, keeps {kept} of its {whole} channels at both; give "
            f"shares that are further apart, or a smaller --multiple"
        )
