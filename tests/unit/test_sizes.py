"""Several image sizes: a path is a setting, and every law about paths holds for settings."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import dsnet
from dsnet import DynamicRunner, export_bundle, export_onnx, open_runner, quantisation
from dsnet.cli import main
from dsnet.errors import RoutingError, SlimError
from dsnet.manifest import Policy
from dsnet.models import GraphSpec, count, create_model, eager
from dsnet.models.narrow import narrowed
from dsnet.models.sizes import at_sizes
from dsnet.nn import SliceBatchNorm2d
from dsnet.pictures import as_batch
from dsnet.report.tables import human
from dsnet.routers import RouterSpec
from dsnet.slimming.network import slim
from dsnet.space import WidthPath, WidthSpace
from dsnet.tasks import load, save
from dsnet.tasks.classification.config import ClassificationConfig, ModelConfig
from dsnet.tasks.classification.looks import Known, chosen_settings
from dsnet.tasks.detection.spec import DetectorSpec
from dsnet.training import IEB, IEBConfig, SGSConfig, recalibrate
from support.networks import assert_close, randomised
from support.pictures import snapshots
from support.sizes import SIZES, everywhere, pictures, routed, settings, sized

NETWORKS = ["ds_mobilenet_v1_tiny", "ds_resnet_tiny", "ds_efficientnet_tiny", "mobilenet_v1_tiny", "resnet_tiny"]


class Small(nn.Module):
    """A CNN that `slim` converts."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.body = nn.Sequential(nn.Conv2d(16, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 1))
        self.fc = nn.Linear(64, 7)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.body(self.stem(x)).mean((2, 3)))


@pytest.mark.parametrize("name", NETWORKS)
def test_a_setting_is_the_network_at_that_size_on_the_resized_image(name: str) -> None:
    net, x = sized(name), pictures(3)
    for path in settings(net):
        size, row = path[0], len(SIZES)
        alone = randomised(name, dtype=torch.float64)  # its weights and statistics are replaced
        state = {
            key: tensor[size::row] if "running_" in key or "num_batches" in key else tensor
            for key, tensor in net.state_dict().items()
        }
        alone.load_state_dict(state)
        assert net.resize is not None
        assert_close(net(x, path), alone(net.resize(x, size), path[1:]))


@pytest.mark.parametrize("name", NETWORKS)
def test_the_cost_of_a_setting_is_what_the_flop_counter_counts(name: str) -> None:
    net, x = sized(name), pictures(1)
    table = count(net)
    for path in settings(net):
        with FlopCounterMode(display=False) as counter:
            net(x, path)
        assert counter.get_total_flops() // 2 == table.cost(path).layers, path
    assert table.widest == count(net.spec.at_one_size(), SIZES[-1]).widest


@pytest.mark.parametrize("name", NETWORKS)
def test_several_settings_at_once_are_each_of_them(name: str) -> None:
    net, x = sized(name), pictures(3)
    paths = [*settings(net), net.space.widest]
    for path, logits in zip(paths, net.forward_paths(x, paths), strict=True):
        assert_close(logits, net(x, path))
        assert_close(dsnet.extract(net, path)(x), net(x, path))
        assert_close(dsnet.extract(net, path, fold=True)(x), net(x, path))


@pytest.mark.parametrize("name", ["ds_mobilenet_v1_tiny", "mobilenet_v1_tiny"])
def test_statistics_belong_to_a_setting(name: str) -> None:
    net, x = sized(name), pictures(16)
    assert recalibrate(net, [x]) == 1
    for norm in net.modules():
        if isinstance(norm, SliceBatchNorm2d):
            assert norm.num_batches_tracked.tolist() == [1] * len(norm.channels)
    first = next(norm for norm in net.front.modules() if isinstance(norm, SliceBatchNorm2d))
    assert len(first.channels) == len(SIZES)
    assert not torch.equal(first.running_var[0], first.running_var[-1])
    net.train()
    before = first.running_mean.clone()
    net(x, (1, *net.space.widest[1:]))
    changed = (first.running_mean != before).any(1)
    assert changed.tolist() == [False, True, False]


def test_training_draws_settings_and_reaches_all_of_them() -> None:
    net = sized("ds_mobilenet_v1_tiny", torch.float32).train()
    stage, rng = IEB(net, IEBConfig(paths=2)), random.Random(0)
    drawn = [path for _ in range(200) for path in stage.draw(rng).paths]
    assert set(drawn) == set(net.space) - {net.space.slimmest, net.space.widest}
    losses = stage(
        pictures(4, torch.float32), torch.tensor([0, 1, 2, 3]), stage.draw(rng), sized("ds_mobilenet_v1_tiny").float()
    )
    sum(losses.values()).backward()  # type: ignore[union-attr]
    assert all(torch.isfinite(p.grad).all() for p in net.parameters() if p.grad is not None)
    assert set(losses) == {"widest", "random1", "random2", "slimmest"}


def test_a_network_is_saved_and_loaded_with_its_sizes(tmp_path: Path) -> None:
    net = sized("ds_mobilenet_v1_tiny", torch.float32)
    save(net, tmp_path)
    again, x = load(tmp_path), pictures(2, torch.float32)
    assert again.spec == net.spec
    for path in settings(net):
        assert torch.equal(again(x, path), net(x, path))


@pytest.mark.parametrize("widths", [(1.0,), (0.5, 1.0)])
def test_a_converted_network_runs_at_several_sizes(widths: tuple[float, ...]) -> None:
    torch.manual_seed(0)
    model, x = Small().eval(), pictures(4, torch.float32)
    net = slim(model, x[:1], widths, sizes=SIZES)
    assert isinstance(net.spec, GraphSpec)
    assert net.space == WidthSpace.full((len(widths),), sizes=3)
    assert_close(net(x, net.space.widest), model(x), 1e-4)
    assert net.resize is not None
    small = net.resize(x, 0)
    assert_close(net(x, (0, len(widths) - 1)), model(small), 1e-4)  # until it has statistics of its own
    assert_close(at_sizes(net, ())(small, (len(widths) - 1,)), model(small), 1e-4)
    with pytest.raises(SlimError, match="at least two"):
        slim(model, x[:1], (1.0,))
    with pytest.raises(SlimError, match="must be that of the example, 32 px"):
        slim(model, x[:1], widths, sizes=(16, 24))


SLOW = pytest.mark.slow
LOOKS = [
    ("mobilenet_v1_tiny", ((0,), (1,), (2,))),
    ("ds_mobilenet_v1_tiny", ((0, 1), (0, 4), (1, 3), (2, 5))),
    pytest.param("ds_mobilenet_v1_tiny", ((0, 5), (2, 5)), marks=SLOW),
    pytest.param("ds_resnet_tiny", ((0, 1, 0, 2, 1), (2, 3, 3, 3, 3)), marks=SLOW),
]


@pytest.mark.parametrize(("name", "candidates"), LOOKS)
def test_every_runner_routes_alike(name: str, candidates: tuple[WidthPath, ...], tmp_path: Path) -> None:
    net, x = routed(name, candidates), pictures(20, torch.float32, seed=2)
    live, table = eager(net), count(net)
    taken: set[WidthPath] = set()
    runners = [DynamicRunner(net), *everywhere(net, tmp_path)]
    for lam in (-1.0, 0.0, 0.4, 1.0):
        expected = live.run(x, Policy(lam))
        taken |= {tuple(path) for path in expected.paths.tolist()}
        for row, path in enumerate(map(tuple, expected.paths.tolist())):
            assert_close(expected.logits[row : row + 1], net(x[row : row + 1], path), 1e-4)  # that of the last look
            assert int(expected.madds[row]) == table.madds(path, dynamic=True)
        for runner in runners:
            found = runner.run(x, Policy(lam))
            assert torch.equal(found.paths, expected.paths), runner.runtime
            assert torch.equal(found.madds, expected.madds)
            assert_close(found.logits, expected.logits, 1e-4)
            assert_close(found.scores[0], expected.scores[0], 1e-4)
    assert taken == set(candidates)
    for runner in runners[1:]:  # a file holds the settings of its router only
        assert runner.paths == list(candidates)
        for path in candidates:
            assert_close(runner.run_path(x, path).logits, net(x, path), 1e-4)
        if name != "mobilenet_v1_tiny":
            with pytest.raises(ValueError, match="not in this file"):
                runner.run_path(x, (1, *net.space.slimmest[1:]))


def test_a_pin_that_the_file_does_not_hold_fails_in_plain_onnx_runtime(tmp_path: Path) -> None:
    net = routed("ds_mobilenet_v1_tiny", ((0, 5), (2, 5)))
    session = onnxruntime.InferenceSession(export_onnx(net, tmp_path / "model.onnx"))
    feed = {"image": pictures(1, torch.float32).numpy(), "max_width": np.array([-1]), "max_size": np.array([-1])}
    logits, path, *_ = session.run(None, {**feed, "pin": np.array([2, 5])})
    assert path.tolist() == [2, 5]
    assert_close(torch.from_numpy(logits), net(pictures(1, torch.float32), (2, 5)), 1e-4)
    with pytest.raises(Exception, match=r"out of data bounds|indices"):
        session.run(None, {**feed, "pin": np.array([1, 5])})


@pytest.mark.parametrize(
    "name",
    ["mobilenet_v1_tiny", *(pytest.param(each, marks=SLOW) for each in ("ds_mobilenet_v1_tiny", "ds_resnet_tiny"))],
)
def test_without_a_router_a_file_holds_all_settings(name: str, tmp_path: Path) -> None:
    net, x = sized(name, torch.float32), pictures(2, torch.float32)
    recalibrate(net, [pictures(8, torch.float32)])
    net.eval()
    first, file = settings(net)[2], export_onnx(net, tmp_path / "model.onnx")
    runner = open_runner(file, threads=1)
    assert runner.paths == net.space.uniform
    for path in runner.paths:
        assert_close(runner.run_path(x, path).logits, net(x, path), 1e-4)
    alone = open_runner(export_onnx(net, tmp_path / "path.onnx", path=first), threads=1)
    assert_close(alone.run_path(x, first).logits, net(x, first), 1e-4)
    if name == "ds_mobilenet_v1_tiny":
        bundle = open_runner(export_bundle(net, tmp_path / "bundle"), threads=1)
        for path in bundle.paths:
            assert_close(bundle.run_path(x, path).logits, net(x, path), 1e-4)


def test_int8_settings_are_close_to_floats_in_every_file(tmp_path: Path) -> None:
    net = routed("ds_mobilenet_v1_tiny", ((0, 5), (1, 5), (2, 5)))
    x, photos = pictures(12, torch.float32, seed=2), snapshots(4)
    int8 = quantisation(net, x)
    file, bundle = everywhere(net, tmp_path, int8=int8)
    whole = open_runner(export_onnx(net, tmp_path / "raw.onnx", raw=True, int8=int8), threads=1)
    for path in net.candidates:
        static = open_runner(export_onnx(net, tmp_path / "path.onnx", path=path, int8=int8), threads=1)
        expected, floats = static.run_path(x, path).logits, net(x, path)
        assert ((expected - floats).square().mean().sqrt() / floats.std()) < 0.3
        assert_close(file.run_path(x, path).logits, expected, 1e-4)
        assert_close(bundle.run_path(x, path).logits, expected, 1e-4)
        seen = file.run_path(as_batch(photos, file.manifest), path).logits
        assert np.allclose(whole.run_path(photos, path).logits, seen, atol=1e-4 * seen.std())


def test_a_second_look_pays_for_both() -> None:
    net = routed("ds_mobilenet_v1_tiny", ((0, 1), (0, 4), (2, 5)))
    table = count(net)
    head = net.probe.madds()
    assert table.madds((0, 1), dynamic=True) == table.madds((0, 1)) + head
    assert table.madds((2, 5), dynamic=True) == table.madds((0, 1)) + head + table.madds((2, 5))
    assert table.madds((0, 4), dynamic=True) < table.madds((0, 1)) + head + table.madds((0, 4))  # they share the front


def test_settings_are_chosen_on_the_hull() -> None:
    """Of four settings, one costs more than a better one: it is never chosen, and the most accurate always is."""
    generator, labels = torch.Generator().manual_seed(0), torch.arange(600) % 5
    answers = []
    for sharpness in (0.8, 0.5, 2.0, 3.0):
        logits = torch.randn(600, 5, generator=generator)
        logits[torch.arange(600), labels] += sharpness
        answers.append(logits.log_softmax(1))
    known = Known([(0,), (1,), (2,), (3,)], torch.stack(answers, 1), labels, np.array([1.0, 2.0, 4.0, 8.0]))
    chosen = chosen_settings(known)
    assert chosen[-1] == (3,)
    assert (1,) not in chosen
    assert 2 <= len(chosen) <= 3


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((32, 32), "must rise, each of them once"),
        ((32, 16), "must rise"),
        ((32,), "two at least"),
        ((4, 32), "image size 4 is too small"),
    ],
)
def test_wrong_sizes_are_refused(sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        create_model("ds_mobilenet_v1_tiny", sizes=sizes, image_size=32)


def test_sizes_must_fit_the_data_the_router_and_the_task() -> None:
    with pytest.raises(ValueError, match=r"largest of the image sizes \[16, 64\] must be that of the images, 32"):
        ModelConfig(sizes=[16, 64]).spec(image_size=32)
    with pytest.raises(ValueError, match="chooses widths at one image size"):
        ClassificationConfig(model=ModelConfig(sizes=[16, 32]), sgs=SGSConfig(router="gate"))
    with pytest.raises(ValueError, match="freeze front keeps the statistics"):
        ClassificationConfig(model=ModelConfig(sizes=[16, 32]), freeze="front")
    assert ClassificationConfig(model=ModelConfig(sizes=[16, 32])).sgs.router == "margin"
    spec = create_model("ds_mobilenet_v1_tiny", sizes=SIZES).spec
    with pytest.raises(ValueError, match="router gate chooses widths at one"):
        replace(spec, router=RouterSpec("gate"))
    with pytest.raises(ValueError, match="a detector runs at one"):
        DetectorSpec(spec, num_classes=3)
    with pytest.raises(RoutingError, match="several image sizes"):
        narrowed(routed("ds_mobilenet_v1_tiny", ((0, 5), (2, 5))), [0, 5])


def test_paths_are_written_with_their_size() -> None:
    manifest = sized("ds_mobilenet_v1_tiny").manifest()
    assert manifest.parse_path("20px:3") == manifest.parse_path("1,3") == (1, 3)
    assert manifest.parse_path("20px") == (1, 5)
    assert manifest.name_of((1, 3)) == "20px:3"
    assert sized("mobilenet_v1_tiny").manifest().parse_path("32px") == (2,)
    with pytest.raises(ValueError, match="16px, 20px, 32px"):
        manifest.parse_path("48px")
    with pytest.raises(ValueError, match="an image size and 1 choice points"):
        manifest.parse_path("1")
    with pytest.raises(ValueError, match="takes 32"):
        manifest.check_input((1, 3, 16, 16))


def test_info_speaks_of_the_front_of_every_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = {"ds_mobilenet_v1_tiny": "share a front", "mobilenet_v1_tiny": "All image sizes share their weights"}
    for name, said in words.items():
        net = sized(name, torch.float32)
        save(net, tmp_path / name)
        assert main(["info", str(tmp_path / name)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"{name} at 16, 20, 32 px" in shown
        assert said in shown
        assert "Every path shares" not in shown
        if said == "share a front":
            for table in net.manifest().costs:
                assert f"{human(table.front.madds)} at {table.image_size} px" in shown
        assert main(["info", str(tmp_path / name), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["sizes"] == list(SIZES)
