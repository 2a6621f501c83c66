from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

from dsnet.models import create_model
from dsnet.models.extract import extract
from support.networks import MODELS, assert_close, images, randomised, some_paths

SMALL = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "ds_efficientnet_tiny"]


@pytest.mark.parametrize("name", MODELS)
def test_no_class_of_dsnet_is_inside_and_weights_are_contiguous(name: str) -> None:
    with torch.device("meta"):
        net = create_model(name).eval()
        x = torch.empty(2, 3, net.spec.image_size, net.spec.image_size)
    for fold in (False, True):
        plain = extract(net, net.space.slimmest, fold=fold)
        assert all(type(module).__module__.startswith("torch.") for module in plain.modules())
        assert all(p.is_contiguous() for p in plain.parameters())
        assert plain(x).shape == (2, net.spec.num_classes)
        norms = [m for m in plain.modules() if isinstance(m, nn.BatchNorm2d)]
        assert bool(norms) == (not fold and net.spec.norm.kind == "batch")


@pytest.mark.parametrize("name", SMALL)
def test_torch_export_accepts_it(name: str) -> None:
    net = randomised(name, dtype=torch.float32)
    x = images(net, 2)
    path = some_paths(net)[-1]
    batch = torch.export.Dim("batch")
    program = torch.export.export(extract(net, path, fold=True), (x,), dynamic_shapes=({0: batch},))
    more = images(net, 5)
    assert_close(program.module()(more), net(more, path), 1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_torch_compile_accepts_it_without_graph_breaks(name: str) -> None:
    net = randomised(name, dtype=torch.float32)
    x = images(net, 2)
    path = some_paths(net)[-1]
    compiled = torch.compile(extract(net, path), backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert_close(compiled(x), net(x, path), 1e-4)


def test_the_extracted_network_is_independent_and_trains() -> None:
    net = randomised("ds_mobilenet_v1_tiny", dtype=torch.float32).train()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    plain = extract(net, (2,))
    assert plain.training
    x = images(net, 4)
    # fresh statistics in a copy: the twin must behave like the supernet in training mode too
    assert_close(plain(x), net.forward_paths(x, [(2,)])[0], 1e-5)
    net.load_state_dict(before)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    plain(x).square().sum().backward()
    optimizer.step()
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("fold", [False, True])
def test_a_saved_sub_network_loads_where_dsnet_is_not_installed(fold: bool, tmp_path: Path) -> None:
    net = randomised("ds_efficientnet_tiny", dtype=torch.float32)
    x = images(net)
    torch.save({"net": extract(net, (2,), fold=fold), "x": x, "y": net(x, (2,)).detach()}, tmp_path / "net.pt")
    program = """
import sys, torch
sys.modules["dsnet"] = None  # any import of it fails
saved = torch.load(sys.argv[1], weights_only=False)
assert torch.allclose(saved["net"](saved["x"]), saved["y"], atol=1e-4 * float(saved["y"].std()))
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "net.pt")], check=True, cwd=tmp_path)


def test_extraction_in_one_thread_leaves_calls_in_others_alone() -> None:
    """torch.fx patches module calls while it traces; networks that run meanwhile must not notice."""
    net, other = randomised("ds_resnet_tiny"), randomised("ds_mobilenet_v1_tiny")
    x = images(other)
    expected = other(x, (3,))
    stop, failures = threading.Event(), []

    def run() -> None:
        while not stop.is_set():
            try:
                assert torch.equal(other(x, (3,)), expected)
            except BaseException as error:
                failures.append(error)
                return

    def cut() -> None:
        try:
            for path in some_paths(net, 6):
                extract(net, path)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run), threading.Thread(target=cut), threading.Thread(target=cut)]
    for thread in threads:
        thread.start()
    for thread in threads[1:]:
        thread.join()
    stop.set()
    threads[0].join()
    assert not failures, failures[0]
