"""Making images smaller: one operation, whoever computes it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from onnx import helper
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dsnet.export.layers import resized
from dsnet.export.whole import finish
from dsnet.export.writer import FLOAT, Graph, Model
from dsnet.nn.resize import Dense, InBlocks, Resize, resizing

BLOCKS = [(112, 48), (112, 64), (112, 80), (112, 96), (112, 100), (112, 56), (112, 16), (112, 7), (224, 160), (33, 22)]
WHOLE = [(112, 111), (112, 109), (112, 82), (32, 31)]  # without a common divisor that is large enough
ALL = [(*pair, kind) for pairs, kind in ((BLOCKS, InBlocks), (WHOLE, Dense)) for pair in pairs]


def image(side: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(2, 3, side, side, dtype=dtype, generator=torch.Generator().manual_seed(side))


def by_matrix(x: Tensor, target: int) -> Tensor:
    matrix = torch.from_numpy(resizing(x.shape[-1], target)).to(x)
    return matrix @ x @ matrix.T


@pytest.mark.parametrize(("source", "target", "kind"), ALL)
def test_it_is_torchs_antialiased_interpolation(source: int, target: int, kind: type[nn.Module]) -> None:
    x, layer = image(source), Resize((target, source), 3)
    assert isinstance(layer.ways[0], kind)
    ours = layer(x, 0)
    theirs = F.interpolate(x, (target, target), mode="bilinear", antialias=True, align_corners=False)
    assert (ours - theirs).abs().max() < 1e-4
    assert (ours - by_matrix(x, target)).abs().max() < 1e-5
    assert (ours - F.interpolate(x, (target, target), mode="bilinear")).abs().max() > 1e-2  # and not the plain one
    assert layer(x, 1) is x


@pytest.mark.parametrize(("source", "target"), BLOCKS)
def test_what_the_border_cuts_is_made_up_for(source: int, target: int) -> None:
    """A flat image stays flat. Without the factors, only the pixels at the border would be wrong."""
    way = Resize((target, source), 1).double().ways[0]
    assert isinstance(way, InBlocks)
    flat = torch.ones(1, 1, source, source, dtype=torch.float64)
    assert (way(flat) - 1).abs().max() < 1e-6
    way.factors.fill_(1.0)
    wrong = (way(flat) - 1).abs()[0, 0]
    assert min(wrong[0].min(), wrong[-1].min()) > 1e-3
    assert wrong[1:-1, 1:-1].max() < 1e-6


@pytest.mark.parametrize(("source", "target", "kind"), ALL)
def test_its_cost_is_what_the_flop_counter_counts(source: int, target: int, kind: type[nn.Module]) -> None:
    layer, x = Resize((target, source), 3), image(source)
    for size in (0, 1):
        with FlopCounterMode(display=False) as counter:
            layer(x, size)
        assert counter.get_total_flops() // 2 == len(x) * layer.madds(x.shape, size)
    whole = 3 * target * source * (source + target)
    assert layer.madds(x.shape, 0) <= whole * (0.5 if kind is InBlocks else 1)


def test_few_pixels_are_read_where_sizes_have_a_large_common_divisor() -> None:
    """Along each side, a pixel of the result reads a block and the pixels beside it, where the matrix has all."""
    for source, sizes in ((112, (48, 64, 80, 96)), (224, (96, 128, 160, 192))):
        layer = Resize((*sizes, source), 3)
        for number, size in enumerate(sizes):
            assert layer.madds((1, 3, source, source), number) == 9 * 3 * size * (source + size)


@pytest.mark.parametrize(("source", "target", "kind"), ALL)
def test_files_and_extracted_networks_compute_the_same(
    source: int, target: int, kind: type[nn.Module], tmp_path: Path
) -> None:
    layer, x = Resize((target, source), 3), image(source)
    expected = layer(x, 0)
    twin = pickle.loads(pickle.dumps(layer.materialise(0)))
    assert torch.equal(twin(x), expected)
    assert not {type(part).__module__.partition(".")[0] for part in twin.modules()} & {"dsnet"}
    assert torch.equal(layer.materialise(1)(x), x)

    graph = Graph(Model(shared=False))
    y = graph.op("Identity", resized(graph, layer, "image", 0))
    infos = [helper.make_tensor_value_info(name, FLOAT, None) for name in ("image", y)]
    file = tmp_path / "resize.onnx"
    file.write_bytes(finish(graph, "resize", infos[:1], infos[1:]).SerializeToString())
    (found,) = onnxruntime.InferenceSession(file).run(None, {"image": x.numpy()})
    assert np.abs(found - expected.numpy()).max() < 1e-5


def test_half_precision_of_a_training_does_not_reach_the_pixels() -> None:
    layer, x = Resize((64, 112), 3), image(112)
    with torch.autocast("cpu", torch.bfloat16):
        found = layer(x, 0)
    assert found.dtype == torch.float32
    assert torch.equal(found, layer(x, 0))


def test_a_network_in_doubles_resizes_in_doubles() -> None:
    layer = Resize((48, 112), 3).double()
    found = layer(image(112), 0)
    assert found.dtype == torch.float64
    assert torch.equal(found, layer(image(112).double(), 0))
