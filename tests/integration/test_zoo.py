"""The laws of converted networks on CNNs that others wrote: one small variant of every family of pytorchcv.

docs/results/zoo.json, which benchmarks/zoo.py writes, says which variants these are and what became of them.
"""

from __future__ import annotations

import copy
import json
import pkgutil
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dsnet.errors import SlimError
from dsnet.export.onnx import export_onnx
from dsnet.models import Supernet, count, extract
from dsnet.nn import Gate, SliceBatchNorm2d
from dsnet.opening import open_runner
from dsnet.slimming.network import slim_with_report
from dsnet.tasks import load, save

ROWS = json.loads((Path(__file__).parents[2] / "docs/results/zoo.json").read_text())["rows"]
CONVERTED = {row["family"]: row for row in ROWS if row.get("exact")}
REFUSED = {row["family"]: row for row in ROWS if row.get("traceable") and not row.get("exact")}
EXPORTED = {
    "condensenet", "densenet_cifar", "dla", "efficientnet", "ghostnet", "hardnet", "mobilenetv3", "octresnet",
    "preresnet_cifar", "regnet", "shufflenetv2", "sknet", "squeezenet", "wrn1bit_cifar",
}  # fmt: skip
WIDTHS = (0.25, 0.5, 0.75, 1)


def network(row: dict[str, Any]) -> tuple[nn.Module, Tensor]:
    """A variant with random weights, norms that do something, and two images."""
    pytest.importorskip("pytorchcv", reason="pytorchcv is not installed: pip install --no-deps pytorchcv")
    torch.manual_seed(0)
    model = getattr(import_module(f"pytorchcv.models.{row['family']}"), row["variant"])().eval()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d) and module.affine:
                module.weight.uniform_(0.8, 1.2)
                module.bias.normal_(0, 0.1)
    return model, torch.randn(2, 3, row["size"], row["size"])


def disturbed(net: Supernet) -> Supernet:
    """Other statistics at every width, and a gate that does something: laws on equal rows would prove nothing.

    They have a seed of their own. Random weights amplify what is rounded, in some draws of sknet a thousandfold.
    """
    net = copy.deepcopy(net)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for module in net.modules():
            if isinstance(module, SliceBatchNorm2d):
                module.running_mean += 0.1 * module.running_var.sqrt() * torch.randn_like(module.running_mean)
                module.running_var *= 0.4 * torch.rand_like(module.running_var) + 0.8
                module.num_batches_tracked.fill_(1)
            if isinstance(module, Gate):
                module.expand.weight.normal_(0, 0.3)
                module.expand.bias.normal_(0, 0.3)  # type: ignore[union-attr]
    return net


def assert_same(given: Tensor, wanted: Tensor) -> None:
    """Equal to 1e-4 of the spread of the answers."""
    assert given.shape == wanted.shape
    spread = float(wanted.max() - wanted.min())
    assert float((given - wanted).abs().max()) <= 1e-4 * max(spread, 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("family", CONVERTED)
def test_the_laws_hold_on_every_family(family: str, tmp_path: Path) -> None:
    row = CONVERTED[family]
    model, x = network(row)
    net, report = slim_with_report(model, x[:1], WIDTHS, sort="scale")
    assert report.sliceable == pytest.approx(row["sliceable"])
    assert report.madds[0] / report.madds[-1] == pytest.approx(row["slimmest"])
    with torch.no_grad():
        # Random weights make answers of thousands, and sorting changes the order of sums: floats may differ by more.
        widest = copy.deepcopy(net).double()
        assert_same(widest(x.double(), net.space.widest), copy.deepcopy(model).double()(x.double()).flatten(1))
        check_paths(copy.deepcopy(disturbed(net)).double(), x.double())
        check_files(disturbed(net), x[:1], tmp_path, onnx=family in EXPORTED)


def check_paths(net: Supernet, x: Tensor) -> None:
    """Sliced = extracted = mixed, and cost = FLOP counter, at the slimmest and the widest width."""
    ends = [net.space.slimmest, net.space.widest]
    alone = [net(x[number : number + 1], path) for number, path in enumerate(ends)]
    table = count(net)
    for number, path in enumerate(ends):
        static = extract(net, path)
        with FlopCounterMode(display=False) as counter:
            answer = static(x[number : number + 1])
        assert_same(answer, alone[number])
        assert table.cost(path).layers == counter.get_total_flops() // 2
        assert table.params(path) == sum(weight.numel() for weight in static.parameters())
    mixed, _, _ = net.forward_mixed(x, lambda point, scores: torch.eye(len(WIDTHS), dtype=x.dtype)[[0, -1]])
    for number, answer in enumerate(alone):
        assert_same(mixed[number : number + 1], answer)
    assert (alone[0] - alone[1]).abs().max() > 0


def check_files(net: Supernet, x: Tensor, folder: Path, *, onnx: bool) -> None:
    save(net, folder)
    again = load(folder)
    assert again.spec == net.spec
    assert torch.equal(again(x, net.space.slimmest), net(x, net.space.slimmest))
    if onnx:
        export_onnx(net, folder / "model.onnx")
        runner = open_runner(folder / "model.onnx")
        for path in (net.space.slimmest, net.space.widest):
            assert_same(torch.as_tensor(runner(x, path=path).logits), net(x, path))


@pytest.mark.slow
@pytest.mark.parametrize("family", REFUSED)
def test_what_is_refused_is_refused_in_the_words_of_the_table(family: str) -> None:
    model, x = network(REFUSED[family])
    with pytest.raises(SlimError) as error:
        slim_with_report(model, x[:1], sort="none")
    assert str(error.value) == REFUSED[family]["reason"]


def test_the_table_has_every_family() -> None:
    package = pytest.importorskip("pytorchcv.models", reason="pytorchcv is not installed")
    names = {module.name for module in pkgutil.iter_modules(package.__path__)} - {"common"}
    assert {row["family"] for row in ROWS} == names
    assert len(CONVERTED) >= 0.85 * (len(CONVERTED) + len(REFUSED))
    assert set(CONVERTED) >= EXPORTED
