"""Where a network is cut: its classifier at the end, and the gate behind the front that all widths share."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import prod

import torch

from dsnet.errors import SlimError
from dsnet.slimming.groups import Groups, Layout
from dsnet.slimming.trace import Op, Traced

SHARE = 0.2  # of the MAdds that the front takes by default, or a little more
REACH = (0.08, 0.5)  # shares among which the default is chosen
SLIM = 0.25  # the width at which cuts are compared
MIXING = {
    "take", "cat", "stack", "pick", "reshape", "shuffle", "permute", "pad_channels", "image", "unsqueeze", "squeeze",
    "pixel_shuffle", "flip", "join",
}  # fmt: skip
"""Operations that count channels."""
COUNTED = ("conv", "linear", "conv1d")


def madds(op: Op) -> int:
    """Multiply-adds of an operation at full width."""
    if op.kind not in COUNTED:
        return 0
    return prod(op.shape[1:]) * op.tensors["layer.weight" if op.kind == "conv1d" else "weight"].numel()


def find_classifier(traced: Traced) -> int:
    """The number of the last convolution or linear layer. All that follows it must be functions of its answer."""
    layers = [number for number, op in enumerate(traced.ops) if op.kind in ("conv", "linear")]
    if not layers:
        raise SlimError("the network has no convolution and no linear layer, so there is nothing to slim")
    number = layers[-1]
    behind = {op.name for op in traced.ops[number:]}
    for op in traced.ops[number + 1 :]:
        if op.kind in MIXING or op.tensors or not behind.issuperset(op.inputs):
            raise SlimError(
                f"the network ends in {op.name!r} ({op.kind}) instead of a linear layer or a convolution that gives "
                f"the classes; give the part of it that ends there"
            )
    if traced.ops[number].shape[0] != traced.ops[-1].shape[0]:
        raise SlimError(f"the last layer {traced.ops[number].name!r} does not give one number for each class")
    return number


def fold_last(traced: Traced) -> None:
    """Fold a batch norm that follows the last layer into it: the classes have one width, and need no statistics."""
    layers = [op for op in traced.ops if op.kind in ("conv", "linear", "batch_norm")]
    if len(layers) < 2:
        return
    layer, norm = layers[-2:]
    readers = [op.name for op in traced.ops if layer.name in op.inputs]
    if norm.kind != "batch_norm" or layer.kind == "batch_norm" or readers != [norm.name]:
        return
    held = norm.tensors
    scale = held["weight"] * (held["running_var"] + float(norm.options["eps"])).rsqrt()  # type: ignore[arg-type]
    weight, bias = layer.tensors["weight"], layer.tensors.get("bias", torch.zeros_like(scale))
    layer.tensors["weight"] = weight * scale.view(-1, *[1] * (weight.dim() - 1))
    layer.tensors["bias"] = (bias - held["running_mean"]) * scale + held["bias"]
    layer.options["bias"] = True
    traced.ops = [op for op in traced.ops if op is not norm]
    for op in traced.ops:
        op.inputs = [layer.name if name == norm.name else name for name in op.inputs]


def candidates(traced: Traced, classifier: int) -> list[int]:
    """The numbers of the operations behind which a single map goes on."""
    last = {name: number for number, op in enumerate(traced.ops) for name in op.inputs}
    found, spent = [], 0
    reach = last[traced.ops[0].name]  # the last operation that reads a value from before this one
    for number, op in enumerate(traced.ops[:classifier]):
        spent += madds(op)
        if number and reach <= number and spent and len(op.shape) == 3 and prod(op.shape[1:]) > 1:
            found.append(number)
        reach = max(reach, last[op.name])
    return found


def find_cut(
    traced: Traced, groups: Groups, layouts: dict[str, Layout], classifier: int, wanted: str | float | None
) -> int:
    """The number of the last operation of the front."""
    places = candidates(traced, classifier)
    if not places:
        raise SlimError("no single map crosses any place of the network, so it cannot be cut into a front and a rest")
    spent = [0]
    for op in traced.ops:
        spent.append(spent[-1] + madds(op))
    shares = {number: spent[number + 1] / spent[-1] for number in places}
    if isinstance(wanted, str):
        return named_cut(traced, wanted, places, shares)
    share = SHARE if wanted is None else wanted
    if not 0 < share < 1:
        raise SlimError(f"the cut is at {share} of the MAdds; give a share between 0 and 1, or the name of a module")
    low, high = REACH if wanted is None else (0.0, 1.0)
    near = [number for number in places if low <= shares[number] <= high] or places

    def loss(number: int) -> tuple[float, int]:
        behind = slimmest(traced, groups, layouts, number) - shares[number] if wanted is None else 0.0
        return abs(shares[number] - share) + behind, -number  # `behind`: what slim widths cost after the front

    return min(near, key=loss)


def find_more(
    traced: Traced,
    groups: Groups,
    layouts: dict[str, Layout],
    classifier: int,
    first: int,
    wanted: Sequence[str | float],
) -> list[int]:
    """The numbers of the last operations before further gates. The groups of the front are fixed already.

    Channels that are in use there may go on for a while, but only before the next gate, and not beside new ones: the
    gates choose their widths apart.
    """
    if not wanted:
        return []
    norm = next((op for op in traced.ops[first + 1 : classifier] if op.kind == "batch_norm"), None)
    if norm is not None:
        raise SlimError(
            f"several cuts need group or layer norms, but batch norm {norm.place or norm.name!r} follows the first, "
            f"and its statistics would depend on every choice before; give one --cut, or replace the norms"
        )
    total, spent = sum(map(madds, traced.ops)), 0
    shares: dict[int, float] = {}
    places = {
        number: settled(traced, groups, layouts, classifier, first, number) for number in candidates(traced, classifier)
    }
    ends = {number: end for number, end in places.items() if end is not None}
    for number, op in enumerate(traced.ops):
        spent += madds(op)
        shares |= {number: spent / total} if number in ends else {}
    found, free = list[int](), first + 1
    for one in wanted:
        open_ones = [number for number in ends if number >= free]
        if isinstance(one, str):
            number = named_cut(
                traced, one, open_ones, shares, lowest=0.0, why="channels from before go on beside new ones"
            )
        elif not open_ones or not 0 < one < 1:
            raise SlimError(
                f"the cut at {one} of the MAdds is impossible: "
                f"{'give a share between 0 and 1' if open_ones else 'no place is left behind the others'}"
            )
        else:
            number = min(open_ones, key=lambda number, one=one: abs(shares[number] - one))  # type: ignore[misc]
        found.append(number)
        free = max(number + 1, ends[number])
    return found


def settled(
    traced: Traced, groups: Groups, layouts: dict[str, Layout], classifier: int, first: int, cut: int
) -> int | None:
    """The number of the operation behind which only new channels go on, if a gate follows this cut. None if the
    channels from before it go on to the end."""
    if cut <= first:
        return None

    def varying(layout: Layout) -> set[int]:
        return {group for group, _ in groups.resolve(layout)} - groups.reasons.keys()

    old = {group for op in traced.ops[first + 1 : cut + 1] for group in varying(layouts[op.name])}
    olds = {op.name for op in traced.ops if old & varying(layouts[op.name])}
    mixed = any(varying(layouts[op.name]) - old for op in traced.ops[cut + 1 :] if op.name in olds)
    last = max((number for number, op in enumerate(traced.ops) if olds.intersection(op.inputs)), default=cut)
    ends = [number for number in candidates(traced, classifier) if number >= max(last, cut)]
    return None if mixed or last >= classifier or not ends else ends[0]


def named_cut(
    traced: Traced,
    name: str,
    places: Collection[int],
    shares: Mapping[int, float],
    *,
    lowest: float = 0.05,
    why: str = "several maps go on behind it",
) -> int:
    """The number of the last operation of a module.

    lowest: The smallest share of the MAdds at which others are proposed instead. why: Why it does not suit, if it is
    there.
    """
    inside = [
        number for number, op in enumerate(traced.ops) if name in (op.name, op.place) or op.place.startswith(f"{name}.")
    ]
    if inside and inside[-1] in places:
        return inside[-1]
    near = [traced.ops[number] for number in places if lowest <= shares[number] <= (0.7 if lowest else 1)]
    known = list(dict.fromkeys(op.place or op.name for op in near))
    what = why if inside else "there is no such module"
    raise SlimError(
        f"the network cannot be cut behind {name!r}: {what}; "
        f"{'choose from ' + ', '.join(known[:12]) if known else 'no other place suits'}"
    )


def slimmest(traced: Traced, groups: Groups, layouts: dict[str, Layout], cut: int) -> float:
    """The share of the MAdds at a quarter of the width if the front ends here. Groups of the front stay whole."""
    front = {group for op in traced.ops[: cut + 1] for group, _ in groups.resolve(layouts[op.name])}

    def kept(name: str) -> float:
        sizes = [(groups.size(part), part[0]) for part in groups.resolve(layouts[name])]
        whole = sum(size for size, group in sizes if group in front or group in groups.reasons)
        total = sum(size for size, _ in sizes)
        return (whole + SLIM * (total - whole)) / total

    spent = slim = 0.0
    for number, op in enumerate(traced.ops):
        cost = madds(op)
        spent += cost
        if cost:
            share = kept(op.name) * (kept(op.inputs[0]) if op.options.get("groups", 1) == 1 else 1)
            slim += cost * (share if number > cut else 1)
    return slim / spent
