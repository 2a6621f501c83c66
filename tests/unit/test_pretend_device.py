"""Everything runs on a device that is not the CPU, with the CPU's results, and waits for it as seldom as it should.

The device pretends (`support.pretend`): its kernels are those of the CPU, so results are equal to the bit, and tensors
of two devices never meet in an operator. In mixed precision it lowers what the CPU lowers; a GPU lowers some more. The
kernels and the speed of a real device are not tested here.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dsnet
from dsnet.cli import main
from dsnet.config import packaged, read_yaml
from dsnet.data.dataset import Batch
from dsnet.latency import measure
from dsnet.manifest import Policy
from dsnet.models import devices, eager
from dsnet.models.cached import DynamicRunner
from dsnet.models.devices import SINGLE
from dsnet.nn import RouterSpec, SliceGroupNorm
from dsnet.space import Channels
from dsnet.tasks import config_from
from dsnet.tasks.detection.stages import GatesConfig, GatesStage, WidthsConfig, WidthsStage, median_gap
from dsnet.training import (
    OptimConfig,
    SGSConfig,
    distributed,
    recalibrate,
)
from support.detectors import pictures, random_detector
from support.networks import EARLY, ROUTERS, calibrated, images, randomised, router_net, traces_on, varied
from support.pretend import DEVICE, Pretended, WrongDeviceError, pretended
from support.trainings import CONFIG, TINY, Make, first_stage, loop_of, second_stage

CPU = torch.device("cpu")
OBJECTS = torch.tensor([[[0.1, 0.1, 0.5, 0.6, 0, 0], [0, 0, 0, 0, -1, 0]], [[0.4, 0.3, 0.9, 0.9, 2, 0]] * 2])
UNCACHED = {"router": "gate", "cache": 0}


def equal(one: Any, other: Any, rounding: float = 0.0) -> bool:
    """Whether two states have the same names and values, wherever they are."""
    assert one.keys() == other.keys()
    pairs = [(one[name].cpu(), other[name].cpu()) for name in one]
    return all(torch.allclose(a, b, rounding, rounding) if rounding else torch.equal(a, b) for a, b in pairs)


# The device itself


def test_the_device_refuses_what_a_gpu_refuses() -> None:
    host = torch.arange(6.0).view(2, 3)
    with pretended() as account:
        there = host.to(DEVICE)
        assert there.device == DEVICE
        for mixed in (
            lambda: there + host,
            lambda: host + there,
            lambda: torch.cat([there, host]),
            lambda: torch.stack([there.sum(), torch.tensor(1.0)]),
            lambda: host[torch.tensor([0], device=DEVICE)],
            lambda: torch.nn.functional.linear(there, host),
            lambda: there.add_(host),
            lambda: torch.where(there > 1, there, host),
            lambda: torch.rand(2, device=DEVICE, generator=torch.Generator()),
            lambda: torch.rand(2, generator=torch.Generator(DEVICE)),
        ):
            with pytest.raises(WrongDeviceError):
                mixed()
        with pytest.raises(TypeError, match=r"use \.cpu"):
            there.numpy()
        account.clear()
        assert torch.equal((there * torch.tensor(2.0)).cpu(), host * 2)  # single numbers of the host may take part
        assert there[torch.tensor([1])].tolist() == [[3, 4, 5]]  # and indices
        assert account.sends == {"index": 1}
        assert account.reads == {"_to_copy": 2}
        assert bool(there.sum() > 1)
        assert there[there > 3].shape == (2,)
        assert account.reads == {"_to_copy": 2, "_local_scalar_dense": 1, "index": 1}


def test_the_device_computes_and_learns_as_the_cpu() -> None:
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten())
    x = torch.randn(2, 3, 6, 6)

    def step(net: torch.nn.Module, x: Tensor) -> dict[str, Tensor]:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
        for _ in range(2):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()
        return net.state_dict()

    expected = step(copy.deepcopy(layers), x)
    with pretended():
        found = step(copy.deepcopy(layers).to(DEVICE), x.to(DEVICE))
        assert all(isinstance(tensor, Pretended) for tensor in found.values())
        assert equal(found, expected)


def test_the_device_lowers_what_autocast_lowers_on_the_cpu() -> None:
    """Double precision, in which MAdds are added up, is never lowered."""
    norm = SliceGroupNorm(Channels((8,)), 4)
    convolve, scale = torch.nn.Conv2d(8, 8, 3), torch.nn.Linear(8, 2)
    calls: list[Any] = [
        lambda x, place: convolve.to(place)(x),
        lambda x, place: scale.to(place)(x.mean((2, 3))),
        lambda x, place: norm.to(place)(convolve.to(place)(x), 0),
        lambda x, place: x.flatten(2) @ x.flatten(2).mT,
        lambda x, place: x.double().flatten(2) @ x.double().flatten(2).mT,
        lambda x, place: torch.einsum("bcij,bcij->bc", x, x),
        lambda x, place: x.softmax(1) + 1,
    ]
    x = torch.randn(2, 8, 5, 5)

    def found(place: torch.device) -> list[Tensor]:
        with torch.autocast(place.type, torch.bfloat16):
            return [call(x.to(place), place).detach().cpu() for call in calls]

    expected = found(CPU)
    assert {each.dtype for each in expected} == {torch.bfloat16, torch.float32, torch.float64}
    with pretended():
        for one, other in zip(found(DEVICE), expected, strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


# Trainings


@pytest.fixture
def apple() -> Iterator[None]:
    """The device has no double precision."""
    SINGLE.add(DEVICE.type)
    yield
    SINGLE.remove(DEVICE.type)


@pytest.fixture
def uncached() -> Iterator[None]:
    """Autocast keeps no lowered weights, in which gradients of several paths would be added up."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    yield
    torch.set_autocast_cache_enabled(before)


def assert_trains_alike(make: Make, folder: Path, config: OptimConfig = CONFIG) -> None:
    """A stage trains on the device as on the CPU: weights, moving average and losses are equal. Only images and labels
    go to the device in a step, and nothing comes back before the loop reads.

    Maps in channels-last may leave a rounding error: where gradients add up, torch leaves those of a device of Python
    in another layout, in which later sums have another order."""
    rounding = {"none": 1e-5, "bf16": 1e-2}[config.amp] if config.channels_last else 0.0
    expected = loop_of(make, folder, CPU, config)
    for batch in expected.batches.epoch(0):
        expected.step(batch)
    expected.read()
    with pretended() as account:
        loop = loop_of(make, folder, DEVICE, config)
        for number, batch in enumerate(loop.batches.epoch(0)):
            account.clear()
            loop.step(batch)
            assert not account.reads
            if number:  # the first step names the losses
                assert account.sends.total() == (0 if batch.images.device == DEVICE else 2)
        assert all(tensor.device == DEVICE for tensor in [*loop.stage.parameters(), *loop.stage.buffers()])
        loop.read()
        assert account.reads.total() == 1
        assert loop.progress.sums == pytest.approx(expected.progress.sums, rel=rounding, abs=0)
        assert replace(loop.progress, sums={}) == replace(expected.progress, sums={})
        assert equal(loop.net.state_dict(), expected.net.state_dict(), rounding)
        assert equal(loop.ema.net.state_dict(), expected.ema.net.state_dict(), rounding)


@pytest.mark.parametrize(
    ("optim", "ieb"),
    [
        ({"decay": "dense"}, {}),
        ({"name": "adamw", "clip_norm": 1.0, "accumulate": 2}, {"teacher": "ema", "mixup": 0.2}),
        ({"channels_last": True}, {"name": "ds_resnet_tiny"}),
        ({"amp": "fp16"}, {}),
    ],
    ids=["sgd", "adamw", "channels_last", "fp16"],
)
def test_stage_one_trains_on_the_device(
    tmp_path: Path, uncached: None, optim: dict[str, Any], ieb: dict[str, Any]
) -> None:
    assert_trains_alike(partial(first_stage, **ieb), tmp_path, replace(CONFIG, **optim))


@pytest.mark.parametrize(
    ("config", "cached"),
    [
        (SGSConfig("gate", bound=False), False),
        pytest.param(SGSConfig("gate", "kl", bound=False), False, marks=pytest.mark.slow),
        pytest.param(SGSConfig("exit_first", early=4, hidden=0), False, marks=pytest.mark.slow),
        (SGSConfig("exit_first", early=4, hidden=0), True),
        (SGSConfig("gate", "give_up", windows=0), True),
        (SGSConfig("gate", early=0), True),
        (SGSConfig("cheap_first"), True),
    ],
    ids=lambda value: f"{value.router}-{value.spec.targets}" if isinstance(value, SGSConfig) else "",
)
def test_stage_two_trains_on_the_device(tmp_path: Path, config: SGSConfig, cached: bool) -> None:
    assert_trains_alike(partial(second_stage, config=config, cached=cached), tmp_path)


RECIPES = {
    "imagenet_ds_mobilenet_v1": TINY,
    "imagenet_ds_resnet50": "ds_resnet_tiny",
    "imagenet_ds_efficientnet_b0": "ds_efficientnet_tiny",
}


@pytest.mark.parametrize("stage", ["optim", "sgs_optim"])
@pytest.mark.parametrize(
    "recipe", [*list(RECIPES)[:2], *(pytest.param(name, marks=pytest.mark.slow) for name in list(RECIPES)[2:])]
)
def test_the_paper_s_recipes_train_on_the_device(tmp_path: Path, uncached: None, recipe: str, stage: str) -> None:
    """Small networks of their families with the recipes' own settings: bf16, layout of maps, weight decay, and gates
    that are bound, choose within windows and run on the frozen network in every step."""
    config = config_from(read_yaml(packaged()[recipe]))
    assert config.optim.amp == config.sgs_optim.amp == "bf16"
    assert config.sgs.cache == 0
    assert config.sgs.bound
    assert config.sgs.spec.windows
    if stage == "optim":
        make: Make = partial(first_stage, name=RECIPES[recipe])
    else:
        make = partial(second_stage, config=config.sgs, cached=False, name=RECIPES[recipe])
    optim = replace(getattr(config, stage), epochs=10, batch_size=6)
    assert_trains_alike(make, tmp_path, optim)


@pytest.mark.parametrize(
    "make",
    [
        first_stage,
        partial(second_stage, config=SGSConfig("gate"), cached=False),
        partial(second_stage, config=SGSConfig("gate", early=0), cached=True),
        pytest.param(partial(second_stage, config=SGSConfig("exit_first"), cached=True), marks=pytest.mark.slow),
        pytest.param(partial(second_stage, config=SGSConfig("cheap_first"), cached=True), marks=pytest.mark.slow),
    ],
    ids=["supernet", "gate", "early", "exit_first", "cheap_first"],
)
def test_a_device_without_double_precision_trains(tmp_path: Path, apple: None, make: Make) -> None:
    """What the CPU computes in double precision is computed on the CPU."""
    expected, found = loop_of(make, tmp_path, CPU, CONFIG, reads=1), {}
    for batch in expected.batches.epoch(0):
        expected.step(batch)
    with pretended(single=True):
        loop = loop_of(make, tmp_path, DEVICE, CONFIG, reads=1)
        for batch in loop.batches.epoch(0):
            found = loop.step(batch)
        assert {loss.dtype for loss in found.values()} == {torch.float64}
        assert loop.progress.sums == pytest.approx(expected.progress.sums, rel=1e-6)
        assert equal(loop.ema.net.state_dict(), expected.ema.net.state_dict(), 1e-6)


@pytest.mark.slow
def test_a_whole_run_does_without_double_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, apple: None
) -> None:
    generator = np.random.default_rng(0)
    pixels = [(generator.integers(0, 256, (16, 16), np.uint8), number % 3) for number in range(60)]
    optim = {"steps": 2, "epochs": None, "batch_size": 16, "warmup_epochs": 0}
    monkeypatch.setattr(distributed, "find_device", lambda name: DEVICE)
    for router in ("auto", "gate"):
        keys = {"sgs": {"router": router}, "optim": optim, "sgs_optim": optim}
        with pretended(single=True):
            run = dsnet.train(dsnet.Datasets(pixels), TINY, tmp_path / router, threads=1, **keys)
        assert run.evaluation is not None
        assert run.evaluation.dynamic is not None
    half = {**keys, "optim": {**optim, "amp": "bf16"}}
    with pretended(single=True), pytest.raises(ValueError, match=r"optim.amp is bf16, but pretend .* set --optim.amp"):
        dsnet.train(dsnet.Datasets(pixels), TINY, tmp_path / "half", threads=1, **half)
    assert not (tmp_path / "half").exists()


def test_detectors_train_on_the_device() -> None:
    def losses(device: torch.device) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        x, objects = pictures(2).to(device), OBJECTS.to(device)
        net = random_detector(router=GatesConfig().spec).to(device)
        widths = WidthsStage(net, WidthsConfig()).train()
        found = dict(widths(x, objects, widths.draw(random.Random(0)), net))
        torch.stack(list(found.values())).sum().backward()
        gradients = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
        gap = median_gap(net, [Batch(x, objects, torch.arange(2))])
        return found | dict(GatesStage(net, median=gap)(x, objects, None, net)), gradients

    expected = losses(CPU)
    with pretended():
        found = losses(DEVICE)
        assert all(equal(one, other) for one, other in zip(found, expected, strict=True))


def test_recalibration_is_the_same_on_the_device() -> None:
    net = randomised(TINY)
    batches = [images(net, 4, seed) for seed in range(3)]
    expected = copy.deepcopy(net)
    recalibrate(expected, batches)
    with pretended() as account:
        there = net.to(DEVICE)
        account.clear()
        recalibrate(there, [batch.to(DEVICE) for batch in batches])
        assert account.reads.total() == len(batches)
        assert equal(there.state_dict(), expected.state_dict())


# Answers


@pytest.mark.parametrize("router", [*ROUTERS[:2], EARLY[0]], ids=lambda r: r.kind)
def test_routing_is_the_same_on_the_device(router: RouterSpec) -> None:
    net = router_net(TINY, router).float()
    x = varied(net, 24).float()
    for make in (DynamicRunner, eager):
        expected = make(net).run(x)
        assert len(expected.paths.unique(dim=0)) > 1
        with pretended():
            runner = make(copy.deepcopy(net).to(DEVICE))
            for given in (x.to(DEVICE), x, x.numpy()):
                found = runner.run(given)
                for name in ("logits", "paths", "madds"):
                    value = torch.as_tensor(getattr(found, name))
                    assert value.device == torch.as_tensor(given).device
                    assert torch.equal(value.cpu(), getattr(expected, name))


@pytest.mark.parametrize("router", [ROUTERS[0], EARLY[0]], ids=lambda r: r.kind)
def test_evaluation_is_the_same_on_the_device(router: RouterSpec) -> None:
    net = router_net("ds_resnet_tiny" if router is ROUTERS[0] else TINY, router)
    expected = traces_on(net).at(Policy(lam=0.1))
    with pretended():
        found = traces_on(net.to(DEVICE)).at(Policy(lam=0.1))
    assert np.array_equal(found.paths, expected.paths)
    assert np.array_equal(found.madds, expected.madds)
    assert np.array_equal(found.answers, expected.answers)


@pytest.mark.slow
def test_a_network_is_timed_on_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In PyTorch, with a latency table of its own. What runs on the CPU only is refused in one line."""
    net = calibrated(TINY, ROUTERS[0])
    dsnet.save(net, tmp_path / "net")
    monkeypatch.setattr(devices, "find_device", lambda name: DEVICE)
    monkeypatch.setattr(measure, "SECONDS", 0.0)
    bench = ["bench", str(tmp_path / "net"), "--device", "cuda", "--repeats", "2"]
    with pretended() as account:
        assert main([*bench, "--json", "--paths", "0", "--runtimes", "eager", "runner"]) == 0
        assert account.sends.total() > 0
        result = json.loads(capsys.readouterr().out)
        assert {row["runtime"] for row in result["widths"]["rows"]} == {"static", "eager", "runner"}
        assert result["widths"]["made"]["runtime"] == f"on {DEVICE}"
        (table,) = result["latency"]
        assert table["setting"]["runtime"].endswith(f"on {DEVICE}")
        assert len([row for row in table["rows"] if row["fixed"]]) == len(net.candidates)
        for words in (["--runtimes", "onnx"], ["--against", "mobilenet_v1"], ["--routers", "x"], ["--table1"]):
            assert main([*bench, *words]) == 2
            said = capsys.readouterr().err
            assert said.count("\n") == 1
            assert f"{' '.join(words[:1])}" in said
            assert "runs on the CPU" in said


# Mistakes


def forget(module: torch.nn.Module, name: str) -> None:
    """Leave a tensor of a module on the host."""
    held = getattr(module, name)
    assert held.device == DEVICE
    (module._buffers if name in module._buffers else module._parameters)[name] = held.detach().cpu()


@pytest.mark.parametrize(
    ("owner", "name"),
    [("", "class_weights"), ("net.head.classifier", "bias"), ("net.segments.0.rest.blocks.0.norm2", "running_mean")],
)
def test_a_tensor_that_stays_on_the_host_stops_stage_one(tmp_path: Path, owner: str, name: str) -> None:
    with pretended():
        loop = loop_of(partial(first_stage, teacher="ema"), tmp_path, DEVICE, CONFIG)
        forget(loop.stage.get_submodule(owner), name)
        with pytest.raises(WrongDeviceError):
            loop.step(next(iter(loop.batches.epoch(0))))


def test_a_teacher_that_stays_on_the_host_is_found(tmp_path: Path) -> None:
    with pretended():
        loop = loop_of(first_stage, tmp_path, DEVICE, CONFIG)
        loop.ema.net.cpu()
        with pytest.raises(WrongDeviceError):
            loop.step(next(iter(loop.batches.epoch(0))))


@pytest.mark.parametrize("name", ["edges", "costs0"])
def test_a_constant_that_stays_on_the_host_stops_stage_two(tmp_path: Path, name: str) -> None:
    config = SGSConfig("gate", bound=False)
    with pretended():
        loop = loop_of(partial(second_stage, config=config, cached=False), tmp_path, DEVICE, CONFIG)
        forget(loop.stage, name)
        with pytest.raises(WrongDeviceError):
            loop.step(next(iter(loop.batches.epoch(0))))


# A whole run


@pytest.mark.parametrize(
    ("sgs", "amp"),
    [
        ({"router": "cheap_first"}, "none"),
        *(pytest.param({"router": router}, "none", marks=pytest.mark.slow) for router in ("gate", "exit_first")),
        pytest.param(UNCACHED, "bf16", marks=pytest.mark.slow),
    ],
    ids=["cheap_first", "gate", "exit_first", "uncached gate in bf16"],
)
def test_a_whole_run_on_the_device_is_that_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uncached: None, sgs: dict[str, Any], amp: str
) -> None:
    """Both stages, recalibration, the fits of the router, budgets and the evaluation."""
    generator = np.random.default_rng(0)
    pixels = [(generator.integers(0, 256, (16, 16), np.uint8), number % 3) for number in range(60)]
    optim = {"steps": 2, "epochs": None, "batch_size": 16, "warmup_epochs": 0, "amp": amp}

    def trained(name: str) -> dsnet.Run:
        keys = {"sgs": sgs, "optim": optim, "sgs_optim": optim}
        return dsnet.train(dsnet.Datasets(pixels), TINY, tmp_path / name, threads=1, **keys)

    expected = trained("cpu")
    monkeypatch.setattr(distributed, "find_device", lambda name: DEVICE)
    with pretended():
        found = trained("device")
    assert found.evaluation is not None
    assert expected.evaluation is not None
    assert equal(dsnet.load(found.folder).state_dict(), dsnet.load(expected.folder).state_dict())
    assert found.evaluation.rows == expected.evaluation.rows
    assert found.evaluation.dynamic == expected.evaluation.dynamic
