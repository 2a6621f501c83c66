"""The memory of a training step, as benchmarks/memory.py tells it without a GPU and the ImageNet recipes state it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

from dsnet.config import packaged
from dsnet.models import create_model
from dsnet.training import IEB, IEBConfig, OptimConfig
from support.benchmarks import benchmark


@pytest.fixture(scope="module")
def memory() -> ModuleType:
    return benchmark("memory")


def test_storages_count_from_their_making_to_their_end(memory: ModuleType) -> None:
    mib = 2**20
    with memory.Shapes(), memory.Storages() as storages:
        x = torch.zeros(2**18)  # a mebibyte
        assert storages.bytes == mib
        y = x.view(2, -1)[1:]  # the same storage
        assert (storages.bytes, y.numel()) == (mib, 2**17)
        z = x + 1
        del x
        assert storages.bytes == 2 * mib  # y still needs it
        del y
        assert storages.bytes == mib
        w = z.clone().requires_grad_()
        kept = (w.exp() * 2).exp()  # the backward pass needs both results of exp
        assert storages.bytes == 4 * mib
        assert storages.most == 5 * mib
        del kept
        assert storages.bytes == 2 * mib


def step(memory: ModuleType, images: int, **more: Any) -> int:
    stage = IEB(create_model("ds_resnet_tiny", num_classes=10), IEBConfig())
    return memory.step_bytes(stage, OptimConfig(epochs=1, **more), 32, images)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_a_step_needs_weights_and_what_grows_with_the_images(memory: ModuleType) -> None:
    few, some, many = (step(memory, images) for images in (16, 32, 64))
    assert many - some == pytest.approx(2 * (some - few), rel=0.05)
    weights = 4 * sum(p.numel() for p in create_model("ds_resnet_tiny", num_classes=10).parameters())
    assert few - (some - few) > 3 * weights  # weights, their moving average, gradients or momentum
    assert step(memory, 64, accumulate=4) < 0.5 * many
    assert 0.4 * many < step(memory, 64, amp="bf16") < 0.75 * many


@pytest.mark.parametrize("name", ["imagenet_ds_mobilenet_v1", "imagenet_ds_resnet50", "imagenet_ds_efficientnet_b0"])
def test_recipes_state_their_memory(memory: ModuleType, name: str) -> None:
    text, line = packaged()[name].read_text(), "# Memory per GPU (python benchmarks/memory.py): new.\n"
    assert text.count("# Memory per GPU (python benchmarks/memory.py): stage I: ") == 1
    changed = memory.written(text, line)
    assert changed.count("Memory per GPU") == 1
    assert memory.written(memory.written(text.replace("# Memory", "# memory"), line), line).count(line) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_the_stated_memory_is_what_the_command_tells(memory: ModuleType) -> None:
    name = "imagenet_ds_mobilenet_v1"
    assert memory.described(name, [8, 1]) in packaged()[name].read_text()
