"""Networks in INT8: weights of int8 that all widths share, maps of uint8 with a range for every width.

Convolutions and what lies between them are written in floats between DequantizeLinear and QuantizeLinear, which
runtimes fuse: a convolution of a slice of the shared weights becomes one QLinearConv. The batch norm of the width is
folded into its scales, ReLU into the range of its output. QLinearConv itself would be as fast, but OpenVINO misreads
its scales. The slice must come before DequantizeLinear, or ONNX Runtime does not fuse.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from dsnet.export.layers import LayerWriter, conv_attributes, rows_and_columns
from dsnet.export.ranges import CLASSIFIER, Part, Range, covering, first_part, front_part, last_part, observe, rest_part
from dsnet.export.writer import Count, Graph, Quantised, array, counted, taken
from dsnet.models.parts import LiveParts
from dsnet.nn import Fixed, Gate, GlobalPool, SliceBatchNorm2d, SliceConv2d, SliceLinear
from dsnet.nn.slicing import leading
from dsnet.nn.tracing import trace

LEAST = 64  # channels that a convolution reads at full width; all before the first such convolution stays in floats
CODES = 127  # weights lie in -127 to 127, so that a change of sign is exact
ROOM = 2**31 - 1  # of the sum of a convolution, bias included
TINY = 1e-30  # smallest scale
SIGMOID = (0.0, 1.0)
SWISH = 3.0  # hard-swish is 0 below minus this, and the identity above
MAPS = {operator.add, operator.mul, torch.sigmoid, torch.tanh, F.relu, F.relu6, "sigmoid", "add", "mul"}


@dataclass(frozen=True)
class Int8:
    """How a network is quantised: the names of the layers that compute with codes, and the range of every map."""

    layers: frozenset[str]
    ranges: Mapping[str, Range]

    def writer(self, traced: fx.GraphModule, graph: Graph, gates: set[str], part: Part) -> Int8Writer:
        return Int8Writer(traced, graph, gates, part, self)

    def digest(self, weights: str) -> str:
        """The digest of a file with these weights. It is not that of the file of floats, which takes longer."""
        return hashlib.sha256(f"{weights} int8".encode()).hexdigest()


def affine(low: float, high: float) -> tuple[float, int]:
    """Scale and zero point of a map. Zero has a code, because convolutions pad with it."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = float(np.float32((high - low) / 255)) or 1 / 255
    return scale, round(-low / scale)


def swish_affine(high: float) -> tuple[float, int]:
    """Scale and zero point of what hard-swish reads: the first code is -3, whatever lies below."""
    scale, _ = affine(-SWISH, high)
    zero = int(SWISH / scale)
    return SWISH / zero, zero


def quantisation(net: Any, images: Tensor) -> Int8:
    """Quantise a network by the ranges of its maps on some images [N, C, S, S] that are like those it will see."""
    live = net.parts(routed=False)
    if not (layers := quantised_layers(live)):
        raise ValueError(
            f"no convolution of {net.spec.name} reads {LEAST} channels or more, so INT8 would gain nothing; export it "
            f"in floats"
        )
    return Int8(layers, observe(live, covering(list(net.space)), images))


def quantised_layers(live: LiveParts) -> frozenset[str]:
    """The layers that compute with codes: all convolutions from the first that reads at least `LEAST` channels on, and
    the gates behind it that do not score widths."""
    rows = live.net.space.rows(live.net.space.widest)
    parts = [front_part(live, rows[0])]
    for point, (w_in, w_out) in enumerate(pairwise(rows)):
        parts += [first_part(live, point, w_in, w_out), rest_part(live, point, w_out)]
    left = [name for point in range(len(rows)) for name in live.left_at(point)]
    found: set[str] = set()
    for part in [*parts, last_part(live, left)]:
        traced = trace(live.owner, part.call, max(1, len(part.takes)))
        for node in traced.graph.nodes:
            if node.op == "call_module":
                name = str(node.target).removeprefix("root.")
                channels = reads(live.owner.get_submodule(name))
                if channels >= LEAST or (found and (channels or scales_only(live.owner, name))):
                    found.add(name)
    return frozenset(found)


def reads(layer: nn.Module) -> int:
    """The number of channels that a convolution reads at full width; 0 for other layers."""
    match layer:
        case SliceConv2d():
            return layer.cin.max
        case Fixed(layer=nn.Conv2d() as conv):
            return conv.in_channels
    return 0


def scales_only(owner: nn.Module, name: str) -> bool:
    """Whether a layer belongs to a gate that scales channels and scores no widths."""
    gate = owner.get_submodule(name.rpartition(".")[0])
    return isinstance(gate, Gate) and gate.slimming is None


class Int8Writer(LayerWriter):
    """Runs a trace on names, some of which are of codes."""

    def __init__(self, traced: fx.GraphModule, graph: Graph, gates: set[str], part: Part, int8: Int8) -> None:
        super().__init__(traced, graph, gates)
        self.int8, self.keys = int8, part.keys(traced)
        self.held: dict[fx.Node, Quantised] = {}  # codes of values that were written as floats
        self.open: set[fx.Node] = set()  # floats between codes: what follows is to be quantised

    def layer(self, n: fx.Node, x: str, *widths: int) -> str:
        name, layer = str(n.target).removeprefix("root."), self.fetch_attr(str(n.target))
        if name == CLASSIFIER and isinstance(layer, SliceLinear):
            return quantised_product(self.out, layer, self.codes(n.args[0]), counted(layer.cin, widths[0]))
        if name not in self.int8.layers:
            return super().layer(n, self.out.real(x), *widths)
        match layer:
            case SliceConv2d():
                counts, about = rows_and_columns(layer, widths[0], widths[-1]), conv_attributes(layer, widths[0])
                bias = layer.shift(widths[-1])
                return self.quantised_convolution(n, f"{name}.weight", layer.weight, counts, bias, about)
            case Fixed(layer=nn.Conv2d(groups=1, dilation=(1, 1), padding=(int(), int())) as conv):
                about = {"strides": list(conv.stride), "pads": [*conv.padding] * 2}
                counts = [conv.out_channels]
                return self.quantised_convolution(n, f"{name}.layer.weight", conv.weight, counts, conv.bias, about)
            case SliceLinear():
                self.pooled.add(n)
                counts = [layer.cout[widths[1]], layer.cin[widths[0]]]
                weight, bias = layer.weight[:, :, None, None], layer.bias
                return self.quantised_convolution(
                    n, f"{name}.weight", weight, counts, None if bias is None else bias[: counts[0]], {}
                )
            case GlobalPool():
                self.pooled.add(n)
                return self.quantise(n, self.out.op("GlobalAveragePool", self.out.real(self.codes(n.args[0]))))
        raise TypeError(f"{type(layer).__name__} has no INT8 form")

    def apply(self, n: fx.Node, *args: Any, **options: Any) -> Any:
        inputs = n.all_input_nodes
        if not self.within(n) or n.target not in {*MAPS, F.silu, F.hardswish, F.max_pool2d}:
            return super().apply(n, *map(self.real, args), **options)
        if n.target is F.max_pool2d:
            x = self.codes(inputs[0])
            return Quantised(super().apply(n, str(x), *args[1:], **options), x.scale, x.zero)
        if n.target is F.silu:
            x = self.codes(inputs[0])
            gate = self.out.quantised(self.out.op("Sigmoid", self.out.real(x)), *affine(*SIGMOID))
            return self.quantise(n, self.out.op("Mul", self.out.real(x), self.out.real(gate)))
        if n.target is F.hardswish and self.swished(inputs[0]):
            return self.hard_swish(n, self.codes(inputs[0]))
        if len(inputs) > 1:
            known = {str(self.env[node]): self.codes(node) for node in inputs}
            args = tuple(known.get(arg, arg) if isinstance(arg, str) else arg for arg in args)
        return self.passed(n, super().apply(n, *map(self.real, args), **options))

    def same(self, n: fx.Node, x: str) -> str:
        return self.passed(n, x) if self.within(n) else x

    def within(self, n: fx.Node) -> bool:
        """Whether a node reads codes, or floats between codes."""
        return any(isinstance(self.env[node], Quantised) or node in self.open for node in n.all_input_nodes)

    def real(self, item: Any) -> Any:
        """An argument with floats in place of codes."""
        if isinstance(item, list | tuple):
            return type(item)(map(self.real, item))
        return self.out.real(item) if isinstance(item, str) else item

    def passed(self, n: fx.Node, y: str) -> str:
        """The value of a node between codes. It stays a float if one function of it alone follows."""
        if len(n.users) == 1:
            (user,) = n.users
            if user.op != "call_module" and user.op != "output" and user.all_input_nodes == [n]:
                self.open.add(n)
                return y
        return y if isinstance(y, Quantised) else self.quantise(n, y)

    def quantise(self, n: fx.Node, y: str) -> Quantised:
        low, high = self.int8.ranges[self.keys[n]]
        return self.out.quantised(y, *(swish_affine(high) if self.swished(n) else affine(low, high)))

    def swished(self, n: fx.Node) -> bool:
        """Whether a value is read by hard-swish alone, so that its codes begin at -3."""
        alone = n.op != "placeholder" and [user.target for user in n.users] == [F.hardswish]
        return alone and self.int8.ranges[self.keys[n]][1] < 254 * SWISH

    def hard_swish(self, n: fx.Node, x: Quantised) -> Quantised:
        """x * min(x + 3, 6) / 6. The codes of x begin at -3, so the same codes, counted from zero, stand for x + 3.

        A clip of codes and a product are all that it takes. In floats between codes it would take longer than SiLU.
        """
        most, factor = round(2 * SWISH / x.scale), str(x)
        if most < 255:
            factor = self.out.op("Clip", x, self.out.constant(0, np.uint8), self.out.constant(most, np.uint8))
        shifted = Quantised(factor, x.scale / (2 * SWISH), 0)
        return self.quantise(n, self.out.op("Mul", self.out.real(x), self.out.decode(shifted)))

    def codes(self, node: Any) -> Quantised:
        """The codes of a value, which is quantised once however often it is read."""
        x = self.env[node]
        if isinstance(x, Quantised):
            return x
        if node not in self.held:
            self.held[node] = self.quantise(node, x)
        return self.held[node]

    def quantised_convolution(
        self,
        n: fx.Node,
        name: str,
        weight: Tensor,
        counts: Sequence[Count],
        bias: Tensor | None,
        about: Mapping[str, Any],
    ) -> Quantised:
        """A convolution of codes. The batch norm behind it is folded into its scales, ReLU into the range of its
        output.

        bias: That of the filters in use. about: Attributes of the convolution.
        """
        x, last, out = self.codes(n.args[0]), n, self.out
        sign = np.ones(len(weight), np.float32)
        scale = taken(sign, counts[:1])
        shift = 0 * scale if bias is None else array(bias)
        if (found := self.norm_behind(n)) is not None:
            norm, width = found
            rows = (leading(row[width], norm.channels, width) for row in norm.folded())
            scale, behind = map(array, rows)
            sign, own = signs(norm, width)
            name += f".{width}" * own
            shift = shift * scale + behind
            last = next(iter(n.users))
        while len(last.users) == 1 and next(iter(last.users)).target in (F.relu, F.relu6):
            last = next(iter(last.users))
        codes, steps = weight_codes(array(weight), sign)
        scales, biases = with_bias(taken(steps, counts[:1]) * np.abs(scale), shift, x.scale, terms=codes[0].size)
        y = out.op(
            "Conv",
            out.real(x),
            out.decoded(out.sliced(name, codes, counts), scales),
            out.decoded(out.constant(biases, np.int32), scales * np.float32(x.scale)),
            **{"kernel_shape": list(weight.shape[2:]), **about},
        )
        result = self.quantise(last, y)
        while last is not n:
            self.folded[last] = result
            (last,) = last.all_input_nodes
        return result


def quantised_product(graph: Graph, layer: SliceLinear, x: Quantised, columns: Count, *, bias: bool = True) -> str:
    """What some columns of features add to the logits, not rounded. bias: whether the bias is added, too."""
    codes, steps = weight_codes(array(layer.weight), np.ones(len(layer.weight)))
    shift = np.zeros(len(steps)) if layer.bias is None else array(layer.bias)
    scales, biases = with_bias(steps, shift, x.scale, terms=codes[0].size)
    block = graph.sliced(f"{CLASSIFIER}.weight", codes, [len(codes), columns])
    inputs = [graph.decoded(block, scales, np.int8)]
    if bias:
        inputs.append(graph.decoded(graph.constant(biases, np.int32), scales * np.float32(x.scale), np.int32))
    return graph.op("Gemm", graph.real(x), *inputs, transB=1)


def signs(norm: SliceBatchNorm2d, width: int) -> tuple[np.ndarray, bool]:
    """The weight of a batch norm, by whose sign filters are stored, and whether the width needs filters of its own.

    It does where it has affine parameters of its own and training has changed a sign that the widest width has.
    """
    if not norm.own:
        return array(norm.weight), False
    shared, here = (array(norm.weight[row]) for row in (-1, width))
    own = bool(((shared < 0) != (here < 0))[norm.prefix[width].cpu().numpy()].any())
    return (here if own else shared), own


def weight_codes(whole: np.ndarray, sign: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights [O, ...] as int8 and the step of each filter [O], which all widths share.

    sign: The weight of the batch norm behind each filter. Where it is negative the filter changes its sign, so that
        scales are positive at every width.
    """
    steps = np.maximum(np.abs(whole).reshape(len(whole), -1).max(1) / CODES, TINY).astype(np.float32)
    signed = np.where(sign < 0, -steps, steps)
    return np.rint(whole / signed.reshape(-1, *[1] * (whole.ndim - 1))).astype(np.int8), steps


def with_bias(scales: np.ndarray, shifts: np.ndarray, step: float, *, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """The scales of a convolution's filters, and its bias as int32 in steps of scale times `step`, that of its input.

    Where a batch norm has almost switched a filter off, the bias is too many of its steps for int32. The scale is then
    raised until the bias fits. This makes the filter's own part larger than it is, by at most one hundredth of the bias
    for 500 terms: it stays below a step of the output. terms: Number of products in a sum.
    """
    room = ROOM - terms * CODES * 255
    scales = np.maximum(scales, np.abs(shifts).astype(np.float64) / (step * room) * (1 + 1e-6))
    scales = np.maximum(scales, TINY).astype(np.float32)
    return scales, np.rint(shifts / (step * scales.astype(np.float64))).astype(np.int32)
