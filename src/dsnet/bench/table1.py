"""The paper's Table 1: time of several ways to run a quarter of ResNet-50's channels, relative to the ideal."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from dsnet.bench.candidates import eager_call, static_call
from dsnet.bench.timing import interleaved
from dsnet.latency.timing import Call, machine, ratio, summary
from dsnet.models import DynamicRunner, Supernet, create_model, extract
from dsnet.models.devices import torch_threads
from dsnet.nn import SliceConv2d, SliceDepthwise
from dsnet.nn.slicing import Width, index
from dsnet.results import Table1, Way

# Milliseconds that the paper reports, measured on a GPU.
PAPER = {"full": 12.2, "masking": 12.4, "indexing": 16.6, "slicing": 7.9, "ideal": 7.2}


def table1(
    model: str = "s_resnet50", *, image_size: int | None = None, batch: int = 1, threads: int = 1, repeats: int = 10
) -> Table1:
    """Time the slimmest path of a network in every way. `ideal` is that path as an extracted, folded network."""
    net = create_model(model).eval()
    size = image_size or net.spec.image_size
    x = torch.randn(batch, net.spec.in_channels, size, size, generator=torch.Generator().manual_seed(0))
    slimmest, widest = net.space.slimmest, net.space.widest
    runner = DynamicRunner(net)
    calls: dict[str, Call] = {
        "full": static_call(extract(net, widest, fold=True), x),
        "masking": masking_call(net, x),
        "indexing": eager_call(indexed(net), x, slimmest),
        "slicing": eager_call(net, x, slimmest),
        "cached slicing": lambda: runner.run_path(x, slimmest),
        "ideal": static_call(extract(net, slimmest, fold=True), x),
        "ideal again": static_call(extract(net, slimmest, fold=True), x),
    }
    with torch_threads(threads):
        times = interleaved(calls, repeats, what="Table 1")
    paper = {name: ms / PAPER["ideal"] for name, ms in PAPER.items()}
    rows = [Way(name, summary(found), ratio(found, times["ideal"]), paper.get(name)) for name, found in times.items()]
    return Table1(model, size, batch, threads, tuple(rows), machine())


def masking_call(net: Supernet, x: Tensor) -> Call:
    """A call that computes all channels and multiplies those beyond the slimmest width by zero."""

    def choose(point: int, scores: Tensor | None) -> Tensor:
        weights = torch.zeros(len(x), len(net.spec.routing[point]))
        weights[:, 0] = 1
        return weights

    @torch.inference_mode()
    def call() -> Tensor:
        return net.forward_mixed(x, choose)[0]

    return call


def indexed(net: Supernet) -> Supernet:
    """A copy whose convolutions gather their filters by index, as methods with non-contiguous filters must."""
    net = copy.deepcopy(net)
    for module in net.modules():
        if isinstance(module, SliceConv2d) and not isinstance(module, SliceDepthwise):
            module.sliced = _Gather(module)  # type: ignore[method-assign]
    return net


class _Gather:
    def __init__(self, layer: SliceConv2d) -> None:
        self.layer = layer
        self.rows, self.columns = (torch.arange(channels.max) for channels in (layer.cout, layer.cin))

    def __call__(self, w_in: Width, w_out: Width) -> Tensor:
        rows, columns = self.rows[: self.layer.cout[index(w_out)]], self.columns[: self.layer.cin[index(w_in)]]
        return self.layer.weight.index_select(0, rows).index_select(1, columns)
