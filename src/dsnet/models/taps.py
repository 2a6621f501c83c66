"""Maps inside a converted network that a detector can read: the last one of each resolution.

A map is taken only where nothing else crosses to the layers behind it, so that it holds all that is known there.
"""

from __future__ import annotations

from functools import lru_cache
from math import log2
from typing import TYPE_CHECKING, Any

import torch

from dsnet.models.network import Tap

if TYPE_CHECKING:
    from dsnet.models.graph import GraphSpec, Part

OTHERS = ("pad", "crop", "take", "pad_channels")  # operations behind which a map is not whole, or has a border


@lru_cache(maxsize=64)
def graph_taps(spec: GraphSpec) -> dict[str, tuple[str, Tap]]:
    """The node and the map of each tap by its name, such as stride16, the largest map first."""
    sides, parts = sides_of(spec), parts_of(spec)
    last = {name: number for number, node in enumerate(spec.nodes) for name in node.inputs}
    live: set[str] = set()
    found: dict[str, tuple[str, Tap]] = {}
    for number, node in enumerate(spec.nodes[: spec.head]):
        live = {name for name in live | {node.name} if last.get(name, -1) > number}
        side, own = sides.get(node.name, 0), parts.get(node.name)
        if live != {node.name} or side < 2 or own is None or node.op in OTHERS:
            continue
        choice = None if number < spec.cut else sum(number >= place for place in spec.places) - 1
        if spec.older(own, choice):  # its width was chosen before
            continue
        tap = Tap(choice, spec.counts(own, shared=choice is None), side)
        found[f"stride{2 ** round(log2(spec.image_size / side))}"] = node.name, tap
    return found


def sides_of(spec: GraphSpec) -> dict[str, int]:
    """The sides of all square maps before the classifier, by node."""
    with torch.device("meta"):
        front, segments, _ = spec.modules()
        image = torch.empty(1, spec.in_channels, spec.image_size, spec.image_size)
        width = spec.widths[0] - 1
        values = front.eval().values(image, 0, 0)
        for segment, place in zip(segments, spec.places, strict=False):
            graph: Any = segment.eval().first.graph
            values |= graph.values(values[spec.nodes[place - 1].name], width, width)
    maps = {name: value.shape for name, value in values.items()}
    return {name: shape[2] for name, shape in maps.items() if len(shape) == 4 and shape[2] == shape[3]}


def parts_of(spec: GraphSpec) -> dict[str, tuple[Part, ...] | None]:
    """The channels of the values, in parts; None where they are not known."""
    found: dict[str, tuple[Part, ...] | None] = {}
    for node in spec.nodes:
        read = [found.get(name) for name in node.inputs]
        if node.writes:
            found[node.name] = node.writes
        elif node.op == "cat":
            found[node.name] = None if None in read else tuple(part for parts in read for part in parts or ())
        else:
            found[node.name] = None if node.op in OTHERS else read[0]
    return found
