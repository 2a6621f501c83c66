"""Channel groups: which channels of a network must keep their number, and their order, together.

A map is a sequence of parts. A part is a group and a factor: the channels that each member of the group has there.
Maps that are added share their groups; a concatenation is a longer sequence; a depthwise convolution passes its
sequence on; a grouped one makes members of whole groups; flattening multiplies the factor. What is not understood is
fixed, with the reason: it keeps its full width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import lcm, prod

from dsnet.models.graph import Part
from dsnet.slimming.trace import Op, Shape, Traced

Layout = list[Part]
IMAGE = 0  # the first group
FEW, LARGE = 8, 16  # convolutions of at most so many groups, of at least so many channels, may keep all their groups


class Groups:
    """Groups that can be tied, split and coarsened. Layouts stay valid: `resolve` expresses them in today's groups."""

    def __init__(self, few: int = FEW) -> None:
        self.few = few
        self.members: list[int] = []
        self.made_of: dict[int, Layout] = {}  # groups that were replaced, by those that replaced them
        self.reasons: dict[int, str] = {}  # why groups are fixed
        self.residual: list[Layout] = []  # maps that were added

    def new(self, members: int, reason: str | None = None) -> Layout:
        self.members.append(members)
        number = len(self.members) - 1
        if reason is not None:
            self.reasons[number] = reason
        return [(number, 1)]

    def resolve(self, layout: Layout) -> Layout:
        found: Layout = []
        for group, factor in layout:
            if group in self.made_of:
                found += self.resolve([(inner, factor * each) for inner, each in self.made_of[group]])
            else:
                found.append((group, factor))
        return found

    def size(self, part: Part) -> int:
        return self.members[part[0]] * part[1]

    def fix(self, layout: Layout, reason: str) -> None:
        for group, _ in self.resolve(layout):
            self.reasons.setdefault(group, reason)

    def is_fixed(self, layout: Layout) -> bool:
        return all(group in self.reasons for group, _ in self.resolve(layout))

    def replace(self, group: int, layout: Layout) -> None:
        self.made_of[group] = layout
        if group in self.reasons:
            self.fix(layout, self.reasons[group])

    def split(self, group: int, members: int) -> None:
        """Replace a group by two, the first with this number of members."""
        first, second = self.new(members), self.new(self.members[group] - members)
        self.replace(group, first + second)

    def coarsen(self, group: int, by: int) -> bool:
        """Put this number of members together in one. False if they do not divide."""
        if by == 1:
            return True
        if self.members[group] % by:
            return False
        ((coarse, _),) = self.new(self.members[group] // by)
        self.replace(group, [(coarse, by)])
        return True

    def tie(self, one: Layout, other: Layout, reason: str) -> None:
        """Make two maps share their groups. Where that is impossible, both are fixed."""
        while True:
            mine, its = self.resolve(one), self.resolve(other)
            differing = [(a, b) for a, b in zip(mine, its, strict=False) if a != b]
            if not differing:
                return
            (a, b) = differing[0]
            if not self._approach(a, b):
                self.fix(one, reason)
                self.fix(other, reason)
                return

    def _approach(self, a: Part, b: Part) -> bool:
        """One step that makes two parts more alike; False if there is none."""
        if self.size(a) > self.size(b):
            a, b = b, a
        (one, factor), (other, its_factor) = a, b
        if self.size(a) < self.size(b):
            if one == other or self.size(a) % its_factor:
                return False
            self.split(other, self.size(a) // its_factor)
            return True
        if one == other:
            return False
        together = lcm(factor, its_factor)
        if self.size(a) % together:
            return False
        if factor != its_factor:
            return self.coarsen(one, together // factor) and self.coarsen(other, together // its_factor)
        self.replace(other, [(one, 1)])
        return True

    def boundary(self, layout: Layout, at: int) -> bool:
        """Make a part of a map begin at a channel. False if members would be cut."""
        start = 0
        for part in self.resolve(layout):
            if start == at:
                return True
            if start + self.size(part) > at:
                if (at - start) % part[1]:
                    return False
                self.split(part[0], (at - start) // part[1])
                return True
            start += self.size(part)
        return start == at

    def alike(self, layout: Layout, count: int) -> Layout:
        """Make a map of some equal blocks that share their groups, and return the layout of one. Where that is
        impossible, the map is fixed."""
        side = sum(map(self.size, self.resolve(layout))) // count
        if not all(self.boundary(layout, block * side) for block in range(1, count)):
            reason = f"its {count} blocks are not alike"
            self.fix(layout, reason)
            return self.new(side, reason)
        ends = [parts_between(self, layout, block * side, (block + 1) * side) for block in range(count)]
        first, *others = (self.resolve(layout)[slice(*places)] for places in ends)
        for other in others:
            self.tie(first, other, f"its {count} blocks are not alike")
        return first

    def whole(self, layout: Layout, channels: int) -> bool:
        """Make members hold a multiple of some channels. False if a part does not divide."""
        if any(self.size(part) % channels for part in self.resolve(layout)):
            return False
        return all(
            group in self.reasons or self.coarsen(group, lcm(factor, channels) // factor)
            for group, factor in self.resolve(layout)
        )


def find_groups(traced: Traced, answer: str, few: int = FEW) -> tuple[Groups, dict[str, Layout]]:
    """The groups of a network, and the layout of every value.

    answer: The name of the classifier. few: Convolutions of at most so many groups keep all of them.
    """
    groups, layouts, shapes = Groups(few), dict[str, Layout](), traced.shapes
    for op in traced.ops:
        inputs = [layouts[name] for name in op.inputs]
        if op.kind == "image":
            layouts[op.name] = groups.new(op.shape[0], "it is the image")
            continue
        rule = RULES.get(op.kind, passed)
        layouts[op.name] = rule(groups, op, inputs, [shapes[name] for name in op.inputs])
        if op.name == answer:
            groups.fix(layouts[op.name], "it is the classes")
    return groups, layouts


Rule = Callable[[Groups, Op, Sequence[Layout], Sequence[Shape]], Layout]


def passed(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    return inputs[0]


def opaque(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    reason = f"{op.name} ({op.kind}) needs all of its channels, in their order"
    for layout in inputs:
        groups.fix(layout, reason)
    return groups.new(op.shape[0] if op.shape else 1, reason)


def constant(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    return groups.new(op.shape[0], f"{op.name} is the same for all images")


def conv(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    count: int = op.options["groups"]  # type: ignore[assignment]
    if count == 1:
        return groups.new(op.shape[0])
    reads, writes = shapes[0][0] // count, op.shape[0] // count
    if count <= groups.few and reads >= LARGE:
        op.options["inside"], op.inside = True, groups.alike(inputs[0], count)
        return groups.new(writes) * count
    if not groups.whole(inputs[0], reads):
        reason = f"the {count} groups of {op.name} do not fit its parts"
        groups.fix(inputs[0], reason)
        return groups.new(op.shape[0], reason)
    found: Layout = []
    for part in groups.resolve(inputs[0]):
        group, factor = part
        if factor % reads:  # a fixed part, whose members stay as they are
            found += groups.new(groups.size(part) // reads * writes, groups.reasons[group])
        else:
            found.append((group, factor // reads * writes))
    return found


def shuffle(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    """A shuffle of blocks that are alike makes members of the channels that have the same place in each."""
    count: int = op.options["groups"]  # type: ignore[assignment]
    block = groups.alike(inputs[0], count)
    if groups.is_fixed(inputs[0]):
        return groups.new(op.shape[0], f"{op.name} shuffles maps whose parts do not fit")
    return [(group, factor * count) for group, factor in groups.resolve(block)]


def linear(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    return groups.new(op.shape[0])


def group_norm(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    size: int = op.options["size"]  # type: ignore[assignment]
    if not groups.whole(inputs[0], size):
        groups.fix(inputs[0], f"the groups of the norm {op.name} do not fit its parts")
    elif any(factor % size == 0 and groups.members[g] == 1 for g, factor in groups.resolve(inputs[0])):
        groups.fix(inputs[0], f"the norm {op.name} has one group, whose statistics need every channel")
    return inputs[0]


def tied(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    if len({len(shape) for shape in shapes}) > 1:
        return opaque(groups, op, inputs, shapes)
    most = max(shape[0] for shape in shapes)
    first, *others = (layout for layout, shape in zip(inputs, shapes, strict=True) if shape[0] == most)
    for layout in others:  # all but maps of one channel for all
        groups.tie(first, layout, f"{op.name} combines maps whose parts do not fit")
    if op.kind in ("add", "sub") and others and shapes[0] == shapes[1] and len(shapes[0]) == 3:
        groups.residual.append(first)
    return first


def cat(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    return [part for layout in inputs for part in layout]


def take(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    start, stop = op.options["start"], op.options["stop"]
    assert isinstance(start, int)
    assert isinstance(stop, int)
    shown = any(group == IMAGE for group, _ in groups.resolve(inputs[0]))  # its channels stay together
    if shown or not (groups.boundary(inputs[0], start) and groups.boundary(inputs[0], stop)):
        op.kind, op.options = "crop", {"axis": 1, "start": start, "stop": stop, "step": 1}
        return opaque(groups, op, inputs, shapes)
    first, last = parts_between(groups, inputs[0], start, stop)
    return groups.resolve(inputs[0])[first:last]


def parts_between(groups: Groups, layout: Layout, start: int, stop: int) -> tuple[int, int]:
    """The numbers of the first part at a channel and of the part behind another."""
    ends = [0]
    for part in groups.resolve(layout):
        ends.append(ends[-1] + groups.size(part))
    return ends.index(start), ends.index(stop)


def flatten(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    pixels = prod(shapes[0][1:])
    return [(group, factor * pixels) for group, factor in inputs[0]]


def along(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    """An operation along axes: it passes channels on unless they are among them."""
    dims = op.options.get("dims", (op.options.get("dim", op.options.get("axis")),))
    assert isinstance(dims, tuple)
    return opaque(groups, op, inputs, shapes) if 1 in dims else inputs[0]


def pad_channels(groups: Groups, op: Op, inputs: Sequence[Layout], shapes: Sequence[Shape]) -> Layout:
    before, behind = op.options["before"], op.options["behind"]
    ends = [groups.new(count, f"{op.name} adds channels of zeros") if count else [] for count in (before, behind)]  # type: ignore[arg-type]
    return ends[0] + list(inputs[0]) + ends[1]


RULES: dict[str, Rule] = {
    "conv": conv,
    "linear": linear,
    "group_norm": group_norm,
    "constant": constant,
    **dict.fromkeys(("add", "sub", "mul", "div", "maximum", "minimum", "gt", "ge", "lt", "le", "where", "join"), tied),
    "cat": cat,
    "take": take,
    "flatten": flatten,
    **dict.fromkeys(("reshape", "permute", "stack", "pick", "unsqueeze", "squeeze"), opaque),
    **dict.fromkeys(("conv1d", "avg_pool3d", "pixel_shuffle"), opaque),
    "shuffle": shuffle,
    **dict.fromkeys(("softmax", "log_softmax", "mean", "sum", "amax", "amin", "crop", "flip"), along),
    "pad_channels": pad_channels,
}
"""What each operation does to the channels; all others pass them on."""
