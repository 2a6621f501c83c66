"""The memory per GPU of a training step of the ImageNet recipes, without a GPU and without the images.

    python benchmarks/memory.py [--config imagenet_ds_resnet50] [--gpus 8 1] [--write]

A step runs on tensors that have shapes and no values, in the recipe's precision and batch size: forward, backward, the
optimiser and the moving average. Every storage counts from the operator that makes it until nothing refers to it, and
the largest sum is told. A real device needs more: its context and libraries (about 1 GB), workspaces of convolutions,
and what its allocator cannot use. `--write` puts the figures into the configs.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dsnet.config import packaged, read_yaml
from dsnet.data.batches import TrainBatches
from dsnet.data.config import DataConfig
from dsnet.data.dataset import Batch, Split
from dsnet.data.labelled import Loader
from dsnet.data.sources import Arrays
from dsnet.models import Supernet
from dsnet.tasks import config_from
from dsnet.training import IEB, SGS, Loop, OptimConfig, with_fresh_router
from dsnet.training.loop import READS

RECIPES = ("imagenet_ds_mobilenet_v1", "imagenet_ds_resnet50", "imagenet_ds_efficientnet_b0")
COMMAND = "python benchmarks/memory.py"
CLASSES = 1000


class Shapes(FakeTensorMode):
    """Tensors with shapes and no values. A copy of such a tensor stays one of the same mode."""

    def __deepcopy__(self, memo: Any) -> Shapes:
        return self


class Storages(TorchDispatchMode):
    """The bytes of all storages that are in use, and the most that there were."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = self.most = 0
        self.known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self.known:
            size = self.known[storage] = storage.nbytes()
            self.bytes += size
            self.most = max(self.most, self.bytes)
            weakref.finalize(storage, self.free, size)

    def free(self, size: int) -> None:
        self.bytes -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, Tensor):
                self.note(leaf)
        return found


def stages_of(config: Any) -> dict[str, tuple[Any, OptimConfig]]:
    """The stages of a recipe, and how they are optimised."""
    spec = config.model.spec(num_classes=CLASSES, in_channels=3, image_size=config.data.image_size)
    net = Supernet(spec)
    routed = with_fresh_router(net, config.routed(spec))
    return {"stage I": (IEB(net, config.ieb), config.optim), "stage II": (SGS(routed, config.sgs), config.sgs_optim)}


def without_values(stage: nn.Module, mode: FakeTensorMode) -> None:
    """Replace all tensors of a stage by some of the same shapes."""
    for module in stage.modules():
        for name, held in module._parameters.items():
            if held is not None:
                module._parameters[name] = nn.Parameter(mode.from_tensor(held.detach()), held.requires_grad)
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else mode.from_tensor(buffer)


def one_pixel() -> TrainBatches:
    """Batches whose number is all that the loop asks for."""
    source = Arrays(torch.zeros(2, 3, 1, 1, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))
    return TrainBatches(Split(Loader(source, DataConfig(), 1, (0.5,) * 3, (0.5,) * 3), torch.arange(2)), 1, seed=0)


def step_bytes(stage: Any, optim: OptimConfig, size: int, images: int) -> int:
    """The most bytes in use in the second step of a process that gets this many images. The first makes the state of
    the optimiser."""
    if optim.channels_last:
        stage.to(memory_format=torch.channels_last)
    mode = Shapes()
    without_values(stage, mode)
    stage.to = lambda *where, **options: stage  # torch cannot move parameters without values, and they are in place
    with mode, Storages() as storages, tempfile.TemporaryDirectory() as folder:
        loop: Loop[Any] = Loop(stage, one_pixel(), optim, folder=Path(folder), seed=0, momentum=0.99, reads=READS)
        loop.stage.train()
        for tensor in [*stage.state_dict().values(), *loop.ema.net.state_dict().values()]:
            storages.note(tensor)
        for _ in range(2):
            storages.most = storages.bytes
            x, labels = torch.zeros(images, 3, size, size), torch.zeros(images, dtype=torch.long)
            loop.step(Batch(x, labels, labels))
    return storages.most


def figures(name: str, gpus: list[int]) -> list[str]:
    """What each stage of a recipe needs, in words."""
    config, lines = config_from(read_yaml(packaged()[name])), []
    for stage, optim in ("stage I", config.optim), ("stage II", config.sgs_optim):
        found = []
        for count in gpus:
            images = optim.batch_size // count
            size = step_bytes(*stages_of(config)[stage], config.data.image_size, images)
            found.append(f"{size / 1e9:.1f} GB with {count} GPU{'s' * (count > 1)} ({images} images each)")
        lines.append(f"{stage}: {', '.join(found)}")
    return lines


def described(name: str, gpus: list[int]) -> str:
    return f"# Memory per GPU ({COMMAND}): {'; '.join(figures(name, gpus))}.\n"


def written(text: str, line: str) -> str:
    """The text of a config whose comment about memory is this line, at the end of the comment on top."""
    rest = re.sub(rf"# Memory per GPU \({re.escape(COMMAND)}\).*\n", "", text)
    return re.sub(r"\A((?:#.*\n)*)", lambda found: found.group(1) + line, rest, count=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", nargs="+", default=RECIPES)
    parser.add_argument("--gpus", type=int, nargs="+", default=[8, 1])
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    for name in args.config:
        line = described(name, args.gpus)
        print(f"{name}\n{line}", end="", flush=True)
        if args.write:
            packaged()[name].write_text(written(packaged()[name].read_text(), line))


if __name__ == "__main__":
    main()
