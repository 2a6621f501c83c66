"""The classifier of a dynamic file: one for all widths, of which a narrow width reads the leading columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dsnet.export.int8 import Int8, affine, quantised_product
from dsnet.export.ranges import CLASSIFIER, FEATURES
from dsnet.export.writer import FLOAT, Count, Graph, Quantised, array
from dsnet.nn import SliceLinear


def write_classifier(
    graph: Graph, layer: SliceLinear, features: str, reads: Sequence[int], position: str | None, int8: Int8 | None
) -> str:
    """The logits of features that were filled up to the widest.

    The columns that the slimmest does not read are multiplied by themselves, and only if another width ran: with one
    image, the time of the product is the time to read its weights. All widths share them.

    reads: The number of columns that are not zero, for each value of `position`. position: None if there is one value.
    """
    if int8 is not None:
        features = graph.quantised(features, *affine(*int8.ranges[FEATURES]))
    least, most = min(reads), max(reads)
    logits = product(graph, layer, features, 0, least)
    if position is None or least == most:
        return logits

    def others(branch: Graph) -> list[str]:
        return [branch.op("Add", logits, product(branch, layer, features, least, most))]

    wide = graph.op("Gather", graph.constant([count > least for count in reads], np.bool_), position)
    (logits,) = graph.either(wide, others, lambda branch: [logits], [FLOAT])
    return logits


def product(graph: Graph, layer: SliceLinear, x: str, start: int, stop: int) -> str:
    """What some columns of features add to the logits. The first of them bring the bias."""
    whole = start == 0 and stop == layer.cin.max
    part = str(x) if whole else graph.op("Slice", x, *map(graph.constant, ([start], [stop], [1])))
    columns: Count = stop if start == 0 else list(range(start, stop))
    if isinstance(x, Quantised):
        return quantised_product(graph, layer, Quantised(part, x.scale, x.zero), columns, bias=start == 0)
    inputs = [graph.sliced(f"{CLASSIFIER}.weight", array(layer.weight), [len(layer.weight), columns])]
    if layer.bias is not None and start == 0:
        inputs.append(graph.sliced(f"{CLASSIFIER}.bias", array(layer.bias), [len(layer.bias)]))
    return graph.op("Gemm", part, *inputs, transB=1)
