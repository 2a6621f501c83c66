"""What a conversion found: the groups, their widths, their share of the MAdds, and what is fixed and why."""

from __future__ import annotations

from dataclasses import dataclass

from dsnet.models.count import count
from dsnet.models.supernet import Supernet
from dsnet.slimming.convert import Plan
from dsnet.slimming.cut import COUNTED, madds


@dataclass(frozen=True)
class GroupRow:
    """A channel group.

    Args:
        layers: The layers that write it.
        channels: Channels at each width.
        share: Share of the MAdds of the layers that read or write it.
        fixed: Why it keeps its width; empty if it does not.
    """

    layers: tuple[str, ...]
    channels: tuple[int, ...]
    share: float
    fixed: str = ""


@dataclass(frozen=True)
class SlimReport:
    """The account of a conversion.

    Args:
        madds: MAdds of each width at the network's image size; with several gates, of the same width behind all.
        front: MAdds of the front that all widths share.
        cut: Name of the last operation of the front.
        cuts: Names of the last operations before further gates.
        sliceable: Share of the MAdds in layers that become cheaper at slim widths.
        error: Largest difference from the original network, as a share of the spread of its answers.
    """

    groups: tuple[GroupRow, ...]
    madds: tuple[int, ...]
    front: int
    cut: str
    sliceable: float
    error: float
    notes: tuple[str, ...] = ()
    cuts: tuple[str, ...] = ()


def report(plan: Plan, net: Supernet, error: float) -> SlimReport:
    costs = {op.name: madds(op) for op in plan.ops if op.kind in COUNTED}
    total = sum(costs.values())
    table = count(net)
    rows = []
    for group, counts in plan.counts.items():
        writers, spent, unit = [], 0, 0
        for op in plan.ops:
            if op.name not in costs:
                continue
            mine = [factor for each, factor in plan.layout(op.name) if each == group]
            if mine:
                writers.append(op.place or op.name)
                unit = unit or mine[0]
            if mine or group in {each for each, _ in plan.layout(op.inputs[0])}:
                spent += costs[op.name]
        if writers:
            fixed = plan.groups.reasons.get(group, "")
            if not fixed and counts[0] == counts[-1]:
                fixed = "it is too small to be slimmed"
            rows.append(GroupRow(tuple(writers), tuple(unit * members for members in counts), spent / total, fixed))
    sliced = sum(
        cost
        for op in plan.ops
        if (cost := costs.get(op.name, 0)) and (plan.sliced(op.name) or plan.sliced(op.inputs[0]))
    )
    ops = {op.name: op for op in plan.ops}
    places = [ops[name].place or name for name in plan.cuts]
    return SlimReport(
        groups=tuple(rows),
        madds=tuple(table.madds(path) for path in net.space.uniform),
        front=table.whole.front.madds,
        cut=places[0],
        cuts=tuple(places[1:]),
        sliceable=sliced / total,
        error=error,
        notes=tuple(plan.traced.notes),
    )
