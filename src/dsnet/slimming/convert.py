"""From a torch module to a supernet whose widest path computes the same."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import Literal

import torch
from torch import Tensor, nn

from dsnet.errors import SlimError
from dsnet.models.graph import CLASSES, IMAGE, LAYERS, GraphSpec, Node, Part
from dsnet.models.supernet import Supernet
from dsnet.slimming.clean import add_masks, fold_pads, fold_scales
from dsnet.slimming.cut import find_classifier, find_cut, find_more, fold_last, madds, slimmest
from dsnet.slimming.groups import FEW, Groups, Layout, find_groups, parts_between
from dsnet.slimming.recording import in_eval, trace_module
from dsnet.slimming.trace import Op, Traced
from dsnet.slimming.widths import MULTIPLE, WIDTHS, Share, find_widths

TOLERANCE = 1e-4  # of the spread of the answers: how far the converted network may lie from the original
Cut = str | float | Sequence[str | float] | None
"""Where the front ends: the name of a module, or a share of the MAdds. With several, there is a gate at each."""
Affine = Literal["shared", "width"]
"""Whether all widths share the affine parameters of a batch norm, or each has its own."""
SMALL = 0.01  # of the MAdds: layers on pooled maps below this share are squeezes, which stay whole


@dataclass
class Plan:
    """A network on its way: its operations, their channels, and where it is cut.

    classifier: The name of the last layer. cuts: The names of the last operations before the gates; the first is the
    last of the front.
    """

    traced: Traced
    groups: Groups
    layouts: dict[str, Layout]
    classifier: str
    cuts: list[str]
    counts: dict[int, tuple[int, ...]]
    norms: list[Op]

    def layout(self, name: str) -> Layout:
        return self.groups.resolve(self.layouts[name])

    def sliced(self, name: str) -> bool:
        return any(len(set(self.counts[group])) > 1 for group, _ in self.layout(name))

    @property
    def ops(self) -> list[Op]:
        return self.traced.ops

    def number(self, name: str) -> int:
        return next(number for number, op in enumerate(self.ops) if op.name == name)


def plan(
    model: nn.Module,
    example: Tensor,
    widths: Sequence[Share] = WIDTHS,
    *,
    cut: Cut = None,
    multiple: int = MULTIPLE,
    overrides: Mapping[str, Sequence[Share]] | None = None,
    affine: Affine = "shared",
) -> Plan:
    """Read a module, find its groups, and decide where it is cut and how wide its groups are."""
    first, *further = [cut] if cut is None or isinstance(cut, str | float | int) else list(cut)
    traced = trace_module(model, example)
    fold_last(traced)
    fold_pads(traced)
    fold_scales(traced)
    classifier = find_classifier(traced)
    answer = traced.ops[classifier].name
    # Grouped convolutions keep all their groups or lose some; what saves more depends on the layers around them.
    tried = [(copied(traced), few) for few in ((FEW, 0) if has_groups(traced) else (0,))]
    found = [(each, *find_groups(each, answer, few)) for each, few in tried]
    cuts = [find_cut(*each, classifier, first) for each in found]
    best = min(range(len(found)), key=lambda number: slimmest(*found[number], cuts[number]))
    (traced, groups, layouts), place = found[best], cuts[best]
    for op in traced.ops[: place + 1]:
        groups.fix(layouts[op.name], "it belongs to the shared front")
    fix_squeezes(traced, groups, layouts)
    places = [place, *find_more(traced, groups, layouts, classifier, place, further)]  # type: ignore[arg-type]
    counts = find_widths(traced, groups, layouts, widths, multiple=multiple, overrides=overrides, cuts=places)
    result = Plan(traced, groups, layouts, answer, [], counts, [])
    result.norms, result.cuts = add_masks(traced, places, result.sliced)
    for op in traced.ops[place + 1 :] if affine == "width" else ():
        if op.kind == "batch_norm":
            op.options["own"] = True
    for op in traced.ops:  # what was inserted passes its channels on
        layouts.setdefault(op.name, layouts[op.inputs[0]] if op.inputs else [])
    return result


def has_groups(traced: Traced) -> bool:
    return any(op.kind == "conv" and 1 < int(op.options["groups"]) <= FEW for op in traced.ops)  # type: ignore[arg-type]


def copied(traced: Traced) -> Traced:
    """The same operations, which can be changed."""
    return Traced([replace(op, options=dict(op.options)) for op in traced.ops], traced.notes)


def fix_squeezes(traced: Traced, groups: Groups, layouts: Mapping[str, Layout]) -> None:
    """Fix the hidden units of squeeze-excite: they cost little, and every width needs them."""
    on_maps = {group for op in traced.ops if prod(op.shape[1:]) > 1 for group, _ in groups.resolve(layouts[op.name])}
    total, spent = sum(map(madds, traced.ops)), dict[int, int]()
    for op in traced.ops:
        if op.kind in ("conv", "linear"):
            touched = groups.resolve(layouts[op.name]) + groups.resolve(layouts[op.inputs[0]])
            for group in {group for group, _ in touched}:
                spent[group] = spent.get(group, 0) + madds(op)
    for group, cost in spent.items():
        if group not in on_maps and cost < SMALL * total:
            groups.reasons.setdefault(group, "it is a squeeze, which costs little")


def spec_of(found: Plan, name: str) -> GraphSpec:
    """The network as data."""
    ops, groups = found.ops, found.groups
    image, answer = ops[0], found.number(found.classifier)
    ((own, _),) = found.layout(image.name)
    numbers = {group: number for number, group in enumerate(found.counts)}

    def parts(op_name: str) -> tuple[Part, ...]:
        layout = found.layout(op_name)
        if op_name == found.classifier or op_name in behind:
            return ((CLASSES, 1),)
        return numbered(layout)

    def numbered(layout: Layout) -> tuple[Part, ...]:
        return tuple((IMAGE if group == own and factor == 1 else numbers[group], factor) for group, factor in layout)

    behind = {op.name for op in ops[answer:]}
    nodes = []
    for op in ops[1:]:
        options = dict(op.options)
        if op.kind == "take":
            first, last = parts_between(groups, found.layouts[op.inputs[0]], options["start"], options["stop"])  # type: ignore[arg-type]
            options = {"first": first, "last": last}
        layer = op.kind in LAYERS
        reads = parts(op.inputs[0]) if layer else ()
        if op.inside is not None:
            reads = numbered(groups.resolve(op.inside)) * op.options["groups"]  # type: ignore[operator]
        nodes.append(
            Node(
                name=op.name,
                op=op.kind,
                inputs=tuple(op.inputs),
                reads=reads,
                writes=parts(op.name) if layer or op.name in found.cuts else (),
                options=tuple(options.items()),
            )
        )
    return GraphSpec(
        name=name,
        nodes=tuple(nodes),
        groups=tuple(found.counts.values()),
        cut=found.number(found.cuts[0]),
        cuts=tuple(map(found.number, found.cuts[1:])),
        head=answer - 1,
        widths=(len(next(iter(found.counts.values()))),) * len(found.cuts),
        divides=division(ops),
        num_classes=ops[-1].shape[0],
        in_channels=image.shape[0],
        image_size=image.shape[1],
    )


def division(ops: Sequence[Op]) -> int:
    """Input pixels per pixel of the last map; 0 if the sizes of maps are written into the network."""
    shapes = {op.name: op.shape for op in ops}
    for op in ops:
        fixed = op.kind == "reshape" or (op.kind == "resize" and "size" in op.options)
        fixed = fixed or (op.kind == "constant" and prod(op.shape[1:]) > 1)
        if fixed or (op.kind == "flatten" and prod(shapes[op.inputs[0]][1:]) > 1):
            return 0
    last = [op.shape[1] for op in ops if op.kind == "conv" and prod(op.shape[1:]) > 1]
    return ceil(ops[0].shape[1] / last[-1])


def state_of(found: Plan, spec: GraphSpec) -> dict[str, Tensor]:
    """The tensors of the supernet, apart from its gate."""
    state: dict[str, Tensor] = {}
    for number, node in enumerate(spec.nodes):
        op = found.ops[number + 1]
        if number < spec.cut:
            place = f"front.layers.{node.name}"
        elif number < spec.head:
            segment = bisect(spec.cuts, number)
            place = f"segments.{segment}.first.graph.layers.{node.name}"
        else:
            place = "head.classifier" if number == spec.head else f"head.pools.{node.name}"
        rows = 1 if number < spec.cut else spec.widths[0]
        for kind, tensor in op.tensors.items():
            tensor = tensor.detach().float()
            by_width = kind.startswith("running_") or "own" in op.options
            state[f"{place}.{kind}"] = tensor.expand(rows, -1).clone() if by_width else tensor.clone()
        if "running_mean" in op.tensors:  # only the statistics of the widest are known
            tracked = torch.zeros(rows, dtype=torch.long)
            tracked[-1] = 1
            state[f"{place}.num_batches_tracked"] = tracked
    return state


def built(found: Plan, name: str) -> Supernet:
    """The supernet, in eval mode."""
    spec = smallest(spec_of(found, name))
    net = Supernet(spec).eval()
    state = net.state_dict()
    given = state_of(found, spec)
    assert set(state) - set(given) == {key for key in state if ".gate." in key}, set(given) ^ set(state)
    net.load_state_dict({**state, **given})
    return net


def smallest(spec: GraphSpec) -> GraphSpec:
    """The spec with the smallest image size at which the network runs."""
    if not spec.any_size:
        return spec
    with torch.device("meta"):
        net = Supernet(spec).eval()
        for size in range(spec.divides, spec.image_size, spec.divides):
            try:
                net.run(torch.empty(1, spec.in_channels, size, size), net.space.widest)
            except (RuntimeError, ValueError):  # a map became smaller than a kernel
                continue
            return replace(spec, divides=size)
    return replace(spec, divides=spec.image_size)


def check_same(model: nn.Module, net: Supernet, example: Tensor) -> float:
    """Compare the widest path with the original on noise. Returns the largest difference, as a share of the spread."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, *example.shape[1:], generator=generator)
    error = difference(model, net, x)
    if not error <= TOLERANCE:  # deep networks may amplify what is rounded; in doubles only mistakes are left
        error = difference(deepcopy(model).double(), deepcopy(net).double(), x.double())
    if not error <= TOLERANCE:
        raise SlimError(
            f"the converted network differs from the original by {error:.2g} of the spread of its answers; an "
            f"operation of it is not what it looks like, please report the network"
        )
    return error


@torch.no_grad()
def difference(model: nn.Module, net: Supernet, x: Tensor) -> float:
    """The largest difference between a network and its conversion, as a share of the spread of the answers."""
    with in_eval(model):
        wanted, given = model(x).flatten(1), net(x, net.space.widest)
    return float((given - wanted).abs().max() / (wanted.max() - wanted.min()).clamp_min(1e-12))
